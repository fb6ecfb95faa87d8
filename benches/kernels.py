"""The experiments of the relay by Takano and others: programs over 1, 2, 4 and 8 gateways per site against the same
programs on routed nodes.

An all-to-all, and the kernels of examples/kernels, each of which verifies its result, at one-way delays from 0 to 10
ms.
"""

from against import Case
from direct import direct
from machine import (
    LANDBRIDGE,
    OURS,
    PROGRAMS,
    PROVIDER,
    ROOT,
    VENV,
    describe,
    in_lab,
    in_turns,
    libraries,
    load,
    need,
    only,
)
from report import columns, summary

KERNELS = ROOT / "examples" / "kernels"
NODES = 8
# The paper has 16 nodes with 1 Gbit/s cards behind a 10 Gbit/s WAN. Two cores can emulate 8 nodes with 50 Mbit/s behind
# 250 Mbit/s.
LAB = ["--nodes", NODES, "--nic-rate", "50mbit", "--wan-rate", "250mbit"]
DELAYS = ["0", "1ms", "5ms", "10ms"]
TRUNKS = [1, 2, 4, 8]
DIRECT = "direct"


def programs(arguments):
    """Command line of each program, the name of the figure it prints, and true if more is better."""
    python, quick = VENV["mpich"] / "bin" / "python", arguments.quick
    alltoall = [python, PROGRAMS / "alltoall.py", 64 << 10, 2 if quick else 4]
    known = {
        "all-to-all": (alltoall, "mbit_s"),
        "all-to-all in step": ([*alltoall, "in-step"], "mbit_s"),
        "sort": ([KERNELS / "sort", "--size", "W", "--iterations", 3 if quick else 6, "--json", "-"], "seconds"),
        "multigrid": (
            [KERNELS / "multigrid", "--size", 64, "--iterations", 4 if quick else 8, "--json", "-"],
            "seconds",
        ),
        "wavefront": (
            [KERNELS / "wavefront", "--size", "W", "--iterations", 4 if quick else 8, "--json", "-"],
            "seconds",
        ),
    }
    return {name: known[name] for name in only(arguments, known)}


def _ready():
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    need(VENV["mpich"] / "bin" / "python", "run make venv")
    need(KERNELS / "sort", "run make kernels")


def _delays_and_trunks(arguments):
    return (["0", "10ms"], [1, 4]) if arguments.quick else (DELAYS, TRUNKS)


def measure(arguments):
    _ready()
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    delays, trunks = _delays_and_trunks(arguments)
    ways = [DIRECT, *trunks]
    result = {"machine": describe(), "rounds": rounds, "lab": [str(word) for word in LAB], "rows": [], "problems": []}
    for delay in delays:
        turns = in_turns(
            delay,
            ways,
            rounds,
            result["problems"],
            lambda way, delay=delay: _once(delay, way, arguments, result["problems"]),
        )
        for name, (_, figure) in programs(arguments).items():
            for way in ways:
                pairs = [
                    (turn[way][name], turn[DIRECT][name])
                    for turn in turns
                    if name in turn.get(way, {}) and name in turn.get(DIRECT, {})
                ]
                if pairs:
                    speeds = [ours / direct if figure == "mbit_s" else direct / ours for ours, direct in pairs]
                    row = {
                        "program": name,
                        "delay": delay,
                        "way": way,
                        "figure": figure,
                        "value": summary([ours for ours, _ in pairs]),
                        "of_direct": summary(speeds),
                    }
                    result["rows"].append(row)
    result["machine"]["load_after"] = load()
    return result


def cases(arguments):
    """The cases for --against."""
    _ready()
    delays, trunks = _delays_and_trunks(arguments)
    figures = {name: figure for name, (_, figure) in programs(arguments).items()}

    def case(delay, way):
        def once(build, problems):
            measured = _once(delay, way, arguments, problems, build)
            return {name: (value, "Mbit/s" if figures[name] == "mbit_s" else "s") for name, value in measured.items()}

        return Case(f"one-way {delay}, {way} gateways", once)

    return [case(delay, way) for delay in delays for way in trunks]


def _once(delay, way, arguments, problems, build=OURS):
    """The figure of each program, all in one lab."""
    options = [*LAB, "--delay", delay]
    if way == DIRECT:
        # The first gateway of a site is its router, which is not the bottleneck; no gateway runs.
        options += ["--gateways", 1, "--gateway-nic-rate", "0", "--route-directly", "--gateway-command", ""]
        start, environment = _direct()
    else:
        options += ["--gateways", way]
        start = [build.landbridge, "run", "--site", f"a={NODES}", "--site", f"b={NODES}", "--mpi", "mpich", "--"]
        environment = libraries("mpich")
    commands = [
        {"name": name, "words": [*start, *words], "environment": environment, "limit": 120}
        for name, (words, _) in programs(arguments).items()
    ]
    samples, failures = in_lab([str(option) for option in options], commands, 1, build)
    problems += [f"{delay}, {way}: {name}: {text}" for name, text in failures.items()]
    return {name: lines[0][programs(arguments)[name][1]] for name, lines in samples.items()}


def _direct():
    """The command by which MPICH's own launcher starts a program with one rank on each node, all on one network."""
    sites = ((1, "a"), (2, "b"))
    hosts = {f"10.{site}.0.{node}": f"{name}-n{node}" for site, name in sites for node in range(1, NODES + 1)}
    return direct("mpich", hosts)


def table(result):
    rows = [["program", "one-way delay", "way", "figure", "speed of direct", "± spread", "n"]]
    for row in result["rows"]:
        value = row["value"]["median"]
        figure = f"{value:.0f} Mbit/s" if row["figure"] == "mbit_s" else f"{value:.2f} s"
        way = row["way"] if row["way"] == DIRECT else f"{row['way']} gateways"
        ratio = row["of_direct"]
        rows.append(
            [
                row["program"],
                row["delay"],
                way,
                figure,
                f"{ratio['median']:.2f}",
                f"{ratio['spread']:.2f}",
                str(ratio["n"]),
            ]
        )
    return "\n".join(
        [
            f"{NODES}+{NODES} ranks, {' '.join(result['lab'])}",
            columns(rows),
            *(f"FAILED {problem}" for problem in result["problems"]),
        ]
    )


def plot(pyplot, result):
    names = list(dict.fromkeys(row["program"] for row in result["rows"]))
    if not names:
        return None
    figure, axes = pyplot.subplots(1, len(names), figsize=(4 * len(names), 3.6), squeeze=False)
    for axis, name in zip(axes[0], names):
        for way in dict.fromkeys(row["way"] for row in result["rows"]):
            rows = [row for row in result["rows"] if row["program"] == name and row["way"] == way]
            label = "direct" if way == DIRECT else f"{way} gateways"
            axis.plot(
                [row["delay"] for row in rows], [row["of_direct"]["median"] for row in rows], marker="o", label=label
            )
        axis.set_title(name)
        axis.set_xlabel("one-way delay")
        axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel("speed, of direct")
    axes[0][-1].legend()
    return figure
