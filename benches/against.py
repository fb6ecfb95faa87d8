"""One build against another: every figure of a part with both builds, in turns, and the ratio of new to old.

A part takes part with a function `cases(arguments)` that returns a list of `Case`."""

import hashlib
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import report
from machine import (
    LANDBRIDGE,
    OURS,
    PROGRAMS,
    ROOT,
    VENV,
    Build,
    Failed,
    Missing,
    describe,
    in_lab,
    libraries,
    load,
    need,
)

# For these units more is better; for all others less.
MORE = {"Mbit/s", "messages/s", "of alone"}
WORSE = 1.03
# A build that has failed in a case this often is not tried again, because a hang takes minutes each time.
MOST_FAILURES = 2


@dataclass(frozen=True)
class Case:
    """One measurement. `once(build, problems)` runs one turn and returns {figure: (value, unit)}. It adds an entry to
    the problems for each figure that it could not measure."""

    name: str
    once: Callable[[Build, list], dict]


def builds(folder):
    """The new build, which is this checkout's, and the old one, in `folder`. To see the machine's noise, pass this
    checkout's own folder."""
    old = Build("old", Path(folder).resolve())
    if re.search(r"\s", str(old.root)):
        raise Missing(f"{old.root}: a lab cannot start gateways from a path with white space: give it another name")
    for build in (OURS, old):
        for path in (build.landbridge, build.provider):
            need(path, f"run make build in {build.root}")
    return [OURS, old]


def measure(part, module, arguments, both):
    """The result of one part. It is written after each case, so that an interrupted run keeps its measurements."""
    known = module.cases(arguments)
    cases = [case for case in known if re.search(arguments.cases or "", case.name)]
    if not cases:
        raise Missing(
            f"{part}: no case matches {arguments.cases!r}; there are:\n  " + "\n  ".join(case.name for case in known)
        )
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    result = {
        "machine": describe(),
        "builds": {build.name: _described(build) for build in both},
        "rounds": rounds,
        "rows": [],
        "problems": [],
    }
    for number, case in enumerate(cases):
        print(f"{part}: {number + 1} of {len(cases)}: {case.name}", file=sys.stderr, flush=True)
        result["rows"] += _rows(case.name, _turns(case, both, rounds, result["problems"]), result["problems"])
        result["machine"]["load_after"] = load()
        report.write(f"{part}-against", result)
    result["rows"].sort(key=lambda row: -row["ratio"])
    return result


def _turns(case, both, rounds, problems):
    """The figures of each build for each round; the builds alternate in going first."""
    results, failures = [], dict.fromkeys(both, 0)
    for number in range(rounds):
        results.append({})
        for build in both if number % 2 == 0 else both[::-1]:
            if failures[build] == MOST_FAILURES:
                continue
            found = []
            try:
                results[-1][build] = case.once(build, found)
            except Failed as failed:
                found.append(str(failed))
            failures[build] += bool(found)
            problems += [f"{case.name}, {build}: {problem}" for problem in found]
    return results


def _rows(name, turns, problems):
    figures = dict.fromkeys(
        (what, unit) for turn in turns for measured in turn.values() for what, (_, unit) in measured.items()
    )
    rows = []
    for what, unit in figures:
        values = {"new": [], "old": []}
        within = []
        for turn in turns:
            found = {build.name: measured[what][0] for build, measured in turn.items() if what in measured}
            if nothing := [build for build, value in found.items() if not value > 0]:
                problems.append(f"{name}, {what}: {', '.join(nothing)} measured nothing")
                continue
            for build, value in found.items():
                values[build].append(value)
            if len(found) == 2:
                within.append(_worse(unit, found["new"], found["old"]))
        if not within:
            problems.append(f"{name}, {what}: no round has both builds")
            continue
        best = max if unit in MORE else min
        rows.append(
            {
                "case": name,
                "what": what,
                "unit": unit,
                **{build: report.summary(samples) for build, samples in values.items()},
                "ratio": round(_worse(unit, median(values["new"]), median(values["old"])), 4),
                "within_rounds": report.summary(within),
                "of_best": round(_worse(unit, best(values["new"]), best(values["old"])), 4),
                "worse_rounds": sum(ratio > 1 for ratio in within),
                "samples": values,
            }
        )
    return rows


def _worse(unit, new, old):
    """The ratio by which the new figure is worse: above 1 is worse, whether the unit is better high or low."""
    return old / new if unit in MORE else new / old


def check(both):
    """Checks that a rank's provider and the gateways in a lab belong to the build, so that no other build is measured
    under its name."""
    for build in both:
        commands = [
            {
                "name": "rank",
                "words": [
                    build.landbridge,
                    "run",
                    "--site",
                    "a=1",
                    "--site",
                    "b=1",
                    "--mpi",
                    "mpich",
                    "--",
                    VENV["mpich"] / "bin" / "python",
                    PROGRAMS / "built.py",
                    "provider",
                ],
                "environment": libraries("mpich"),
                "limit": 30,
            },
            {
                "name": "gateway",
                "words": [LANDBRIDGE, "lab", "enter", "b-gw1", "--", sys.executable, PROGRAMS / "built.py", "gateway"],
                "limit": 30,
            },
        ]
        samples, failures = in_lab(["--sites", "2", "--nodes", "1", "--delay", "0"], commands, 1, build)
        if failures:
            raise Failed(f"{build}, {build.root}: {'; '.join(failures.values())}")
        for name, expected in (("rank", [build.provider]), ("gateway", [build.landbridge])):
            found = [Path(path) for path in samples[name][0]["found"]]
            if found != expected:
                raise Failed(
                    f"{build}: the {name} of a lab uses {', '.join(map(str, found)) or 'none'} and not {expected[0]}"
                )


def _described(build):
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=build.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (build.landbridge, build.provider)}
    return {
        "folder": str(build.root),
        "commit": commit.stdout.strip() or "unknown",
        "sha256": sums,
        "this_checkout": build.root == ROOT,
    }


def table(result):
    heading = ["case", "figure", "unit", "old", "new", "worse by", "± spread", "of best", "rounds worse"]
    rows = [heading]
    for row in result["rows"]:
        within = row["within_rounds"]
        rows.append(
            [
                row["case"],
                row["what"],
                row["unit"],
                *(f"{row[build]['median']:.5g}" for build in ("old", "new")),
                f"{row['ratio']:.3f}",
                f"{within['spread']:.2f}",
                f"{row['of_best']:.3f}",
                f"{row['worse_rounds']} of {within['n']}",
            ]
        )
    parts = [
        (
            f"new {result['builds']['new']['commit']} against old {result['builds']['old']['commit']}, "
            f"{result['rounds']} rounds"
        ),
        report.columns(rows),
    ]
    parts += [f"FAILED {problem}" for problem in result["problems"]]
    if ratios := [row["ratio"] for row in result["rows"]]:
        over = sum(ratio > WORSE for ratio in ratios)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        parts.append(
            f"{over} of {len(ratios)} figures over {WORSE}; geometric mean {mean:.3f}. Over 1 the new build is "
            "worse, of all units; the ratio is of medians"
        )
    parts.append(f"load {result['machine']['load_before']} before, {result['machine'].get('load_after')} after")
    return "\n".join(parts)
