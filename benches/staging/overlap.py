"""An application alone (Tcomp), a mover alone (Tio), and both at once (Tconc), in alternating order: the slowdown of
the application, and the ratio of (Tcomp + Tio) / Tconc to its optimum (Tcomp + Tio) / max(Tcomp, Tio)."""

import sys
import tempfile
from dataclasses import dataclass, field
from statistics import mean

from machine import OUT, Failed
from report import summary

from . import applications, movers
from .sample import LEAD_S, quiet_once

MIB = 1 << 20
RATE = 120 * MIB
RIVALS = ["rsync", "rclone", "fpsync", "scp", "buffered copy"]
PAPER = ["TCP pull", "MPI send", "MPI broadcast", "ours", "rsync", "scp"]
# Rivals that keep a rate as ours does; a bar compares ours with the least harmful of them.
PEERS = ["rsync", "rclone", "fpsync"]
# Modes of ours besides the receiver's pull, and options of ours that only hold it back.
MODES, HELD = ["send", "bcast"], ["--harm", "--deadline"]
# Estimates: seconds of a sample besides the timed part, factor for two programs at once, seconds to calibrate an
# application.
AROUND_S, LONGER, CALIBRATION_S = 0.8, 1.2, 3.0


@dataclass
class Experiment:
    """Applications, each with the seconds that it computes alone, beside movers of `size_mib`. `ours` maps the label of
    each variant of ours to its options. Samples of the mover alone leave out the options that hold it back (`HELD`),
    which would only make it slower."""

    title: str
    applications: dict
    movers: list
    size_mib: int
    ours: dict = field(default_factory=lambda: {"ours": []})

    def labels(self):
        return [label for name in self.movers for label in (self.ours if name == "ours" else [name])]


def _io_s(size_mib):
    return size_mib * MIB / RATE


def _comp_s(size_mib):
    """Seconds of computing: 1.4 times the transfer beside it, and the delay before its start."""
    return 1.4 * _io_s(size_mib) + LEAD_S


def seconds(experiment, rounds):
    """The approximate time of an experiment."""
    movers, io = len(experiment.labels()), _io_s(experiment.size_mib)
    one_round = movers * (io + AROUND_S)
    for alone in experiment.applications.values():
        one_round += movers * (LONGER * max(alone, io) + AROUND_S) + 2 * (alone + AROUND_S)
    return rounds * one_round + CALIBRATION_S * len(experiment.applications)


def _modes():
    """Variants of ours: the receiver's pull and, if this build has them, the modes that push."""
    pushes = MODES if movers.knows("--mode") else []
    return {"ours": []} | {f"ours, {mode}": ["--mode", mode] for mode in pushes}


def experiments(quick):
    """The experiments by name. With `quick`, all are a sixth as long."""
    size = 64 if quick else 384
    less, more = (48, 96) if quick else (184, 276)
    comp = _comp_s(size)
    rivals = ["rsync"] if quick else RIVALS
    paper, modes = (["TCP pull", "MPI send", "ours"], {"ours": []}) if quick else (PAPER, _modes())
    harm = {"ours": ["--harm", 100], "ours, harm 6": ["--harm", 6]}
    deadline = {"ours, deadline": ["--deadline", f"{2000 * _io_s(size):.0f}ms"]}
    harmless = {"ours, harm 1": ["--harm", 1]}
    found = {
        "idle": Experiment("one core idle", {"one core idle": comp}, ["ours", *rivals], size),
        "blocks": Experiment("blocks a third of its time", {"blocks a third": comp}, ["ours", *rivals], size),
        "busy": Experiment("both cores busy", {"both cores busy": comp}, ["ours", *rivals], size, harm),
        "deadline": Experiment(
            "both cores busy, a deadline twice as far",
            {"both cores busy": comp + _io_s(size)},
            ["ours"],
            size,
            deadline,
        ),
        "harmless": Experiment("both cores busy, --harm 1", {"both cores busy": comp}, ["ours"], size, harmless),
    }
    for name, amount in (("figure3 less", less), ("figure3 more", more)):
        beside = dict.fromkeys(applications.POISSON_SIZES, _comp_s(amount))
        found[name] = Experiment(f"poisson, {amount} MiB", beside, paper, amount, modes)
    for name, what in (("figure4", "reads"), ("figure5", "writes"), ("figure6", "broadcasts")):
        beside = {program: _comp_s(less) for program in applications.MPBENCHES if program.endswith(f", {what}")}
        found[name] = Experiment(f"mpbench, {what}, {less} MiB", beside, paper, less, modes)
    if quick:
        for experiment in found.values():
            experiment.applications = dict(list(experiment.applications.items())[-1:])
    return found


def plan(found, rounds):
    """Prints the measurements and their times, for a reader who waits."""
    for name, experiment in found.items():
        print(f"staging: {name}: {rounds} x {'; '.join(experiment.labels())} beside "
              f"{'; '.join(experiment.applications)}: about {seconds(experiment, rounds) / 60:.1f} min",
              file=sys.stderr)  # fmt: skip
    total = sum(seconds(experiment, rounds) for experiment in found.values())
    if len(found) > 1:
        print(f"staging: these {len(found)}: about {total / 60:.0f} min", file=sys.stderr, flush=True)


def measure(name, experiment, rounds, record, between_nodes=False, trials=3):
    """Rows of one experiment."""
    absent = movers.missing(experiment.movers)
    record.left_out += [f"{name}: {mover}: {what} is not installed" for mover, what in absent.items()]
    chosen = [label for label in experiment.labels() if label not in absent]
    with tempfile.TemporaryDirectory(prefix="staging-", dir=OUT) as folder:
        place = movers.Place(folder, experiment.size_mib * MIB, between_nodes)
        try:
            programs = [
                applications.calibrated(program, alone_s, trials)
                for program, alone_s in experiment.applications.items()
            ]
            samples = []
            for number in range(rounds):
                print(f"staging: {name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
                samples.append(_round(experiment, place, programs, chosen, number, record))
        finally:
            place.close()
    return [
        row
        for application in programs
        for label in chosen
        if (row := _row(name, experiment, application.name, label, samples))
    ]


def _not_held(options):
    pairs = zip(options[::2], options[1::2])
    return [word for name, value in pairs if name not in HELD for word in (name, value)]


def _round(experiment, place, programs, chosen, number, record):
    """One sample of each, by (application, mover); one of both is None where the other is alone."""
    found, turn = {}, 1 if number % 2 == 0 else -1

    def take(key, **what):
        try:
            sample = quiet_once(**what)
        except Failed as failed:
            record.problems.append(f"{experiment.title}, {key[0] or 'alone'}, {key[1] or 'alone'}: {failed}")
        else:
            found.setdefault(key, []).append(sample)

    def mover(label, alone):
        if label not in experiment.ours:
            return place.mover(label, RATE)
        options = experiment.ours[label]
        return place.mover("ours", RATE, *(_not_held(options) if alone else options), label=label)

    for label in chosen[::turn]:
        take((None, label), mover=mover(label, alone=True))
    for application in programs[::turn]:
        take((application.name, None), application=application)
        for label in chosen[::turn]:
            take((application.name, label), application=application, mover=mover(label, alone=False))
        take((application.name, None), application=application)
    return found


def _row(case, experiment, application, label, samples):
    figures = {key: [] for key in ("slowdown", "speedup", "optimum", "of_optimum", "tcomp_s", "tio_s", "tconc_s")}
    extra = {key: [] for key in ("harm", "cpu_s_per_gib", "receiver_cpu_s_per_gib", "others_cores")}
    said = set()
    gib = experiment.size_mib / 1024
    for found in samples:
        if not all(key in found for key in ((application, None), (None, label), (application, label))):
            continue
        alone, [io], [both] = found[application, None], found[None, label], found[application, label]
        tcomp, tio, tconc = mean(one["application_wall_s"] for one in alone), io["mover_s"], both["seconds"]
        figures["slowdown"].append(both["application_s"] / mean(one["application_s"] for one in alone) - 1)
        figures["speedup"].append((tcomp + tio) / tconc)
        figures["optimum"].append((tcomp + tio) / max(tcomp, tio))
        figures["of_optimum"].append(max(tcomp, tio) / tconc)
        for key, value in (("tcomp_s", tcomp), ("tio_s", tio), ("tconc_s", tconc)):
            figures[key].append(value)
        extra["cpu_s_per_gib"].append(io["mover_cpu_s"] / gib)
        if "receiver_cpu_s" in io["mover"]:
            extra["receiver_cpu_s_per_gib"].append(io["mover"]["receiver_cpu_s"] / gib)
        for moved in both["mover"].get("moved", []):
            extra["harm"] += [moved["harm"]] if moved["harm"] is not None else []
            said |= {str(note) for note in moved["notes"]}
        extra["others_cores"].append(max(one["others_cores"] for one in (*alone, io, both)))
    if not figures["tcomp_s"]:
        return None
    row = {"case": case, "application": application, "mover": label, "size_mib": experiment.size_mib}
    row |= {key: summary(values) for key, values in {**figures, **extra}.items() if values}
    return {**row, "said": sorted(said)}


def bars(rows):
    """(name, figure, relation, bar) of each bar that these rows can judge."""
    found = []

    def row(case, mover="ours"):
        return next((row for row in rows if row["case"] == case and row["mover"] == mover), None)

    def add(case, mover, slowdown, share):
        if one := row(case, mover):
            name = f"{case}, {mover}"
            found.append((f"{name}: slowdown", one["slowdown"]["median"], "<=", slowdown))
            found.append((f"{name}: of the optimum", one["of_optimum"]["median"], ">=", share))

    add("idle", "ours", 0.02, 0.97)
    add("blocks", "ours", 0.02, 0.97)
    add("busy", "ours", 0.06, 0.94)
    add("busy", "ours, harm 6", 0.06, 0.94)
    add("deadline", "ours, deadline", 0.03, 0.85)
    if one := row("harmless", "ours, harm 1"):
        found.append(("harmless: slowdown", one["slowdown"]["median"], "<=", 0.01))
        found.append(("harmless: says that it could not overlap", float(bool(one["said"])), ">=", 1))
    for case in ("idle", "blocks", "busy"):
        peers = [row(case, peer)["slowdown"]["median"] for peer in PEERS if row(case, peer)]
        if peers and row(case):
            bar = min(peers) / 4
            found.append(
                (f"{case}: slowdown, of the least of {len(peers)} peers", row(case)["slowdown"]["median"], "<=", bar)
            )
    return found
