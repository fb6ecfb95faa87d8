"""Sandia OpenSHMEM's own unit tests, from a folder where they are built (`SOS=folder` of hello, get1, …).

They use libfabric without an MPI, so `landbridge run --mpi none` starts them. tcp is started the same way, on two
nodes of a site."""

import os
import re
from pathlib import Path

from harness import LANDBRIDGE

from .job import ACROSS_SITES, CRASHED, FAILED, HUNG, OURS, PASSED, RIVAL, SKIPPED, Job, result
from .process import Child, clean_environment

NAME = "sos"
# bigget takes a minute on a busy machine, and tests are judged here, not timed.
LIMIT_S = 300.0
PLACES = ["two-nodes", "two-sites"]
QUICK = ["hello", "barrier", "put1", "get1", "atomic_inc", "alltoall"]
# The exit code of automake's test programs that cannot be judged.
SKIP = 77


def folder():
    """Where the tests are, or None."""
    return Path(os.environ["SOS"]).resolve() if os.environ.get("SOS") else None


def missing():
    """Why this suite cannot run, or None."""
    if folder() is None:
        return "SOS is not set: give the folder of Sandia OpenSHMEM's built unit tests (modules/tests-sos/test/unit)"
    if not (folder() / "hello").exists():
        return f"SOS={folder()}: no hello there: build it with make check TESTS= in modules/tests-sos/test/unit"
    return None


def tests():
    """The built test programs: those of the list in its Makefile; without one, every program in the folder."""
    makefile = folder() / "Makefile"
    names = sorted(path.name for path in folder().iterdir() if path.is_file() and os.access(path, os.X_OK))
    if makefile.exists():
        text = makefile.read_text()
        named = re.search(r"^check_PROGRAMS = ((?:.*\\\n)*.*)$", text, re.MULTILINE)
        listed = {re.sub(r"\$\(EXEEXT\)", "", word) for word in (named[1] if named else "").replace("\\", " ").split()}
        names = [name for name in names if name in listed] or names
    return names


def jobs(options):
    """Every test, between two nodes and across two sites."""
    units = [name for name in tests() if not options.quick or name in QUICK]
    for where in [where for where in options.places if where in PLACES]:
        providers = [OURS] if where in ACROSS_SITES else [OURS, RIVAL]
        yield from (Job(NAME, unit, provider, where=where) for unit in units for provider in providers)


def execute(job):
    """Runs one test; one case."""
    job.folder.mkdir(parents=True, exist_ok=True)
    kept = {key: os.environ[key] for key in os.environ if key.startswith("LANDBRIDGE_")}
    # tcp has the one-sided operations that OpenSHMEM needs only under libfabric's rxm.
    chosen = {"FI_PROVIDER": "tcp;ofi_rxm"} if job.provider == RIVAL else {}
    words = [LANDBRIDGE, "run", "-n", job.ranks, "--mpi", "none", "--", folder() / job.unit]
    child = Child(words, job.folder, environment=clean_environment({**kept, **chosen}))
    ended = child.wait(LIMIT_S)
    if ended.code in (0, SKIP):
        return [
            result(
                job.unit, PASSED if ended.code == 0 else SKIPPED, "" if ended.code == 0 else child.text(), ended.seconds
            )
        ]
    outcome = HUNG if ended.late else CRASHED if ended.code > 128 else FAILED
    return [result(job.unit, outcome, f"{ended}\n{child.text()}", ended.seconds)]
