"""Broadcast trees through simulated networks: figures 7a (members) and 7b (message size) of Lee and Han, "A Two-Phase
Scheduling Algorithm for Efficient Collective Communications of MPICH-G2", in five regimes, and long messages.

`testing/simulation/examples/broadcast.rs` simulates; this module has the regimes, the statistics and the drawing."""

import math
import random
import subprocess
import sys
from dataclasses import dataclass
from statistics import fmean

from machine import RELEASE, ROOT, Failed, Missing, describe, json_lines, load, run
from report import columns, size_name

PROGRAM = RELEASE / "examples" / "broadcast"
TPS, OURS, SINGLE = "tps_fef", "ours", "ours_single"
RIVALS = ["flat", "binomial", "hlot_rec", "ecef_size", "fef_size", "ttcc"]
# Curves whose times are compared with those of all curves.
COMPARED = [TPS, OURS]
NAMES = {
    "flat": "flat (MagPIe)",
    "binomial": "binomial (MPICH)",
    "hlot_rec": "HLOT",
    "ecef_size": "ECEF",
    "fef_size": "FEF",
    "ttcc": "TTCC",
    TPS: "TPS",
    OURS: "ours",
    SINGLE: "ours, one tree",
}

CHOSEN = [f"{name}:packet" for name in (OURS, SINGLE)]


@dataclass(frozen=True)
class Regime:
    """Links and TCP's first window, in segments; the modes of the rivals and of TPS. Ours always sends packets."""

    name: str
    links: str
    initial: int
    rivals: str
    tps: str

    def curves(self):
        """ALGORITHM:MODE of each curve that is drawn."""
        return [f"{name}:{self.rivals}" for name in RIVALS] + [f"{TPS}:{self.tps}", *CHOSEN]


# When the paper was written, TCP began with 3 segments (RFC 3390); today it begins with 10 (RFC 6928).
REGIMES = [
    Regime("TPS packets, others blocks, uniform links", "uniform", 3, "acknowledged", "packet"),
    Regime("all packets, uniform links", "uniform", 3, "packet", "packet"),
    Regime("all packets, unlike links", "unlike", 3, "packet", "packet"),
    Regime("all blocks, uniform links", "uniform", 3, "acknowledged", "acknowledged"),
    Regime("all packets, uniform links, today's TCP", "uniform", 10, "packet", "packet"),
]
PACKETS = [f"{name}:packet" for name in [*RIVALS, TPS]] + CHOSEN
MEMBERS, SIZES = [10, 20, 30, 40, 50, 60], [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10]
QUICK_MEMBERS, QUICK_SIZES = [10, 30, 60], [1 << 10, 16 << 10, 256 << 10]
# Members in figure 7b, and message size in figure 7a.
AT_MEMBERS, AT_SIZE = 30, 64 << 10
LONG_SIZE, LONG_MEMBERS, LONG_WINDOW = 16 << 20, 12, 4 << 20
RESAMPLES = 2000


def measure(arguments):
    _build()
    quick = arguments.quick
    seeds = arguments.rounds or (2 if quick else 10)
    result = {"machine": describe(), "seeds": seeds, "rows": [], "others": [], "problems": []}
    cells = [(count, AT_SIZE) for count in (QUICK_MEMBERS if quick else MEMBERS)]
    cells += [(AT_MEMBERS, size) for size in (QUICK_SIZES if quick else SIZES) if (AT_MEMBERS, size) not in cells]
    for links, initial in dict.fromkeys((regime.links, regime.initial) for regime in REGIMES):
        alike = [regime for regime in REGIMES if (regime.links, regime.initial) == (links, initial)]
        curves = sorted({curve for regime in alike for curve in regime.curves()})
        options = ["--rates", links, "--initial", initial]
        found = _simulate(result, f"{links} links, {initial} segments", seeds, cells, curves, *options)
        for regime in alike:
            result["rows"] += _rows(regime.name, found, cells, regime.curves())
    few = min(seeds, 2 if quick else 4)
    long, at = [(LONG_MEMBERS, LONG_SIZE)], [(AT_MEMBERS, AT_SIZE)]
    # Copies of long messages are nothing that anybody would send.
    singles = [curve for curve in PACKETS if not curve.startswith("ttcc")]
    cases = [
        (f"{links} links", long, singles, ["--rates", links, "--window", LONG_WINDOW])
        for links in ("uniform", "unlike")
    ]
    for nodes in [1000] if quick else [1000, 10_000]:
        cases.append((f"{nodes} nodes, unlike links", at, PACKETS, ["--nodes", nodes, "--rates", "unlike"]))
    for name, cell, curves, options in cases:
        found = _simulate(result, f"{size_name(cell[0][1])}, {name}", few, cell, curves, *options)
        result["others"] += _rows(name, found, cell, curves)
    result["machine"]["load_after"] = load()
    return result


def _build():
    words = ["cargo", "build", "--release", "--quiet", "-p", "landbridge-simulation", "--example", "broadcast"]
    done = subprocess.run(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Missing(f"the simulator does not compile:\n{done.stderr}")


def _simulate(result, what, seeds, cells, curves, *options):
    """The program's lines by (members, bytes, curve, seed). A seed that cannot be simulated is reported as a problem,
    and is missing."""
    lines = {}
    for seed in range(1, seeds + 1):
        print(f"broadcast: {what}, seed {seed} of {seeds}", file=sys.stderr, flush=True)
        words = [PROGRAM, "--seeds", f"{seed}-{seed}", "--curves", ",".join(curves), "--traffic", 2]
        words += ["--cells", ",".join(f"{count}x{size}" for count, size in cells), *options]
        try:
            out, _ = run(words, limit=900)
        except Failed as failed:
            result["problems"].append(f"{what}: {failed}")
            continue
        for line in json_lines(out):
            lines[line["members"], line["bytes"], f"{line['algorithm']}:{line['mode']}", seed] = line
    return lines


def _rows(regime, lines, cells, curves):
    rows = []
    for count, size in cells:
        by_curve = {
            curve: {key[3]: line for key, line in lines.items() if key[:3] == (count, size, curve)} for curve in curves
        }
        for curve, mine in by_curve.items():
            if not mine:
                continue
            seconds = {seed: line["seconds"] for seed, line in mine.items()}
            row = {"regime": regime, "members": count, "bytes": size, "curve": curve, "by_seed": seconds}
            row["seconds"] = interval(list(seconds.values()))
            row["timeouts"] = fmean(line["timeouts"] for line in mine.values())
            for name in COMPARED:
                other = next((by_curve[known] for known in curves if known.startswith(f"{name}:")), {})
                both = [other[seed]["seconds"] / seconds[seed] for seed in seconds if seed in other]
                row[f"{name}_over_it"] = interval(both) if both else None
            rows.append(row)
    return rows


def interval(values):
    """Geometric mean of positive values, with the 95 % interval of the bootstrap (percentiles of resampled means)."""
    logs = [math.log(value) for value in values]
    drawn = random.Random(len(logs))
    means = sorted(fmean(drawn.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]
    return {"mean": math.exp(fmean(logs)), "low": math.exp(low), "high": math.exp(high), "n": len(logs)}


def table(result):
    parts = []
    for regime in REGIMES:
        for figure in ("7a", "7b"):
            mine = [row for row in result["rows"] if row["regime"] == regime.name and _is_in(row, figure)]
            parts.append(_table(f"{figure}: {regime.name}", mine, figure))
    for name in dict.fromkeys(row["regime"] for row in result["others"]):
        mine = [row for row in result["others"] if row["regime"] == name]
        parts.append(_table(f"{mine[0]['members']} members, {name}", mine, "7b"))
    parts += [f"FAILED {problem}" for problem in result["problems"]]
    over = " and ".join(NAMES[name] for name in COMPARED)
    parts.append(f"seconds until all members have it; in parentheses, time of {over} over it; geometric means")
    return "\n\n".join(parts)


def _is_in(row, figure):
    return row["bytes"] == AT_SIZE if figure == "7a" else row["members"] == AT_MEMBERS


def _table(title, mine, figure):
    def place(row):
        return (row["members"], row["bytes"])

    heads = sorted({place(row) for row in mine})
    rows = [[title, *(f"{count} members" if figure == "7a" else size_name(size) for count, size in heads)]]
    for curve in dict.fromkeys(row["curve"] for row in mine):
        found = {place(row): row for row in mine if row["curve"] == curve}
        rows.append([NAMES[curve.split(":")[0]], *(_cell(found.get(head)) for head in heads)])
    return columns(rows)


def _cell(row):
    if row is None:
        return ""
    ratios = [row[f"{name}_over_it"] for name in COMPARED]
    texts = [f"{ratio['mean']:.2f}" if ratio else "?" for ratio in ratios]
    return f"{row['seconds']['mean']:.3f} ({', '.join(texts)})"


def plot(pyplot, result):
    if not result["rows"]:
        return None
    figure, axes = pyplot.subplots(len(REGIMES), 2, figsize=(14, 3.8 * len(REGIMES)), squeeze=False)
    for regime, line in zip(REGIMES, axes):
        for axis, name in zip(line, ("7a", "7b")):
            _draw(axis, [row for row in result["rows"] if row["regime"] == regime.name and _is_in(row, name)], name)
            axis.set_title(regime.name, fontsize="medium")
        line[1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


def _draw(axis, mine, figure):
    colours = {name: f"C{number}" for number, name in enumerate(NAMES)}
    key = "members" if figure == "7a" else "bytes"
    for curve in dict.fromkeys(row["curve"] for row in mine):
        rows = sorted((row for row in mine if row["curve"] == curve), key=lambda row: row[key])
        algorithm, mode = curve.split(":")
        style = {"color": colours[algorithm], "linewidth": 2.5 if algorithm in COMPARED else 1.2}
        x = [row[key] for row in rows]
        mean, low, high = ([row["seconds"][part] for row in rows] for part in ("mean", "low", "high"))
        label = f"{NAMES[algorithm]}, {'packets' if mode == 'packet' else 'blocks'}"
        axis.plot(x, mean, marker="o", markersize=4, label=label, **style)
        axis.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axis.set_yscale("log", subs=[])
    axis.yaxis.get_major_locator().set_params(subs=[1.0, 2.0, 5.0])
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_ylabel("seconds until all have it")
    if figure == "7b":
        axis.set_xscale("log", base=2)
        axis.set_xticks(SIZES, [size_name(size) for size in SIZES])
        axis.set_xlabel(f"message, {AT_MEMBERS} members (figure 7b)")
    else:
        axis.set_xlabel(f"members, {size_name(AT_SIZE)} (figure 7a)")
