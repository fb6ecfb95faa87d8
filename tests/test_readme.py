"""The README's commands, as they stand there: every line of its shell blocks is typed by a test or is a target of
the Makefile."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from accounts import PORT, wan
from harness import LANDBRIDGE, POISSON, ROOT
from laptop import LAPTOP, Person
from test_dist import README_INSTALL

# Tests that run the commands of `make TARGET`.
MAKES = {
    "build": "all tests, which are of what it built",
    "demo": "test_demo.py",
    "dist": "make test-dist, whose tests are of what it built",
    "test": "continuous integration, this test among others",
}


def lines_of_readme():
    """The commands of each shell block, comments left out."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [[line for line in (re.sub(r"\s+#.*", "", line) for line in block.splitlines()) if line] for block in blocks]


def blocks_with(word):
    found = [block for block in lines_of_readme() if any(word in line for line in block)]
    assert found, f"no block of the README has `{word}`"
    return found


def test_every_command_is_one_of_those_below():
    known = [
        line
        for word in (
            "make",
            README_INSTALL,
            "export PATH",
            "landbridge lab",
            "landbridge run -n 4",
            "landbridge sites add",
        )
        for block in blocks_with(word)
        for line in block
    ]
    stray = [line for block in lines_of_readme() for line in block if line not in known]
    assert not stray, f"no test types {stray}"


def test_its_targets_are_targets(workshop):
    targets = [
        line.partition(" ")[2] or "build" for block in lines_of_readme() for line in block if line.split()[0] == "make"
    ]
    assert {"demo", "test"} <= set(targets) <= set(MAKES), targets
    listed = workshop.run(["make", "-s", "-C", ROOT, "help"]).check().out
    for target in targets:
        assert re.search(rf"^{target}\s", listed, re.MULTILINE), f"`make help` does not list {target}\n{listed}"


@pytest.mark.slow
def test_the_first_job_on_this_machine(workshop, isolated, mpich_only):
    [[path]] = [[line for line in block if line.startswith("export")] for block in blocks_with("export PATH")]
    [[lab]] = blocks_with("landbridge lab")
    [inside] = blocks_with("landbridge run -n 4")
    assert lab.endswith("-- bash"), lab
    inside = " && ".join(f"echo '$' {shlex.quote(line)} && {line}" for line in inside)
    done = workshop.run(
        ["bash", "-ec", f"{path}\n{lab} -c {shlex.quote(inside)}"],
        cwd=ROOT,
        environment=mpich_only.environment,
        limit=90,
    ).check()
    assert "everything works" in done.out, str(done)
    assert sorted(re.findall(r"^\[(\w/\w+/\d)\] Hello", done.out, re.MULTILINE)) == [
        "a/n1/0",
        "a/n2/1",
        "b/n1/2",
        "b/n2/3",
    ], str(done)
    assert re.search(r'^\{.*"ok":true.*"bytes_relayed":[1-9]', done.out, re.MULTILINE), str(done)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt install openssh-server")
def test_the_first_job_on_real_clusters(workshop, isolated, mpich_only):
    """Typed on a machine that is no site, with sshd at both login nodes. Only their addresses and the user are other
    ones."""
    person = Person(workshop, mpich_only.environment)
    work = person.folder / "work"
    work.mkdir()
    shutil.copy(POISSON, work / "solver")
    [commands] = blocks_with("landbridge sites add")
    places = {
        "you@login.lyon.example": f"root@{wan('a-gw1')}:{PORT}",
        "you@login.kyoto.example:2222": f"root@{wan('b-gw1')}:{PORT}",
    }
    for command in commands:
        words = [places.get(word, word) for word in shlex.split(command)]
        assert words[0] == "landbridge" and not any("example" in word for word in words), command
        person.types(LANDBRIDGE, *words[1:], on=LAPTOP, must=True, cwd=str(work))
    results = [result.good() for result in person.run()]
    assert "8 as" in results[-1].out and "MFLOPS" in results[-1].out, str(results[-1])


@pytest.mark.slow
@pytest.mark.skipif("LANDBRIDGE_FRESH_CLONE" not in os.environ, reason="takes minutes: make test-readme")
def test_its_commands_work_from_a_fresh_clone(workshop):
    """The commands of a user who has only the repository: the demo, the build, the installation, the first job.
    Packages come from their indexes. Cargo's folder is kept in target/fresh, so that only changes are built."""
    clone, kept = workshop.folder / "clone", ROOT / "target" / "fresh"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    kept.mkdir(exist_ok=True)
    (clone / "target").symlink_to(kept)
    home = workshop.folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    environment = {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "ARCH": os.uname().machine, "VIRTUAL_ENV": ""}

    def typed(script, limit):
        return workshop.run(["bash", "-ec", script], cwd=clone, environment=environment, limit=limit).check()

    demo, test = lines_of_readme()[0]
    assert "bit for bit" in typed(demo, 1800).out
    # `make test` runs the other tests, so this test only needs the target in a clone.
    assert test.split()[1] in typed("make help", 30).out.split()
    [[build, path]] = blocks_with("export PATH")
    [[dist, install]] = blocks_with(README_INSTALL)
    typed(dist, 1800)
    typed(install, 60)
    [[lab]] = blocks_with("landbridge lab")
    [inside] = blocks_with("landbridge run -n 4")
    first_job = f"{build}\n{path}\n{lab} -c {shlex.quote(' && '.join(inside))}"
    done = typed(first_job, 600)
    assert "everything works" in done.out and done.out.count("Hello, World!") == 4, str(done)
    assert typed(f"{home / 'bin' / 'landbridge'} --version", 30).out.startswith("landbridge "), "from the wheel"


def test_it_keeps_its_two_commands():
    assert lines_of_readme()[0] == ["make demo", "make test"]
