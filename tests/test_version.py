"""The output of `--version`, by the build script that composes it: from a clone, from a source archive, and inside a
stranger's repository."""

import os
import subprocess

import pytest

from harness import ROOT

FORMAT = "$Format:%h$\n"


@pytest.fixture(scope="module")
def build_script(tmp_path_factory):
    program = tmp_path_factory.mktemp("version") / "build-script"
    subprocess.run(["rustc", "--edition=2024", "-o", program, ROOT / "user" / "cli" / "build.rs"], check=True)
    return program


def version(build_script, tree, features=("lab", "share", "top"), **more):
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tree),
        "CARGO_MANIFEST_DIR": str(tree / "user" / "cli"),
        "CARGO_PKG_VERSION": "1.2.3",
    }
    variables |= {f"CARGO_FEATURE_{name.upper()}": "1" for name in features}
    done = subprocess.run([build_script], env=variables | more, stdout=subprocess.PIPE, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("cargo:rustc-env=LANDBRIDGE_VERSION_TEXT=")]
    return line.split("=", 2)[2]


@pytest.fixture
def tree(tmp_path):
    """Sources as they are committed, below a folder that may become somebody's repository."""
    tree = tmp_path / "around" / "landbridge"
    (tree / "user" / "cli").mkdir(parents=True)
    (tree / "scripts" / "packaging").mkdir(parents=True)
    (tree / "scripts" / "packaging" / "commit").write_text(FORMAT)
    return tree


def commit(folder):
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], cwd=folder, check=True)
    return subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def test_sources_without_git_have_no_commit(build_script, tree):
    assert version(build_script, tree) == "1.2.3"
    commit(tree.parent)
    assert version(build_script, tree) == "1.2.3", "the repository around is another program's"


def test_a_clone_has_its_commit(build_script, tree):
    name = commit(tree)
    assert version(build_script, tree) == f"1.2.3 ({name})"
    assert version(build_script, tree, LANDBRIDGE_COMMIT="0123abcd-dirty") == "1.2.3 (0123abcd-dirty)", (
        "what is given counts"
    )


def test_an_archive_has_the_commit_that_git_wrote(build_script, tree):
    (tree / "scripts" / "packaging" / "commit").write_text("0123abcd\n")
    assert version(build_script, tree) == "1.2.3 (0123abcd)"
    attributes = (ROOT / ".gitattributes").read_text().splitlines()
    assert "scripts/packaging/commit export-subst" in attributes


def test_what_was_left_out_is_named(build_script, tree):
    assert (
        version(build_script, tree, features=["share"], LANDBRIDGE_COMMIT="0123abcd")
        == "1.2.3 (0123abcd, without lab and top)"
    )
