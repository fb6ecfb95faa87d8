"""Staging behind a running application, after Reid and Stumm, "Overlapping Data Transfer With Application Execution on
Clusters": what a transfer costs the application beside it, against the paper's movers and against what users have."""

from machine import LANDBRIDGE, Failed, describe, load, need, only

from . import applications, overlap


def measure(arguments):
    need(LANDBRIDGE, "run make")
    applications.check()
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    result = {"machine": describe(), "rounds": rounds, "rows": [], "problems": []}
    experiments = overlap.experiments(arguments.quick)
    for name in only(arguments, [*experiments]):
        try:
            result["rows"] += overlap.measure(name, experiments[name], rounds, result["problems"])
        except Failed as failed:
            result["problems"].append(f"{name}: {failed}")
    result["machine"]["load_after"] = load()
    return result


def table(result):
    import json
    return json.dumps(result["rows"], indent=1)
