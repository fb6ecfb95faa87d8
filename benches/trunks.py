"""Trunking: the rate of k gateways per site against that of one, after the relay with several front-ends by Takano and
others; and the failures that it survives.

Many streams, one stream, a path with a large bandwidth-delay product, two jobs at once, a lost gateway. The labs of a
case take turns.
"""

from statistics import mean

from against import Case
from machine import (
    LANDBRIDGE,
    OURS,
    PROGRAMS,
    PROVIDER,
    VENV,
    Failed,
    describe,
    in_lab,
    in_turns,
    libraries,
    load,
    need,
    only,
)
from report import columns, summary

# The paper has 1 Gbit/s cards and a 10 Gbit/s WAN; this lab has a fifth of that. With many gateways two cores cannot
# keep up and would be the bottleneck, so the case also runs with a twentieth.
MANY = [
    {
        "name": "4+4 ranks, cards 200 Mbit/s, WAN 1 Gbit/s",
        "nodes": 4,
        "nic": "200mbit",
        "wan": "1gbit",
        "trunks": [1, 2, 4],
        "full": 4.7,
    },
    {
        "name": "8+8 ranks, cards 50 Mbit/s, WAN 250 Mbit/s",
        "nodes": 8,
        "nic": "50mbit",
        "wan": "250mbit",
        "trunks": [1, 2, 4, 8],
        "full": 4.7,
    },
]
ONE = {"name": "1+1 ranks, cards of gateways 50 Mbit/s, of nodes unlimited", "trunks": [1, 2, 4]}
DELAYS = ["0", "10ms"]
# None: the number that the round trip requires.
LINKS = [1, None, 8]
LOST_AT, LOST_FOR, BIN, AFTER_MS = 3.0, 9.0, 100, 3000


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    need(VENV["mpich"] / "bin" / "python", "run make venv")
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    result = {"machine": describe(), "rounds": rounds, "rows": [], "problems": []}
    cases = {"many": _many, "one": _one, "long": _long, "crowd": _crowd, "fair": _fair, "lost": _lost}
    for name in only(arguments, cases):
        for row in cases[name](rounds, 2 if arguments.quick else 4, result["problems"]):
            result["rows"].append({"case": name, **row})
    result["machine"]["load_after"] = load()
    return result


def _against(rounds, base):
    """Figures of each alternative, and its ratio to the base within each round."""
    for each in dict.fromkeys(each for samples in rounds for each in samples):
        pairs = [(samples[each], samples[base]) for samples in rounds if each in samples and base in samples]
        if pairs:
            yield each, summary([value for value, _ in pairs]), summary([value / of for value, of in pairs])


def cases(arguments):
    """The cases for --against: every rate, not its ratio to one gateway's."""
    seconds = 2 if arguments.quick else 4

    def case(name, once):
        return Case(name, lambda build, _: {"rate": (once(build), "Mbit/s")})

    found = [
        case(
            f"many: {lab['name']}, {delay}, {trunks} gateways",
            lambda build, lab=lab, delay=delay, trunks=trunks: _many_once(lab, delay, trunks, seconds, build),
        )
        for lab in MANY
        for delay in DELAYS
        for trunks in lab["trunks"]
    ]
    found += [
        case(
            f"one: one message at a time, {delay}, {trunks} gateways",
            lambda build, delay=delay, trunks=trunks: _one_once(delay, trunks, seconds, build),
        )
        for delay in DELAYS
        for trunks in ONE["trunks"]
    ]
    found += [
        case(
            f"long: links {links or 'by the round trip'}", lambda build, links=links: _long_once(links, seconds, build)
        )
        for links in LINKS
    ]

    def fair(build, _):
        share = _fair_once(True, seconds, build) / _fair_once(False, seconds, build)
        # A share above a half is not better.
        return {"share of what is fair": (min(share / 0.5, 1.0), "of alone")}

    def lost(build, problems):
        # `lab kill` makes the host fall silent, which builds without a heartbeat for members do not survive. So here
        # the gateway dies and its host stays up.
        gone = [LANDBRIDGE, "lab", "enter", "b-gw3", "--", "pkill", "-KILL", "-f", "landbridge gateway"]
        three, four = _lost_once(3, seconds, build, gone), _lost_once(4, seconds, build, gone)
        at, back = int(LOST_AT * 1000 / BIN), _back_ms(three, four)
        # The time has two modes, depending on whether a tenth of a second suffices; the rate in that time has one.
        after = mean(four["bins_mbit_s"][at : at + AFTER_MS // BIN])
        figures = {
            "rate of three": (three["mbit_s"], "Mbit/s"),
            "rate of the three that are left, in the first 3 s": (after, "Mbit/s"),
        }
        if back is None:
            problems.append(f"0.9 of what three gateways carry never came back: {four['bins_mbit_s']}")
        else:
            # The end of the first tenth of a second that counts, so never zero.
            figures["time until 0.9 of three is back"] = (back + BIN, "ms")
        return figures

    found += [Case("fair: 1+1 ranks beside 4+4", fair), Case("lost: a gateway of four is killed", lost)]
    kinds = only(arguments, dict.fromkeys(case.name.split(":")[0] for case in found))
    return [case for case in found if case.name.split(":")[0] in kinds]


def _alone_in_lab(options, words, build=OURS, limit=90):
    """One run of a command in a lab of its own; returns its output."""
    command = {"name": "it", "words": words, "environment": libraries("mpich"), "limit": limit}
    samples, failures = in_lab([str(option) for option in options], [command], 1, build)
    if failures:
        raise Failed("; ".join(failures.values()))
    return samples["it"][0]


def _streams(sites, options, *words, build=OURS):
    return _alone_in_lab(options, run(sites, *words, build=build), build)


def run(sites, *words, build=OURS):
    """`landbridge run` of streams.py, with this many ranks at a and at b."""
    program = [VENV["mpich"] / "bin" / "python", PROGRAMS / "streams.py", *words]
    return [build.landbridge, "run", "--site", f"a={sites}", "--site", f"b={sites}", "--mpi", "mpich", "--", *program]


def _many_once(lab, delay, trunks, seconds, build=OURS):
    options = [
        "--nodes",
        lab["nodes"],
        "--gateways",
        trunks,
        "--delay",
        delay,
        "--nic-rate",
        lab["nic"],
        "--wan-rate",
        lab["wan"],
    ]
    return _streams(lab["nodes"], options, seconds, build=build)["mbit_s"]


def _many(rounds, seconds, problems):
    for lab in MANY:
        for delay in DELAYS:
            turns = in_turns(
                f"{lab['name']}, {delay}",
                lab["trunks"],
                rounds,
                problems,
                lambda trunks, lab=lab, delay=delay: _many_once(lab, delay, trunks, seconds),
            )
            for trunks, rate, ratio in _against(turns, 1):
                most = min(trunks, lab["full"])
                yield {
                    "what": f"{lab['name']}, {delay}, {trunks} gateways",
                    "mbit_s": rate,
                    "against": "one gateway",
                    "ratio": ratio,
                    "of": most,
                }


def _one_once(delay, trunks, seconds, build=OURS):
    options = [
        "--nodes",
        1,
        "--gateways",
        trunks,
        "--delay",
        delay,
        "--nic-rate",
        "0",
        "--gateway-nic-rate",
        "50mbit",
        "--wan-rate",
        "250mbit",
    ]
    # One message at a time, so that only it is striped.
    return _streams(1, options, seconds, "--length", 16 << 20, "--ahead", 1, build=build)["mbit_s"]


def _one(rounds, seconds, problems):
    for delay in DELAYS:
        turns = in_turns(
            f"one message, {delay}",
            ONE["trunks"],
            rounds,
            problems,
            lambda trunks, delay=delay: _one_once(delay, trunks, seconds),
        )
        for trunks, rate, ratio in _against(turns, 1):
            yield {
                "what": f"{ONE['name']}, one message at a time, {delay}, {trunks} gateways",
                "mbit_s": rate,
                "against": "one gateway",
                "ratio": ratio,
                "of": trunks,
            }


def _long_once(links, seconds, build=OURS):
    options = ["--nodes", 1, "--delay", "50ms", "--nic-rate", "0", "--wan-rate", "1gbit", "--gateway-memory", "1GiB"]
    options += ["--links", links] if links else []
    return _streams(1, options, 2 * seconds, "--ahead", 64, build=build)["mbit_s"]


def _long(rounds, seconds, problems):
    for links, rate, ratio in _against(
        in_turns("links", LINKS, rounds, problems, lambda links: _long_once(links, seconds)), 1
    ):
        yield {
            "what": (
                f"1+1 ranks, 1 Gbit/s, 100 ms round trip, default socket buffers, links {links or 'by the round trip'}"
            ),
            "mbit_s": rate,
            "against": "one link",
            "ratio": ratio,
            "of": None,
        }


def _fair_once(beside, seconds, build=OURS):
    # The WAN is the bottleneck: frames queued before a gateway's card wait where no gateway can divide them fairly.
    options = ["--nodes", 5, "--delay", "5ms", "--nic-rate", "0", "--wan-rate", "50mbit"]
    if not beside:
        return _streams(1, options, seconds, build=build)["mbit_s"]
    both = (
        f"{{ {shell(run(4, 2 * seconds + 2, build=build))} > /dev/null & sleep 1; "
        f"{shell(run(1, seconds, build=build))}; wait; }}"
    )
    return _alone_in_lab(options, ["sh", "-c", both], build)["mbit_s"]


def _fair(rounds, seconds, problems):
    """Two jobs share a WAN: one with four pairs of ranks, one with a single pair, compared with running alone."""
    turns = in_turns("beside another", [False, True], rounds, problems, lambda beside: _fair_once(beside, seconds))
    for beside, rate, ratio in _against(turns, False):
        if beside:
            yield {
                "what": "a job of 1+1 ranks beside one of 4+4, WAN 50 Mbit/s",
                "mbit_s": rate,
                "against": "alone",
                "ratio": ratio,
                "of": 0.5,
            }


def _crowd(rounds, seconds, problems):
    """One pair streams, and 63 others could. At 250 Mbit/s the path is the bottleneck and not the cores."""
    options = ["--nodes", 2, "--delay", "200ms", "--nic-rate", "0", "--wan-rate", "250mbit"]

    def once(pairs):
        return _alone_in_lab(options, run(pairs, 4 * seconds, "--ahead", 64, "--pairs", 1), limit=300)["mbit_s"]

    for pairs, rate, ratio in _against(in_turns("pairs", [1, 64], rounds, problems, once), 1):
        if pairs > 1:
            yield {
                "what": "one pair of 64+64 ranks, 250 Mbit/s, 400 ms round trip",
                "mbit_s": rate,
                "against": "1+1 ranks",
                "ratio": ratio,
                "of": 1,
            }


def _lost_once(gateways, seconds, build=OURS, kill=(LANDBRIDGE, "lab", "kill", "b-gw3")):
    """Three gateways without a fault, or four of which one is lost."""
    lab = ["--nodes", 4, "--gateways", gateways, "--delay", "5ms", "--nic-rate", "50mbit", "--wan-rate", "250mbit"]
    stream = ["--length", 64 << 10, "--ahead", 64, "--bins", BIN]
    if gateways == 3:
        return _streams(4, lab, seconds, *stream, build=build)
    return _streams(4, lab, LOST_FOR, *stream, "--after", LOST_AT, "--do", shell(kill), build=build)


def _back_ms(three, four):
    """Milliseconds from the loss of one of four gateways until 0.9 of three gateways' rate is reached again; None:
    never."""
    bins, enough = four["bins_mbit_s"], 0.9 * three["mbit_s"]
    at = int(LOST_AT * 1000 / BIN)
    # An average over half a second from there, so that one full bin after an empty one does not count.
    back = next(
        (i for i in range(at, len(bins) - 5) if mean(bins[i : i + 5]) >= enough and bins[i] >= enough / 2), None
    )
    return None if back is None else (back - at) * BIN


def _lost(rounds, seconds, problems):
    """One gateway of four is lost while all are busy: the time until the rate of three is reached again."""
    for samples in in_turns("gateways", [3, 4], rounds, problems, lambda gateways: _lost_once(gateways, seconds)):
        if len(samples) < 2:
            continue
        three, four = samples[3], samples[4]
        bins = four["bins_mbit_s"]
        yield {
            "what": "4 gateways, one lost: ms until 0.9 of three is there",
            "mbit_s": summary([mean(bins[: int(LOST_AT * 1000 / BIN)])]),
            "against": "three gateways",
            "ratio": summary([mean(bins[-20:]) / three["mbit_s"]]),
            "of": None,
            "back_ms": _back_ms(three, four),
            "bins_mbit_s": bins,
        }


def shell(words):
    return " ".join(f"'{word}'" for word in words)


def table(result):
    rows = [["case", "Mbit/s", "of", "ratio", "± spread", "of k times", "n"]]
    for row in result["rows"]:
        ratio = row["ratio"]
        rows.append(
            [
                row["what"],
                f"{row['mbit_s']['median']:.0f}" if row["mbit_s"] else "",
                row["against"],
                f"{ratio['median']:.2f}",
                f"{ratio['spread']:.2f}",
                f"{ratio['median'] / row['of']:.2f}"
                if row["of"]
                else (f"back after {row['back_ms']} ms" if "back_ms" in row else ""),
                str(ratio["n"]),
            ]
        )
    return "\n".join([columns(rows), *(f"FAILED {problem}" for problem in result["problems"])])


def plot(pyplot, result):
    many = [row for row in result["rows"] if row["case"] == "many"]
    lost = [row for row in result["rows"] if row["case"] == "lost"]
    if not many and not lost:
        return None
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4))
    for lab in MANY:
        for delay in DELAYS:
            rows = [row for row in many if row["what"].startswith(f"{lab['name']}, {delay},")]
            left.plot(
                lab["trunks"][: len(rows)],
                [row["ratio"]["median"] for row in rows],
                marker="o",
                label=f"{lab['nic']}, one-way {delay}",
            )
    left.plot([1, 4.7, 8], [1, 4.7, 4.7], color="grey", linestyle=":", label="cards, then the WAN")
    left.set_xlabel("gateways per site")
    left.set_ylabel("of what one carries")
    left.legend()
    for row in lost:
        right.plot([number * BIN / 1000 for number in range(len(row["bins_mbit_s"]))], row["bins_mbit_s"])
    right.axvline(LOST_AT, color="grey", linestyle=":")
    right.set_xlabel("s; one of four gateways is lost at the line")
    right.set_ylabel("Mbit/s")
    right.set_ylim(bottom=0)
    return figure
