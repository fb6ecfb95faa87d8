"""One sample: an application, a mover, or both at once, started and timed, with the processor time that other users of
this machine took meanwhile."""

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field

from machine import Failed, clean_environment, end_group, json_lines

# Seconds by which a mover starts later than the application beside it, which then computes.
LEAD_S = 0.3
# A sample counts as disturbed if other programs used more than this number of cores; and the maximum number of repeats.
DISTURBED_CORES, REPEATS = 0.25, 2
# Before a sample, wait until other programs use at most this number of cores, for at most this number of seconds.
IDLE_CORES, PATIENCE_S = 0.2, 5.0
TICK = os.sysconf("SC_CLK_TCK")


def be_quick():
    """Disables waiting and repeats."""
    global PATIENCE_S, REPEATS
    PATIENCE_S, REPEATS = 0.0, 0


def busy_s():
    """Seconds of processor time that all programs on this machine have used, and that its host took away."""
    with open("/proc/stat") as file:
        words = file.readline().split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in words[:8])
    return (user + nice + system + irq + softirq + steal) / TICK


def ours_s():
    """Seconds of processor time of this process and of its children that have ended."""
    times = os.times()
    return times.children_user + times.children_system + times.user + times.system


def wait_for_quiet():
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        before, start = busy_s(), time.monotonic()
        time.sleep(0.2)
        if (busy_s() - before) / (time.monotonic() - start) <= IDLE_CORES:
            return


@dataclass
class Record:
    """Failures, and measurements left out because a program is not installed."""

    problems: list = field(default_factory=list)
    left_out: list = field(default_factory=list)

    def add(self, answer):
        """Adds the record of a part that ran inside a lab."""
        self.problems += answer["problems"]
        self.left_out += answer.get("left_out", [])


class Child:
    """A program whose end is timed by a thread that waits for it."""

    def __init__(self, words, environment, limit):
        self.words = [str(word) for word in words]
        self.start = time.monotonic()
        self.limit = limit
        self.process = subprocess.Popen(
            self.words,
            env={**clean_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.out = self.err = ""
        self.end = None
        self.thread = threading.Thread(target=self._wait, daemon=True)
        self.thread.start()

    def _wait(self):
        try:
            self.out, self.err = self.process.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            self.out, self.err = end_group(self.process)
            self.err += f"\nstill running after {self.limit:.0f} s"
        self.end = time.monotonic()

    def wait(self):
        self.thread.join()
        if self.process.returncode:
            text = f"exit code {self.process.returncode}\n{self.out[-1000:]}{self.err[-2000:]}"
            raise Failed(f"{' '.join(self.words)}: {text}")
        return self

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.thread.join()

    @property
    def seconds(self):
        return self.end - self.start

    @property
    def figures(self):
        lines = json_lines(self.out)
        return lines[-1] if lines else {}


def once(application=None, mover=None, limit=120.0):
    """Runs one or both. An application is (words, environment); a mover also has `prepare()`.

    Returns `seconds` from the first start to the last end, `application_s` by the application's own clock and
    `application_wall_s`, `mover_s`, `mover_cpu_s` of a mover alone, the figures that each printed, and
    `others_cores`."""
    if mover:
        mover.prepare()
    wait_for_quiet()
    busy, ours, start = busy_s(), ours_s(), time.monotonic()
    children = []
    try:
        if application:
            children.append(Child(application.words, application.environment, limit))
        if mover:
            if application:
                time.sleep(LEAD_S)
            children.append(Child(mover.words, mover.environment, limit))
        for child in children:
            child.wait()
    except BaseException:
        for child in children:
            child.kill()
        raise
    end = max(child.end for child in children)
    used = ours_s() - ours
    passed = time.monotonic() - start
    sample = {
        "seconds": end - start,
        "others_cores": max((busy_s() - busy - used) / passed, 0.0),
    }
    if application:
        sample |= {"application": children[0].figures, "application_wall_s": children[0].seconds}
        sample["application_s"] = children[0].figures["seconds"]
    if mover:
        sample |= {"mover": children[-1].figures, "mover_s": children[-1].seconds, "said": children[-1].err.strip()}
        mover.check()
        if not application:
            sample["mover_cpu_s"] = used
    return sample


def quiet_once(**what):
    """The least disturbed of a few tries; stops at the first undisturbed one."""
    best = None
    for _ in range(1 + REPEATS):
        sample = once(**what)
        if best is None or sample["others_cores"] < best["others_cores"]:
            best = sample
        if best["others_cores"] <= DISTURBED_CORES:
            break
    return best
