"""The experiments of the paper on the redistribution component for TGrid: throughput per node against the size of the
array and the number of processes, inside a site and between two, and the time of each phase.

Hunold, Rauber and Rünger, "Design and Evaluation of a Parallel Data Redistribution Component for TGrid". They found a
constant cost of the protocol; serialization that made fast networks as slow as slow ones; and, between subnets, at most
a third of the line rate, because two gateways stored each message and forwarded it whole."""

from statistics import median

from machine import LANDBRIDGE, PROGRAMS, RELEASE, VENV, Failed, describe, in_lab, load, need
from report import columns, summary

RATE = 200e6 / 8
INSIDE = ["--sites", "1", "--nodes", "2", "--delay", "0", "--nic-rate", "200mbit"]
CARDS = ["--wan-rate", "1gbit", "--nic-rate", "200mbit", "--gateway-nic-rate", "200mbit"]
LABS = {
    "inside": INSIDE,
    "between": ["--sites", "2", "--nodes", "1", "--delay", "5ms", *CARDS],
}
PROCESSES = [1, 2, 4, 8]
SIZES = [256, 512, 1024, 2048, 4096, 8192]
QUICK_SIZES = [256, 1024, 2048]
EACH = 2 << 20
PHASES = ["plan", "pack", "send", "unpack", "run", "pickled"]


def measure(arguments):
    need(LANDBRIDGE, "run make")
    sizes = QUICK_SIZES if arguments.quick else SIZES
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    result = {"machine": describe(), "rounds": rounds, "rate": RATE, "rows": [], "constant": [], "problems": []}
    for lab, options in LABS.items():
        commands = [{"name": str(count), "words": _words(count, sizes), "limit": 240} for count in PROCESSES]
        try:
            samples, failures = in_lab(options, commands, rounds)
        except Failed as failed:
            result["problems"].append(str(failed))
            continue
        result["problems"] += failures.values()
        for count in PROCESSES:
            lines = samples.get(str(count), [])
            if not lines:
                continue
            for at in range(len(sizes)):
                result["rows"].append(_row(lab, count, [line["sizes"][at] for line in lines]))
            result["constant"].append(_row(lab, count, [line["constant"] for line in lines]))
    result["machine"]["load_after"] = load()
    return result


def _words(count, sizes):
    environment = [f"LD_LIBRARY_PATH={VENV['mpich'] / 'lib'}", f"PYTHONPATH={RELEASE / 'python'}"]
    words = [LANDBRIDGE, "run", "-n", 2 * count, "--ranks-per-node", count, "--mpi", "mpich", "-x", "PYTHONPATH", "--"]
    return ["env", *environment, *words, VENV["mpich"] / "bin" / "python", PROGRAMS / "phases.py", EACH, *sizes]


def _row(lab, count, lines):
    n = lines[0]["n"]
    row = {"lab": lab, "processes": count, "n": n}
    row |= {phase: summary([1e3 * line[phase] for line in lines]) for phase in PHASES if phase in lines[0]}
    speed = n * n * 8 / median(line["run"] for line in lines)
    return {**row, "of_card": round(speed / RATE, 3)}


def table(result):
    parts = []
    for name, title in [("rows", "n"), ("constant", f"{EACH >> 20} MiB on each, n")]:
        rows = [["", "processes", title, "of the card", *(f"{phase}, ms" for phase in PHASES)]]
        for row in result[name]:
            cells = [f"{row[phase]['median']:.2f}" if phase in row else "" for phase in PHASES]
            count = row["processes"]
            rows.append([row["lab"], f"{count} to {count}", str(row["n"]), f"{row['of_card']:.2f}", *cells])
        parts.append(columns(rows))
    return "\n\n".join(parts + [f"FAILED {problem}" for problem in result["problems"]])


def plot(pyplot, result):
    if not result["rows"]:
        return None
    figure, axes = pyplot.subplots(1, 3, figsize=(16, 4.5))
    for axis, lab in zip(axes, LABS):
        for count in PROCESSES:
            mine = [row for row in result["rows"] if (row["lab"], row["processes"]) == (lab, count)]
            speeds = [row["of_card"] * RATE / 1e6 for row in mine]
            axis.plot([row["n"] for row in mine], speeds, marker="o", label=f"{count} to {count}")
        axis.axhline(RATE / 1e6, color="gray", linestyle=":", label="a card")
        if lab == "between":
            axis.axhline(RATE / 3e6, color="gray", linestyle="--", label="the paper's bound")
        axis.set_xscale("log", base=2)
        axis.set_xlabel("rows and columns")
        axis.set_title(f"{lab}: MB/s per node")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize="small")
    for count in PROCESSES:
        mine = [row for row in result["rows"] if (row["lab"], row["processes"]) == ("between", count) and "send" in row]
        shares = [row["plan"]["median"] / (row["plan"]["median"] + row["run"]["median"]) for row in mine]
        axes[2].plot([row["n"] for row in mine], shares, marker="o", label=f"{count} to {count}")
    axes[2].set_xscale("log", base=2)
    axes[2].set_xlabel("rows and columns")
    axes[2].set_title("between: share of making the plan")
    axes[2].set_ylim(0, 1)
    axes[2].legend(fontsize="small")
    return figure
