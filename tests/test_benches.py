"""The arithmetic with which benches/ compares one build with another."""

import sys

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "benches"))
import against
from machine import Build, Failed

NEW, OLD = (Build(name, ROOT) for name in ("new", "old"))


@pytest.fixture(scope="session", autouse=True)
def built():
    """These tests need nothing built."""


def measured(unit, new, old):
    """The row of one figure with these samples, and the problems."""
    left = {NEW: list(new), OLD: list(old)}

    def once(build, _):
        return {"it": (left[build].pop(0), unit)}

    problems = []
    turns = against._turns(against.Case("case", once), [NEW, OLD], len(new), problems)
    return against._rows("case", turns, problems), problems


@pytest.mark.parametrize(("unit", "ratio", "of_best"), [("µs", 1.5, 1.2), ("Mbit/s", 1 / 1.5, 0.5)])
def test_over_one_is_worse_whatever_the_unit(unit, ratio, of_best):
    [row], problems = measured(unit, [12, 15, 40], [10, 10, 20])
    assert not problems
    assert row["ratio"] == pytest.approx(ratio, abs=1e-3)
    assert row["of_best"] == pytest.approx(of_best, abs=1e-3)
    assert row["worse_rounds"] == (3 if unit == "µs" else 0)


def test_builds_take_turns_and_one_that_fails_twice_is_not_tried_again():
    order, problems = [], []

    def once(build, _):
        order.append(build.name)
        if build is OLD:
            raise Failed("it hangs")
        return {"it": (1.0, "s")}

    turns = against._turns(against.Case("case", once), [NEW, OLD], 4, problems)
    assert order == ["new", "old", "old", "new", "new", "new"]
    assert len(problems) == 2
    assert not against._rows("case", turns, problems)
    assert "no round has both builds" in problems[-1]


def test_a_figure_of_nothing_is_a_problem_and_no_ratio():
    rows, problems = measured("Mbit/s", [5.0, 0.0], [5.0, 5.0])
    assert [row["within_rounds"]["n"] for row in rows] == [1]
    assert problems == ["case, it: new measured nothing"]
