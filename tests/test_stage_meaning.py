"""DST means the same wherever it exists already: `DST/` is a folder to go into, `DST` is the new name."""

import json
import os

import pytest

from harness import LANDBRIDGE
from test_stage import MOVE, in_lab, moved, nothing_hidden, on
from transfers import move


@pytest.fixture
def run7(workshop):
    source = workshop.folder / "run7"
    (source / "in").mkdir(parents=True)
    (source / "in" / "file").write_text("old")
    (workshop.folder / "t").mkdir()
    return source


@pytest.mark.parametrize("between", ["a log is written", "a touch", "whole seconds", "the program's output", "nothing"])
def test_the_same_command_twice_is_the_same_target(workshop, run7, between):
    """Changes of the target in between cause no second copy inside it, and no old data."""
    target = workshop.folder / "t" / "run"
    moved(workshop.run(move(run7, target)))
    for what in (between,):
        if what == "a log is written":
            (target / "log").write_text("log")
        elif what == "a touch":
            os.utime(target)
        elif what == "whole seconds":
            for path in (target, target / "in", target / "in" / "file"):
                os.utime(path, (path.stat().st_atime, int(path.stat().st_mtime)))
        elif what == "the program's output":
            (target / "in" / "out").write_text("out")
    (run7 / "in" / "file").write_text("new")
    (one,) = moved(workshop.run(move(run7, target)))
    assert one["path"] == str(target)
    assert (target / "in" / "file").read_text() == "new"
    assert not (target / "run7").exists()
    added = {"a log is written": "log", "the program's output": "in/out"}.get(between)
    assert added is None or (target / added).exists(), "what was added stays"
    nothing_hidden(target.parent)


@pytest.mark.parametrize("way", ["in", "out"])
def test_to_and_from_nodes_it_means_the_same(workshop, run7, way):
    environment = {"HOME": str(workshop.folder), "LANDBRIDGE_SITES": "", "XDG_CONFIG_HOME": str(workshop.folder)}
    target = workshop.folder / "t" / "run"
    for text in ("one", "two", "three"):
        (run7 / "in" / "file").write_text(text)
        words = [LANDBRIDGE, "stage", way, "--json", f"{run7}={target}"]
        (one,) = moved(workshop.run(words, environment=environment))
        assert one["path"] == str(target) and (target / "in" / "file").read_text() == text
        assert os.listdir(target) == ["in"]
    (one,) = moved(workshop.run([*words[:-1], f"{run7}={target.parent}/"], environment=environment))
    assert one["path"] == str(target.parent / "run7")


def test_beside_a_run_it_means_the_same(workshop, run7):
    environment = {"HOME": str(workshop.folder), "LANDBRIDGE_SITES": "", "XDG_CONFIG_HOME": str(workshop.folder)}
    target = workshop.folder / "t" / "run"
    for text in ("one", "two"):
        (run7 / "in" / "file").write_text(text)
        words = [LANDBRIDGE, "run", "-n", "1", "--stage-in", f"{run7}={target}", "--", "true"]
        workshop.run(words, environment=environment).check()
        assert (target / "in" / "file").read_text() == text and os.listdir(target) == ["in"]


def test_a_slash_at_the_end_is_a_folder_to_go_into(workshop, run7):
    target = workshop.folder / "t"
    (workshop.folder / "latest").symlink_to("run7")
    for source, name in ((run7, "run7"), (f"{run7}/", "run7"), (workshop.folder / "latest", "latest")):
        for typed in (f"{target}/", f"{target}/."):
            (one,) = moved(workshop.run(move(source, typed)))
            assert one["path"] == str(target / name)
    assert sorted(os.listdir(target)) == ["latest", "run7"] and not (target / "latest").is_symlink()
    done = workshop.run(["sh", "-c", f"cd {target} && mkdir here && cd here && {MOVE} --json ../../run7 ."])
    assert moved(done)[0]["path"] == str(target / "here" / "run7")


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("run7/in/file", "t", ["t", "a folder is where a file should go", "with a slash at its end"]),
        ("run7", "t/file", ["t/file", "a file is where a folder should go", "remove it first"]),
        ("run7", "t/file/", ["t/file", "it is no folder", "leave out the slash"]),
        ("run7", "t/none/", ["t/none", "there is no such folder", "leave out the slash"]),
        ("run7", "t/link", ["t/link", "something else is where a folder should go"]),
    ],
)
def test_what_is_in_the_way_is_named(workshop, run7, source, target, says):
    (workshop.folder / "t" / "file").write_text("precious")
    (workshop.folder / "elsewhere").mkdir()
    (workshop.folder / "t" / "link").symlink_to(workshop.folder / "elsewhere")
    workshop.run(move(workshop.folder / source, f"{workshop.folder}/{target}")).fails_naming(*says)
    assert (workshop.folder / "t" / "file").read_text() == "precious" and not os.listdir(workshop.folder / "elsewhere")
    nothing_hidden(workshop.folder / "t")


def test_several_sources_need_the_slash(workshop, run7):
    (workshop.folder / "other").write_text("other")
    target = workshop.folder / "t"
    words = move(run7, workshop.folder / "other")
    workshop.run([*words, target]).fails_naming("several sources go into a folder", f"write {target}/")
    assert len(moved(workshop.run([*words, f"{target}/"]))) == 2
    assert sorted(os.listdir(target)) == ["other", "run7"]


def test_what_all_nodes_give_goes_into_a_folder(workshop, isolated):
    stage = f"{LANDBRIDGE} stage"
    (workshop.folder / "out").mkdir()
    done = (
        in_lab(
            workshop,
            *(on(f"a-n{node}", f"echo {node} >/tmp/result") for node in (1, 2)),
            f"{stage} out --json /tmp/result=b:{workshop.folder}/out/",
            f"{stage} out --json /tmp/result=b:{workshop.folder}/out/",
        )
        .finish()
        .check()
    )
    assert sorted(os.listdir(workshop.folder / "out")) == ["result.n1", "result.n2"]
    assert all(len(json.loads(line)["moved"]) == 2 for line in done.out.splitlines() if line.startswith("{"))
