"""Inside a rank: one file of mpi4py's test suite, each case's beginning and end written to a file of this rank's.

    python cases.py SOURCE FOLDER FILE QUIET [SKIPPED-CASES-FILE]

A hang is then found where it happens: a case that began and has no end; shortly before QUIET seconds have passed in one
case, the rank writes where its threads are.
"""

import faulthandler
import json
import sys
import tempfile
import time
import unittest
from pathlib import Path

# Folder for the suite's own files, in the job's folder, which all nodes of a lab share: MPI's files are for all ranks.
FILES = "files"


class Recorder(unittest.TestResult):
    """Records events as lines of JSON."""

    def __init__(self, path, quiet):
        super().__init__()
        self.file = path.open("a", buffering=1)
        self.trace = path.with_suffix(".trace").open("a")
        self.quiet = quiet
        self.began = 0.0

    def write(self, case, event, detail=""):
        seconds = round(time.monotonic() - self.began, 3)
        self.file.write(json.dumps({"case": case, "event": event, "detail": detail[-3000:], "seconds": seconds}) + "\n")

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        self.outcome = ("passed", "")
        self.write(test.id(), "began")
        faulthandler.dump_traceback_later(self.quiet * 0.8, file=self.trace)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        self.write(test.id(), *self.outcome)
        super().stopTest(test)

    def addError(self, test, error):
        super().addError(test, error)
        self.outcome = ("failed", self._exc_info_to_string(error, test))
        if not isinstance(test, unittest.TestCase):  # a fixture of a class or a module
            self.write(str(test), "began")
            self.write(str(test), *self.outcome)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.outcome = ("failed", self._exc_info_to_string(error, test))

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.outcome = ("failed", f"{subtest}: {self._exc_info_to_string(error, test)}")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = ("skipped", reason)
        if not isinstance(test, unittest.TestCase):
            self.write(str(test), "began")
            self.write(str(test), "skipped", reason)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.outcome = ("failed", "succeeded, though a failure was expected")


def flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def main():
    source, folder, name, quiet = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])
    skipped = set(Path(sys.argv[5]).read_text().splitlines()) if len(sys.argv) > 5 else set()
    sys.dont_write_bytecode = True
    tempfile.tempdir = str(folder / FILES)
    sys.path.insert(0, str(source / "test"))
    # As the suite's own main.py does unless asked: no arrays on GPUs.
    sys.modules["cupy"] = sys.modules["numba"] = None

    from mpi4py import MPI

    recorder = Recorder(folder / f"{MPI.COMM_WORLD.Get_rank()}.jsonl", quiet)
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(name.removesuffix(".py"))
    except unittest.SkipTest as skip:
        recorder.write(f"{name}: import", "began")
        recorder.write(f"{name}: import", "skipped", str(skip))
        return
    unittest.TestSuite(test for test in flat(suite) if test.id() not in skipped).run(recorder)
    # From here on only MPI's own finalization can hang.
    faulthandler.dump_traceback_later(quiet * 0.8, file=recorder.trace)


if __name__ == "__main__":
    main()
