"""Sites differ: each may have its own program, directory, variables and modules."""

import json
from pathlib import Path

import pytest

from harness import LANDBRIDGE
from services import start


def lab_site(site, run):
    command = [str(LANDBRIDGE), "lab", "enter", f"{site}-{{node}}", "--"]
    return {"starter": f'kind = "template"\ncommand = {json.dumps(command)}', "lines": f"[site.run]\n{run}"}


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def show(variables):
    return f"echo {variables}"


def test_a_site_has_its_own_program_directory_and_variables(workshop, isolated):
    typed = script(workshop.folder / "typed", show("typed $1 in $(pwd) WHO=$WHO"))
    other = script(workshop.folder / "other", show("other $1 in $(pwd) WHO=$WHO"))
    run = f'programs = {{ "{typed}" = "{other}" }}\ndirectory = "/usr/share"\nenvironment = {{ WHO = "site" }}'
    command = [LANDBRIDGE, "run", "-n", "2", "--ranks-per-node", "1", "--", typed, "x"]
    done = start(workshop, {"b": lab_site("b", run)}, command, nodes=1, environment={"WHO": "user"}).finish().check()
    folder = workshop.folder
    assert sorted(done.out.splitlines()) == ["other x in /usr/share WHO=site", f"typed x in {folder} WHO=user"], str(
        done
    )


def test_a_program_typed_for_a_site_goes_before_its_entry(workshop, isolated):
    files = {name: script(workshop.folder / name, show(name)) for name in ("typed", "entry", "named")}
    run = f'programs = {{ "./typed" = "{files["entry"]}" }}'
    command = [LANDBRIDGE, "run", "--site", "a=1", "--site", "b=2:./named", "--", "./typed"]
    done = start(workshop, {"b": lab_site("b", run)}, command, nodes=1).finish().check()
    assert sorted(done.out.split()) == ["named", "named", "typed"], str(done)


def test_two_programs_of_one_mpi_job(workshop, mpi, isolated):
    """Different executables at two sites meet in one MPI_COMM_WORLD."""
    link = workshop.folder / "python-of-b"
    script(link, f'exec {mpi.python} "$@"')
    options = ["--site", "a=1", "--site", f"b=1:{link}", "--mpi", mpi.name]
    command = [LANDBRIDGE, "run", *options, "--", mpi.python, "-m", "mpi4py.bench", "helloworld"]
    done = start(workshop, {}, command, nodes=1, environment=mpi.environment).finish().check()
    assert "I am process 0 of 2" in done.out and "I am process 1 of 2" in done.out, str(done)


def test_a_program_missing_at_one_site_is_named_with_the_site(workshop, isolated):
    command = [LANDBRIDGE, "run", "--site", "a=1", "--site", "b=1:./nosuch", "--", "true"]
    start(workshop, {}, command, nodes=1).finish().fails_naming("site b", "./nosuch not found")


@pytest.fixture
def module_file(workshop):
    if not Path("/etc/profile.d/modules.sh").exists():
        pytest.skip("no environment modules: apt install environment-modules")
    path = workshop.folder / "solver"
    path.write_text("#%Module1.0\nsetenv SOLVER_HOME /opt/solver\nprepend-path PATH /opt/solver/bin\n")
    return path


def test_modules_are_loaded_at_their_site_alone(workshop, isolated, module_file):
    run = f'modules = ["{module_file}"]\nenvironment = {{ WHO = "site" }}'
    words = ["sh", "-c", "echo $LANDBRIDGE_SITE_NAME $SOLVER_HOME $(echo $PATH | grep -c ^/opt/solver/bin:) $WHO"]
    command = [LANDBRIDGE, "run", "-n", "2", "--", *words]
    home = {"HOME": str(workshop.folder)}
    done = start(workshop, {"b": lab_site("b", run)}, command, nodes=1, environment=home).finish().check()
    assert sorted(done.out.splitlines()) == ["a 0", "b /opt/solver 1 site"], str(done)


@pytest.mark.parametrize(("name", "said"), [("nosuch/1.0", "nosuch/1.0"), ("slow", "not loaded within")])
def test_a_module_that_cannot_be_loaded_is_named(workshop, isolated, module_file, name, said):
    if name == "slow":
        name = str(module_file)
        module_file.write_text("#%Module1.0\nexec sleep 60\n")
    # A login shell that is killed leaves the locks that its profile holds: in no home but this test's.
    home = {"HOME": str(workshop.folder)}
    sites = {"b": lab_site("b", f'modules = ["{name}"]')}
    done = start(workshop, sites, [LANDBRIDGE, "run", "-n", "2", "--", "true"], nodes=1, environment=home)
    done.finish().fails_naming("site b", "node n1", said, "[site.run]")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('directory = "here"', "must begin with / or ~/"),
        ('modules = [""]', "is not the name of a module"),
        ('environment = { "A=B" = "c" }', "`A=B` cannot be set"),
        ("program = 1", "unknown field `program`"),
    ],
)
def test_wrong_entries_are_named(workshop, line, said):
    text = (
        f'[[site]]\nname = "b"\nfingerprint = "sha256:{"0" * 64}"\n[[site.gateway]]\nname = "g"\ninside = "h:1"\n'
        f'[[site.node]]\nname = "n1"\n[site.run]\n{line}\n'
    )
    file = workshop.folder / "sites.toml"
    file.write_text(text)
    workshop.run([LANDBRIDGE, "run", "--sites", file, "-n", "1", "--", "true"]).fails_naming("sites.toml", said)
