"""Collective operations over sites whose links differ, against the same MPI's own: after Lee and Han's two-phase
scheduling for MPICH-G2.

Measures the time from the moment at which all ranks begin until the last has returned, and the bytes that cross trunks,
for 2, 3, 4 and 8 sites of 4 ranks. The alternative, in the same lab, is `landbridge run --collectives native`. Each
round has a lab for each number of sites and each MPI, and runs its jobs one after the other in it.
"""

import itertools
import random
import shlex

from machine import (
    LANDBRIDGE,
    PROGRAMS,
    PROVIDER,
    describe,
    in_lab,
    installed,
    libraries,
    load,
    need,
    only,
    program,
)
from report import columns, size_name, summary

NODES, RANKS = 2, 4
SITES = [2, 3, 4, 8]
# Gateways' cards are twice as fast as nodes', so that a gateway that relays is not the only bottleneck.
LAB = ["--nodes", NODES, "--nic-rate", "200mbit", "--gateway-nic-rate", "400mbit", "--wan-rate", "1gbit"]
# One-way delays and rates between two sites, chosen by a seed.
DELAYS_MS, RATES_MBIT = [2, 5, 10, 20], [40, 80, 120, 200]
SEED = 18
# Gateways connect before the WAN is shaped. BBR keeps a shorter round trip for 10 s, and sends less meanwhile.
SETTLE_S = 11
WAYS = ["native", "auto"]
# The first job sleeps until each gateway has measured each trunk, which it does while no rank uses the trunk: 5 s for
# each round of pairs of sites, plus one that may have begun.
TURN_S = 5
SIZES = {
    "bcast": [8, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20],
    "barrier": [0],
    "reduce": [8, 64 << 10, 1 << 20],
    "allreduce": [8, 4 << 10, 64 << 10, 1 << 20],
    "allgather": [8, 4 << 10, 64 << 10],
    "gather": [8, 4 << 10, 64 << 10],
    "scatter": [8, 4 << 10, 64 << 10],
    "alltoall": [8, 4 << 10, 64 << 10],
}
# Seconds for each size; 2 for other operations. TCP's windows grow during the first long broadcasts.
SECONDS = {"bcast": 4}
# Sizes at which a broadcast must cross each trunk at most once.
COUNTED = [64 << 10, 1 << 20, 8 << 20]
# Repetitions of each counted size, in turns of the program's minimum number.
COUNTED_TURNS = 2


def links(sites):
    """The settings of the WAN between each two sites: `a b delay=5ms rate=40mbit`."""
    chosen = random.Random(SEED)
    for one, other in itertools.combinations("abcdefgh"[:sites], 2):
        delay, rate = chosen.choice(DELAYS_MS), chosen.choice(RATES_MBIT)
        yield f"{one} {other} delay={delay}ms rate={rate}mbit"


def quiet_s(sites):
    """Seconds that ranks sleep before they start."""
    return TURN_S * (sites + sites % 2)


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    labs = arguments.sites or ([2, 3] if arguments.quick else SITES)
    result = {"machine": describe(), "rounds": rounds, "rows": [], "crossings": [], "problems": []}
    result["links"] = {sites: list(links(sites)) for sites in labs}
    for sites, mpi in itertools.product(labs, installed(arguments)):
        jobs = list(_jobs(sites, mpi, arguments))
        orders = itertools.islice(itertools.cycle([jobs, jobs[::-1]]), rounds)
        turns = [_lab(sites, mpi, order, result["problems"]) for order in orders]
        result["rows"] += _times(sites, mpi, turns)
        result["crossings"] += _crossings(sites, mpi, turns)
    result["machine"]["load_after"] = load()
    return result


def run_words(sites, mpi, way, words):
    """The command of `landbridge run` on all sites. `words` end with the program and its arguments."""
    places = [word for site in "abcdefgh"[:sites] for word in ("--site", f"{site}={RANKS}")]
    return [LANDBRIDGE, "run", *places, "--ranks-per-node", RANKS // NODES, "--mpi", mpi, "--collectives", way, *words]


def shaped(links, words):
    """A shell that sets the WAN's `links`, lets connections adapt to them, and then executes the words."""
    shape = " && ".join(f"'{LANDBRIDGE}' lab wan {link} > /dev/null" for link in links)
    return ["sh", "-c", f"{shape} && sleep {SETTLE_S} && exec {' '.join(shlex.quote(str(word)) for word in words)}"]


def _jobs(sites, mpi, arguments):
    """The jobs of a lab: name, words and time limit of each. A name is (operation, way), or ("crossings", way, size) if
    bytes are counted."""

    def start(way, *words):
        return run_words(sites, mpi, way, ["--", program("collectives", mpi), *words])

    operations = only(arguments, SIZES)
    for operation in operations:
        sizes = arguments.sizes or (SIZES[operation][::2] if arguments.quick else SIZES[operation])
        seconds = 1 if arguments.quick else SECONDS.get(operation, 2)
        for way in WAYS:
            yield (operation, way), start(way, operation, 0, seconds, 0, *sizes), 60 + 20 * len(sizes)
    if "bcast" not in operations:
        return
    for way, size in itertools.product(WAYS, [8, *([1 << 20] if arguments.quick else COUNTED)]):
        # With 0 seconds, each size takes the same number of turns.
        words = start(way, "bcast", 0, 0, 0, *[size] * COUNTED_TURNS)
        yield ("crossings", way, size), [PROGRAMS / "counted", *words], 120


def _lab(sites, mpi, jobs, problems):
    """The output of the jobs, by name, in one lab whose gateways have measured their trunks. A failed job is missing,
    and is added to the problems."""
    measuring = run_words(sites, mpi, "auto", ["--", program("collectives", mpi), "bcast", quiet_s(sites), 0, 0, 8])
    commands = [{"name": "measuring", "words": shaped(links(sites), measuring), "environment": libraries(mpi)}]
    for name, words, limit in jobs:
        text = " ".join(map(str, name))
        commands.append({"name": text, "words": words, "environment": libraries(mpi), "limit": limit})
    samples, failures = in_lab([str(word) for word in [*LAB, "--sites", sites]], commands, 1)
    problems += [f"{sites} sites, {mpi}, {name}: {text}" for name, text in failures.items()]
    return {name: samples[text] for name, *_ in jobs if (text := " ".join(map(str, name))) in samples}


def _times(sites, mpi, turns):
    for operation in SIZES:
        ms = [
            {way: {sample["size"]: sample["ms"] for sample in turn[operation, way]} for way in WAYS}
            for turn in turns
            if all((operation, way) in turn for way in WAYS)
        ]
        for size in ms[0]["auto"] if ms else []:
            yield {
                "operation": operation,
                "sites": sites,
                "mpi": mpi,
                "size": size,
                "native_ms": summary([both["native"][size] for both in ms]),
                "ms": summary([both["auto"][size] for both in ms]),
                "ratio": summary([both["auto"][size] / both["native"][size] for both in ms]),
            }


def _crossings(sites, mpi, turns):
    """Bytes of a broadcast that cross trunks, in all and out of the root's site, in multiples of its size."""
    for size in COUNTED:
        needed = [("crossings", way, each) for way in WAYS for each in (8, size)]
        if turn := next((turn for turn in turns if all(name in turn for name in needed)), None):
            row = {"sites": sites, "mpi": mpi, "size": size, "least": sites - 1}
            for way in WAYS:
                row[way], row[f"{way}_out"] = _per_turn(turn["crossings", way, 8], turn["crossings", way, size], size)
            yield row


def _per_turn(nothing, it, size):
    """Bytes of one turn, less those of a job with the same number of tiny messages: of all sites, and of the root's."""
    turns = sum(sample["turns"] for sample in it)
    each = {site: (sent - nothing[0]["sent"][site]) / turns for site, sent in it[0]["sent"].items()}
    return round(sum(each.values()) / size, 4), round(each["a"] / size, 4)


def table(result):
    rows = [["operation", "MPI", "sites", "size", "native ms", "ms", "ratio", "± spread", "n"]]
    for row in result["rows"]:
        rows.append(
            [
                row["operation"],
                row["mpi"],
                str(row["sites"]),
                size_name(row["size"]),
                f"{row['native_ms']['median']:.2f}",
                f"{row['ms']['median']:.2f}",
                f"{row['ratio']['median']:.2f}",
                f"{row['ratio']['spread']:.2f}",
                str(row["ratio"]["n"]),
            ]
        )
    parts = [columns(rows)]
    if result["crossings"]:
        crossings = [
            ["broadcast", "MPI", "sites", "native", "crossings", "of the least", "native out of a", "out of a"]
        ]
        for row in result["crossings"]:
            crossings.append(
                [
                    size_name(row["size"]),
                    row["mpi"],
                    str(row["sites"]),
                    f"{row['native']:.2f}",
                    f"{row['auto']:.2f}",
                    f"{row['auto'] / row['least']:.3f}",
                    f"{row['native_out']:.2f}",
                    f"{row['auto_out']:.2f}",
                ]
            )
        parts.append(columns(crossings))
    return "\n\n".join([*parts, *(f"FAILED {problem}" for problem in result["problems"])])


def plot(pyplot, result):
    """Ratios of broadcasts by size: one panel for each MPI."""
    rows = [row for row in result["rows"] if row["operation"] == "bcast"]
    names = list(dict.fromkeys(row["mpi"] for row in rows))
    if not names:
        return None
    figure, axes = pyplot.subplots(1, len(names), figsize=(4.5 * len(names), 3.8), squeeze=False, sharey=True)
    for axis, mpi in zip(axes[0], names):
        for sites in dict.fromkeys(row["sites"] for row in rows):
            chosen = [row for row in rows if row["mpi"] == mpi and row["sites"] == sites]
            ratios = [row["ratio"]["median"] for row in chosen]
            axis.plot([row["size"] for row in chosen], ratios, marker="o", label=f"{sites} sites")
        axis.axhline(1, color="grey", linestyle=":")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_title(f"MPI_Bcast, {mpi}")
        axis.set_xlabel("bytes")
    axes[0][0].set_ylabel("time, of the MPI's own")
    axes[0][-1].legend()
    return figure
