"""scripts/pages.py finds its faults, and scripts/docs.py finds the pages: a check that finds nothing
proves nothing."""

import importlib.util
import re
import shlex
import subprocess

import pytest

from harness import LANDBRIDGE, ROOT


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages, docs = script("pages"), script("docs")


@pytest.fixture
def links(tmp_path, monkeypatch):
    """Faults of the links in a text that is the page docs/page.md, beside docs/run.md."""

    def of(text):
        (tmp_path / "docs" / "page.md").write_text(text)
        return list(pages.link_faults("docs/page.md", text, {}))

    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").touch()
    (tmp_path / "docs" / "run.md").write_text("# Run\n\n## How it ends\n\n## … upgrade\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return of


@pytest.mark.parametrize(
    "text",
    [
        "[here](run.md#how-it-ends)",
        "[there](../README.md)",
        "[out](https://example.org/x)",
        "# One\n[own](#one)",
        "# `[[a.b]]`, at most\n[code](#ab-at-most)",
        "```\n[code](nowhere.md)\n```",
        "`[code](nowhere.md)`",
        "# Twice\n# Twice\n[second](#twice-1)",
    ],
)
def test_links_that_lead_somewhere(links, text):
    assert links(text) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n[gone](nowhere.md)", "docs/page.md:2: nowhere.md: there is no nowhere.md"),
        ("[gone](run.md#no-such)", "docs/run.md has no heading #no-such"),
        ("[other](run.md#-upgrade)", "gives this heading another anchor"),
        ("[own](#no-such)", "#no-such"),
        ("a [link that goes\non](nowhere.md) here", "docs/page.md:2"),
        ("- list\n    - [inner](nowhere.md)", "docs/page.md:2"),
        ("[`code`](nowhere.md)", "nowhere.md"),
    ],
)
def test_links_that_do_not(links, text, says):
    [fault] = links(text)
    assert says in fault


def test_lines_are_bounded_except_tables_and_code():
    long = "word " * 30
    assert len(list(pages.length_faults("p.md", f"{long}\n| {long}|\n    {long}\n```\n{long}\n```\n"))) == 1


def test_messages_that_the_source_does_not_have():
    text = (
        "| message | cause | remedy |\n|---|---|---|\n| `is not the sum of the --site options` | a | b |\n"
        "| `no … such words anywhere` | a | b |\n"
    )
    faults = list(pages.message_faults(text))
    assert len(faults) == 1 and "`such words anywhere`" in faults[0] and ":4:" in faults[0], faults


def test_the_reference_has_every_command_and_the_messages_of_every_crate(tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "SOURCE", tmp_path)
    monkeypatch.setattr(docs, "LANDBRIDGE", LANDBRIDGE)
    docs.commands_page()
    docs.messages_page()
    commands = (tmp_path / "docs" / "reference" / "commands.md").read_text()
    for heading in ("## landbridge run", "## landbridge sites", "### landbridge sites add", "### landbridge lab wan"):
        assert f"\n{heading}\n" in commands, heading
    assert "--ranks-per-node" in commands and max(map(len, commands.splitlines())) <= docs.COLUMNS
    messages = (tmp_path / "docs" / "reference" / "messages.md").read_text()
    assert "is not the sum of the --site options" in messages
    assert all(f"\n## {crate}:" in messages for crate in docs.MESSAGES)


def commands_of(text):
    """Command lines of Landbridge in a page's code: in blocks as they are typed, and in the text."""
    code = "\n".join(
        block for _, block in re.findall(r"^```(sh|bash|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    )
    code += (
        "\n"
        + "\n".join(re.findall(r"^    (.*)$", text, re.MULTILINE))
        + "\n"
        + "\n".join(re.findall(r"`(landbridge [^`]*)`", text))
    )
    for line in code.splitlines():
        words = re.match(r"(?:\$ )?(landbridge [^#;|&]*)", line)
        # A drawing or a table of commands has wide gaps; placeholders and brackets cannot be typed.
        if words and not re.search(r"…|\[|\S {2,}[^ #]", words[1].rstrip()):
            yield shlex.split(re.sub(r"=N\b|\$\w+", lambda number: "=2" if number[0] == "=N" else "2", words[1]))


def beginning_of_program(words):
    """Where the program begins in a command line of `run` or `lab`."""
    if "--" in words:
        return words.index("--")
    return next((at for at, word in enumerate(words) if word.startswith(("./", "~/", "examples/"))), len(words))


def test_commands_in_the_pages_have_the_flags_that_they_name():
    wrong, seen = [], 0
    # A changelog names flags alone.
    for path in set(pages.markdown_files()) - {"CHANGELOG.md"}:
        for words in commands_of((ROOT / path).read_text()):
            asked = [LANDBRIDGE, *words[1 : beginning_of_program(words)], "--help"]
            done = subprocess.run(
                asked, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
            )
            seen += 1
            if done.returncode != 0:
                wrong.append(f"{path}: {shlex.join(words)}: {done.stderr.splitlines()[:1]}")
    assert seen > 50, f"only {seen} commands: have the pages another layout now?"
    assert not wrong, "\n".join(wrong)
