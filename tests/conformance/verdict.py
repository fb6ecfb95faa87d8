"""The verdict: nothing may pass on tcp and fail here."""

from collections import Counter
from dataclasses import replace

from .job import ACROSS_SITES, FAILED, OURS, PASSED, RIVAL, SKIPPED
from .known import known

# Where tcp cannot get, its results between two nodes of one site are the reference.
MEASURED_AT = dict.fromkeys(ACROSS_SITES, "two-nodes")

# A regression passes on tcp, or was not tried there, and does not pass here. `unsteady`: it passed when tried again.
REGRESSION, KNOWN, UNSTEADY, BOTH_FAIL, ONLY_HERE, FINE = (
    "regression",
    "known",
    "unsteady",
    "fails on both",
    "passes only here",
    "fine",
)


def rival_of(job):
    """The job with whose results this one's are compared."""
    return replace(job, provider=RIVAL, where=MEASURED_AT.get(job.where, job.where))


def compare(results):
    """A row for each of our cases: job, case, outcome here and there, and the verdict. `results`: by job."""
    rows = []
    for job, ours in results.items():
        if job.provider != OURS:
            continue
        theirs = {case["case"]: case for case in results.get(rival_of(job)) or []}
        for case in ours:
            rows.append(_row(job, case, theirs.pop(case["case"], None), bool(results.get(rival_of(job)))))
        for name, case in theirs.items():
            if case["outcome"] == PASSED:
                missing = {
                    "case": name,
                    "outcome": "missing",
                    "detail": "it ran on tcp and did not run here",
                    "seconds": 0.0,
                }
                rows.append(_row(job, missing, case, True))
    return rows


def _row(job, ours, theirs, compared):
    there = theirs["outcome"] if theirs else ("missing" if compared else "not run")
    here = ours["outcome"]
    fewer = theirs is not None and here == PASSED == there and ours.get("passes", 0) < theirs.get("passes", 0)
    reason = known(job, ours["case"], FAILED if fewer else here)
    if here == PASSED and not fewer:
        judged = FINE if there in (PASSED, "not run") else ONLY_HERE
    elif here == SKIPPED and there in (SKIPPED, "not run", "missing"):
        judged = FINE
    elif there in (PASSED, "not run", "missing"):
        judged = KNOWN if reason else REGRESSION
    else:
        judged = BOTH_FAIL
    if ours.get("again") == PASSED and judged == REGRESSION and not fewer:
        judged = UNSTEADY
    detail = ours["detail"] + (f"\n(tcp: {theirs['detail']})" if fewer else "")
    return {
        "suite": job.suite,
        "mpi": job.mpi,
        "where": job.where,
        "ranks": job.ranks if job.mpi else 0,
        "unit": job.unit,
        "case": ours["case"],
        "here": here,
        "there": there,
        "judged": judged,
        "reason": reason if judged == KNOWN else "",
        "detail": "" if judged == FINE and here == PASSED else detail,
    }


def tally(rows):
    """Number of rows per verdict for each suite and place, as {(suite, mpi, where, ranks): Counter}."""
    found = {}
    for row in rows:
        counts = found.setdefault((row["suite"], row["mpi"], row["where"], row["ranks"]), Counter())
        counts["cases"] += 1
        counts[f"here {row['here']}"] += 1
        counts[f"there {row['there']}"] += 1
        counts[row["judged"]] += 1
    return found
