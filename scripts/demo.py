#!/usr/bin/env python3
"""`make demo`: one unmodified MPI program across two private clusters on this machine.

Runs examples/poisson on four ranks twice: once under MPICH's own mpiexec on this machine as it is, once with
`landbridge run` across a lab of two sites of two nodes, 5 ms apart, that cannot reach each other except through
their gateways. The two pressure fields must be identical bit for bit.

demo.py [FOLDER]: takes the command from FOLDER, by default target/demo."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples" / "poisson"))
import compare  # noqa: E402 (the path is set above)

LANDBRIDGE = Path(*sys.argv[1:2] or [ROOT / "target" / "demo"]).resolve() / "landbridge"
POISSON = ROOT / "examples" / "poisson" / "poisson"
MPIEXEC = ROOT / ".venv" / "bin" / "mpiexec"
# Not in /tmp: each node of a lab has its own /tmp.
OUT = ROOT / "out" / "demo"

SIZE = "M"
RANKS = 4
ITERATIONS = 100
DELAY = "5ms"
LONGEST_S = 120


class Failure(Exception):
    """An error, as one line for the user."""


def run(what, command):
    """Runs a command to its end, with its output on the terminal, for at most LONGEST_S."""
    print(f"demo: {what}\n      $ {' '.join(str(word).removeprefix(f'{ROOT}/') for word in command)}", flush=True)
    process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        code = process.wait(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # landbridge takes its lab down, then ends
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise Failure(f"{what}: not done after {LONGEST_S} s") from None
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code != 0:
        raise Failure(f"{what}: exit code {code}")


def read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {error}") from None


def poisson(name):
    """The program's command line and the two files it will write."""
    report, field = OUT / f"{name}.json", OUT / f"{name}.f32"
    command = [
        POISSON,
        "--size",
        SIZE,
        "--iterations",
        str(ITERATIONS),
        "--coefficients",
        "varied",
        "--json",
        report,
        "--field",
        field,
    ]
    return command, report, field


def table(rows):
    """Rows of (label, value, value) as aligned text."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join([str(row[0]).ljust(widths[0]), str(row[1]).rjust(widths[1]), str(row[2]).rjust(widths[2])]))


def megabytes(count):
    return f"{count / 1e6:.1f} MB"


def demonstrate():
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()

    program, one_report, one_field = poisson("one-site")
    run(f"{RANKS} ranks on one site, under MPICH's own mpiexec", [MPIEXEC, "-n", str(RANKS), *program])
    program, two_report, two_field = poisson("two-sites")
    summary = OUT / "run.json"
    run(
        f"{RANKS} ranks across two sites, {DELAY} apart",
        [
            LANDBRIDGE,
            "lab",
            "--sites",
            "2",
            "--nodes",
            "2",
            "--delay",
            DELAY,
            "--",
            LANDBRIDGE,
            "run",
            "-n",
            str(RANKS),
            f"--json={summary}",
            "--",
            *program,
        ],
    )

    one, two, job = read_json(one_report), read_json(two_report), read_json(summary)
    size = compare.parse_size(SIZE)
    difference = compare.first_difference(compare.read_field(one_field, size), compare.read_field(two_field, size))
    if difference:
        raise Failure(f"the fields differ: {difference}")
    if not job["ok"] or job["ranks"] != RANKS or len(job["sites"]) != 2:
        raise Failure(f"{summary} does not describe {RANKS} ranks on two sites: {job}")
    if job["bytes_relayed"] <= 0:
        raise Failure(f"{summary}: nothing was relayed, so this was no run across sites")

    print(f"\nThe fields are identical, bit for bit ({one_field.stat().st_size:,} bytes).\n")
    sites = ", ".join(f"{site['name']} ({', '.join(site['nodes'])})" for site in job["sites"])
    ranks = ", ".join(f"{site['name']}: {' '.join(map(str, site['ranks']))}" for site in job["sites"])

    def share(report):
        return f"{100 * report['share_communicating']['mean']:.0f} %"

    table(
        [
            ("", "one site", "two sites"),
            ("sites", "this machine", sites),
            ("ranks", str(one["ranks"]), ranks),
            ("bytes relayed", "0", megabytes(job["bytes_relayed"])),
            ("MFLOPS", f"{one['mflops']:.0f}", f"{two['mflops']:.0f}"),
            ("time communicating", share(one), share(two)),
        ]
    )
    if LANDBRIDGE.parent.name == "demo":
        print(
            "\nThis was a quick build, in target/demo. `make` builds the release, which is faster, in target/release."
        )


def main():
    try:
        demonstrate()
    except Failure as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
