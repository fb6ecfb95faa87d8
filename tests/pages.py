"""The shell commands of a page, and the kind of their output."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from harness import ROOT

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# In this order: text that varies from run to run, and its placeholder.
VARYING = [
    (re.compile(r"sha256:[0-9a-f]{64}"), "sha256:…"),
    (re.compile(r"\d+(\.\d+)?(e[+-]\d+)?"), "N"),
    (re.compile(r"\b(B|kB|KB|MB|GB|KiB|MiB|GiB|kbit|Mbit)\b"), "U"),
    (re.compile(r"[█▏▎▍▌▋▊▉░]+"), "▒"),
    (re.compile(r"\s+"), " "),
]
# The pages' clone, which is below the reader's home directory, and ours.
BELOW_HOME = f"~/{ROOT.relative_to(Path.home())}" if ROOT.is_relative_to(Path.home()) else str(ROOT)
PLACES = {"/home/me/landbridge": str(ROOT), "~/landbridge": BELOW_HOME}


@dataclass
class Typed:
    """A command and the lines below it."""

    command: str
    output: list = field(default_factory=list)


def console_blocks(page):
    """The `console` blocks of a page as lists of `Typed`; comments after commands are left out."""
    blocks = []
    for text in BLOCK.findall((ROOT / page).read_text()):
        block = []
        for line in text.splitlines():
            if line.startswith("$ "):
                block.append(Typed(re.sub(r"\s+# .*", "", line[2:])))
            elif line.strip():
                block[-1].output.append(line)
        blocks.append(block)
    return blocks


def kind(line):
    """A line of output without the parts that vary from run to run."""
    for page, here in PLACES.items():
        line = line.replace(page, here)
    if line.startswith("{"):
        return f"JSON with {', '.join(sorted(json.loads(line)))}"
    for pattern, stands in VARYING:
        line = pattern.sub(stands, line)
    return line.strip()
