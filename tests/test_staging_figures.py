"""The arithmetic with which benches/staging judges a mover beside an application."""

import sys
from types import SimpleNamespace

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "benches"))
import staging
from machine import Failed, Missing, only
from staging import applications, card, figures, movers, overlap, sample


@pytest.fixture(scope="session", autouse=True)
def built():
    """These tests need nothing built."""


EXPERIMENT = overlap.Experiment("both cores busy", {"app": 4.0}, ["ours"], 512)


def alone(seconds):
    return {"application_s": seconds, "application_wall_s": seconds + 0.1, "others_cores": 0.0}


def one_round(before, after, io, application, both):
    mover = {"mover_s": io, "mover_cpu_s": 0.25, "mover": {}, "others_cores": 0.1}
    moved = {"moved": [{"harm": 0.05, "notes": ["little could be moved"]}]}
    beside = {"application_s": application, "seconds": both, "mover": moved, "others_cores": 0.2}
    return {("app", None): [alone(before), alone(after)], (None, "ours"): [mover], ("app", "ours"): [beside]}


def row(*rounds):
    return overlap._row("busy", EXPERIMENT, "app", "ours", list(rounds))


def test_ratios_are_taken_within_a_round():
    found = row(one_round(3.8, 4.2, 2.0, 4.2, 4.3), one_round(8.0, 8.0, 4.0, 8.8, 9.0))
    assert found["slowdown"]["least"] == pytest.approx(0.05)
    assert found["slowdown"]["greatest"] == pytest.approx(0.1)
    assert found["of_optimum"]["greatest"] == pytest.approx(4.1 / 4.3, abs=1e-4)
    assert found["speedup"]["greatest"] == pytest.approx(6.1 / 4.3, abs=1e-4)
    assert found["cpu_s_per_gib"]["median"] == 0.5
    assert (found["others_cores"]["median"], found["said"]) == (0.2, ["little could be moved"])


def test_the_slower_of_both_is_the_bound():
    assert row(one_round(4, 4, 8.2, 4, 8.2))["of_optimum"]["median"] == 1


def test_a_round_in_which_something_failed_is_left_out():
    broken = one_round(4, 4, 2, 4, 4)
    del broken["app", "ours"]
    assert row(broken) is None
    assert row(broken, one_round(4, 4, 2, 4, 4))["slowdown"]["n"] == 1


def test_what_fails_is_a_problem_and_no_sample(monkeypatch):
    def fails(**what):
        if what.get("mover"):
            raise Failed("no space")
        return alone(4)

    class Place:
        def mover(self, name, rate, *options, label=None):
            return name

    monkeypatch.setattr(overlap, "quiet_once", fails)
    record = sample.Record()
    program = applications.Application("app", [])
    found = overlap._round(EXPERIMENT, Place(), [program], ["ours"], 0, record)
    assert list(found) == [("app", None)]
    assert [problem.rsplit(": ", 1)[1] for problem in record.problems] == ["no space", "no space"]
    assert row(found) is None


def test_a_bar_is_met_or_missed_by_the_median():
    judged = figures.judged(overlap.bars([row(one_round(4, 4, 2, 4.4, 4.5))]))
    assert [(bar["figure"], bar["met"]) for bar in judged] == [
        (0.1, False),
        (pytest.approx(4.1 / 4.5, abs=1e-4), False),
    ]
    judged = figures.judged(overlap.bars([row(one_round(4, 4, 2, 4.2, 4.3))]))
    assert all(bar["met"] for bar in judged)


def test_several_cases_are_chosen_in_the_order_in_which_they_are_typed():
    def chosen(text):
        return only(SimpleNamespace(only=text), ["idle", "busy", "figure3 less", "figure3 more"])

    assert chosen(None) == ["idle", "busy", "figure3 less", "figure3 more"]
    assert chosen("figure3,idle,less") == ["figure3 less", "figure3 more", "idle"]
    with pytest.raises(Missing, match="'lazy'"):
        chosen("busy,lazy")


def test_alone_ours_keeps_its_mode_and_nothing_that_holds_it_back():
    assert overlap._not_held(["--mode", "send", "--harm", 6, "--deadline", "3s"]) == ["--mode", "send"]


def test_only_known_movers_are_chosen(monkeypatch):
    monkeypatch.setattr(staging.sites, "MOVERS", [])
    experiments = {"a": overlap.Experiment("a", {"app": 4.0}, ["ours", "rsync", "scp"], 512)}
    staging.restrict(experiments, ["ours", "scp", "MPI send"])
    assert (experiments["a"].movers, staging.sites.MOVERS) == (["ours", "scp"], ["ours", "scp"])
    with pytest.raises(Missing, match="carrier pigeon"):
        staging.restrict(experiments, ["carrier pigeon"])


def test_rounds_take_as_long_as_their_samples():
    short, long = (overlap.seconds(EXPERIMENT, rounds) for rounds in (1, 5))
    # One mover alone and beside an application of 4 s, and that alone twice.
    assert 4.3 + 3 * 4 < short < 4.3 + 3 * 4 + 12
    assert long > 4 * short


def test_a_timeline_begins_and_ends_with_the_contents():
    watched = object.__new__(card.Card)
    mib = 1 << 20
    watched.samples = [(10.0, 0), (10.5, 3000), (11.0, mib), (12.0, 9 * mib), (12.5, 9 * mib + 100)]
    found = card.timeline(watched, 10.0, 12.5)
    assert [found[key] for key in ("start_s", "moving_s", "end_s")] == [1.0, 1.0, 0.5]


def test_files_are_the_same_to_the_last_byte(tmp_path):
    contents = {"one": b"ab", "same": b"ab", "longer": b"abc", "other": b"ax"}
    for name, text in contents.items():
        (tmp_path / name).write_bytes(text)
    found = [movers.same(tmp_path / "one", tmp_path / name) for name in ("same", "longer", "other")]
    assert found == [True, False, False]
    assert not movers.same(tmp_path / "longer", tmp_path / "one")
