"""The cost of a transfer to other users of the same disk, and its processor time on the receiving node."""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import mean

from machine import OUT, PROGRAMS, Failed, json_lines, run
from report import summary

from . import movers
from .overlap import RATE
from .sample import LEAD_S, TICK, Child, wait_for_quiet

MIB = 1 << 20
OTHERS = ["rsync", "rclone", "buffered copy"]
LOOK_S = 0.01
UNCHECKED = "ours, no checks"


def victim(quick, rounds, record):
    """Random reads of 4 KiB beside each mover, relative to reads alone."""
    size, reads = (64, 128) if quick else (512, 1024)
    names = ["ours", *(OTHERS[:1] if quick else OTHERS)]
    absent = movers.missing(names)
    record.left_out += [f"victim: {name}: {what} is not installed" for name, what in absent.items()]
    names = [name for name in names if name not in absent]
    rows = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="staging-", dir=OUT) as folder:
        place = movers.Place(folder, size * MIB)
        file = Path(folder) / "read"
        with open(file, "wb") as writing:
            for _ in range(reads):
                writing.write(os.urandom(MIB))
            os.fsync(writing.fileno())
        seconds = size * MIB / RATE * 0.8

        def iops(name=None):
            # Never throttle for the victim, so that the rate is the same for all.
            mover = name and place.mover(name, RATE, "--harm", 100)
            if mover:
                mover.prepare()
            wait_for_quiet()
            moving = mover and Child(mover.words, mover.environment, 120)
            try:
                time.sleep(LEAD_S)
                out, _ = run([PROGRAMS / "random_reads", file, seconds])
                if moving:
                    moving.wait()
                    mover.check()
            except BaseException:
                if moving:
                    moving.kill()
                raise
            return json_lines(out)[-1]["iops"]

        for number in range(rounds):
            print(f"staging: victim: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            try:
                before = iops()
                found = {name: iops(name) for name in names[:: 1 if number % 2 == 0 else -1]}
                alone = mean([before, iops()])
            except Failed as failed:
                record.problems.append(f"victim: {failed}")
                continue
            for name, value in found.items():
                rows[name].append((value, alone))
    for name, pairs in rows.items():
        if pairs:
            yield {
                "case": "victim",
                "mover": name,
                "iops": summary([value for value, _ in pairs]),
                "alone_iops": summary([alone for _, alone in pairs]),
                "of_alone": summary([value / alone for value, alone in pairs]),
            }


class Watch:
    """The processor time of the mover in this PID namespace, all of its threads, sampled while it lives. It does not
    see movers of other nodes, which send, or gateways."""

    def __init__(self):
        self.used, self.over = {}, False
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self):
        while not self.over:
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        words = (entry / "cmdline").read_bytes().split(b"\0")
                        if len(words) > 1 and words[0].endswith(b"landbridge") and words[1] == b"mover":
                            stat = (entry / "stat").read_text().rsplit(") ", 1)[1].split()
                            self.used[entry.name] = (int(stat[11]) + int(stat[12])) / TICK
                    except (OSError, IndexError):
                        # The process has ended.
                        continue
            time.sleep(LOOK_S)

    def seconds(self):
        self.over = True
        self.thread.join()
        if len(self.used) != 1:
            raise Failed(f"receiver: {len(self.used)} movers on this node, not one")
        return sum(self.used.values())


def receiver(folder, rounds, size_mib):
    """Processor seconds per GiB of receivers, in turns. Ours runs on the first node of a lab, where this code runs and
    sees only its processes; the data comes from the second node. The programs in C, which count their own, receive over
    this node's loopback interface."""
    place = movers.Place(folder, size_mib * MIB, between_nodes=True)
    ways = {"ours": [], movers.FLOOR: None, "TCP pull": None}
    answer = {"cpu_s_per_gib": {}, "problems": [], "left_out": []}
    if movers.knows("--no-checksum"):
        ways[UNCHECKED] = ["--no-checksum"]
    else:
        answer["left_out"].append("receiver: without checks: `landbridge stage move` has no --no-checksum")
    for number in range(rounds):
        for way in list(ways)[:: 1 if number % 2 == 0 else -1]:
            try:
                used = _receiver_s(place, way, ways[way])
                answer["cpu_s_per_gib"].setdefault(way, []).append(used * 1024 / size_mib)
            except Failed as failed:
                answer["problems"].append(f"receiver: {way}: {failed}")
    return answer


def _receiver_s(place, way, options):
    mover = place.mover(way, RATE) if options is None else place.mover("ours", RATE, "--harm", 100, *options)
    mover.prepare()
    watch = None if options is None else Watch()
    out, _ = run(mover.words, mover.environment | {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")})
    used = watch.seconds() if watch else json_lines(out)[-1]["receiver_cpu_s"]
    mover.check()
    return used
