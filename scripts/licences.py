#!/usr/bin/env python3
"""Writes THIRD-PARTY.txt of a package: the licences of all code that is linked into the command and the provider.

licences.py TARGET FILE [NAME=PATH…]: TARGET is Rust's name of the machine; NAME=PATH adds the licence text of a library
that a compiler links."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

PACKAGES = ["landbridge-cli", "landbridge-provider", "landbridge-layer", "landbridge-layer-large"]
NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")
HEAD = """\
Landbridge's command and provider contain the programs below, besides Rust's standard library
(https://github.com/rust-lang/rust, MIT OR Apache-2.0). Each is listed with its version, licence and source, then come
the licence texts, each once, with the names of the programs that it belongs to.
"""


def linked(target):
    """Packages that cargo links for this machine, as `name version`, without those that only run at build time."""
    words = ["cargo", "tree", "--locked", "--target", target, "-e", "normal", "--prefix", "none", "-f", "{p}"]
    for package in PACKAGES:
        words += ["-p", package]
    listing = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout
    return {
        " ".join(line.split()[:2]).replace(" v", " ")
        for line in listing.splitlines()
        if line.strip() and "(proc-macro)" not in line
    }


def texts(package):
    """The licence texts in a package's sources."""
    folder = Path(package["manifest_path"]).parent
    own = folder / package["license_file"] if package.get("license_file") else None
    files = {path for path in folder.iterdir() if path.is_file() and path.name.upper().startswith(NAMES)}
    return [
        path.read_text(errors="replace").strip() for path in sorted(files | ({own} if own and own.is_file() else set()))
    ]


def compose(packages, extra, ours):
    """The whole text. A package without a licence text must allow one of our licences."""
    lines, by_text = [HEAD], defaultdict(list)
    for package in sorted(packages, key=lambda package: package["name"]):
        label = f"{package['name']} {package['version']}"
        source = package.get("repository") or package.get("homepage") or "https://crates.io/crates/" + package["name"]
        lines.append(f"- {label}: {package['license']}; {source}")
        found = texts(package)
        if not found:
            fitting = [text for name, text in ours.items() if name in (package["license"] or "")]
            if not fitting:
                raise SystemExit(
                    f"licences: {label} ({package['license']}) has no licence text in its sources: "
                    "add it to scripts/licences.py"
                )
            found = fitting[:1]
        for text in found:
            by_text[text].append(label)
    for name, path in extra:
        lines.append(f"- {name}: its text is below")
        by_text[Path(path).read_text(errors="replace").strip()].append(name)
    for text, labels in by_text.items():
        lines += ["", "=" * 100, ", ".join(labels), "-" * 100, text]
    return "\n".join(lines) + "\n"


def main(target, file, *extra):
    words = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
    wanted, members = linked(target), set(metadata["workspace_members"])
    packages = [
        package
        for package in metadata["packages"]
        if package["id"] not in members and f"{package['name']} {package['version']}" in wanted
    ]
    root = Path(metadata["workspace_root"])
    ours = {
        "Apache-2.0": (root / "LICENSES/Apache-2.0.txt").read_text().strip(),
        "MIT": (root / "LICENSES/MIT.txt").read_text().strip(),
    }
    Path(file).write_text(compose(packages, [part.split("=", 1) for part in extra], ours))


if __name__ == "__main__":
    main(*sys.argv[1:])
