"""A job: one unit of a suite (a test file, a program) on one provider at one place; and its results, on disk.

Results are kept below out/conformance/results and reused by a later run of the same build, so an interrupted run
continues where it stopped.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import lru_cache

from harness import BUILT, LANDBRIDGE, PROVIDER, ROOT

OUT = ROOT / "out" / "conformance"
OURS, RIVAL = "landbridge", "tcp"

# The outcomes of a case. `not reached`: earlier cases in its unit ended the unit too often.
PASSED, FAILED, SKIPPED, HUNG, CRASHED, NOT_REACHED = "passed", "failed", "skipped", "hung", "crashed", "not reached"

# Where the processes of a job are, and the options of the lab around them. The delay is short: a case of hundreds of
# one-sided operations, each one to three round trips, would take minutes at a millisecond.
PLACES = {
    "one-node": ["--sites", "1", "--nodes", "1"],
    "two-nodes": ["--sites", "1", "--nodes", "2"],
    "two-sites": ["--sites", "2", "--nodes", "1", "--delay", "50us"],
    # Where gateways copy messages for several sites.
    "three-sites": ["--sites", "3", "--nodes", "1", "--delay", "50us"],
}
# tcp cannot get there.
ACROSS_SITES = {"two-sites", "three-sites"}


@dataclass(frozen=True)
class Job:
    """One unit of one suite on one provider. `where` is empty if it needs no lab, `mpi` if it needs no MPI."""

    suite: str
    unit: str
    provider: str
    mpi: str = ""
    where: str = ""
    ranks: int = 2

    @property
    def place(self):
        words = [self.mpi, self.where, str(self.ranks) if self.mpi else ""]
        return "-".join(word for word in words if word) or "here"

    @property
    def folder(self):
        """Folder for the output of its processes; kept when something did not pass."""
        unit = re.sub(r"[^A-Za-z0-9._]+", "-", self.unit).strip("-")
        return OUT / "results" / self.suite / self.place / unit / self.provider

    def __str__(self):
        return f"{self.suite} {self.place} {self.unit} on {self.provider}"

    def load(self):
        """The results of an earlier run of the same build, or None."""
        try:
            stored = json.loads((self.folder / "results.json").read_text())
        except (OSError, ValueError):
            return None
        return stored["results"] if stored["build"] == build() else None

    def store(self, results):
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"job": asdict(self), "build": build(), "results": results}, indent=1)
        (self.folder / "results.json").write_text(text + "\n")


def result(case, outcome, detail="", seconds=0.0):
    """The result of one case. `detail`: the reason, unless it passed."""
    return {"case": case, "outcome": outcome, "detail": detail, "seconds": round(seconds, 3)}


@lru_cache
def build():
    """A name for the build under test: from the contents of the command, the provider and the collectives' layers."""
    digest = hashlib.sha256()
    for path in (LANDBRIDGE, PROVIDER, *sorted(BUILT.glob("liblandbridge-layer*.so"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
