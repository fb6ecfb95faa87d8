#!/usr/bin/env python3
"""Checks the Markdown pages: links and anchors resolve, lines end at 120 characters, the messages that
docs/troubleshooting.md explains still exist in the source, and the commits that docs/decisions names exist. Prints one
line for each fault; exit code 1 if there is any. Needs no network."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 120
TROUBLE = "docs/troubleshooting.md"
# The messages in this section come from MPI libraries.
OTHERS = "## MPI's own messages"

FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
CODE = re.compile(r"(`+)(.+?)\1")


def markdown_files():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(path for path in listed.stdout.split("\0") if path and (ROOT / path).exists())


def prose(text):
    """(number, line) outside fenced blocks, which are not Markdown."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def slug(heading):
    """The anchor that GitHub gives a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text):
    found, seen = set(), {}
    for _, line in prose(text):
        if heading := HEADING.match(line):
            name = slug(heading[1])
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
    return found


def link_faults(path, text, texts):
    lines = dict(prose(text))
    # A link's text may continue in the next line. Indented code is not Markdown either, unless it is a nested list.
    kept = [lines.get(number, "") for number in range(1, len(text.splitlines()) + 1)]
    kept = ["" if line.startswith("    ") and not line.lstrip().startswith("-") else line for line in kept]
    kept = CODE.sub(lambda code: "`" + "\n" * code[0].count("\n") + "`", "\n".join(kept))
    for link in LINK.finditer(kept):
        target, number = link[1], kept.count("\n", 0, link.end()) + 1
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        file, _, anchor = target.partition("#")
        wanted = (ROOT / path).parent / file if file else ROOT / path
        if not wanted.exists():
            yield f"{path}:{number}: {target}: there is no {file}"
        elif anchor:
            other = wanted.resolve().relative_to(ROOT).as_posix()
            if anchor not in anchors(texts.get(other) or wanted.read_text()):
                yield f"{path}:{number}: {target}: {other} has no heading #{anchor}"
            elif anchor.startswith("-"):
                yield (
                    f"{path}:{number}: {target}: the site of `make docs` gives this heading another anchor: "
                    "link to the page"
                )


def length_faults(path, text):
    """Lines that are too long. Tables, code and links longer than a line cannot be wrapped."""
    for number, line in prose(text):
        if len(line) > LONGEST and not line.startswith(("|", "    ")) and " " in line.strip()[:LONGEST]:
            yield f"{path}:{number}: {len(line)} characters, at most {LONGEST}"


def source():
    """All Rust source, with string continuations joined so that each message is one text."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.rs"], cwd=ROOT, check=True, capture_output=True, text=True)
    text = "\n".join((ROOT / path).read_text() for path in listed.stdout.split("\0") if path and (ROOT / path).exists())
    return re.sub(r"\\\n\s*", "", text).replace('\\"', '"')


def message_faults(text):
    code = source()
    for number, line in prose(text.split(OTHERS)[0]):
        cells = line.split("|")
        if len(cells) != 5 or set(cells[1]) <= {"-", " "}:
            continue
        for _, message in CODE.findall(cells[1]):
            for part in filter(None, (part.strip() for part in message.split("…"))):
                if part not in code:
                    yield f"{TROUBLE}:{number}: no message has `{part}`: quote it as the source has it now"


def commit_faults(texts):
    """Names of commits that do not exist. A checkout without their history cannot tell."""
    named = []
    for path, text in texts.items():
        for number, line in prose(text) if path.startswith("docs/decisions/") else ():
            named += [(path, number, name) for name in re.findall(r"`([0-9a-f]{7,40})`", line)]
    missing = [each for each in named if not is_commit(each[2])]
    if len(missing) < len(named):
        for path, number, name in missing:
            yield f"{path}:{number}: there is no commit `{name}`"


def is_commit(name):
    words = ["git", "cat-file", "-e", f"{name}^{{commit}}"]
    return subprocess.run(words, cwd=ROOT, capture_output=True).returncode == 0


def main():
    texts = {path: (ROOT / path).read_text() for path in markdown_files()}
    faults = []
    for path, text in texts.items():
        faults += [*link_faults(path, text, texts), *length_faults(path, text)]
    faults += message_faults(texts[TROUBLE])
    faults += commit_faults(texts)
    print("\n".join(faults) if faults else f"pages: {len(texts)} pages, no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
