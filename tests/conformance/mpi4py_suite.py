"""mpi4py's own test suite, from its source package: one file at a time, one result per case.

A case that hangs or ends the program only affects itself: its file is started again without the cases that have run.
"""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from harness import ROOT

from . import mpis
from .cases import FILES
from .job import ACROSS_SITES, CRASHED, FAILED, HUNG, NOT_REACHED, OURS, OUT, PASSED, RIVAL, SKIPPED, Job, result

NAME = "mpi4py"
REQUIREMENT = ROOT / "tests" / "requirements" / "mpi4py-suite.txt"
RUNNER = Path(__file__).with_name("cases.py")
# Limit without the start or end of a case on any rank. The slowest take some seconds, and a minute on a busy machine.
QUIET_S = 90.0
LIMIT_S = 900.0
# These have cases of ten thousand one-sided operations, each a few round trips: minutes where ranks, gateways and the
# lab's
# network share two cores.
LONG_QUIET_S = 400.0
LONG_LIMIT_S = 2400.0
LONG = {"test_rma", "test_rma_nb"}
# After this many hangs and crashes the rest of a file is not reached.
STARTS = 6

# The quick part: files that send a lot, each in a different way, take little time, and hang on no MPI's tcp.
QUICK = ["test_p2p_buf", "test_cco_buf", "test_comm_inter", "test_win"]


def missing():
    """Why this suite cannot run, or None."""
    try:
        source()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no mpi4py source package: {error}"
    return None


def source():
    """The folder of mpi4py's source, downloaded once by pip, which checks its hash."""
    pinned = REQUIREMENT.read_text().split("==")[1].split()[0]
    folder = OUT / "sources" / f"mpi4py-{pinned}"
    if not (folder / "test").is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        words = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-binary",
            "mpi4py",
        ]
        words += ["--require-hashes", "--dest", folder.parent, "--requirement", REQUIREMENT]
        subprocess.run(list(map(str, words)), check=True, timeout=300)
        with tarfile.open(folder.parent / f"{folder.name}.tar.gz") as archive:
            archive.extractall(folder.parent)
    return folder


def jobs(options):
    """Every file of the suite on every requested MPI, place and number of ranks. Not tcp across sites: it cannot get
    there."""
    found = sorted(path.stem for path in (source() / "test").glob("test_*.py"))
    units = ["provider", *(unit for unit in found if not options.quick or unit in QUICK)]
    for mpi in options.mpis:
        for where in options.places:
            for ranks in options.ranks:
                providers = [OURS] if where in ACROSS_SITES else [OURS, RIVAL]
                yield from (Job(NAME, unit, provider, mpi, where, ranks) for unit in units for provider in providers)


def execute(job):
    """Runs one file; returns a result for each of its cases."""
    if job.unit == "provider":
        job.folder.mkdir(parents=True, exist_ok=True)
        return [mpis.check_provider(job, QUIET_S)]
    if job.folder.exists():
        shutil.rmtree(job.folder)
    (job.folder / FILES).mkdir(parents=True)
    done = {}
    for _ in range(STARTS):
        if _start(job, done):
            return list(done.values())
    done["the rest"] = result("the rest", NOT_REACHED, f"{STARTS} cases before it hung or crashed")
    return list(done.values())


def _start(job, done):
    """Starts the file without the finished cases, and adds to them. Returns whether it ran to its end."""
    for old in [*job.folder.glob("*.jsonl"), *job.folder.glob("*.trace")]:
        old.unlink()
    skipped = job.folder / "skipped"
    skipped.write_text("".join(f"{case}\n" for case in done))
    quiet, limit = (LONG_QUIET_S, LONG_LIMIT_S) if job.unit in LONG else (QUIET_S, LIMIT_S)
    program = [mpis.library(job.mpi).python, RUNNER, source(), job.folder, f"{job.unit}.py", quiet, skipped]
    child = mpis.start(job, program, job.folder)
    written = [job.folder / f"{rank}.jsonl" for rank in range(job.ranks)]
    ended = child.wait(limit, lambda: [path.stat().st_size for path in written if path.exists()], quiet)
    ranks = [_read(path) for path in written]
    cases = list(dict.fromkeys(case for rank in ranks for case in rank))
    for case in cases:
        entries = [rank.get(case) for rank in ranks]
        if all(entry and entry["event"] != "began" for entry in entries):
            done[case] = _outcome(case, entries)
            continue
        # The first case that some rank did not finish; cases that other ranks ran meanwhile run again.
        outcome = HUNG if ended.late else CRASHED
        done[case] = result(case, outcome, f"{ended}\n{_wheres(job)}\n{_details(entries)}\n{child.text()}")
        return False
    if ended.code == 0 and cases:
        return True
    # All cases ended, but the program did not: its start (no cases) or MPI's finalization failed.
    case = f"{job.unit} (end of the program)" if cases else f"{job.unit} (start of the program)"
    done[case] = result(case, HUNG if ended.late else CRASHED, f"{ended}\n{_wheres(job)}\n{child.text()}")
    return True


def _read(path):
    """The last line of each case in a rank's file."""
    if not path.exists():
        return {}
    found = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # a rank that was killed may leave half a line
        found[entry["case"]] = entry
    return found


def _outcome(case, entries):
    """The outcome of a case over all ranks: failed if it failed anywhere, skipped if it was skipped everywhere."""
    events = {entry["event"] for entry in entries}
    seconds = max(entry["seconds"] for entry in entries)
    if "failed" in events:
        return result(case, FAILED, _details(entries), seconds)
    if events == {"skipped"}:
        return result(case, SKIPPED, entries[0]["detail"], seconds)
    return result(case, PASSED, seconds=seconds)


def _details(entries):
    said = {}
    for rank, entry in enumerate(entries):
        if entry and entry["detail"]:
            said.setdefault(entry["detail"], []).append(rank)
    return "\n".join(f"rank {', '.join(map(str, ranks))}: {text}" for text, ranks in said.items())


def _wheres(job):
    """Where the ranks' threads were when they hung."""
    traces = [(path.stem, path.read_text(errors="replace")[:1500]) for path in sorted(job.folder.glob("*.trace"))]
    return "\n".join(f"rank {rank} was at\n{text}" for rank, text in traces if text)


if __name__ == "__main__":
    if reason := missing():
        print(f"conformance: {reason}. Tests that need it will skip.")
