#!/usr/bin/env python3
"""The steps of `make release` besides `make dist`: checks that this is a release, and makes the source archive and the
filled-in recipes.

release.py check: the version, the changelog, the addresses, the tag and the commit are consistent.
release.py finish: landbridge-VERSION.tar.gz and recipes/ in target/dist, SHA256SUMS of all files.
"""

import gzip
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "target" / "dist"
RECIPES = [
    "scripts/packaging/spack/package.py",
    "scripts/packaging/conda/recipe.yaml",
    "scripts/packaging/modulefiles/landbridge.lua",
    "scripts/packaging/apptainer/landbridge.def",
]


def git(*words, binary=False):
    return subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=not binary).stdout


def facts():
    with (ROOT / "Cargo.toml").open("rb") as file:
        workspace = tomllib.load(file)["workspace"]
    return workspace["package"]["version"], workspace["metadata"]["release"]


def problems(version, addresses):
    """One line for each reason why this is no release yet, with the remedy."""
    for name, value in addresses.items():
        if ".example" in value:
            yield (
                f"{name} = {value} in [workspace.metadata.release] of Cargo.toml is a placeholder: "
                "put the real address there and in SECURITY.md"
            )
    if addresses["report"] not in (ROOT / "SECURITY.md").read_text():
        yield (
            f"SECURITY.md does not name {addresses['report']} (report in Cargo.toml's [workspace.metadata.release]) "
            "for vulnerabilities"
        )
    if f"\n## {version} " not in (ROOT / "CHANGELOG.md").read_text():
        yield f"CHANGELOG.md has no section `## {version} (date)`: rename Unreleased"
    if git("status", "--porcelain").strip():
        yield "there are uncommitted changes: commit them"
    if f"v{version}" not in git("tag", "--points-at", "HEAD").split():
        yield f"this commit has no tag v{version}: git tag -s v{version}"


def source(version):
    """Archives the committed sources; git puts the commit into scripts/packaging/commit."""
    name = f"landbridge-{version}"
    tar = git("archive", "--format=tar", f"--prefix={name}/", "HEAD", binary=True)
    file = DIST / f"{name}.tar.gz"
    file.write_bytes(gzip.compress(tar, mtime=0))
    return file


def finish(version, addresses):
    """Makes the source archive, the recipes for exactly these bytes, and checksums of all files."""
    sums = hashlib.sha256(source(version).read_bytes()).hexdigest()
    for name in RECIPES:
        text = (ROOT / name).read_text().replace("@HOMEPAGE@", addresses["homepage"]).replace("@SHA256@", sums)
        file = DIST / "recipes" / Path(name).relative_to("scripts/packaging")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    files = sorted(path for path in DIST.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(DIST)}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(lines))
    for path in files:
        print(f"release: {path.relative_to(ROOT)}")


def main(step):
    version, addresses = facts()
    if step == "finish":
        return finish(version, addresses)
    found = list(problems(version, addresses))
    for line in found:
        print(f"release: {line}", file=sys.stderr)
    if found and os.environ.get("REHEARSAL", "") in ("", "0"):
        raise SystemExit("release: not a release yet; REHEARSAL=1 makes and checks everything all the same")
    return None


if __name__ == "__main__":
    main(sys.argv[1])
