"""Collective operations over sites whose links differ, against the same MPI's own: after Lee and Han's two-phase
scheduling for MPICH-G2.

Times from the moment at which all ranks begin until the last has returned, and what crosses trunks, for 2, 3, 4 and 8
sites of 4 ranks. `landbridge run --collectives native` is the alternative, in the same lab.
"""

import itertools
import random
import shlex

from machine import (
    LANDBRIDGE,
    PROGRAMS,
    PROVIDER,
    Failed,
    describe,
    in_lab,
    in_turns,
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
# Cards of nodes; gateways' are twice as fast, so that a gateway that relays is not the only bottleneck.
LAB = ["--nodes", NODES, "--nic-rate", "200mbit", "--gateway-nic-rate", "400mbit", "--wan-rate", "1gbit"]
# One-way delays and rates between two sites, chosen by a seed.
DELAYS_MS, RATES_MBIT = [2, 5, 10, 20], [40, 80, 120, 200]
SEED = 18
# Gateways have connected before the WAN is shaped. BBR believes a round trip that was shorter for 10 s, and sends less.
SETTLE_S = 11
WAYS = ["native", "auto"]
# Ranks sleep until each gateway has had its turn to measure each trunk, which it does while no rank uses it: 5 s for
# each round in which sites are paired, one of which may have begun.
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
# From here on a broadcast must cross each trunk at most once.
COUNTED = [64 << 10, 1 << 20, 8 << 20]


def links(sites):
    """What the WAN between each two sites is set to: `a b delay=5ms rate=40mbit`."""
    chosen = random.Random(SEED)
    for one, other in itertools.combinations("abcdefgh"[:sites], 2):
        delay, rate = chosen.choice(DELAYS_MS), chosen.choice(RATES_MBIT)
        yield f"{one} {other} delay={delay}ms rate={rate}mbit"


def quiet_s(sites):
    """How long ranks sleep before they start."""
    return TURN_S * (sites + sites % 2)


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    labs = [2, 3] if arguments.quick else SITES
    result = {"machine": describe(), "rounds": rounds, "rows": [], "crossings": [], "problems": []}
    result["links"] = {sites: list(links(sites)) for sites in labs}
    for operation in only(arguments, SIZES):
        for sites, mpi in itertools.product(labs, installed(arguments)):
            result["rows"] += _times(operation, sites, mpi, rounds, arguments, result["problems"])
    if not arguments.only or arguments.only in "bcast":
        for sites, mpi in itertools.product(labs, installed(arguments)):
            result["crossings"] += _crossings(sites, mpi, arguments, result["problems"])
    result["machine"]["load_after"] = load()
    return result


def shaped(sites, mpi, way, links, words, before=()):
    """A shell that shapes the WAN as `links` say and then, after the words `before`, starts the words on all sites."""
    shape = " && ".join(f"'{LANDBRIDGE}' lab wan {link} > /dev/null" for link in links)
    places = [word for site in "abcdefgh"[:sites] for word in ("--site", f"{site}={RANKS}")]
    run = [LANDBRIDGE, "run", *places, "--ranks-per-node", RANKS // NODES, "--mpi", mpi, "--collectives", way]
    command = " ".join(shlex.quote(str(word)) for word in [*before, *run, *words])
    return ["sh", "-c", f"{shape} && sleep {SETTLE_S} && exec {command}"]


def _times(operation, sites, mpi, rounds, arguments, problems):
    sizes = arguments.sizes or (SIZES[operation][::2] if arguments.quick else SIZES[operation])
    seconds = 1 if arguments.quick else 3

    def once(way):
        words = ["--", program("collectives", mpi), operation, quiet_s(sites), seconds, 0, *sizes]
        words = shaped(sites, mpi, way, links(sites), words)
        command = {"name": "it", "words": words, "environment": libraries(mpi), "limit": 160 + 15 * len(sizes)}
        samples, failures = in_lab([str(word) for word in [*LAB, "--sites", sites]], [command], 1)
        if failures:
            raise Failed(failures["it"])
        return {sample["size"]: sample["ms"] for sample in samples["it"]}

    turns = in_turns(f"{operation}, {sites} sites, {mpi}", WAYS, rounds, problems, once)
    both = [turn for turn in turns if len(turn) == len(WAYS)]
    for size in sizes if both else []:
        yield {
            "operation": operation,
            "sites": sites,
            "mpi": mpi,
            "size": size,
            "native_ms": summary([turn["native"][size] for turn in both]),
            "ms": summary([turn["auto"][size] for turn in both]),
            "ratio": summary([turn["auto"][size] / turn["native"][size] for turn in both]),
        }


def _crossings(sites, mpi, arguments, problems):
    """How often a broadcast's bytes cross trunks, in all and out of the root's site, in multiples of its size."""
    for size in [1 << 20] if arguments.quick else COUNTED:
        row = {"sites": sites, "mpi": mpi, "size": size, "least": sites - 1}
        for way in WAYS:
            words = ["--", program("collectives", mpi), "bcast", quiet_s(sites), 1, 0]
            commands = [
                {
                    "name": name,
                    "words": shaped(sites, mpi, way, links(sites), [*words, each], [PROGRAMS / "counted"]),
                    "environment": libraries(mpi),
                }
                for name, each in (("nothing", 8), ("it", size))
            ]
            samples, failures = in_lab([str(word) for word in [*LAB, "--sites", sites]], commands, 1)
            if failures:
                problems += [f"bytes of {size_name(size)}, {sites} sites, {mpi}, {way}: {text}" for text in failures.values()]
                break
            row[way], row[f"{way}_out"] = _per_turn(samples, size)
        else:
            yield row


def _per_turn(samples, size):
    """Bytes of one turn beyond what a job of tiny messages sends: of all sites, and of the root's."""
    nothing, it = samples["nothing"][0], samples["it"][0]
    # A tiny job's turns are cheap and many: their own cost is a few hundred bytes each.
    base = {site: sent / nothing["turns"] for site, sent in nothing["sent"].items()}
    each = {site: sent / it["turns"] - base[site] for site, sent in it["sent"].items()}
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
        crossings = [["broadcast", "MPI", "sites", "native", "crossings", "of the least", "native out of a", "out of a"]]
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
    """Ratios of broadcasts by size: one panel per MPI."""
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
