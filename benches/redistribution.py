"""Arrays that change layouts: among the ranks of one job, between two programs on one node, and between two sites.

After Hunold, Rauber and Rünger, "Design and Evaluation of a Parallel Data Redistribution Component for TGrid": time
against size, inside a site and between sites. Their limit between subnets was a third of the line rate."""

import json
import sys
from functools import partial
from statistics import median

from against import Case
from machine import (
    LANDBRIDGE,
    OPENMPI,
    OURS,
    PROGRAMS,
    VENV,
    Failed,
    clean_environment,
    describe,
    in_lab,
    installed,
    libraries,
    load,
    need,
    program,
    run,
)
from report import columns, summary

ONE_NODE = ["--sites", "1", "--nodes", "1", "--delay", "0", "--wan-rate", "0", "--nic-rate", "0"]
RATE = 200e6 / 8
RATES = ["--wan-rate", "1gbit", "--nic-rate", "1gbit", "--gateway-nic-rate", "200mbit"]
TWO_SITES = ["--sites", "2", "--nodes", "1", "--delay", "5ms", *RATES]
# Labs of two sites: options, and the joint rate of the gateways' cards in bytes per second.
APART = {
    "one gateway": ([*TWO_SITES, "--gateways", "1"], RATE),
    "two gateways": ([*TWO_SITES, "--gateways", "2"], 2 * RATE),
}
KINDS = {"quarters": "quarters to rows", "dealt": "64 x 64 to 48 x 80", "rows": "rows to the same rows"}
# Rows and columns of the arrays between two sites.
N = 2048
# Processes of the other side, each of which fetches the whole array.
COPIES = (1, 8)
BASES = {16: "alltoallw_init", 256: "alltoallw_init"}
TIMES = {"ms": "cycle", "first_ms": "first", "join_ms": "join"}


def measure(arguments):
    need(LANDBRIDGE, "run make")
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    result = {"machine": describe(), "rounds": rounds, "inside": [], "together": [], "apart": [], "problems": []}
    for mpi in installed(arguments):
        try:
            result["inside"] += [{"mpi": mpi, **line} for line in _inside(mpi, rounds)]
        except Failed as failed:
            result["problems"].append(str(failed))
    try:
        result["together"] = _together(rounds, result["problems"])
        for name, (options, rate) in APART.items():
            result["apart"] += _apart(name, options, rate, min(rounds, 3), result["problems"])
    except Failed as failed:
        result["problems"].append(str(failed))
    result["machine"]["load_after"] = load()
    return result


def cases(arguments):
    """The cases for --against: every time, not its ratio to MPI's own or to a file's. The C program is compiled with
    this checkout's header, so it takes no part."""
    found = [Case(f"inside a job, {mpi}", partial(_inside_once, mpi)) for mpi in installed(arguments)]
    found += [Case(f"on a node: {name}", partial(_together_once, kind)) for kind, name in KINDS.items()]
    return found + [Case(f"two sites: {name}", partial(_apart_once, name)) for name in APART]


def _inside_once(mpi, build, _problems):
    times = {}
    for line in _lines(mpi, [VENV[mpi] / "bin" / "python", PROGRAMS / "redistribute.py"], 1, build):
        times[f"{line['case']}, {line['n']}"] = (median(line["ms"]["ours"]), "ms")
        times[f"{line['case']}, {line['n']}: plan"] = (line["plan_ms"], "ms")
    return times


def _together_once(kind, build, problems):
    words = _couple(build, build.landbridge, 4, 4096, kind, 16)
    return _times(*in_lab(ONE_NODE, [{"name": kind, "words": words, "limit": 60}], 1, build), problems)


def _apart_once(name, build, problems):
    return _times(*in_lab(APART[name][0], _apart_commands(build), 1, build), problems)


def _times(samples, failures, problems):
    problems += failures.values()
    return {
        f"{kind}: {source}": (median(line[f"{source}_ms"] for line in lines), "ms")
        for kind, lines in samples.items()
        for source in TIMES.values()
        if lines
    }


def _lines(mpi, words, rounds, build=OURS):
    """The output of a program inside a job: a line of JSON for each case and size."""
    environment = {**clean_environment(), **libraries(mpi), "PYTHONPATH": str(build.release / "python")}
    if mpi == "openmpi":
        environment |= OPENMPI
    out, _ = run([VENV[mpi] / "bin" / "mpiexec", "-n", 4, *words, rounds], environment, limit=300)
    return list(map(json.loads, out.splitlines()))


def _inside(mpi, rounds):
    python = [VENV[mpi] / "bin" / "python", PROGRAMS / "redistribute.py"]
    for line in [*_lines(mpi, python, rounds), *_lines(mpi, [program("redistribute", mpi)], rounds)]:
        base = BASES.get(line["n"], "alltoallw")
        row = {"case": line["case"], "n": line["n"], "plan_ms": line["plan_ms"], "ms": summary(line["ms"]["ours"])}
        if base in line["ms"]:
            ratios = [ours / other for ours, other in zip(line["ms"]["ours"], line["ms"][base])]
            row |= {"base": base, "base_ms": summary(line["ms"][base]), "ratio": summary(ratios)}
        yield row


def _couple(build, *words):
    bin = VENV["mpich"] / "bin"
    environment = [f"LD_LIBRARY_PATH={VENV['mpich'] / 'lib'}", f"PYTHONPATH={build.release / 'python'}"]
    program = [sys.executable, PROGRAMS / "couple.py", *words[:1], bin / "mpiexec", bin / "python", *words[1:]]
    return ["env", *environment, *program]


def _together(rounds, problems):
    """Four and four processes on one node, against copying into and out of a shared file."""
    commands = [{"name": "file", "words": _couple(OURS, "-", 4, 4096, "file", 12), "limit": 60}]
    for kind in KINDS:
        commands.append({"name": kind, "words": _couple(OURS, LANDBRIDGE, 4, 4096, kind, 16), "limit": 60})
    samples, failures = in_lab(ONE_NODE, commands, rounds)
    problems += failures.values()
    rows, base = [], [line["cycle_ms"] for line in samples.get("file", [])]
    for kind in KINDS:
        lines = samples.get(kind, [])
        if lines and base:
            row = {"kind": kind, "file_ms": summary(base)}
            row |= {key: summary([line[f"{source}_ms"] for line in lines]) for key, source in TIMES.items()}
            rows.append({**row, "of_file": round(median(base) / row["ms"]["median"], 3)})
    return rows


def _apart_commands(build):
    sides = {kind: (4, kind) for kind in ("quarters", "dealt")}
    sides |= {f"{processes} copies": (processes, "copies") for processes in COPIES}
    return [
        {"name": name, "words": _couple(build, build.landbridge, processes, N, kind, 8, "a-n1", "b-n1"), "limit": 120}
        for name, (processes, kind) in sides.items()
    ]


def _apart(name, options, rate, rounds, problems):
    """Four and four processes at two sites: the rate relative to that of the gateways' cards."""
    samples, failures = in_lab(options, _apart_commands(OURS), rounds)
    problems += failures.values()
    rows = []
    for kind, lines in samples.items():
        if lines:
            row = {"lab": name, "kind": kind}
            row |= {key: summary([line[f"{source}_ms"] for line in lines]) for key, source in TIMES.items()}
            rows.append({**row, "of_cards": round(N * N * 8 / (row["ms"]["median"] / 1e3) / rate, 3)})
    return rows


def table(result):
    parts = []
    heading = ["inside a job", "MPI", "n", "ms", "MPI's own", "ratio", "± spread"]
    rows = [heading]
    for row in result["inside"]:
        own = f"{row['base']} {row['base_ms']['median']:.3f}" if "base" in row else ""
        ratio = [f"{row['ratio']['median']:.2f}", f"{row['ratio']['spread']:.2f}"] if "ratio" in row else ["", ""]
        rows.append([row["case"], row["mpi"], str(row["n"]), f"{row['ms']['median']:.3f}", own, *ratio])
    parts.append(columns(rows))
    rows = [["4 + 4 processes on a node, 4096²", "ms", "shared file, ms", "of its speed", "join, ms", "first data, ms"]]
    for row in result["together"]:
        cells = [f"{row[key]['median']:.1f}" for key in ("ms", "file_ms")] + [f"{row['of_file']:.2f}"]
        cells += [f"{row[key]['median']:.0f}" for key in ("join_ms", "first_ms")]
        rows.append([KINDS[row["kind"]], *cells])
    parts.append(columns(rows))
    rows = [["4 + 4 processes at two sites, 2048²", "", "ms", "of the gateways' cards", "first data, ms"]]
    for row in result["apart"]:
        cells = [f"{row['ms']['median']:.0f}", f"{row['of_cards']:.2f}", f"{row['first_ms']['median']:.0f}"]
        rows.append([row["lab"], KINDS.get(row["kind"], row["kind"]), *cells])
    parts.append(columns(rows))
    return "\n\n".join(parts + [f"FAILED {problem}" for problem in result["problems"]])


def plot(pyplot, result):
    rows = [row for row in result["inside"] if row["case"] == "quarters to rows"]
    if not rows:
        return None
    figure, axis = pyplot.subplots(figsize=(6, 4.5))
    for mpi in dict.fromkeys(row["mpi"] for row in rows):
        mine = [row for row in rows if row["mpi"] == mpi]
        speeds = [row["n"] ** 2 * 8 / row["ms"]["median"] / 1e6 for row in mine]
        axis.plot([row["n"] for row in mine], speeds, marker="o", label=mpi)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("rows and columns")
    axis.set_title("quarters to rows on 4 ranks: GB/s")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize="small")
    return figure
