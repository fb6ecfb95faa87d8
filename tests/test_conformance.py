"""Suites written by others, a quick part: `make test-conformance` runs all of it. And the verdict code itself."""

import json
import os
import sys

import pytest

from conformance import imb, mpi4py_suite, sos, ubertest
from conformance.job import CRASHED, FAILED, HUNG, OURS, PASSED, RIVAL, SKIPPED, Job, result
from conformance.verdict import compare
from conftest import intel, mpich, openmpi
from harness import ROOT

RUN = ROOT / "tests" / "conformance" / "run"


# Beside other tests it takes four minutes on Intel MPI and eight on Open MPI.
MOST_TIME = [pytest.param(mpi, marks=pytest.mark.matrix) for mpi in (intel, openmpi)]


@pytest.mark.slow
@pytest.mark.parametrize("mpi", [mpich, *MOST_TIME], indirect=True)
def test_quick_part_of_mpi4py(workshop, mpi, isolated):
    """Files that send a lot, each in a different way, across three sites: everything that passes on tcp passes."""
    if reason := mpi4py_suite.missing():
        pytest.skip(reason)
    report = workshop.folder / "report.json"
    words = [
        sys.executable,
        RUN,
        "--quick",
        "--lean",  # tcp itself may hang: it runs only the cases that did not pass here
        "--only",
        "mpi4py",
        "--mpi",
        mpi.name,
        "--where",
        "three-sites",
        "--ranks",
        3,
        "--report",
        report,
    ]
    done = workshop.run(words, limit=400).check()
    found = json.loads(report.read_text())
    assert found["ok"] and not found["skipped_suites"], str(done)
    here = [case for case in found["cases"] if case["where"] == "three-sites"]
    assert sum(case["here"] == PASSED for case in here) > 150, str(done)
    assert {case["unit"] for case in here} == {"provider", *mpi4py_suite.QUICK}, str(done)


@pytest.mark.slow
def test_quick_part_of_fabtests(workshop):
    if not os.environ.get("FABTESTS"):
        pytest.skip("FABTESTS is not set: give the folder of an installed fabtests (with fi_rdm, fi_ubertest, …)")
    report = workshop.folder / "report.json"
    words = [sys.executable, RUN, "--quick", "--only", "fabtests", "--report", report]
    done = workshop.run(words, environment={"FABTESTS": os.environ["FABTESTS"]}, limit=300).check()
    assert json.loads(report.read_text())["ok"], str(done)


def test_a_suite_that_cannot_run_says_why(workshop):
    report = workshop.folder / "report.json"
    words = [sys.executable, RUN, "--only", "fabtests", "--report", report]
    done = workshop.run(words, environment={"FABTESTS": "/nowhere"}).check()
    reason = "FABTESTS=/nowhere: no fi_rdm there: give the bin folder of an installed fabtests"
    assert f"skipped: fabtests: {reason}" in done.out
    assert json.loads(report.read_text())["skipped_suites"] == {"fabtests": reason}


@pytest.mark.slow
def test_quick_part_of_sandia_openshmem(workshop, isolated):
    if not os.environ.get("SOS"):
        pytest.skip("SOS is not set: give the folder of Sandia OpenSHMEM's built unit tests")
    report = workshop.folder / "report.json"
    words = [sys.executable, RUN, "--quick", "--only", "sos", "--report", report]
    done = workshop.run(words, environment={"SOS": os.environ["SOS"]}, limit=300).check()
    found = json.loads(report.read_text())
    assert found["ok"], str(done)
    here = [case for case in found["cases"] if case["where"] == "two-sites"]
    assert [case["here"] for case in here] == [PASSED] * len(sos.QUICK), str(done)


def test_tests_of_sandia_openshmem_are_found(tmp_path, monkeypatch):
    for name in ["hello", "get1", "libtool"]:
        (tmp_path / name).touch(mode=0o755)
    (tmp_path / "hello.c").touch()
    monkeypatch.setenv("SOS", str(tmp_path))
    assert sos.missing() is None and sos.tests() == ["get1", "hello", "libtool"]
    (tmp_path / "Makefile").write_text(
        "check_PROGRAMS = hello$(EXEEXT) \\\n\tget1$(EXEEXT) absent$(EXEEXT)\nTESTS = x\n"
    )
    assert sos.tests() == ["get1", "hello"]
    (tmp_path / "hello").unlink()
    assert "make check TESTS=" in sos.missing()


@pytest.mark.parametrize("words", [["--ranks", "two"], ["--only", "lapack"], ["--mpi", "lam"], ["--where", "mars"]])
def test_bad_words_are_named(workshop, words):
    done = workshop.run([sys.executable, RUN, *words])
    assert done.code == 2 and words[1] in done.err, str(done)


def judged(*pairs, where="one-node", rival_where="one-node"):
    """The verdicts on cases with the outcomes (here, there)."""
    ours, theirs = (
        Job("mpi4py", "test_x", OURS, "mpich", where, 3),
        Job("mpi4py", "test_x", RIVAL, "mpich", rival_where, 3),
    )
    results = {
        ours: [result(str(case), here, "why") for case, (here, _) in enumerate(pairs) if here],
        theirs: [result(str(case), there, "why") for case, (_, there) in enumerate(pairs) if there],
    }
    return [row["judged"] for row in sorted(compare(results), key=lambda row: row["case"])]


def test_what_passes_on_tcp_must_pass_here():
    assert judged((PASSED, PASSED), (SKIPPED, SKIPPED), (PASSED, FAILED)) == ["fine", "fine", "passes only here"]
    for here in (FAILED, HUNG, CRASHED, SKIPPED, None):
        assert judged((PASSED, PASSED), (here, PASSED)) == ["fine", "regression"]
    assert judged((FAILED, FAILED), (HUNG, CRASHED)) == ["fails on both", "fails on both"]


def test_across_sites_two_nodes_are_the_measure():
    assert judged((FAILED, PASSED), (PASSED, PASSED), where="two-sites", rival_where="two-nodes") == [
        "regression",
        "fine",
    ]


def test_a_known_difference_is_no_hang():
    ours, theirs = (
        Job("mpi4py", "test_spawn", OURS, "mpich", "one-node"),
        Job("mpi4py", "test_spawn", RIVAL, "mpich", "one-node"),
    )
    for here, expected in ((FAILED, "known"), (HUNG, "regression"), (CRASHED, "regression")):
        assert (
            compare({ours: [result("spawn", here, "why")], theirs: [result("spawn", PASSED)]})[0]["judged"] == expected
        )


def test_fewer_combinations_than_on_tcp_are_a_regression():
    ours, theirs = Job("fabtests", "fi_ubertest rma", OURS), Job("fabtests", "fi_ubertest rma", RIVAL)
    counted = [{**result("fi_ubertest rma", PASSED), "passes": passes} for passes in (10, 12)]
    assert compare({ours: counted[:1], theirs: counted[1:]})[0]["judged"] == "regression"
    assert compare({ours: [{**counted[0], "again": PASSED}], theirs: counted[1:]})[0]["judged"] == "regression"
    assert compare({ours: counted[1:], theirs: counted[:1]})[0]["judged"] == "fine"


def test_a_case_over_all_ranks(tmp_path):
    """One rank's failure fails the case; a case is skipped only if all ranks skip it."""
    entries = [{"event": event, "detail": event[0], "seconds": 1.0} for event in ("passed", "failed", "skipped")]
    passed, failed, skipped = entries
    assert mpi4py_suite._outcome("x", [passed, failed])["outcome"] == FAILED
    assert mpi4py_suite._outcome("x", [passed, skipped])["outcome"] == PASSED
    assert mpi4py_suite._outcome("x", [skipped, skipped]) == result("x", SKIPPED, "s", 1.0)
    assert "rank 1: f" in mpi4py_suite._outcome("x", [passed, failed])["detail"]


def test_ubertest_is_told_and_read():
    text = ubertest.configuration("atomics", "landbridge")
    assert "prov_name: landbridge," in text and "\n\t\tFI_LONG_DOUBLE_COMPLEX," in text
    out = "Success: 12\nSkipped: 0\nENODATA: 2\nENOSYS : 3\nEIO    : 0\nERROR  : 1\n"
    counts = ubertest.counts(out)
    assert (counts["Success"], counts["ENOSYS"], counts["ERROR"]) == (12, 3, 1)
    assert ubertest.describe(counts) == "combinations: 12 passed, 2 not offered, 3 not implemented, 1 failed"


def test_wrong_data_in_a_benchmark_is_seen():
    table = "#\n  #bytes #repetitions  t[usec]  defects\n  0  5  4.46  0.00\n  4  5  3.1  {}\n  8 time-out.; over\n"
    assert imb.wrong_rows(table.format("0.00")) == ""
    assert imb.wrong_rows(table.format("0.00") + table.format("17.00")) == "  4  5  3.1  17.00"
    assert imb.wrong_rows("  #bytes #repetitions  t[usec]\n  0  5  4.46\n") == ""
