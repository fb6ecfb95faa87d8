"""Every command that has `--json` prints objects with the schema of docs/json.md. The commands are those that
`--help` lists, so a new one cannot be forgotten."""

import json
import re
import subprocess

import pytest

from harness import LANDBRIDGE, ROOT
from laptop import LAPTOP

# Tested in test_forward.py: it prints its object and goes on.
ELSEWHERE = {("forward",)}

INSTANCE = ROOT / "core" / "plan" / "tests" / "vectors" / "v08_gw4_1048576.json"


def help_of(path):
    return subprocess.run(
        [LANDBRIDGE, *path, "--help"], check=True, text=True, stdout=subprocess.PIPE, timeout=60
    ).stdout


def with_json(path=()):
    """The commands at and below this one that have `--json`, by their words."""
    text = help_of(path)
    found = {path} if re.search(r"^ +--json\b", text, re.MULTILINE) else set()
    listed = re.search(r"^Commands:\n((?:  .*\n|\n(?=  ))+)", text, re.MULTILINE)
    for name in re.findall(r"^  ([a-z-]+)", listed[1] if listed else "", re.MULTILINE):
        if name != "help":
            found |= with_json((*path, name))
    return found


def objects(result):
    """The objects that a command printed: one on each line and nothing else."""
    lines = result.out.splitlines()
    assert lines, str(result)
    for line in lines:
        assert line.startswith('{"schema":1,'), f"{line}\n{result}"
        yield json.loads(line)


@pytest.mark.slow
def test_each_json_object_has_the_schema(person):
    person = person(logins=("a-gw1", "b-gw1"))
    folder = person.folder
    pushed = person.home(LAPTOP) / "pushed"
    pushed.parent.mkdir(parents=True)
    pushed.write_text("x")
    landbridge = f"{LANDBRIDGE}"
    steps = {
        ("sites", "add"): person.adds("lyon", "a-gw1", "--json"),
        "kyoto": person.adds("kyoto", "b-gw1"),
        ("sites", "list"): person.types("landbridge", "sites", "list", "--json"),
        ("sites", "status"): person.types("landbridge", "sites", "status", "--json"),
        ("sites", "apply"): person.types("landbridge", "sites", "apply", "--json"),
        ("sites", "push"): person.types("landbridge", "sites", "push", pushed, "--json"),
        ("sites", "check"): person.types("landbridge", "sites", "check", "--quick", "--json"),
        ("sites", "links"): person.types("landbridge", "sites", "links", "--json"),
        ("top",): person.types("landbridge", "top", "--once", "--json"),
        ("run",): person.types("landbridge", "run", "-n", 2, "--json", "true"),
        "planned": person.types("landbridge", "run", "-n", 2, "--dry-run", "--json", "true"),
        ("jobs",): person.types("landbridge", "jobs", "--json"),
        ("doctor",): person.types("landbridge", "doctor", "--output", folder / "report.txt", "--json"),
        ("key",): person.types("landbridge", "key", folder / "new.key", "--json"),
        ("stage", "move"): person.types("landbridge", "stage", "move", "--json", pushed, folder / "moved"),
        ("stage", "in"): person.types(landbridge, "stage", "in", "--json", f"{pushed}=/tmp/staged-%n", on="a-gw1"),
        ("stage", "out"): person.types(
            landbridge, "stage", "out", "--json", f"/tmp/staged-%n={folder}/staged-%n", on="a-gw1"
        ),
        ("stage", "status"): person.types("landbridge", "stage", "status", "--json"),
        ("plan", "broadcast"): person.types("landbridge", "plan", "broadcast", INSTANCE, "--json"),
        ("sites", "remove"): person.types("landbridge", "sites", "remove", "kyoto", "--json"),
        ("sites", "invite"): person.types("sh", "-c", f"{landbridge} sites invite --json | tee {folder}/ticket"),
        ("sites", "join"): person.types(
            "sh",
            "-c",
            f'sed \'s/.*"ticket":"\\([^"]*\\).*/\\1/\' {folder}/ticket | {landbridge} sites join nancy --json',
            on="b-gw1",
        ),
    }
    commands = with_json()
    assert commands == {words for words in steps if isinstance(words, tuple)} | ELSEWHERE
    results = person.run(limit=400)
    page = (ROOT / "docs" / "json.md").read_text()
    for command, place in steps.items():
        if command != "kyoto":
            # The doctor's findings on this machine do not matter here.
            result = results[place] if command == ("doctor",) else results[place].good()
            fields = [field for each in objects(result) for field in each]
            assert len(fields) > 1, str(results[place])
    for command in commands:
        assert re.search(rf"`[^`]*\b{command[-1]}\b[^`]*`", page), f"docs/json.md does not name `{' '.join(command)}`"
