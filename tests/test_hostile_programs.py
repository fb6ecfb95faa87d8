"""Every program whose output the command reads, in turn replaced by one with hostile output: escapes, lines
that pass for ours, other fields, no newline at the end, or no end at all."""

import os
import subprocess
import sys

import pytest

from harness import LANDBRIDGE

# Without a bound, `yes` fills this in less than a second.
MOST_BYTES = 400 << 20
LIMIT_S = 120

FORGED = "landbridge: lyon: all is well"
HOSTILE = {
    "escapes": r"printf 'x\033]52;c;aGk=\007\033[2J\n"
    + FORGED
    + r"\nhost evil\nhostname evil\nuser root\nos Linux\nyes'",
    "escapes and failure": r"printf 'x\033]52;c;aGk=\007\n" + FORGED + r"' >&2; exit 1",
    "endless lines": "exec yes",
    "an endless line": "exec cat /dev/zero",
    "endless errors": "exec yes >&2",
}
# For each program, a command of ours that runs it.
PROGRAMS = {
    "ssh": [
        ["sites", "add", "lyon", "me@login.example"],
        ["doctor", "--output", "report.txt"],
        ["run", "-n", "1", "true"],
        ["sites", "status"],
        ["sites", "push", "file"],
    ],
    "sinfo": [["sites", "add", "home"], ["sites", "remove", "home"]],
    "loginctl": [["sites", "add", "home", "--keep"], ["sites", "remove", "home"]],
    "systemctl": [["sites", "add", "home", "--keep"], ["sites", "remove", "home"]],
    "crontab": [["sites", "add", "home", "--keep"], ["sites", "remove", "home"]],
    "scontrol": [["run", "-n", "1", "true"]],
}
# Endless standard error without an end of the program is a matter of the time limit of each, not of memory.
SLOW = {("loginctl", "endless errors"), ("systemctl", "endless errors"), ("crontab", "endless errors")}
ENTRY = """[[site]]
name = "lyon"
fingerprint = "sha256:{}"
ssh = "me@login.example"
[[site.gateway]]
name = "gw1"
advertise = "login.example:7700"
[[site.node]]
name = "n1"
""".format("0" * 64)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_that_a_program_prints_acts_or_fills_the_memory(program, kind, tmp_path):
    if (program, kind) in SLOW:
        pytest.skip("it is killed at its time limit, which takes a minute")
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    (home / ".config/landbridge").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    if program == "ssh":
        (home / ".config/landbridge/sites.toml").write_text(ENTRY)
    # Programs that would change this machine are replaced in any case.
    harmless = dict.fromkeys(("crontab", "loginctl", "systemctl"), "exit 1")
    for name, text in {**harmless, program: HOSTILE[kind]}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LANDBRIDGE_", "SLURM_", "XDG_", "PBS_"))
    }
    environment = {**kept, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}
    if marker := os.environ.get("LANDBRIDGE_TEST_MARKER"):
        environment["LANDBRIDGE_TEST_MARKER"] = marker
    if program == "scontrol":
        environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    measure = [sys.executable, "-c", MEASURE]
    for words in PROGRAMS[program]:
        done = subprocess.run(
            [*measure, LANDBRIDGE, *words],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        text = (done.stdout + done.stderr).decode(errors="replace")
        most = text.rpartition("most memory ")[2].split()[0]
        assert int(most) * 1024 < MOST_BYTES, f"{program}, {words}: {int(most) >> 10} MiB"
        assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in text), (
            f"{program}, {words}: {text!r}"
        )
        assert not any(line.startswith(FORGED) for line in text.splitlines()), f"{program}, {words}: {text}"
        assert "panicked" not in text, text


# Runs a command to its end, and writes the most memory of any of its processes in KiB.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print("most memory", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, "KiB", file=sys.stderr)
sys.exit(code)
"""
