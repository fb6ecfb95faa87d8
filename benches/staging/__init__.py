"""Staging behind a running application, after Reid and Stumm, "Overlapping Data Transfer With Application Execution on
Clusters": the cost of a transfer to the application beside it, against the paper's movers and common tools."""

import sys

from machine import LANDBRIDGE, Failed, Missing, describe, load, need, only

from . import applications, builds, chain, disk, figures, movers, overlap, phases, queues, sample, sites

table, plot, cases = figures.table, figures.plot, builds.cases
# In this order, because the simulation uses the measurements of the others.
OTHERS = {"victim": disk.victim, **sites.CASES, "chain": chain.measure, "phases": phases.measure}
# Experiments that --quick leaves out, with the reasons.
SLOW = {
    "figure3 more": "as `figure3 less`, longer",
    "harmless": "only a transfer of some seconds can say that it was held up",
    "nodes": "as `busy`, in a lab",
}


def measure(arguments):
    need(LANDBRIDGE, "run make")
    applications.check()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    if arguments.quick:
        sample.be_quick()
    result = {"machine": describe(), "rounds": rounds, "rows": []}
    rows, record = result["rows"], sample.Record()
    experiments = overlap.experiments(arguments.quick)
    chosen = only(arguments, [*experiments, *OTHERS, "queue"])
    if arguments.movers:
        restrict(experiments, arguments.movers)
        record.left_out.append(f"by --movers: all movers but {', '.join(arguments.movers)}")
        chosen = [name for name in chosen if name not in experiments or experiments[name].movers]
    if arguments.quick:
        record.left_out += [f"{name}, by --quick: {why}" for name, why in SLOW.items() if name in chosen]
        chosen = [name for name in chosen if name not in SLOW]
    overlap.plan({name: experiments[name] for name in chosen if name in experiments}, rounds)
    for name in chosen:
        print(f"staging: {name}", file=sys.stderr, flush=True)
        try:
            if name in experiments:
                rows += overlap.measure(name, experiments[name], rounds, record, trials=1 if arguments.quick else 3)
            elif name == "queue":
                rows += queues.measure(arguments.quick, rows)
            else:
                rows += OTHERS[name](arguments.quick, rounds, record)
        except Failed as failed:
            record.problems.append(f"{name}: {failed}")
    result |= {"problems": record.problems, "left_out": record.left_out}
    result["bars"] = figures.judged([*overlap.bars(rows), *sites.bars(rows), *_bars(rows)])
    result["machine"]["load_after"] = load()
    return result


def restrict(experiments, names):
    """Removes all other movers from the experiments."""
    if unknown := set(names) - set(movers.MOVERS):
        raise Missing(f"--movers {', '.join(sorted(unknown))}: there are {', '.join(movers.MOVERS)}")
    sites.MOVERS = [name for name in names if name in sites.WAYS]
    for experiment in experiments.values():
        experiment.movers = [name for name in experiment.movers if name in names]


def _bars(rows):
    for row in rows:
        if row["case"] == "victim" and row["mover"] == "ours":
            yield "victim's IOPS, of alone", row["of_alone"]["median"], ">=", 0.95
        if row["case"] == "chain":
            yield f"chain of {row['jobs']} jobs: of serial", row["of_serial"]["median"], "<=", 0.86
