"""The scripts behind `make check` find what they are there to find."""

import sys
from pathlib import Path

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import dependencies
import invariants
import words


@pytest.fixture(scope="session", autouse=True)
def built():
    """These tests need nothing built."""


@pytest.mark.parametrize(
    "line",
    [
        "use std::time::Instant;",
        "let now = SystemTime::now();",
        "use std::net::TcpStream;",
        "use std::net::{TcpListener, IpAddr};",
        "use std::thread;",
        "std::thread::spawn(work);",
        "tokio::spawn(work);",
    ],
)
def test_sockets_threads_and_clocks_are_seen(line):
    assert invariants.IMPURE.search(line)


@pytest.mark.parametrize(
    "line", ["use std::net::IpAddr;", "use std::net::{Ipv4Addr, SocketAddr};", "use std::time::Duration;"]
)
def test_plain_values_are_no_sockets(line):
    assert not invariants.IMPURE.search(line)


def test_words_in_comments_and_strings_do_not_count():
    code = "let x = \"unsafe // no\"; // unsafe\nlet c = '\"'; unsafe { y() } /* unsafe\n*/ fn a<'b>(s: &'b str) {}"
    left = invariants.without_comments_and_strings(code)
    assert left.count("unsafe") == 1
    assert left.count("\n") == code.count("\n")


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        ("MIT OR Apache-2.0", True),
        ("MIT/Apache-2.0", True),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", True),
        ("GPL-3.0 OR MIT", True),
        ("GPL-3.0 AND MIT", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("LGPL-2.1", False),
    ],
)
def test_licence_expressions(expression, accepted):
    assert dependencies.licence_accepted(expression) is accepted


def test_a_foreign_source_a_banned_package_and_a_double_are_named():
    def package(name, version="1.0.0", licence="MIT", source="registry+https://github.com/rust-lang/crates.io-index"):
        return {"id": f"{name} {version}", "name": name, "version": version, "license": licence, "source": source}

    found = list(
        dependencies.problems(
            {
                "workspace_members": ["ours 1.0.0"],
                "packages": [
                    package("ours", licence="MIT"),
                    package("openssl"),
                    package("elsewhere", source="git+https://example.org/x"),
                    package("twice"),
                    package("twice", version="2.0.0"),
                    package("unlicensed", licence=None),
                ],
            }
        )
    )
    for name in ("ours", "openssl", "elsewhere", "twice: 2 versions", "unlicensed"):
        assert any(line.startswith(name) for line in found), (name, found)


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.rs", "/// Whoever calls waits for ever.\nfn f() {}\n", [1, 1]),
        ("a.rs", 'let problem = "so many bytes";\nlet so_many = 1; // bytes in flight\n', [1]),
        ("a.py", '"""What is under way."""\n', [1]),
        ("a.rs", f"// {'word ' * 24}\n", [1]),
        ("a.rs", f"let x = f({'argument, ' * 12});\n", [1]),
        ("a.rs", f'let script = "{"echo; " * 20}";\n', []),
        ("a.rs", f"/// | cell | {'word ' * 24} |\n", []),
        ("a.c", f"/* {'word ' * 24} */\n", [1]),
        ("a.c", "/* Gives the caller's buffer back. */\n", []),
    ],
)
def test_banned_phrases_and_long_lines_are_found(name, text, found):
    assert [number for number, _ in words.faults(Path(name), text)] == found


@pytest.mark.parametrize(
    ("name", "text", "kind", "openings", "unnamed", "vague"),
    [
        ("a.rs", "/// What it sends.\n/// What else.\nfn f() {}\n// It says so.\n", "Rust", 1, 2, 1),
        ("a.rs", "//! How it works.\n\n/// The receiver.\nstruct Whatever;\n", "Rust", 1, 0, 0),
        ("a.md", "What it told.\n```\nwhat it says\n```\n", "Markdown", 0, 1, 1),
        ("a.py", '"""Sends what is queued."""\nwhat = "what it says"  # what?\n', "Python, C and shell", 0, 2, 0),
        ("check", "#!/bin/bash\n# Says what it does.\necho what\n", "Python, C and shell", 0, 1, 1),
    ],
)
def test_sentences_without_a_noun_are_counted(name, text, kind, openings, unnamed, vague):
    rates = words.Rates()
    rates.read(name, Path(name), text)
    found = {pattern: len(places) for pattern, places in rates.found[kind].items()}
    assert (found.get("openings", 0), found["what"], found["told"]) == (openings, unnamed, vague)
    assert any(line.startswith(kind) for line in rates.faults()), "these few words are above any limit"
