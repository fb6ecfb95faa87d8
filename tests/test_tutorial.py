"""The tutorial's and the recipes' commands, typed in order in a lab."""

import shlex

import pytest

from harness import ROOT
from pages import console_blocks, kind

MARK = "@@ command"


@pytest.mark.slow
def test_the_tutorial_says_what_happens(workshop, isolated, mpich_only):
    """Each line of output that the page shows is there, apart from numbers. The last line of a page's output may be
    `…`."""
    [[lab], *blocks] = console_blocks("docs/tutorial.md")
    assert lab.command.endswith("-- bash"), lab
    script, typed = [], []
    for block in blocks:
        for command in block:
            script += [f"echo '{MARK} {len(typed)}'", command.command]
            typed.append(command)
        script.append("wait")
    words = f"export PATH=$PWD/target/release:$PATH\n{lab.command} -c {shlex.quote(chr(10).join(script))} 2>&1"
    done = workshop.run(["bash", "-c", words], cwd=ROOT, environment=mpich_only.environment, limit=240)
    shown = dict.fromkeys(range(len(typed)), "")
    for part in done.out.split(f"{MARK} ")[1:]:
        number, _, text = part.partition("\n")
        shown[int(number)] = text
    faults = []
    for number, command in enumerate(typed):
        there = {kind(line) for line in shown[number].splitlines()}
        missing = [line for line in command.output if line != "…" and kind(line) not in there]
        if missing:
            faults.append(f"$ {command.command}\nshows no line like {missing}, but\n{shown[number]}")
    assert not faults, "\n\n".join(faults)
    assert sum(len(command.output) for command in typed) > 60, "the page shows output"


# The recipes' sites, programs and sizes as a lab has them.
HERE = {"lyon": "a", "kyoto": "b", "=48": "=2", "=64": "=2", "=16": "=2", "-n 8 ": "-n 4 "}
# Commands of the recipes that a lab cannot type, and the test that types them.
ELSEWHERE = {
    "python3 -m venv": "test_dist.py, with the wheel and MPI",
    "landbridge sites add": "test_slurm.py",
    "landbridge sites invite": "test_sites_add.py",
    "landbridge sites join": "test_sites_add.py",
    "landbridge top": "test_top.py, since it runs until it is stopped",
}


def recipes():
    """The commands of the recipes that a lab can type."""
    commands = [typed.command for block in console_blocks("docs/how-to.md") for typed in block]
    unused = [start for start in ELSEWHERE if not any(command.startswith(start) for command in commands)]
    assert not unused, f"no recipe has {unused}"
    return [command for command in commands if not command.startswith(tuple(ELSEWHERE))]


@pytest.mark.slow
def test_the_recipes_work_as_they_stand(workshop, isolated, mpich_only):
    work = workshop.folder / "home"
    for folder in (work, work / "env" / "bin"):
        folder.mkdir(parents=True, exist_ok=True)
    hello = '#!/bin/sh\necho "rank ran ${OMP_NUM_THREADS:-}"\n'
    for name in ("solver", "solver-avx512", "env/bin/python"):
        (work / name).write_text(hello)
        (work / name).chmod(0o755)
    failed = []
    commands = recipes()
    assert len(commands) >= 6, commands
    for command in commands:
        for old, new in HERE.items():
            command = command.replace(old, new)
        command = command.replace("/scratch/me/case -- ./solver", f"{work} -- ./solver")
        if command.startswith("landbridge lab"):
            typed = f"{command} -c true"
        else:
            typed = f"landbridge lab -- bash -c {shlex.quote(command)}"
        words = f"export HOME={work} PATH={ROOT}/target/release:$PATH\n{typed}"
        done = workshop.run(["bash", "-c", words], cwd=work, environment=mpich_only.environment, limit=60)
        if done.code != 0 or (" run " in command and "rank ran" not in done.out):
            failed.append(str(done))
    assert not failed, "\n\n".join(failed)
