"""The recipes of scripts/packaging: parsed and, where their tools are installed, rendered. test_dist.py loads the
modulefile."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest
import tomllib

from harness import ROOT

PACKAGING = ROOT / "scripts" / "packaging"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
DIST_PYTHON = ROOT / ".venv-dist" / "bin" / "python"


def test_spacks_recipe_names_what_there_is():
    tree = ast.parse((PACKAGING / "spack" / "package.py").read_text())
    (recipe,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    calls = [call for call in ast.walk(recipe) if isinstance(call, ast.Call)]

    def named(name):
        return [ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", "") == name]

    assert recipe.name == "Landbridge" and named("version") == [VERSION]
    manifest = tomllib.loads((ROOT / "user" / "cli" / "Cargo.toml").read_text())
    assert set(named("variant")) | {"share"} == set(manifest["features"]["default"]), "a variant for each feature"
    floor = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    assert f"rust@{floor}:" in named("depends_on")


# Rendered by release.py, then by rattler-build for a machine with conda-forge's compilers.
RENDER = """
import json, sys
from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig
compilers = {"c_compiler": ["gcc"], "rust_compiler": ["rust"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.17"]}
target = RenderConfig(platform=PlatformConfig(target_platform=sys.argv[1]))
(made,) = Stage0Recipe.from_yaml(sys.stdin.read()).render(VariantConfig(compilers), target)
json.dump(made.recipe.to_dict(), sys.stdout)
"""


@pytest.mark.skipif(not DIST_PYTHON.exists(), reason=f"{DIST_PYTHON} is not there: make dist makes it")
@pytest.mark.parametrize("platform", ["linux-64", "linux-aarch64"])
def test_rattler_build_renders_condas_recipe(platform):
    text = (PACKAGING / "conda" / "recipe.yaml").read_text()
    filled = text.replace("@HOMEPAGE@", "https://landbridge.example").replace("@SHA256@", 64 * "0")
    done = subprocess.run(
        [DIST_PYTHON, "-c", RENDER, platform], input=filled, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    recipe = json.loads(done.stdout)
    assert recipe["package"] == {"name": "landbridge", "version": VERSION}
    [source] = recipe["source"]
    assert source["url"].endswith(f"/v{VERSION}/landbridge-{VERSION}.tar.gz"), source
    assert f"rust_{platform}" in recipe["requirements"]["build"], recipe["requirements"]
    assert all((ROOT / name).exists() or name == "THIRD-PARTY.txt" for name in recipe["about"]["license_file"])


def test_apptainers_definition_has_each_section_once():
    text = (PACKAGING / "apptainer" / "landbridge.def").read_text()
    sections = re.findall(r"^%(\w+)", text, re.MULTILINE)
    assert sections == ["files", "post", "runscript", "test", "labels"]
    assert re.search(r"^Bootstrap: docker$\s^From: \S+$", text, re.MULTILINE)
    post = text.split("%post")[1].split("%runscript")[0]
    subprocess.run(["sh", "-n"], input=post, text=True, check=True)


def test_a_release_is_refused_while_it_has_no_address():
    report = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["metadata"]["release"]["report"]
    assert report in (ROOT / "SECURITY.md").read_text(), "SECURITY.md and Cargo.toml name the same address"
    if not report.endswith(".example"):
        pytest.skip(f"{report} is no placeholder")

    def check(rehearsal):
        words = [sys.executable, ROOT / "scripts" / "release.py", "check"]
        environment = {**os.environ, "REHEARSAL": rehearsal}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    refused = check("")
    assert refused.returncode == 1 and "REHEARSAL=1" in refused.stderr, refused
    assert f"report = {report}" in refused.stderr and "SECURITY.md does not name" not in refused.stderr, refused
    rehearsed = check("1")
    assert rehearsed.returncode == 0 and "no tag" in rehearsed.stderr, rehearsed


def test_crates_and_packages_have_one_address():
    """One home page for Cargo, Spack and conda: the constant in Cargo.toml, which release.py puts into the recipes."""
    homepage = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["metadata"]["release"]["homepage"]
    for recipe in ("spack/package.py", "conda/recipe.yaml"):
        text = (PACKAGING / recipe).read_text()
        assert "@HOMEPAGE@" in text and homepage not in text and "https://" not in text, recipe
    listed = subprocess.run(["git", "grep", "-lF", ".example", "--", "*.toml", "SECURITY.md"], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, check=False).stdout.split()  # fmt: skip
    assert set(listed) <= {"Cargo.toml", "SECURITY.md"}, listed


@pytest.mark.skipif(not DIST_PYTHON.exists(), reason=f"{DIST_PYTHON} is not there: make dist makes it")
def test_dist_names_what_a_machine_lacks(tmp_path):
    """A Rust without any standard library: each machine is named with the command that brings it; nothing is built."""
    (tmp_path / "rustc").write_text(f"#!/bin/sh\necho {tmp_path}\n")
    (tmp_path / "rustc").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for strict, verdict in [("1", "STRICT: a release needs"), ("0", "this machine's own")]:
        words = [DIST_PYTHON, ROOT / "scripts" / "dist.py"]
        settings = {**environment, "STRICT": strict}
        done = subprocess.run(words, env=settings, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and f"dist: {verdict}" in done.stderr, done
        for machine in ("x86_64", "aarch64"):
            assert f"dist: {machine} is left out" in done.stderr, done
            assert f"rustup target add {machine}-unknown-linux-gnu" in done.stderr, done
