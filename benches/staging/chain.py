"""A chain of jobs in one allocation, each with input and output: `landbridge run --stage-in … --stage-out …`, one run
after the other, against the same steps one at a time."""

import os
import tempfile
import time
from pathlib import Path

from machine import LANDBRIDGE, Failed, clean_environment, libraries, run
from report import summary

from . import applications
from .overlap import RATE
from .sites import inside

MIB = 1 << 20
JOBS = 8
# Input and output each take this part of a job's time.
PART = 0.1
STAGED = ["--rate", f"{RATE // MIB}MiB/s", "--harm", 100]
ONE_NODE = ["--sites", 1, "--nodes", 1, "--delay", 0, "--wan-rate", 0, "--nic-rate", 0]


def missing():
    """The reason why this cannot be measured, or None."""
    out, _ = run([LANDBRIDGE, "run", "--help"])
    return None if "--stage-in" in out else "chain: `landbridge run` has no --stage-in"


def measure(quick, rounds, record):
    """Rows; in a lab of one node, since staging beside a run needs the nodes of a site."""
    if why := missing():
        record.left_out.append(why)
        return
    plan = {
        "seconds": 1.0 if quick else 10.0,
        "jobs": 2 if quick else JOBS,
        "rounds": rounds,
        "trials": 1 if quick else 3,
    }
    answer = inside(ONE_NODE, "chain", plan, 120 + 300 * rounds)
    record.add(answer)
    pairs = list(zip(answer["serial"], answer["overlapped"]))
    if pairs:
        yield {
            "case": "chain",
            "mover": "ours",
            "jobs": plan["jobs"],
            "serial_s": summary([serial for serial, _ in pairs]),
            "overlapped_s": summary([overlapped for _, overlapped in pairs]),
            "of_serial": summary([overlapped / serial for serial, overlapped in pairs]),
        }


def within(folder, plan):
    """The part inside the lab."""
    seconds = plan["seconds"]
    size = int(seconds * PART * RATE) // MIB * MIB
    application = applications.calibrated("both cores busy", seconds * (1 - 2 * PART), plan["trials"])
    ways = {"serial": _serial, "overlapped": _overlapped}
    answer = {"serial": [], "overlapped": [], "problems": []}
    for number in range(plan["rounds"]):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory(dir=folder) as inner:
                try:
                    answer[name].append(ways[name](_Chain(Path(inner), plan["jobs"], size, application)))
                except Failed as failed:
                    answer["problems"].append(f"chain, {name}: {failed}")
    return answer


class _Chain:
    """Folders with the input of each job, and the command of a job."""

    def __init__(self, folder, jobs, size, application):
        self.folder, self.jobs, self.size, self.application = folder, jobs, size, application
        for number in range(jobs):
            source = folder / f"input{number}"
            block = number.to_bytes(4, "big") * (MIB // 4)
            with open(source, "wb") as file:
                for _ in range(size // MIB):
                    file.write(block)
        run(["sync", "-f", folder])

    def near(self, number):
        return self.folder / f"near{number}"

    def move_in(self, number):
        """The specification of a job's input."""
        return f"{self.folder / f'input{number}'}={self.near(number)}"

    def move_out(self, number):
        """The specification of a job's output, which is its input again, so that both have the same size."""
        return f"{self.near(number)}={self.folder / f'output{number}'}.%n"

    def stage(self, way, spec):
        run([LANDBRIDGE, "stage", way, *STAGED, spec], _environment(), limit=300)

    def words(self, number, *options):
        # Leave out mpiexec and its number of ranks; `landbridge run` has its own.
        program = self.application.words[3:]
        return [LANDBRIDGE, "run", "-n", applications.CORES, "--mpi", "mpich", *options, *program]

    def check(self):
        for number in range(self.jobs):
            found = list(self.folder.glob(f"output{number}.*"))
            if [path.stat().st_size for path in found] != [self.size]:
                raise Failed(f"output{number} has not arrived as {self.size} bytes")


def _environment():
    ours = {key: value for key, value in os.environ.items() if key.startswith("LANDBRIDGE_")}
    return {**clean_environment(), **libraries("mpich"), **ours}


def _serial(chain):
    """Input, program, output, and only then the next job."""
    start = time.monotonic()
    for number in range(chain.jobs):
        chain.stage("in", chain.move_in(number))
        run(chain.words(number), _environment())
        chain.stage("out", chain.move_out(number))
    seconds = time.monotonic() - start
    chain.check()
    return seconds


def _overlapped(chain):
    """While a job computes, the next one's input and the last one's output move."""
    start, last = time.monotonic(), chain.jobs - 1
    chain.stage("in", chain.move_in(0))
    for number in range(chain.jobs):
        options = ["--stage-rate", STAGED[1], "--stage-harm", STAGED[3]]
        options += ["--stage-in", chain.move_in(number + 1)] if number < last else []
        options += ["--stage-out", chain.move_out(number - 1)] if number else []
        run(chain.words(number, *options), _environment(), limit=300)
    chain.stage("out", chain.move_out(last))
    seconds = time.monotonic() - start
    chain.check()
    return seconds
