#!/usr/bin/env python3
"""Audit of everything Cargo.lock brings in: licence, source, bans, and two versions of one package.

Works on `cargo metadata` alone, so it needs no network and no extra tool. It does not know advisories: for those run
`cargo audit` or `cargo deny check advisories` where a network is at hand.
"""

import json
import subprocess
import sys
from collections import defaultdict

# Licences that may be linked into a program under Apache-2.0 OR MIT and passed on without further duties.
LICENCES = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}

# Packages whose manifest names no licence: name -> (licence, where it is stated).
STATED_ELSEWHERE = {}

# name -> reason
BANNED = {
    "openssl": "rustls is our TLS; a second one doubles what must be kept patched",
    "openssl-sys": "rustls is our TLS; a second one doubles what must be kept patched",
    "native-tls": "rustls is our TLS; a second one doubles what must be kept patched",
    "async-std": "tokio is the gateway's runtime; one is enough",
    "chrono": "nothing here handles calendars",
    "failure": "unmaintained; thiserror",
    "serde_yaml": "unmaintained; our files are TOML and JSON",
}

# Two versions that cannot be avoided yet: name -> the packages that need the second.
DUPLICATES_ALLOWED = {
    "cpufeatures": "sha2 0.10 and proptest's chacha20 (tests only)",
    "embedded-io": "postcard's two optional interfaces; neither is compiled",
    "getrandom": "ring and proptest are one step behind",
    "r-efi": "follows getrandom; never compiled on Linux",
    "syn": "serde_derive and tracing-attributes; macros, never linked",
    "wasi": "follows getrandom; never compiled on Linux",
    "winnow": "toml 0.9 itself uses two",
    "windows-sys": "never compiled on Linux",
    "windows-targets": "never compiled on Linux",
}


def licence_accepted(expression):
    """Returns true if LICENCES satisfy an SPDX expression. Understands OR, AND, parentheses and the old `/`."""
    tokens = expression.replace("/", " OR ").replace("(", " ( ").replace(")", " ) ").split()
    position = 0

    def either():
        nonlocal position
        value = both()
        while position < len(tokens) and tokens[position] == "OR":
            position += 1
            right = both()
            value = value or right
        return value

    def both():
        nonlocal position
        value = one()
        while position < len(tokens) and tokens[position] == "AND":
            position += 1
            right = one()
            value = value and right
        return value

    def one():
        nonlocal position
        if tokens[position] == "(":
            position += 1
            value = either()
            position += 1
            return value
        name = tokens[position]
        position += 1
        if position < len(tokens) and tokens[position] == "WITH":
            name += " WITH " + tokens[position + 1]
            position += 2
        return name in LICENCES

    return either()


def problems(metadata):
    """One line per problem, naming the package and its version."""
    ours = set(metadata["workspace_members"])
    versions = defaultdict(list)
    for package in metadata["packages"]:
        label = f"{package['name']} {package['version']}"
        if package["id"] in ours:
            if package["license"] != "Apache-2.0 OR MIT":
                yield f"{label}: our own crates are Apache-2.0 OR MIT, not {package['license']}"
            continue
        versions[package["name"]].append(package["version"])
        licence = package["license"] or STATED_ELSEWHERE.get(package["name"], (None,))[0]
        if licence is None:
            yield f"{label}: names no licence"
        elif not licence_accepted(licence):
            yield f"{label}: licence {licence} is not on the list in scripts/dependencies.py"
        if package["source"] != "registry+https://github.com/rust-lang/crates.io-index":
            yield f"{label}: comes from {package['source']}, not from crates.io"
        if BANNED.get(package["name"]):
            yield f"{label}: {BANNED[package['name']]}"
    for name, found in sorted(versions.items()):
        if len(found) > 1 and name not in DUPLICATES_ALLOWED:
            yield (
                f"{name}: {len(found)} versions ({', '.join(sorted(found))}); "
                "drop one or say why in scripts/dependencies.py"
            )


def main():
    answer = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--locked"], stdout=subprocess.PIPE, check=False
    )
    if answer.returncode != 0:
        print("dependencies: cargo metadata --locked failed: is Cargo.lock committed and current?", file=sys.stderr)
        return 1
    metadata = json.loads(answer.stdout)
    found = list(problems(metadata))
    for line in found:
        print(f"dependencies: {line}", file=sys.stderr)
    print(
        f"dependencies: {len(metadata['packages']) - len(metadata['workspace_members'])} packages, "
        f"{len(found)} problems"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
