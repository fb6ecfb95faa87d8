"""Transfers in one phase of an application: while it computes, while it waits, or while it communicates. The mover is
paused outside that phase (`landbridge stage pause`, `resume`), which mpbench announces. Inside the phase it moves three
times as fast, so that it moves as much in a third of the time."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from statistics import mean

from machine import LANDBRIDGE, OUT, Failed, clean_environment, json_lines, libraries, run
from report import summary

from . import applications, movers
from .overlap import RATE
from .sample import LEAD_S, quiet_once, wait_for_quiet

ANY = "any phase"
PHASES = [ANY, "compute", "block", "communicate"]
QUICK = [ANY, "block"]
# Approximate seconds of each phase: pausing takes a command, some milliseconds.
PHASE_S = 0.3
MESSAGE = 512 << 20
FASTER = 3


def measure(quick, rounds, record):
    """Rows of each phase."""
    size = (36 if quick else 384) << 20
    chosen = QUICK if quick else PHASES
    if quick:
        record.left_out.append("phases, by --quick: compute, communicate")
    with tempfile.TemporaryDirectory(prefix="staging-", dir=OUT) as folder:
        place = movers.Place(folder, size)
        application = _application(1.0 if quick else 6.3, 1 if quick else 3)
        samples = []
        for number in range(rounds):
            print(f"staging: phases: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            found = {}
            try:
                alone = [quiet_once(application=application)]
                for phase in chosen[:: 1 if number % 2 == 0 else -1]:
                    found[phase] = _beside(application, place, phase)
                alone.append(quiet_once(application=application))
                samples.append((mean(one["application_s"] for one in alone), found))
            except Failed as failed:
                record.problems.append(f"phases: {failed}")
    for phase in chosen:
        if row := _row(phase, size, samples):
            yield row


def _application(seconds, trials):
    """mpbench with three phases of the same length."""
    words = [applications.MPIEXEC, "-n", applications.CORES, applications.MPBENCH, "--memory", "64k"]
    tried = [*words, "--passes", 2000, "--iterations", 10]
    took = min(
        json_lines(run(tried, {**clean_environment(), **libraries("mpich")})[0])[-1]["compute"] for _ in range(trials)
    )
    words += ["--passes", max(int(2000 * PHASE_S / (took / 10)), 1), "--block", PHASE_S, "--announce"]
    words += ["--pattern", "ring", "--message", MESSAGE, "--iterations", max(int(seconds / (3 * PHASE_S)), 1)]
    return applications.Application("phases", words)


class Steered:
    """A transfer that is paused and resumed as the application's phases change."""

    def __init__(self, mover, phase):
        self.phase, self.wanted, self.paused, self.over = phase, False, False, False
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            [str(word) for word in mover.words],
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def steer(self, phase):
        """Reports that another phase has begun; None: the application has ended."""
        if self.phase != ANY and self.process.poll() is None:
            pauses = phase not in (self.phase, None)
            if pauses != self.paused:
                words = [LANDBRIDGE, "stage", "pause" if pauses else "resume", self.process.pid]
                try:
                    run(words)
                    self.paused = pauses
                except Failed:
                    # The transfer has just begun, or has ended.
                    pass

    def end(self):
        """Waits for the transfer's end, and returns its seconds."""
        while self.process.poll() is None:
            # A pause may have crossed the application's end.
            self.steer(None)
            time.sleep(0.01)
        if self.process.returncode:
            raise Failed(f"phases, {self.phase}: {self.process.stderr.read()[-1000:]}")
        return time.monotonic() - self.start


def _beside(application, place, phase):
    rate = RATE if phase == ANY else FASTER * RATE
    mover = place.mover("ours", rate, "--harm", 100)
    mover.prepare()
    wait_for_quiet()
    start, started = time.monotonic(), []
    child = subprocess.Popen(
        [str(word) for word in application.words],
        env={**clean_environment(), **application.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    begin = threading.Timer(LEAD_S, lambda: started.append(Steered(mover, phase)))
    begin.start()
    figures, ended = {}, None
    try:
        for line in child.stdout:
            figures = json.loads(line)
            if "phase" in figures and started:
                started[0].steer(figures["phase"])
        child.wait()
        ended = time.monotonic()
    finally:
        begin.join()
        if child.poll() is None:
            child.kill()
            child.wait()
    if child.returncode:
        raise Failed(f"phases: mpbench ended with {child.returncode}")
    [steered] = started
    took = steered.end()
    mover.check()
    # From the application's start to the last end.
    return {
        "application_s": figures["seconds"],
        "mover_s": took,
        "seconds": max(ended, steered.start + took) - start,
        "beside_s": min(took, ended - steered.start),
    }


def _row(phase, size, samples):
    pairs = [(alone, found[phase]) for alone, found in samples if phase in found]
    if not pairs:
        return None
    extra = [found["application_s"] - alone for alone, found in pairs]
    rates = [size / found["mover_s"] for _, found in pairs]
    return {
        "case": "phases",
        "application": "a third each",
        "mover": phase,
        "size_mib": size >> 20,
        "tcomp_s": summary([alone for alone, _ in pairs]),
        "mover_s": summary([found["mover_s"] for _, found in pairs]),
        "slowdown": summary([found["application_s"] / alone - 1 for alone, found in pairs]),
        "tconc_s": summary([found["seconds"] for _, found in pairs]),
        # For the simulation: the cost of a second beside the application, and the part of the rate that remains there.
        "harm": summary([more / found["beside_s"] for more, (_, found) in zip(extra, pairs)]),
        "busy_rate": summary([min(rate / RATE, 1.0) for rate in rates]),
    }
