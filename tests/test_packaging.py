"""The recipes of packaging/: parsed and, where what reads them is here, loaded."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness import ROOT

PACKAGING = ROOT / "packaging"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
# Lmod's own variable goes first: beside environment-modules it cannot be installed as Debian has it.
LMOD = Path(os.environ.get("LMOD_CMD", "/usr/share/lmod/lmod/libexec/lmod"))
YAML = ROOT / ".venv-dist" / "bin" / "python"


def test_spacks_recipe_names_what_there_is():
    tree = ast.parse((PACKAGING / "spack" / "package.py").read_text())
    (recipe,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    calls = [call for call in ast.walk(recipe) if isinstance(call, ast.Call)]

    def named(name):
        return [ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", "") == name]

    assert recipe.name == "Landbridge" and named("version") == [VERSION]
    manifest = tomllib.loads((ROOT / "cli" / "Cargo.toml").read_text())
    assert set(named("variant")) | {"share"} == set(manifest["features"]["default"]), "a variant for each feature"
    floor = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    assert f"rust@{floor}:" in named("depends_on")


@pytest.mark.skipif(not YAML.exists(), reason=f"{YAML} is not there: make dist makes it")
def test_condas_recipe_is_yaml_with_what_rattler_build_needs():
    read = "import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"
    with (PACKAGING / "conda" / "recipe.yaml").open() as file:
        recipe = json.loads(subprocess.run([YAML, "-c", read], stdin=file, stdout=subprocess.PIPE, check=True).stdout)
    assert {"schema_version", "context", "package", "source", "build", "requirements", "tests", "about"} == set(recipe)
    assert recipe["context"]["version"] == VERSION
    assert all((ROOT / name).exists() or name == "THIRD-PARTY.txt" for name in recipe["about"]["license_file"])


def test_apptainers_definition_has_each_section_once():
    text = (PACKAGING / "apptainer" / "landbridge.def").read_text()
    sections = re.findall(r"^%(\w+)", text, re.MULTILINE)
    assert sections == ["files", "post", "runscript", "test", "labels"]
    assert re.search(r"^Bootstrap: docker$\s^From: \S+$", text, re.MULTILINE)
    post = text.split("%post")[1].split("%runscript")[0]
    subprocess.run(["sh", "-n"], input=post, text=True, check=True)


@pytest.fixture
def modules(tmp_path):
    """A folder of modules, and an installed Landbridge of this version below another."""
    folder = tmp_path / "modules" / "landbridge"
    folder.mkdir(parents=True)
    shutil.copy(PACKAGING / "modulefiles" / "landbridge.lua", folder / f"{VERSION}.lua")
    (tmp_path / "opt" / VERSION / "bin").mkdir(parents=True)
    return tmp_path


def load(modules):
    words = [LMOD, "bash", "load", "landbridge"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(modules),
        "MODULEPATH": str(modules / "modules"),
        "LMOD_SYSTEM_DEFAULT_MODULES": "",
        "LANDBRIDGE_ROOT_FOLDER": str(modules / "opt"),
    }
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not LMOD.exists(), reason=f"{LMOD} is not there: install Lmod, or set LMOD_CMD")
def test_lmod_loads_the_modulefile(modules):
    refused = load(modules)
    assert "unpack Landbridge's tar.zst to" in refused.stderr, refused
    (modules / "opt" / VERSION / "bin" / "landbridge").write_text("")
    loaded = load(modules)
    root = modules / "opt" / VERSION
    script = loaded.stdout + 'printf "%s\\n" "$PATH" "$MANPATH" "${LANDBRIDGE_PROVIDER-none}"'
    path, manuals, provider = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert (
        path.split(":")[0] == f"{root}/bin" and manuals.split(":")[0] == f"{root}/share/man" and provider == "none"
    ), loaded


def test_a_release_is_refused_while_it_has_no_address():
    words = [sys.executable, ROOT / "scripts" / "release.py", "check"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "REHEARSAL=1" in done.stderr, done
    assert "report = security@landbridge.example" in done.stderr and "SECURITY.md does not name" not in done.stderr, (
        done
    )
    rehearsed = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "REHEARSAL": "1"}
    )
    assert rehearsed.returncode == 0 and "no tag" in rehearsed.stderr, rehearsed
