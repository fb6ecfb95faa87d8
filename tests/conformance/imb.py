"""Intel MPI Benchmarks: MPI1, NBC, RMA and MT, to their end, with their checks where the binaries have them.

As PyPI's `impi-rt` ships them the checks are compiled out, and only the end is judged; `IMB=folder` names binaries
that were built with `-DCHECK`, whose every result is then compared. They have MPICH's ABI, so one set runs on MPICH
and Intel MPI; on Open MPI those run that `IMB_OPENMPI=folder` names."""

import os
import re
from pathlib import Path

from conftest import intel

from . import mpis
from .job import ACROSS_SITES, CRASHED, FAILED, HUNG, NOT_REACHED, OURS, PASSED, RIVAL, Job, result

NAME = "imb"
PROGRAMS = ["IMB-MPI1", "IMB-NBC", "IMB-RMA", "IMB-MT"]
QUICK = ["IMB-MPI1"]
QUIET_S = 60.0
LIMIT_S = 600.0
STARTS = 4
# Few iterations of few sizes, each with a time limit: the aim is to find wrong data and hangs, not to measure speed.
SHORT = ["-iter", "5", "-time", "1", "-msglog", "2:17"]


def folder(mpi="intel"):
    """The folder of the binaries for an MPI, or None: nobody ships them for Open MPI."""
    named = os.environ.get("IMB_OPENMPI" if mpi == "openmpi" else "IMB")
    if named:
        return Path(named).resolve()
    return None if mpi == "openmpi" else intel().home / "bin"


def missing():
    """Why this suite cannot run, or None."""
    if (folder() / PROGRAMS[0]).exists():
        return None
    return f"{folder()} has no {PROGRAMS[0]}: run make venv-intel, or give IMB=folder"


def jobs(options):
    """Every program on every requested MPI, place and number of ranks."""
    for mpi in [mpi for mpi in options.mpis if folder(mpi)]:
        units = [name for name in PROGRAMS if (folder(mpi) / name).exists() and (not options.quick or name in QUICK)]
        for where in options.places:
            for ranks in options.ranks:
                providers = [OURS] if where in ACROSS_SITES else [OURS, RIVAL]
                yield from (Job(NAME, unit, provider, mpi, where, ranks) for unit in units for provider in providers)


def execute(job):
    """Runs one program; returns a result for each benchmark it ran."""
    job.folder.mkdir(parents=True, exist_ok=True)
    done = {}
    for _ in range(STARTS):
        if _start(job, done):
            return list(done.values())
    done["the rest"] = result("the rest", NOT_REACHED, f"{STARTS} benchmarks before it hung or crashed")
    return list(done.values())


def _start(job, done):
    """Starts the program without the finished benchmarks, and adds to them. Returns whether it ran to its end."""
    program = folder(job.mpi) / job.unit
    words = [program, *SHORT]
    if job.unit == "IMB-MT":
        words = [program, "-repeat", "5", "-warmup", "1", "-thread_level", "multiple"]
    else:
        words += ["-npmin", job.ranks]
    if done:
        words += ["-exclude", ",".join(done)]
    child = mpis.start(job, words, job.folder)
    ended = child.wait(LIMIT_S, lambda: child.out.stat().st_size, QUIET_S)
    out = child.out.read_text(errors="replace")
    parts = re.split(r"^# Benchmarking:? +(\S+).*$", out, flags=re.MULTILINE)
    benchmarks = list(zip(parts[1::2], parts[2::2]))
    whole = ended.code == 0
    for number, (name, text) in enumerate(benchmarks):
        if number == len(benchmarks) - 1 and not whole:
            done[name] = result(name, HUNG if ended.late else CRASHED, f"{ended}\n{child.text()}")
        elif wrong := wrong_rows(text):
            done[name] = result(name, FAILED, wrong)
        elif done.get(name, {}).get("outcome", PASSED) == PASSED:
            done[name] = result(name, PASSED)
    if not benchmarks:
        done["start"] = result("start", HUNG if ended.late else CRASHED, f"{ended}\n{child.text()}")
        return True
    return whole


def wrong_rows(text):
    """The rows of a benchmark's tables whose `defects` are not zero. Binaries without checks have no such column."""
    wrong, columns = [], 0
    for line in text.splitlines():
        words = line.split()
        if "#bytes" in words:
            columns = len(words) if words[-1] == "defects" else 0
        # Other lines are empty, or report that a size took too long.
        elif columns and len(words) == columns and words[0].isdecimal() and float(words[-1]) != 0.0:
            wrong.append(line)
    return "\n".join(wrong)
