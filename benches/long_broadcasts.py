"""Long broadcasts over sites whose links differ. Compares their rate with an upper bound and with trees of the
literature, while links drift and after a relaying gateway is killed; and measures the processor time of copies.

Broadcasts follow each other without a pause. `LANDBRIDGE_TREES` makes Landbridge take one tree of an algorithm of
`landbridge plan`; all else stays the same.
"""

import itertools
import json
import os
import random
import threading
import time
from pathlib import Path

import collectives
from machine import (
    LANDBRIDGE,
    OUT,
    PROGRAMS,
    PROVIDER,
    Failed,
    describe,
    in_lab,
    in_turns,
    libraries,
    load,
    need,
    only,
    program,
    run,
)
from report import columns, size_name, summary

SITES = [3, 4]
LONG = 64 << 20
# Algorithms of the papers that the plan's documentation names.
TREES = ["flat", "binomial", "fef_size", "ecef_size", "ecef_la_min", "hlot_rec", "ttcc_rec_tree2", "tps_fef"]
CARD_BYTES_S, GATEWAY_BYTES_S = 200e6 / 8, 400e6 / 8
PACKET = 64 << 10
# Seconds between changes of one link, and their number. The new rate is one of those of `collectives`.
DRIFT_EVERY_S, DRIFT_STEPS = 6.0, 6
KILL_SIZE, COPY_SIZE = 1 << 20, 4 << 20
KILLED_AT_S, KILL_FOR_S, AFTER_S, FOR_S = 8.0, 14.0, 1.0, 4.0
MPI = "mpich"
CHILDREN = [1, 2, 3]


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    result = {"machine": describe(), "rounds": rounds, "problems": []}
    parts = {"bound": _bound, "drift": _drift, "killed": _killed, "copies": _copies}
    for name in only(arguments, parts):
        result[name] = list(parts[name](arguments, rounds, result["problems"]))
    result["machine"]["load_after"] = load()
    return result


def _broadcasts(mpi, way, seconds, size, events=(), lab=(), links=(), tree=None, sites=3):
    """Runs `broadcasts` in a fresh lab. Returns the time of its start, the ends of the broadcasts, and the times of the
    events."""
    chosen = ["-x", f"LANDBRIDGE_TREES={tree}"] if tree else []
    job = collectives.run_words(sites, mpi, way, [*chosen, "--", program("broadcasts", mpi), seconds, size])
    words = collectives.shaped(links, job)
    words = [PROGRAMS / "meanwhile", json.dumps([[after, *map(str, event)] for after, *event in events]), *words]
    command = {"name": "it", "words": words, "environment": libraries(mpi), "limit": 120 + 2 * seconds}
    options = [str(word) for word in [*collectives.LAB, "--sites", sites, *lab]]
    samples, failures = in_lab(options, [command], 1)
    if failures:
        raise Failed(failures["it"])
    times = next(sample for sample in samples["it"] if "ends" in sample)
    happened = [sample["at"] for sample in samples["it"] if "event" in sample]
    if len(happened) != len(events):
        raise Failed(f"{len(events) - len(happened)} of {len(events)} events did not happen")
    return times["began"], times["ends"], happened


def bound(sites, rates, size):
    """An upper bound in bytes/s of broadcasts from site a to all others: the bound of `landbridge plan` for the links,
    the gateways' cards as uplinks, and the card of the sending node."""
    names = "abcdefgh"[:sites]
    matrix = [[None if one == other else rates[frozenset((one, other))] for other in names] for one in names]
    instance = {
        "N": sites, "root": 0, "message_bytes": size, "packet_bytes": PACKET,
        "latency_s": [[0.005 * (one != other) for other in names] for one in names], "bandwidth_Bps": matrix,
        "uplink_Bps": [GATEWAY_BYTES_S] * sites, "downlink_Bps": [CARD_BYTES_S] * sites,
    }  # fmt: skip
    path = OUT / f"links-{os.getpid()}.json"
    path.write_text(json.dumps(instance))
    try:
        out, _ = run([LANDBRIDGE, "plan", "broadcast", path, "--json"])
    finally:
        path.unlink()
    return min(CARD_BYTES_S, json.loads(out)["lp_multiport_UDpair"]["rate_Bps"])


def _rates(links):
    """Bytes/s of each pair of sites, from `a b delay=5ms rate=40mbit`."""

    def rate(word):
        return float(word.removeprefix("rate=").removesuffix("mbit")) * 1e6 / 8

    return {frozenset(link.split()[:2]): rate(link.split()[3]) for link in links}


def _mean_rate(began, ends, size):
    """Bytes/s of the broadcasts after the first one, which began on idle links."""
    return size * (len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 1 else size / (ends[0] - began)


def _bound(arguments, rounds, problems):
    """Long broadcasts by every way: their rate relative to the bound."""
    ways = ["ours", "native", *(TREES[:1] + TREES[-1:] if arguments.quick else TREES)]
    for sites in SITES[:1] if arguments.quick else SITES:
        links = list(collectives.links(sites))
        best = bound(sites, _rates(links), LONG)

        def once(way, sites=sites, links=links):
            whose, tree = ("native", None) if way == "native" else ("auto", None if way == "ours" else way)
            began, ends, _ = _broadcasts(arguments.mpi or MPI, whose, 12, LONG, links=links, tree=tree, sites=sites)
            return _mean_rate(began, ends, LONG)

        turns = in_turns(f"{size_name(LONG)}, {sites} sites", ways, rounds, problems, once)
        for way in ways:
            rates = [turn[way] for turn in turns if way in turn]
            ours = [turn["ours"] / turn[way] for turn in turns if way in turn and "ours" in turn]
            if rates and ours:
                yield {
                    "sites": sites,
                    "way": way,
                    "bound_mbit": round(best * 8 / 1e6, 1),
                    "of_bound": summary([rate / best for rate in rates]),
                    # The time of ours relative to this way's.
                    "ours": summary([1 / each for each in ours]),
                }


def _drift(arguments, rounds, problems):
    """Links change one by one: the delivered bytes relative to those that the bound of each moment allows."""
    for number in range(rounds):
        chance = random.Random(collectives.SEED + number)
        links = list(collectives.links(3))
        rates, events, stages = _rates(links), [], []
        for step in range(DRIFT_STEPS):
            link = chance.choice(links).split()
            rate = chance.choice(collectives.RATES_MBIT)
            events.append([(step + 1) * DRIFT_EVERY_S, LANDBRIDGE, "lab", "wan", link[0], link[1], f"rate={rate}mbit"])
            stages.append(dict(rates))
            rates[frozenset(link[:2])] = rate * 1e6 / 8
        stages.append(dict(rates))
        try:
            began, ends, happened = _broadcasts(
                arguments.mpi or MPI, "auto", (DRIFT_STEPS + 1) * DRIFT_EVERY_S, LONG, events, links=links
            )
        except Failed as failed:
            problems.append(f"drift, seed {collectives.SEED + number}: {failed}")
            continue
        edges = [began, *happened, ends[-1]]
        allowed = sum(
            bound(3, stage, LONG) * (end - start) for (start, end), stage in zip(itertools.pairwise(edges), stages)
        )
        yield {"seed": collectives.SEED + number, "of_bound": round(LONG * len(ends) / allowed, 3)}


def _rate_within(ends, start, end):
    """Bytes/s of the broadcasts that ended between two times."""
    return KILL_SIZE * sum(start < at <= end for at in ends) / (end - start)


def _killed(arguments, rounds, problems):
    """At a relaying site, one of two gateways is killed, or its host falls silent: the rate from 1 s later on, relative
    to the rate before."""
    enter = [LANDBRIDGE, "lab", "enter", "b-gw1", "--"]
    ways = {
        "process": [*enter, "pkill", "-KILL", "-f", "gateway --sites"],
        "host": [LANDBRIDGE, "lab", "kill", "b-gw1"],
    }
    for _, what in itertools.product(range(rounds), ways):
        links = [f"{one} {other} delay=5ms rate=1gbit" for one, other in itertools.combinations("abc", 2)]
        events = [[KILLED_AT_S, *ways[what]]]
        try:
            _, ends, (killed,) = _broadcasts(
                arguments.mpi or MPI, "auto", KILL_FOR_S, KILL_SIZE, events, ["--gateways", 2], links
            )
        except Failed as failed:
            problems.append(f"{what} killed: {failed}")
            continue
        before = _rate_within(ends, killed - FOR_S, killed - 0.2)
        gaps = [late - early for early, late in itertools.pairwise(at for at in ends if at > killed - 1)]
        yield {
            "what": what,
            "before_mbit": round(before * 8 / 1e6, 1),
            "after": round(_rate_within(ends, killed + AFTER_S, killed + AFTER_S + FOR_S) / before, 3),
            "longest_pause_s": round(max(gaps), 3),
        }


def _copies(arguments, rounds, problems):
    """Processor time of the sender's gateway for each byte, by the number of copies that it makes."""

    def once(children):
        sites = children + 1
        links = [f"{one} {other} delay=5ms rate=1gbit" for one, other in itertools.combinations("abcdefgh"[:sites], 2)]
        with Gateways("a") as gateways:
            began, ends, _ = _broadcasts(
                arguments.mpi or MPI, "auto", 8, COPY_SIZE, links=links, tree="flat", sites=sites
            )
        return gateways.seconds(began, ends[-1]) / (COPY_SIZE * len(ends))

    turns = in_turns("copies", CHILDREN, rounds, problems, once)
    for children in CHILDREN:
        both = [turn for turn in turns if children in turn and 1 in turn]
        if both:
            yield {
                "children": children,
                "ns_per_byte": summary([turn[children] * 1e9 for turn in both]),
                "of_one": summary([turn[children] / turn[1] for turn in both]),
                "of_as_many_sends": summary([turn[children] / (children * turn[1]) for turn in both]),
            }


class Gateways:
    """Watches the processor time of the gateways of one site, in all labs of this machine."""

    def __init__(self, site):
        self.site, self.samples, self.ended = site, [], threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def _watch(self):
        while not self.ended.wait(0.1):
            self.samples.append((time.monotonic(), self._used()))

    def _used(self):
        ticks = 0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"gateway" in words[1:2] and f"--site\0{self.site}\0".encode() in b"\0".join(words):
                    fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                    ticks += int(fields[11]) + int(fields[12])
            except OSError:
                continue
        return ticks / os.sysconf("SC_CLK_TCK")

    def seconds(self, start, end):
        """Seconds of processor time between two moments."""
        inside = [used for at, used in self.samples if start <= at <= end]
        if len(inside) < 2:
            raise Failed(f"no gateway of site {self.site} was seen")
        return inside[-1] - inside[0]


def table(result):
    parts = []
    if result.get("bound"):
        rows = [["way", "sites", "bound Mbit/s", "of the bound", "ours: of its time", "± spread", "n"]]
        for row in result["bound"]:
            rows.append(
                [
                    row["way"],
                    str(row["sites"]),
                    f"{row['bound_mbit']:.0f}",
                    f"{row['of_bound']['median']:.3f}",
                    f"{row['ours']['median']:.2f}",
                    f"{row['ours']['spread']:.2f}",
                    str(row["ours"]["n"]),
                ]
            )
        parts.append(columns(rows))
    if result.get("drift"):
        rows = [["drift, seed", "of each moment's bound"]]
        rows += [[str(row["seed"]), f"{row['of_bound']:.3f}"] for row in result["drift"]]
        parts.append(columns(rows))
    if result.get("killed"):
        rows = [["killed", "before, Mbit/s", "after 1 s, of before", "longest pause s"]]
        for row in result["killed"]:
            rows.append([row["what"], str(row["before_mbit"]), str(row["after"]), str(row["longest_pause_s"])])
        parts.append(columns(rows))
    if result.get("copies"):
        rows = [["copies", "ns of gateway per byte", "of one", "of as many sends", "n"]]
        for row in result["copies"]:
            rows.append(
                [
                    str(row["children"]),
                    f"{row['ns_per_byte']['median']:.2f}",
                    f"{row['of_one']['median']:.2f}",
                    f"{row['of_as_many_sends']['median']:.2f}",
                    str(row["of_one"]["n"]),
                ]
            )
        parts.append(columns(rows))
    return "\n\n".join([*parts, *(f"FAILED {problem}" for problem in result["problems"])])


def plot(pyplot, result):
    """The rate of each way relative to the bound."""
    rows = result.get("bound")
    if not rows:
        return None
    sites = sorted({row["sites"] for row in rows})
    figure, axes = pyplot.subplots(1, len(sites), figsize=(5 * len(sites), 3.8), squeeze=False, sharey=True)
    for axis, count in zip(axes[0], sites):
        chosen = sorted((row for row in rows if row["sites"] == count), key=lambda row: -row["of_bound"]["median"])
        axis.bar([row["way"] for row in chosen], [row["of_bound"]["median"] for row in chosen])
        axis.axhline(1, color="grey", linestyle=":")
        axis.set_title(f"{size_name(LONG)} to {count} sites, of the bound")
        axis.tick_params(axis="x", rotation=60)
    figure.tight_layout()
    return figure
