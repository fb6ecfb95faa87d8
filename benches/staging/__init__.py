"""Staging behind a running application, after Reid and Stumm, "Overlapping Data Transfer With Application Execution on
Clusters": what a transfer costs the application beside it, against the paper's movers and against what users have."""

import sys

from machine import LANDBRIDGE, Failed, describe, load, need, only

from . import applications, chain, disk, figures, overlap, phases, queues, sample, sites

table, plot = figures.table, figures.plot
# In this order, because the simulation takes what the others have measured.
OTHERS = {"victim": disk.victim, **sites.CASES, "chain": chain.measure, "phases": phases.measure}


def measure(arguments):
    need(LANDBRIDGE, "run make")
    applications.check()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    if arguments.quick:
        sample.PATIENCE_S, sample.REPEATS = 0.5, 0
    result = {"machine": describe(), "rounds": rounds, "rows": []}
    rows, record = result["rows"], sample.Record()
    experiments = overlap.experiments(arguments.quick)
    for name in only(arguments, [*experiments, *OTHERS, "queue"]):
        print(f"staging: {name}", file=sys.stderr, flush=True)
        try:
            if name in experiments:
                rows += overlap.measure(name, experiments[name], rounds, record)
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


def _bars(rows):
    for row in rows:
        if row["case"] == "victim" and row["mover"] == "ours":
            yield "victim's IOPS, of alone", row["of_alone"]["median"], ">=", 0.95
        if row["case"] == "chain":
            yield f"chain of {row['jobs']} jobs: of serial", row["of_serial"]["median"], "<=", 0.86
