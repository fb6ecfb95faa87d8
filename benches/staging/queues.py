"""The value of overlapping to a queue of jobs, by queue.py: throughput and waiting against load and share of I/O, and
the best phase of the applications for moves."""

from statistics import mean

from report import summary

from .queue import SERIAL, Policy, simulate, workload

NODES, JOBS = 64, 400
LOADS, SHARES = [0.5, 0.7, 0.9, float("inf")], [0.05, 0.1, 0.2, 0.4]
# Cost of a mover to an application that keeps all cores busy, if this run has not measured it.
HARM = 0.06
# The same for each phase, and the part of the rate that remains if it moves only in that phase.
PHASES = {
    "any phase": (0.06, 1.0),
    "compute": (0.06, 1.0),
    "block": (0.01, 1.0),
    "communicate": (0.08, 1.0),
}


def measured_harm(rows):
    """The cost of ours to both busy cores in this run, if measured."""
    for row in rows:
        if row["case"] == "busy" and row["mover"] == "ours":
            return max(row["slowdown"]["median"], 0.0)
    return None


def measured_phases(rows):
    """The cost and the remaining rate in each phase, as measured in this run."""
    return {
        row["mover"]: (max(row["harm"]["median"], 0.0), row["busy_rate"]["median"])
        for row in rows
        if row["case"] == "phases"
    }


def _pairs(seeds, jobs, load, share, policies):
    """For each policy, the ratios to serial of makespan, waiting and its share of wrong nodes, by seed."""
    found = {name: [] for name in policies}
    for seed in range(seeds):
        work = workload(seed, jobs, NODES, load, share)
        serial = simulate(work, NODES, SERIAL)
        for name, policy in policies.items():
            outcome = simulate(work, NODES, policy)
            found[name].append(
                (
                    outcome.makespan / serial.makespan,
                    outcome.wait / serial.wait,
                    outcome.wrong,
                    serial.wait,
                    outcome.wait,
                )
            )
    return found


def _figures(values):
    return {
        "makespan_of_serial": summary([value[0] for value in values]),
        "wait_of_serial": summary([value[1] for value in values]),
        "wrong_nodes": round(mean(value[2] for value in values), 3),
        "serial_wait_s": round(mean(value[3] for value in values)),
        "wait_s": round(mean(value[4] for value in values)),
    }


def load_name(load):
    return "all at once" if load == float("inf") else f"{load:.1f}"


def measure(quick, rows):
    """Rows. The harm is measured in this run where possible."""
    seeds, jobs = (2, 100) if quick else (5, JOBS)
    harm, source = measured_harm(rows), "measured in this run"
    if harm is None:
        harm, source = HARM, "assumed"
    for load in LOADS[1::2] if quick else LOADS:
        for share in SHARES[1::2] if quick else SHARES:
            policies = {"overlapped": Policy(True, harm=harm), "without harm": Policy(True)}
            for name, values in _pairs(seeds, jobs, load, share, policies).items():
                yield {
                    "case": "queue",
                    "mover": name,
                    "load": load_name(load),
                    "io_share": share,
                    "harm": round(policies[name].harm, 4),
                    "harm_is": source if policies[name].harm else "",
                    **_figures(values),
                }
    phases = measured_phases(rows)
    source = "measured in this run" if phases else "assumed"
    policies = {
        name: Policy(True, harm=harm, busy_rate=max(rate, 0.01)) for name, (harm, rate) in (phases or PHASES).items()
    }
    for share in SHARES[1::2]:
        for name, values in _pairs(seeds, jobs, 0.9, share, policies).items():
            yield {
                "case": "queue of phases",
                "mover": name,
                "load": "0.9",
                "io_share": share,
                "harm": round(policies[name].harm, 4),
                "busy_rate": round(policies[name].busy_rate, 3),
                "harm_is": source,
                **_figures(values),
            }
