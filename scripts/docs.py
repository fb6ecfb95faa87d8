#!/usr/bin/env python3
"""`make docs`: the Markdown pages as a site in target/docs, with a reference made from the code.

The script gathers pages in target/docs-source at the same paths as in the repository, so links work in both. It makes
two pages: the --help of every command, and every error message of the source. mkdocs runs strictly: a broken link or
anchor is an error, and so is a page that docs/mkdocs.yml lists but that does not exist."""

import functools
import html
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "target" / "docs-source"
LANDBRIDGE = ROOT / "target" / "release" / "landbridge"
MKDOCS = Path(sys.executable).parent / "mkdocs"
COMMAND = re.compile(r"^  ([a-z][a-z-]*)(?:\s{2,}|$)", re.MULTILINE)
LIMIT_S = 60
# Width of help texts on a page.
COLUMNS = 110
# For search in a site that is opened as files, the theme would load this from another server.
ELSEWHERE = "https://unpkg.com/iframe-worker/shim"

# Crates whose messages users see, and their subjects.
MESSAGES = {
    "setup": "adding and repairing sites",
    "client": "connecting to a gateway",
    "launcher": "starting and ending a job",
    "agent": "an agent on a node",
    "starters": "starting agents, batch systems",
    "job": "programs and MPI libraries",
    "watching": "checking sites",
    "gateway": "the gateway and its log",
    "types": "the sites file and values",
    "pmix": "Open MPI's start",
    "libfabric": "a site's own network",
    "pool": "shared memory",
    "endpoint": "inside a rank",
    "lab": "labs",
}
# A link to a path, without an anchor and without a picture.
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)\)")
# An `#[error(…)]` attribute with its text, which may span lines and consist of several literals.
ERROR = re.compile(r'#\[error\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', re.DOTALL)


class Failure(Exception):
    """An error, as one line."""


def tracked(*patterns):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return sorted(path for path in listed.stdout.split("\0") if path and (ROOT / path).exists())


def gather():
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in tracked("*.md", "docs/*.svg", "docs/assets/*"):
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, SOURCE / path)
    for page in SOURCE.rglob("*.md"):
        page.write_text(LINK.sub(functools.partial(stays, page), page.read_text()))


def stays(page, link):
    """A link, or only its text if it leads to a file of the repository that is no page."""
    there = page.parent / link[2]
    of_repository = ROOT / page.parent.relative_to(SOURCE) / link[2]
    return link[1] if of_repository.exists() and (of_repository.is_dir() or not there.exists()) else link[0]


def help_of(words):
    done = subprocess.run(
        [LANDBRIDGE, *words, "--help"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0 or not done.stdout:
        raise Failure(f"landbridge {' '.join(words)} --help: exit code {done.returncode}: {done.stderr.strip()}")
    return "\n".join(map(wrapped, done.stdout.rstrip().splitlines()))


def wrapped(line):
    """A long line of help, wrapped as in a terminal of this width."""
    indent = line[: len(line) - len(line.lstrip())]
    return (
        textwrap.fill(line, COLUMNS, subsequent_indent=indent, break_on_hyphens=False) if len(line) > COLUMNS else line
    )


def commands(words=()):
    """(words, help) of a command and of all its subcommands."""
    text = help_of(words)
    yield words, text
    _, _, below = text.partition("\nCommands:\n")
    for name in COMMAND.findall(below.partition("\n\n")[0] if "\n\n" in below else below):
        if name != "help":
            yield from commands((*words, name))


def write(name, text):
    path = SOURCE / "docs" / "reference" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def commands_page():
    found = list(commands())
    if len(found) < 10:
        raise Failure(f"landbridge --help names {len(found) - 1} commands: has its layout changed?")
    parts = ["# Commands\n\nMade from `--help` of every command. `-h` is shorter.\n"]
    for words, text in found:
        name = " ".join(("landbridge", *words))
        parts.append(f"{'#' * min(2 + max(0, len(words) - 1), 4)} {name}\n\n```text\n{text}\n```\n")
    write("commands.md", "\n".join(parts))
    return len(found)


def cell(text):
    """A text in a table's cell, with all markup escaped."""
    return re.sub(r"[|`{*_\[\\]", lambda sign: f"&#{ord(sign[0])};", html.escape(text))


def messages_page():
    parts = [
        "# All messages\n\nMade from the source. Words in braces stand for what a message names. "
        "[Troubleshooting](../troubleshooting.md) explains the common ones.\n"
    ]
    count = 0
    for crate, about in MESSAGES.items():
        found = []
        for path in tracked(f"*/{crate}/src/*.rs"):
            for error in ERROR.findall((ROOT / path).read_text()):
                text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', error, re.DOTALL))
                text = re.sub(r"\\\n\s*", "", text).replace('\\"', '"').replace("\\n", " ")
                # Skip texts without words: `{0}` is the text of another error.
                if re.search(r"[a-z]{3}", re.sub(r"\{[^}]*\}", "", text)):
                    found.append((text, path))
        if not found:
            raise Failure(f"no message in {crate}: has the crate another name now?")
        count += len(found)
        parts.append(f"## {crate}: {about}\n\n| message | in |\n|---|---|")
        parts += [f"| {cell(text)} | `{path}` |" for text, path in found]
        parts.append("")
    write("messages.md", "\n".join(parts))
    return count


def configuration():
    """mkdocs' configuration: docs/mkdocs.yml, with the pages that its navigation omits at the end of the last
    section."""
    text = (ROOT / "docs" / "mkdocs.yml").read_text().replace("../target/", "")
    pages = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.md"))
    text += "".join(f"      - {page}\n" for page in pages if f" {page}\n" not in text)
    path = ROOT / "target" / "mkdocs.yml"
    path.write_text(text)
    return path


def make_self_contained():
    """Makes the site load nothing from other servers."""
    site = ROOT / "target" / "docs"
    for page in site.rglob("*.html"):
        text = page.read_text()
        up = "../" * (len(page.relative_to(site).parts) - 1)
        text = text.replace(ELSEWHERE, f"{up}docs/assets/file-worker.js")
        if found := re.search(r"<(?:script|img|link rel=\"stylesheet\")[^>]*(?:src|href)=\"https?:[^>]*>", text):
            raise Failure(f"{page}: {found[0]} is loaded from elsewhere")
        page.write_text(text)


def build():
    if not LANDBRIDGE.exists():
        raise Failure(f"{LANDBRIDGE} is not there: run make")
    gather()
    made = commands_page(), messages_page()
    # Without --quiet, which would hide warnings from --strict.
    done = subprocess.run(
        [MKDOCS, "build", "--strict", "--clean", "-f", configuration()],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        faults = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
        raise Failure("\n".join([*(faults or [done.stderr]), "mkdocs found the faults above"]))
    make_self_contained()
    print(f"docs: target/docs/index.html, with {made[0]} commands and {made[1]} messages from the code")


def main():
    try:
        build()
    except Failure as failure:
        print(f"docs: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
