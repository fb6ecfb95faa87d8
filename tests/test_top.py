"""Gateways as users see them: `landbridge top` during a job (one table, JSON, the live view in a terminal), and the
measurements of `sites check` between sites."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import uuid

import pytest

from harness import LANDBRIDGE, MARKER, PROGRAMS, LoopbackSites, Running, wait_until

EXCHANGE = PROGRAMS / "exchange.py"
LINES, COLUMNS = 50, 140
ENTER, LEAVE, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


class Terminal:
    """A command in a terminal of its own, and everything that it wrote there."""

    def __init__(self, workshop, words, environment=None):
        self.near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.modes = termios.tcgetattr(far)
        self.far, self.written = far, b""
        marker, nothing = uuid.uuid4().hex, workshop.folder / "nothing"
        nothing.touch()
        variables = {**os.environ, **(environment or {}), "TERM": "xterm-256color", MARKER: marker}
        words = [str(word) for word in words]
        child = subprocess.Popen(
            words, stdin=far, stdout=far, stderr=far, env=variables, cwd=workshop.folder, start_new_session=True
        )
        self.running = Running(words, child, marker, 30, nothing, nothing)
        workshop.running.append(self.running)

    def read(self, seconds=0.0):
        """Takes the output so far, waiting at most this long."""
        while select.select([self.near], [], [], seconds)[0]:
            self.written += os.read(self.near, 1 << 16)
            seconds = 0.0

    def shown(self):
        """The visible screen. Programs only write changes, so it is assembled from everything they wrote since they
        cleared the screen."""
        self.read()
        written = self.written.decode(errors="ignore").rpartition("\x1b[2J")[2]
        cells, line, column = {}, 1, 1
        for sequence, character in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z])|(.)", written):
            if place := re.fullmatch(r"\x1b\[(\d+);(\d+)H", sequence):
                line, column = int(place[1]), int(place[2])
            elif character:
                cells[line, column] = character
                column += 1
        lines = range(1, max((line for line, _ in cells), default=0) + 1)
        return "\n".join(
            "".join(cells.get((line, column), " ") for column in range(1, COLUMNS + 1)).rstrip() for line in lines
        )

    def wait_for(self, *texts, seconds=10):
        try:
            wait_until(lambda: all(text in self.shown() for text in texts), seconds, f"{texts} to be shown")
        except AssertionError as error:
            raise AssertionError(f"{error}; there is\n{self.shown()}") from None

    def press(self, keys):
        os.write(self.near, keys)

    def end(self, code):
        """Checks that the command ends with this exit code and left the terminal as it was."""
        done = self.running.finish(within=30)
        self.read(0.2)
        assert done.code == code, f"{done}\n{self.written[-3000:]!r}"
        assert termios.tcgetattr(self.far) == self.modes, "the terminal's modes are others than before"
        assert self.written.count(ENTER) >= 1 and self.written.rfind(LEAVE) > self.written.rfind(ENTER), self.written[
            -300:
        ]
        assert self.written.rfind(SHOW_CURSOR) > self.written.rfind(b"\x1b[?25l"), self.written[-300:]

    def close(self):
        for descriptor in (self.near, self.far):
            os.close(descriptor)


@pytest.fixture
def terminal(workshop):
    opened = []

    def start(words, **options):
        opened.append(Terminal(workshop, words, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.running.end()
        one.close()


def test_a_job_is_seen_on_paper_as_json_and_live(workshop, terminal, mpich_only):
    sites = LoopbackSites(workshop, gateways={"a": 2, "b": 1}, links=2)
    gateways = sites.start_gateways()
    started, stop = workshop.folder / "started", workshop.folder / "stop"
    words = [LANDBRIDGE, "run", "-n", 2, "--", mpich_only.python, EXCHANGE, started, stop, 3]
    environment = {"LANDBRIDGE_SITES": str(sites.file)}
    job = workshop.start(words, environment={**mpich_only.environment, **environment}, limit=60)
    job.wait_for(started.exists, 30, "the first round")
    top = [LANDBRIDGE, "top", "--from", "a", "--interval", "300ms"]

    live = terminal(top, environment=environment)
    live.wait_for("2 of 2 gateways answer", "last minute", "a 1, b 1", "2 of 2 up")
    assert "127.0.0.1:" not in live.shown(), "links are shown only when asked for"
    live.press(b"l")
    live.wait_for("127.0.0.1:")
    live.press(b"?")
    live.wait_for("this page, or back")
    live.press(b"?")

    paper = workshop.run([*top, "--once"], environment=environment).check()
    sections = ["gateways", "sites", "trunks", "links", "jobs"]
    assert [line for line in paper.out.splitlines() if line in sections] == sections, str(paper)
    assert "a 1, b 1" in paper.out and "b/gw1" in paper.out and "\x1b" not in paper.out, str(paper)
    # Without a terminal there is only one table, requested or not.
    assert "a 1, b 1" in workshop.run(top, environment=environment).check().out

    seen = json.loads(workshop.run([*top, "--once", "--json"], environment=environment).check().out)
    assert [look["gateway"] for look in seen["gateways"]] == ["gw1", "gw2"], seen
    for look in seen["gateways"]:
        assert look["problem"] is None and len(look["view"]["jobs"]) == 1, look
        (trunk,) = look["rates"]["trunks"]
        assert trunk["site"] == "b" and len(trunk["links"]) == 2, look
    assert sum(look["rates"]["jobs"][0]["sent_mbit_s"] for look in seen["gateways"]) > 0, seen
    assert sum(look["view"]["jobs"][0]["leads"] for look in seen["gateways"]) == 1, seen

    stream = workshop.start([*top, "--json"], environment=environment)
    wait_until(lambda: stream.out().count("\n") >= 2, 10, "two objects")
    gateways["a", 2].child.kill()
    gateways["a", 2].child.wait(timeout=5)

    def gone():
        last = json.loads(stream.out().splitlines()[-2])["gateways"][1]
        return last["problem"] is not None and last["view"] is None and last["rates"] is None

    wait_until(gone, 10, "the gateway that was killed to be a row with its error")
    live.wait_for("1 of 2 gateways answer", "no answer")
    sites.start_gateway("a", number=2)
    wait_until(lambda: json.loads(stream.out().splitlines()[-2])["gateways"][1]["rates"], 10, "it to be connected anew")
    stream.child.send_signal(signal.SIGINT)
    assert stream.finish().code == -signal.SIGINT

    live.press(b"q")
    live.end(0)
    stop.write_text("stop\n")
    job.finish().check()


@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (b"\x03", 0), (b"\x1b", 0)], ids=str
)
def test_the_terminal_is_given_back_however_it_ends(workshop, terminal, end, code):
    """Also when no gateway answers."""
    sites = LoopbackSites(workshop)
    live = terminal([LANDBRIDGE, "top", "--sites", sites.file, "--from", "b"])
    live.wait_for("0 of 1 gateways answer", "no answer", "refused")
    if isinstance(end, bytes):
        live.press(end)
    else:
        live.running.child.send_signal(end)
    live.end(code)


def test_without_a_gateway_there_is_an_error_that_says_what_to_do(workshop):
    sites = LoopbackSites(workshop)
    top = [LANDBRIDGE, "top", "--sites", sites.file, "--from", "a", "--interval", "100ms", "--once"]
    done = workshop.run(top).fails_naming(
        "no gateway of site a answers", "gw1", "refused", "landbridge gateway", "--site a", within=10
    )
    assert done.code == 1 and not done.out, str(done)
    seen = workshop.run([*top, "--json"]).fails_naming("no gateway of site a answers")
    assert "refused" in json.loads(seen.out)["gateways"][0]["problem"], str(seen)


def test_wrong_options_are_named(workshop):
    sites = LoopbackSites(workshop)
    for words, said in [
        (["--interval", "1ms"], "100ms"),
        (["--interval", "soon"], "soon"),
        (["--from", "z"], "unknown site `z`"),
    ]:
        workshop.run([LANDBRIDGE, "top", "--sites", sites.file, *words]).fails_naming(said)
    (workshop.folder / "a.key").unlink()
    workshop.run([LANDBRIDGE, "top", "--sites", sites.file, "--from", "a"]).fails_naming("a.key")


def check(workshop, sites, *options):
    environment = {"LANDBRIDGE_SITES": str(sites.file)}
    return workshop.run([LANDBRIDGE, "sites", "check", "--from", "a", *options], environment=environment)


def test_the_ways_between_all_sites_are_measured(workshop):
    sites = LoopbackSites(workshop, names="abc")
    gateways = sites.start_gateways()
    found = json.loads(check(workshop, sites, "--json").check().out)
    pairs = {(pair["from"], pair["to"]): pair for pair in found["pairs"]}
    assert list(pairs) == [(x, y) for x in "abc" for y in "abc" if x != y], found
    for pair in pairs.values():
        assert pair["rtt_ms"] > 0 and pair["mbit_s"] > 0 and pair["problem"] is None, pair
    assert found["ok"], found

    gateways["c", 1].child.kill()
    gateways["c", 1].child.wait(timeout=5)
    done = check(workshop, sites, "--quick")
    assert done.code == 1 and "\x1b" not in done.out + done.err, str(done)
    rows = {line.split()[0]: line for line in done.out.partition("from / to")[2].splitlines()[1:4]}
    assert re.fullmatch(r"a +– +[\d.]+ ms +FAILED", rows["a"]), str(done)
    assert re.fullmatch(r"b +[\d.]+ ms +– +FAILED", rows["b"]), str(done)
    assert re.fullmatch(r"c +FAILED +FAILED +–", rows["c"]), str(done)
    for pair in ["a to c", "b to c", "c to a", "c to b"]:
        (line,) = [line for line in done.out.splitlines() if line.startswith(f"{pair}: ")]
        assert "site c" in line and "refused" in line, str(done)
    assert "a to b:" not in done.out, str(done)
