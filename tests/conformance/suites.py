"""The suites, and running their jobs: in a lab, or here."""

import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from harness import LANDBRIDGE

from . import fabtests, imb, mpi4py_suite, sos
from .job import OUT, PLACES
from .process import Child, clean_environment

SUITES = {module.NAME: module for module in (fabtests, mpi4py_suite, imb, sos)}
INSIDE = Path(__file__).with_name("inside.py")
# A place's jobs together; each has limits of its own.
LIMIT_S = 4 * 3600.0


def run_job(job):
    """Runs a job, keeps its results, prints one line about it."""
    start = time.monotonic()
    results = SUITES[job.suite].execute(job)
    job.store(results)
    counts = {}
    for case in results:
        counts[case["outcome"]] = counts.get(case["outcome"], 0) + 1
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print(f"{job}: {said} ({time.monotonic() - start:.1f} s)", flush=True)


def run_jobs(jobs):
    """Runs all jobs, those of one place in one lab. Gives a line for each place that did not come to its end."""
    places = {}
    for job in jobs:
        places.setdefault(job.where, []).append(job)
    problems = []
    for where, together in places.items():
        if not where:
            for job in together:
                run_job(job)
        elif problem := _in_lab(where, together):
            problems.append(problem)
    return problems


def _in_lab(where, jobs):
    # One of its own: runs of other MPIs or numbers of ranks may go on at the same time.
    (OUT / "labs").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{where}-", dir=OUT / "labs"))
    (folder / "jobs.json").write_text(json.dumps([asdict(job) for job in jobs]))
    lab = [LANDBRIDGE, "lab", "--isolation", "namespaces", *PLACES[where], "--nic-rate", "0", "--wan-rate", "0"]
    # Labs have a /tmp, /dev/shm and /run of their own; the suites get the paths of the files they need from ours.
    # Sandia OpenSHMEM's programs find their library above their own folder, where both were built.
    built = sos.folder() and next((above for above in sos.folder().parents if (above / "src").is_dir()), sos.folder())
    for needed in filter(None, [imb.folder(), built]):
        if needed.is_relative_to("/tmp") or needed.is_relative_to("/run"):
            lab += ["--visible", needed]
    child = Child([*lab, "--", sys.executable, INSIDE, folder / "jobs.json"], folder, environment=clean_environment())
    shown = Tail(child.out)
    ended = child.wait(LIMIT_S, shown.show)
    shown.show()
    if ended.code != 0:
        return f"the lab {where}: {ended}\n{child.text()}"
    shutil.rmtree(folder)
    return None


class Tail:
    """Shows the new part of a file."""

    def __init__(self, path):
        self.path = path
        self.at = 0

    def show(self):
        with self.path.open("rb") as file:
            file.seek(self.at)
            new = file.read()
        self.at += len(new)
        sys.stdout.write(new.decode(errors="replace"))
        sys.stdout.flush()
        return self.at
