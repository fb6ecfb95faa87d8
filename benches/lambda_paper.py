"""The experiments of the λ computing environment's paper: a solver on 1, 2 and 4 nodes that share a memory pool,
against TCP.

Imoto, Taniguchi, Baba, Murata, "Implementation and Evaluation of MPI Library with Globus Toolkit for Establishing λ
Computing Environment": the Poisson solver over array sizes, two decompositions, the share of time in communication,
and a problem that one node's memory cannot hold. Their library lost to MPICH-G2 over TCP because its board was slow
to reach."""

import re
import sys
from pathlib import Path

from machine import LANDBRIDGE, PINGPONG, ROOT, Failed, describe, in_lab, load, need, program
from report import columns, size_name, summary

POOL = "/run/pool"
LAB = ["--sites", "1", "--nodes", "4", "--delay", "0", "--wan-rate", "0", "--nic-rate", "0", "--pool", POOL]
SOLVER = ROOT / "examples" / "poisson" / "poisson"
# Both run under `landbridge run`, one rank per node, so that only the transport of messages differs.
TRANSPORTS = {"memory pool": {}, "tcp": {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"}}
SIZES = ["33x33x65", "65x65x129", "129x129x257", "257x257x513"]
LARGEST = "513x513x1025"
QUICK_SIZES = SIZES[:2]
# Between two nodes, without computing: the cost of a halo of the solver.
MESSAGES = [8, 1024, 16384, 65536, 262144, 1048576]
RANKS = {1: ["1x1x1"], 2: ["1x2x1", "1x1x2"], 4: ["1x4x1", "1x1x4"]}
TOO_BIG = "257x257x513"
BYTES_PER_POINT = 14 * 4  # arrays of float32


def points(size):
    a, b, c = (int(word) for word in size.split("x"))
    return a * b * c


def available():
    return int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text()).group(1)) << 10


def solve(size, ranks, decomposition, seconds, *before, limit=120.0):
    return {
        "limit": limit,
        "words": [
            LANDBRIDGE,
            "run",
            "-n",
            ranks,
            "--ranks-per-node",
            1,
            "--mpi",
            "mpich",
            "--",
            *before,
            SOLVER,
            "--size",
            size,
            "--decompose",
            decomposition,
            "--seconds",
            seconds,
            "--json",
            "-",
        ],
    }


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(SOLVER, "run make poisson")
    sizes = list(QUICK_SIZES if arguments.quick else SIZES)
    if not arguments.quick and available() > 1.3 * points(LARGEST) * BYTES_PER_POINT:
        sizes.append(LARGEST)
    rounds, seconds = arguments.rounds or (3 if arguments.quick else 5), 0.5 if arguments.quick else 1.5
    commands = []
    for size in sizes:
        # Three iterations, a first touch of the memory and a start, on top of the requested seconds.
        limit = 60 + 10 * seconds + points(size) / 5e5
        for ranks, decompositions in RANKS.items():
            for decomposition in decompositions:
                for transport, environment in TRANSPORTS.items():
                    if ranks > 1 or transport == "memory pool":
                        name = f"{size} {ranks} {decomposition} {transport}"
                        commands.append(
                            {
                                **solve(size, ranks, decomposition, seconds, limit=limit),
                                "name": name,
                                "environment": environment,
                            }
                        )
    result = {"machine": describe(), "rounds": rounds, "sizes": sizes, "rows": [], "messages": [], "problems": []}
    try:
        result["messages"] = _messages(rounds, 0.05 if arguments.quick else 0.2)
    except Failed as failed:
        result["problems"].append(f"messages: {failed}")
    for size in sizes:
        print(f"lambda: {size}", file=sys.stderr, flush=True)
        mine = [command for command in commands if command["name"].startswith(f"{size} ")]
        try:
            samples, failures = in_lab(LAB, mine, rounds if size != LARGEST else 1)
        except Failed as failed:
            result["problems"].append(f"{size}: {failed}")
            continue
        result["problems"] += [f"{name}: {text}" for name, text in failures.items()]
        result["rows"] += _rows(size, samples)
    result["too_big"] = _too_big()
    result["machine"]["load_after"] = load()
    return result


def _messages(rounds, seconds):
    commands = []
    for kind in PINGPONG:
        for transport, environment in TRANSPORTS.items():
            words = [
                LANDBRIDGE,
                "run",
                "-n",
                2,
                "--ranks-per-node",
                1,
                "--mpi",
                "mpich",
                "--",
                program("pingpong", "mpich"),
                kind,
                seconds,
                *MESSAGES,
            ]
            commands.append({"name": f"{kind} {transport}", "words": words, "environment": environment})
    samples, failures = in_lab(LAB, commands, rounds)
    if failures:
        raise Failed("; ".join(failures.values()))
    rows = []
    for kind, figure in PINGPONG.items():
        for size in MESSAGES:
            ours, theirs = (
                [line[figure] for line in samples[f"{kind} {transport}"] if line["size"] == size]
                for transport in TRANSPORTS
            )
            if kind == "stream":
                ours, theirs = ([1e6 / value for value in values] for values in (ours, theirs))
            ratio = summary([a / b for a, b in zip(ours, theirs)])
            rows.append(
                {"kind": kind, "bytes": size, "pool_us": summary(ours), "tcp_us": summary(theirs), "time_of_tcp": ratio}
            )
    return rows


def _rows(size, samples):
    rows = []
    for name, lines in samples.items():
        _, ranks, decomposition, transport = name.split(" ", 3)
        iteration_s = [line["seconds"] / line["iterations"] for line in lines]
        row = {
            "size": size,
            "ranks": int(ranks),
            "decomposition": decomposition,
            "transport": transport,
            "mflops": summary([line["mflops"] for line in lines]),
            "iteration_ms": summary([1e3 * value for value in iteration_s]),
            "share_communicating": summary([line["share_communicating"]["mean"] for line in lines]),
        }
        if rival := samples.get(f"{size} {ranks} {decomposition} tcp"):
            theirs = [line["seconds"] / line["iterations"] for line in rival]
            row["time_of_tcp"] = summary([ours / other for ours, other in zip(iteration_s, theirs)])
            row["least_of_tcp"] = min(iteration_s) / min(theirs)
        rows.append(row)
    return rows


def _too_big():
    """A problem that exceeds the data limit of one process (one rank per node, so: of a node): one rank fails, two
    ranks on two nodes succeed."""
    limit = int(0.8 * points(TOO_BIG) * BYTES_PER_POINT)
    limited = ["prlimit", f"--data={limit}"]
    commands = [
        {**solve(TOO_BIG, 1, "1x1x1", 1, *limited), "name": "one node"},
        {**solve(TOO_BIG, 2, "1x1x2", 1, *limited), "name": "two nodes"},
    ]
    samples, failures = in_lab(LAB, commands, 1)
    lines = failures.get("one node", "it ran, though it should not fit").strip().splitlines()
    refused = next((line for line in lines if line.startswith("poisson")), lines[-1])
    return {
        "size": TOO_BIG,
        "limit_mib": limit >> 20,
        "needs_mib": points(TOO_BIG) * BYTES_PER_POINT >> 20,
        "one node": refused,
        "one_node_failed": "one node" in failures,
        "two_nodes": samples.get("two nodes", [failures.get("two nodes")])[0],
    }


def table(result):
    rows = [["message", "bytes", "pool µs", "tcp µs", "time of tcp's", "± spread"]]
    for row in result["messages"]:
        ratio = row["time_of_tcp"]
        medians = [f"{row[name]['median']:.2f}" for name in ("pool_us", "tcp_us")]
        rows.append(
            [row["kind"], size_name(row["bytes"]), *medians, f"{ratio['median']:.2f}", f"{ratio['spread']:.2f}"]
        )
    parts = [columns(rows)]
    rows = [
        [
            "array",
            "ranks",
            "decomposition",
            "transport",
            "MFLOPS",
            "ms per iteration",
            "communicating",
            "time of tcp's",
            "± spread",
            "of minima",
        ]
    ]
    for row in result["rows"]:
        against = row.get("time_of_tcp") if row["transport"] != "tcp" else None
        rows.append(
            [
                row["size"],
                str(row["ranks"]),
                row["decomposition"],
                row["transport"] if row["ranks"] > 1 else "none",
                f"{row['mflops']['median']:.0f}",
                f"{row['iteration_ms']['median']:.3f}",
                f"{row['share_communicating']['median'] * 100:.0f} %",
                f"{against['median']:.2f}" if against else "",
                f"{against['spread']:.2f}" if against else "",
                f"{row['least_of_tcp']:.2f}" if against else "",
            ]
        )
    parts.append(columns(rows))
    big = result["too_big"]
    both = big["two_nodes"]
    two = f"{both['mflops']:.0f} MFLOPS on two" if isinstance(both, dict) else f"FAILED on two: {both}"
    parts.append(
        f"{big['size']} needs {big['needs_mib']} MiB, each node may use {big['limit_mib']}: one node: "
        f"{big['one node']}; {two}"
    )
    if not big["one_node_failed"]:
        parts.append("FAILED: one node's limit was not felt")
    parts += [f"FAILED {problem}" for problem in result["problems"]]
    return "\n".join(parts)


def plot(pyplot, result):
    if not result["rows"]:
        return None
    figure, axes = pyplot.subplots(1, 4, figsize=(20, 4.5))
    series = {}
    for row in result["rows"]:
        series.setdefault((row["ranks"], row["decomposition"], row["transport"]), []).append(row)
    colours = {cut: f"C{number}" for number, cut in enumerate(dict.fromkeys((ranks, cut) for ranks, cut, _ in series))}
    for (ranks, decomposition, transport), rows in series.items():
        label = "1 rank" if ranks == 1 else f"{ranks} ranks {decomposition}, {transport}"
        style = {
            "linestyle": "-" if transport == "memory pool" else "--",
            "color": colours[ranks, decomposition],
            "marker": "o",
            "label": label,
        }
        x = [points(row["size"]) for row in rows]
        axes[0].plot(x, [row["mflops"]["median"] for row in rows], **style)
        if ranks > 1:
            axes[1].plot(x, [row["share_communicating"]["median"] for row in rows], **style)
            if transport != "tcp" and all("time_of_tcp" in row for row in rows):
                axes[2].plot(x, [row["time_of_tcp"]["median"] for row in rows], **style)
    for kind, name in (("latency", "half round trip"), ("stream", "stream, time per message")):
        mine = [row for row in result["messages"] if row["kind"] == kind]
        axes[3].plot(
            [row["bytes"] for row in mine], [row["time_of_tcp"]["median"] for row in mine], marker="o", label=name
        )
    for axis in axes[2:]:
        axis.axhline(1.0, color="grey", linewidth=0.8)
    titles = (
        "MFLOPS",
        "share of time communicating",
        "memory pool: time of tcp's (less is better)",
        "messages alone: time of tcp's",
    )
    for axis, title, unit in zip(axes, titles, ["grid points"] * 3 + ["bytes"]):
        axis.set_xscale("log")
        axis.set_xlabel(unit)
        axis.set_title(title)
        axis.legend(fontsize="x-small")
    return figure
