"""A broadcast to four nodes of one site over plain TCP: blocks and packets down a binomial tree, packets down a chain.

Figure 9 of Lee and Han, "A Two-Phase Scheduling Algorithm for Efficient Collective Communications of MPICH-G2", whose
packets took 0.81 of the time of blocks."""

import sys
from statistics import median

from machine import LANDBRIDGE, PROGRAMS, Failed, describe, in_lab, load, need
from report import columns, summary

LAB = ["--sites", "1", "--nodes", "4", "--delay", "0", "--wan-rate", "0", "--nic-rate", "200Mbit"]
SIZES = [100_000 * step for step in range(1, 11)]
QUICK_SIZES = [100_000, 400_000, 1_000_000]
PACKET = 4096
WAYS = {
    "acknowledged": "blocks, each acknowledged",
    "block": "blocks",
    "packet": "packets, same tree",
    "chain": "packets, chain",
}
BASE = "acknowledged"


def measure(arguments):
    need(LANDBRIDGE, "run make")
    sizes = QUICK_SIZES if arguments.quick else SIZES
    rounds, repeats = arguments.rounds or (3 if arguments.quick else 9), 3 if arguments.quick else 5
    result = {"machine": describe(), "rounds": rounds, "repeats": repeats, "packet": PACKET, "rows": [], "problems": []}
    words = [sys.executable, PROGRAMS / "spread.py", LANDBRIDGE, rounds, repeats, PACKET, ",".join(map(str, sizes))]
    try:
        samples, failures = in_lab(LAB, [{"name": "spread", "words": words, "limit": 60 + 20 * rounds}], 1)
        result["problems"] += failures.values()
        result["rows"] = _rows(samples.get("spread", []), rounds)
    except Failed as failed:
        result["problems"].append(str(failed))
    result["machine"]["load_after"] = load()
    return result


def _rows(lines, rounds):
    """Rows with ratios of medians. A ratio's spread is that of the ratios of each round's medians."""
    rows = []
    seconds = {(line["way"], line["bytes"]): line["seconds"] for line in lines}
    for (way, size), times in seconds.items():
        base = seconds[BASE, size]
        repeats = len(times) // rounds
        by_round = [
            median(times[i : i + repeats]) / median(base[i : i + repeats]) for i in range(0, len(times), repeats)
        ]
        rows.append(
            {
                "way": way,
                "bytes": size,
                "ms": summary([1e3 * value for value in times]),
                "ratio": round(median(times) / median(base), 4),
                "within_rounds": summary(by_round),
            }
        )
    return rows


def table(result):
    sizes = list(dict.fromkeys(row["bytes"] for row in result["rows"]))
    found = {(row["way"], row["bytes"]): row for row in result["rows"]}
    heading = ["of acknowledged blocks (ms)", *(f"{size // 1000} KB" for size in sizes), "median"]
    rows = [heading]
    for way, name in WAYS.items():
        mine = [found[way, size] for size in sizes if (way, size) in found]
        cells = [f"{row['ratio']:.2f} ({row['ms']['median']:.1f})" for row in mine]
        middle = f"{median(row['ratio'] for row in mine):.2f}" if mine else ""
        rows.append([name, *cells, middle])
    parts = [columns(rows)] if sizes else []
    return "\n".join(parts + [f"FAILED {problem}" for problem in result["problems"]])


def plot(pyplot, result):
    if not result["rows"]:
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for way, name in WAYS.items():
        mine = [row for row in result["rows"] if row["way"] == way]
        x = [row["bytes"] / 1000 for row in mine]
        axes[0].plot(x, [row["ms"]["median"] for row in mine], marker="o", label=name)
        axes[1].plot(x, [row["ratio"] for row in mine], marker="o", label=name)
    axes[0].set_title("four nodes, cards of 200 Mbit/s: ms")
    axes[1].set_title("time of acknowledged blocks' (less is better)")
    axes[1].axhline(0.55, color="grey", linewidth=0.8)
    for axis in axes:
        axis.set_xlabel("KB")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize="small")
    return figure
