"""The cost of waiting: CPU while nothing arrives, and time when ranks do or do not outnumber cores."""

import os

from machine import LANDBRIDGE, PROGRAMS, VENV, Failed, describe, in_lab, libraries, load, need
from report import columns, summary

LAB = ["--sites", "1", "--nodes", "4", "--delay", "0", "--wan-rate", "0", "--nic-rate", "0"]
ALLREDUCE = 128 << 10
TCP = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"}
ALWAYS = {"LANDBRIDGE_SPIN": "always"}


def ranks(count, per_node, *words, mpi="mpich"):
    return [LANDBRIDGE, "run", "-n", count, "--ranks-per-node", per_node, "--mpi", mpi, "--", *words]


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(VENV["mpich"], "run make venv")
    need(VENV["intel"], "run make venv-intel")
    rounds, seconds = arguments.rounds or (3 if arguments.quick else 5), 1 if arguments.quick else 3
    crowd = 2 * (os.cpu_count() or 2)
    one_each, one_node = 1, crowd
    blocked, allreduce = (
        [PROGRAMS / "waiting", "blocked", seconds],
        [PROGRAMS / "waiting", "allreduce", seconds, ALLREDUCE],
    )
    pingpong = [PROGRAMS / "pingpong", "latency", seconds / 3, 8]
    inside = {"MPIR_CVAR_NOLOCAL": "1"}
    commands = [
        {"name": "blocked, between nodes", "words": ranks(4, one_each, *blocked)},
        {"name": "blocked, between nodes, tcp", "words": ranks(4, one_each, *blocked), "environment": TCP},
        {"name": "blocked, in a node", "words": ranks(crowd, one_node, *blocked), "environment": inside},
        {"name": "blocked, in a node, MPICH's own", "words": ranks(crowd, one_node, *blocked)},
        {"name": "allreduce, between nodes", "words": ranks(4, one_each, *allreduce)},
        {"name": "allreduce, between nodes, tcp", "words": ranks(4, one_each, *allreduce), "environment": TCP},
        {"name": "allreduce, in a node", "words": ranks(4, 4, *allreduce), "environment": inside},
        {"name": "allreduce, in a node, tcp", "words": ranks(4, 4, *allreduce), "environment": {**inside, **TCP}},
        {"name": "pingpong, between nodes", "words": ranks(2, 1, *pingpong)},
        {"name": "pingpong, between nodes, always spinning", "words": ranks(2, 1, *pingpong), "environment": ALWAYS},
        {"name": "pingpong, in a node", "words": ranks(2, 2, *pingpong), "environment": inside},
        {
            "name": "pingpong, in a node, always spinning",
            "words": ranks(2, 2, *pingpong),
            "environment": {**inside, **ALWAYS},
        },
    ]
    # Messages that bypass the provider: the library still polls it while it waits for them.
    for mpi in ("mpich", "intel"):
        for name, environment in (("", {}), (", tcp", TCP)):
            commands.append(
                {
                    "name": f"pingpong, {mpi}'s own memory{name}",
                    "words": ranks(2, 2, *pingpong, mpi=mpi),
                    "environment": {**libraries(mpi), **environment},
                }
            )
    result = {"machine": describe(), "rounds": rounds, "rows": [], "problems": []}
    try:
        samples, failures = in_lab(LAB, commands, rounds)
        result["problems"] += [f"{name}: {text}" for name, text in failures.items()]
        result["rows"] = _rows(samples)
    except Failed as failed:
        result["problems"].append(str(failed))
    result["machine"]["load_after"] = load()
    return result


def _rows(samples):
    rows = []
    for name, lines in samples.items():
        figure = "share" if name.startswith("blocked") else "p50_us"
        row = {"what": name, "figure": figure, "value": summary([line[figure] for line in lines])}
        for suffix in (", tcp", ", always spinning", ", MPICH's own"):
            if other := samples.get(name + suffix):
                row["against"] = suffix[2:]
                row["ratio"] = summary([a[figure] / b[figure] for a, b in zip(lines, other)])
        rows.append(row)
    return rows


def table(result):
    rows = [["waiting", "figure", "median", "± spread", "against", "ratio", "± spread"]]
    for row in result["rows"]:
        value, ratio = row["value"], row.get("ratio")
        text = f"{value['median'] * 100:.1f} %" if row["figure"] == "share" else f"{value['median']:.1f} µs"
        rows.append(
            [
                row["what"],
                "of a core" if row["figure"] == "share" else "median time",
                text,
                f"{value['spread']:.2f}",
                row.get("against", ""),
                f"{ratio['median']:.2f}" if ratio else "",
                f"{ratio['spread']:.2f}" if ratio else "",
            ]
        )
    return "\n".join([columns(rows), *(f"FAILED {problem}" for problem in result["problems"])])
