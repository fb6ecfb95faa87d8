#!/usr/bin/env python3
"""Style of the words in the source: lines end at 120 characters, and phrases that CONTRIBUTING.md bans stay out of
comments, docstrings and messages. Prints one line per fault; exit code 1 if any. Markdown is checked by pages.py."""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 120

# Phrase -> what to write. Only phrases that are wrong wherever they occur in the source.
BANNED = {
    r"so many(eth)?": "the number's name, or `this many`",
    r"for ever": "forever",
    r"whoever": "a noun: the caller, the peer, the owner, anybody",
    r"under way": "in flight, running, in progress",
    r"in clear": "without TLS",
    r"inside TLS": "with TLS",
}
PHRASE = re.compile(r"\b(" + "|".join(BANNED) + r")\b", re.IGNORECASE)

RUST_OR_C = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)


def pieces(path, text):
    """(line number, text, whether it is a comment) of each comment and string literal."""
    if path.suffix != ".py":
        for found in RUST_OR_C.finditer(text):
            piece = found.group()
            yield text.count("\n", 0, found.start()) + 1, piece, piece.startswith("/")
        return
    parts = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in parts:
            is_docstring = token.string.startswith('"""') and token.line.lstrip().startswith('"""')
            yield token.start[0], token.string, token.type == tokenize.COMMENT or is_docstring


def is_verbatim(line):
    """Whether a long comment line cannot be wrapped: a table row, or a word that is longer than a line."""
    words = line.split()
    return words[:2] in (["//!", "|"], ["///", "|"]) or max(map(len, words)) > LONGEST - 20


def faults(path, text):
    """(line number, what is wrong) of one file. Code counts without its strings, which may be scripts or output."""
    lines, without_strings = text.split("\n"), text.split("\n")
    for number, piece, is_comment in pieces(path, text):
        for at, line in enumerate(piece.split("\n"), number):
            for found in PHRASE.finditer(line):
                banned = next(phrase for phrase in BANNED if re.fullmatch(phrase, found.group(), re.IGNORECASE))
                yield at, f"`{found.group()}`: write {BANNED[banned]}"
            if not is_comment:
                without_strings[at - 1] = without_strings[at - 1].replace(line, "", 1)
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST and len(without_strings[number - 1]) > LONGEST and not is_verbatim(line):
            yield number, f"{len(line)} characters, at most {LONGEST}"


def main():
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.rs", "*.py", "*.c", "*.h"],
        cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True,
    ).stdout  # fmt: skip
    count = 0
    for name in sorted(set(listing.split())):
        path = ROOT / name
        if name in ("scripts/words.py", "tests/test_checks.py") or not path.is_file():
            continue
        for number, what in faults(path, path.read_text()):
            print(f"words: {name}:{number}: {what}", file=sys.stderr)
            count += 1
    print(f"words: {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
