"""The report: all cases as JSON, a short table and the failures as text."""

import json
import platform
import subprocess

from harness import ROOT

from .job import PASSED, SKIPPED, build
from .verdict import BOTH_FAIL, KNOWN, ONLY_HERE, REGRESSION, UNSTEADY, tally

COLUMNS = [
    "cases",
    "passed",
    "skipped",
    "not passed",
    "tcp passed",
    "fails on both",
    "only here",
    "known",
    "unsteady",
    "regressions",
]


def write(path, rows, skipped, problems):
    """Everything, for scripts. `skipped`: reasons by suite; `problems`: reasons why a place did not finish."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    counts = [
        {"suite": suite, "mpi": mpi, "where": where, "ranks": ranks, **figures(found)}
        for (suite, mpi, where, ranks), found in tally(rows).items()
    ]
    report = {
        "build": build(),
        "commit": commit,
        "machine": platform.platform(),
        "against": "tcp",
        "ok": not problems and not any(row["judged"] == REGRESSION for row in rows),
        "counts": counts,
        "skipped_suites": skipped,
        "problems": problems,
        "cases": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    return report["ok"]


def figures(found):
    """The columns of the table for one tally."""
    passed, skipped = found[f"here {PASSED}"], found[f"here {SKIPPED}"]
    values = [
        found["cases"],
        passed,
        skipped,
        found["cases"] - passed - skipped,
        found[f"there {PASSED}"],
        found[BOTH_FAIL],
        found[ONLY_HERE],
        found[KNOWN],
        found[UNSTEADY],
        found[REGRESSION],
    ]
    return dict(zip(COLUMNS, values))


def table(rows, skipped, problems):
    """The table for readers."""
    lines = []
    heading = ["suite", "mpi", "where", "ranks", *COLUMNS]
    cells = [heading]
    for (suite, mpi, where, ranks), found in sorted(tally(rows).items()):
        cells.append([suite, mpi, where, str(ranks or ""), *map(str, figures(found).values())])
    widths = [max(len(row[i]) for row in cells) for i in range(len(heading))]
    for row in cells:
        lines.append(
            "  ".join(
                cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
            ).rstrip()
        )
    for judged in (KNOWN, UNSTEADY, REGRESSION):
        lines += [f"{judged}: {describe(row)}" for row in rows if row["judged"] == judged]
    lines += [f"skipped: {suite}: {reason}" for suite, reason in skipped.items()]
    lines += [f"problem: {problem}" for problem in problems]
    return "\n".join(lines)


def describe(row):
    place = " ".join(
        str(word) for word in (row["mpi"], row["where"], f"{row['ranks']} ranks" if row["ranks"] else "") if word
    )
    said = f" ({row['reason']})" if row["reason"] else ""
    return f"{row['suite']} {place} {row['case']}: {row['here']} here, {row['there']} on tcp{said}"
