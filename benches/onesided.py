"""Loops of small one-sided operations across two sites, against the same program on libfabric's tcp over a routed
network with the same delay.

Ranks 0 and 1 are at one site, and operate on rank 2 at the other.
"""

from direct import direct
from machine import LANDBRIDGE, PROVIDER, VENV, Failed, describe, in_lab, libraries, load, need, program
from report import columns, summary

DELAYS = ["0", "5ms"]
HOSTS = {"10.1.0.1": "a-n1", "10.1.0.2": "a-n2", "10.2.0.1": "b-n1"}
# The first gateway of a site is also its router.
LAB = ["--sites", "2", "--nodes", "2", "--gateways", "1", "--nic-rate", "0", "--wan-rate", "0", "--route-directly"]


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    counts = [500, 20] if arguments.quick else [2000, 50]
    result = {"machine": describe(), "rounds": rounds, "rows": [], "problems": []}
    for mpi in [arguments.mpi] if arguments.mpi else [mpi for mpi in VENV if VENV[mpi].exists()]:
        # Each accumulate of Open MPI takes several round trips, even without a flush.
        words = [program("onesided", mpi), counts[0] // (10 if mpi == "openmpi" else 1), counts[1]]
        start, environment = direct(mpi, HOSTS)
        commands = [
            {
                "name": "landbridge",
                "words": [LANDBRIDGE, "run", "--site", "a=2", "--site", "b=1", "--mpi", mpi, "--", *words],
                "environment": libraries(mpi),
                "limit": 200,
            },
            {"name": "tcp", "words": [*start, *words], "environment": environment, "limit": 200},
        ]
        for delay in DELAYS:
            try:
                samples, failures = in_lab([*LAB, "--delay", delay], commands, rounds)
            except Failed as failed:
                result["problems"].append(f"{mpi}, {delay}: {failed}")
                continue
            result["problems"] += [f"{mpi}, {delay}: {name}: {text}" for name, text in failures.items()]
            result["rows"] += _rows(mpi, delay, samples.get("landbridge", []), samples.get("tcp", []))
    result["machine"]["load_after"] = load()
    return result


def _rows(mpi, delay, ours, theirs):
    rows = []
    for kind in dict.fromkeys(sample["kind"] for sample in ours):
        a, b = ([sample["us"] for sample in samples if sample["kind"] == kind] for samples in (ours, theirs))
        row = {"mpi": mpi, "delay": delay, "kind": kind, "landbridge_us": summary(a)}
        if b:
            row |= {
                "tcp_us": summary(b),
                "ratio": summary([x / y for x, y in zip(a, b)]),
                "ratio_of_minima": round(min(a) / min(b), 3),
            }
        rows.append(row)
    return rows


def table(result):
    rows = [["8 to 32 B", "one-way delay", "operation", "landbridge µs", "tcp µs", "ratio", "± spread", "of minima"]]
    for row in result["rows"]:
        cells = [row["mpi"], row["delay"], row["kind"], f"{row['landbridge_us']['median']:.1f}"]
        if "ratio" in row:
            cells += [
                f"{row['tcp_us']['median']:.1f}",
                f"{row['ratio']['median']:.2f}",
                f"{row['ratio']['spread']:.2f}",
                f"{row['ratio_of_minima']:.2f}",
            ]
        rows.append(cells + [""] * (len(rows[0]) - len(cells)))
    return "\n".join(
        [
            columns(rows),
            *(f"FAILED {problem}" for problem in result["problems"]),
            "time per operation; a ratio under 1 means landbridge is faster",
        ]
    )
