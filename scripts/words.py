#!/usr/bin/env python3
"""Style of the words in the source: lines end at 120 characters, phrases that CONTRIBUTING.md bans stay out of
comments, docstrings and messages, and patterns that make sentences hard to read stay rare in comments, pages and
commits. Prints one line per fault; exit code 1 if any. pages.py checks the lines of Markdown.

words.py --list: prints every occurrence of these patterns instead."""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 120
FILES = ("*.rs", "*.py", "*.pyi", "*.c", "*.h", "*.md", "*.sh", "scripts/*", ".ci/*")

# Banned phrases, and their replacements. Only phrases that are wrong wherever they occur in the source.
BANNED = {
    r"so many(eth)?": "the number's name, or `this many`",
    r"for ever": "forever",
    r"whoever": "a noun: the caller, the peer, the owner, anybody",
    r"under way": "in flight, running, in progress",
    r"in clear": "without TLS",
    r"inside TLS": "with TLS",
}
PHRASE = re.compile(r"\b(" + "|".join(BANNED) + r")\b", re.IGNORECASE)

# Patterns of sentences that a reader has to solve: the noun is not named, or the verb is vague.
OPENING = re.compile(r"(What|How|Whether|Where|Who|Whose|Whom|Whoever|Whatever|Why)\b")
UNNAMED = re.compile(r"\bwhat(ever)?\b", re.IGNORECASE)
VAGUE = re.compile(r"\b(tell|tells|told|telling|say|says|said|saying)\b", re.IGNORECASE)
# The most that is accepted: percent of Rust's doc comments that begin so; occurrences in 1,000 words. Lower a limit
# when its rate has fallen. In November 2026 quinn and rustls had 4.9 and 3.1 % of openings; 0.26 and 0.76 of `what`;
# 0.09 and 0.34 of told, says, said.
LIMITS = {
    "Rust": {"openings": 0.5, "what": 0.3, "told": 0.1},
    "Markdown": {"what": 1.0, "told": 0.2},
    "Python, C and shell": {"what": 0.2, "told": 0.2},
}
PATTERNS = {"what": UNNAMED, "told": VAGUE}
ADVICE = {"openings": "name the noun first", "what": "name the noun", "told": "reports, sends, prints, answers"}
# Subjects of the last commits may have as many of these patterns.
COMMITS, MOST_IN_COMMITS = 10, 1

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
    """Returns true if a long comment line cannot be wrapped: a table row, or a word that is longer than a line."""
    words = line.split()
    return words[:2] in (["//!", "|"], ["///", "|"]) or max(map(len, words)) > LONGEST - 20


def faults(path, text):
    """(line number, fault) of one file. Code counts without its strings, which may be scripts or output."""
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


def prose(path, text):
    """(kind, line number, line, whether a doc comment begins there) of each line that explains something."""
    if path.suffix == ".md":
        text = re.sub(
            r"^```.*?^```", lambda found: "\n" * found.group().count("\n"), text, flags=re.DOTALL | re.MULTILINE
        )
        yield from (("Markdown", number, line, False) for number, line in enumerate(text.split("\n"), 1))
    elif path.suffix == ".rs":
        before = None
        for number, line in enumerate(text.split("\n"), 1):
            found = re.match(r"\s*(//[/!]?) ?(.*)", line)
            marker = found and found[1]
            if found:
                yield "Rust", number, found[2], marker != "//" and marker != before
            before = marker
    elif path.suffix in (".py", ".pyi", ".c", ".h"):
        for number, piece, is_comment in pieces(path, text):
            if is_comment:
                yield from (
                    ("Python, C and shell", at, line, False) for at, line in enumerate(piece.split("\n"), number)
                )
    else:
        for number, line in enumerate(text.split("\n"), 1):
            if line.lstrip().startswith("# "):
                yield "Python, C and shell", number, line, False


class Rates:
    """Occurrences of the patterns in all that explains something, by kind of file."""

    def __init__(self):
        self.found = {kind: {name: [] for name in limits} for kind, limits in LIMITS.items()}
        self.words = dict.fromkeys(LIMITS, 0)
        self.doc_comments = 0

    def read(self, name, path, text):
        for kind, number, line, begins in prose(path, text):
            self.words[kind] += len(line.split())
            place = f"{name}:{number}: {line.strip()}"
            for pattern, expression in PATTERNS.items():
                self.found[kind][pattern] += [place] * len(expression.findall(line))
            if kind == "Rust" and begins:
                self.doc_comments += 1
                self.found[kind]["openings"] += [place] if OPENING.match(line) else []

    def faults(self):
        for kind, limits in LIMITS.items():
            for pattern, most in limits.items():
                count = len(self.found[kind][pattern])
                if pattern == "openings":
                    rate, of = (
                        100 * count / max(self.doc_comments, 1),
                        "% of doc comments begin with What, How, Whether…",
                    )
                else:
                    rate, of = 1000 * count / max(self.words[kind], 1), f"`{pattern}` in 1,000 words"
                if rate > most:
                    yield f"{kind}: {rate:.2f} {of}, at most {most}: {ADVICE[pattern]} (words.py --list)"

    def occurrences(self):
        return [place for patterns in self.found.values() for places in patterns.values() for place in places]


def faults_of_commits():
    listing = subprocess.run(
        ["git", "log", f"-{COMMITS}", "--format=%h %s"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    found = [line for line in listing.stdout.splitlines() if UNNAMED.search(line) or VAGUE.search(line)]
    if len(found) > MOST_IN_COMMITS:
        yield f"of the last {COMMITS} commits, {len(found)} name no noun: {'; '.join(found)}"


def main():
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FILES],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    rates, found = Rates(), []
    for name in sorted(set(listing.split())):
        path = ROOT / name
        if name in ("scripts/words.py", "tests/test_checks.py") or not path.is_file() or path.is_symlink():
            continue
        text = path.read_text()
        if path.suffix in (".rs", ".py", ".c", ".h"):
            found += [f"{name}:{number}: {problem}" for number, problem in faults(path, text)]
        if name != "CHANGELOG.md":
            rates.read(name, path, text)
    if sys.argv[1:] == ["--list"]:
        print("\n".join(rates.occurrences()))
        return 0
    found += [*rates.faults(), *faults_of_commits()]
    for line in found:
        print(f"words: {line}", file=sys.stderr)
    print(f"words: {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
