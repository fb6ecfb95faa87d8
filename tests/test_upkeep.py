"""Keeping sites at work once they are there, with real sshd in a lab: gateways that died, programs to be copied, files that were edited."""

import json
import sys
from pathlib import Path

import pytest

from accounts import wan
from harness import LANDBRIDGE
from test_sites_add import LAPTOP, person, process_of  # noqa: F401 (a fixture)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt install openssh-server"),
]
SITES = (("lyon", "a-gw1"), ("kyoto", "b-gw1"))


def adds_both(person, *options):  # noqa: F811
    for name, host in SITES:
        person.adds(name, host, *options)


def kills(person, name):  # noqa: F811
    """The site's gateway dies, and its lock with it."""
    host = dict(SITES)[name]
    return person.types("sh", "-c", f"kill -9 {process_of(person, host, name)}; sleep 0.5", on=host)


def starts(name):
    """What every command says when the site's gateway does not run."""
    return f"`landbridge sites start {name}` starts it again"


def test_a_gateway_that_died_is_started_again(person):  # noqa: F811
    """By a job that is carried, by one typed at its site, and by the command that all others name."""
    person = person()
    adds_both(person)
    for name, _ in SITES:
        kills(person, name)
    job = ["landbridge", "run", "-n", 2, "--", "uname", "-n"]
    carried = person.types(*job, cwd="/")
    kills(person, "lyon")
    typed = person.types(*job, on="a-gw1", cwd="/")
    kills(person, "kyoto")
    lost = person.types(*job, on="a-gw1", cwd="/")
    status = person.types("landbridge", "sites", "status")
    remedy = person.types("landbridge", "sites", "start", "kyoto")
    again = person.types(*job, on="a-gw1", cwd="/")
    kills(person, "lyon")
    top = person.types("landbridge", "top", "--once", on="a-gw1")
    at_the_site = person.types("landbridge", "sites", "start", "lyon", on="a-gw1")
    top_again = person.types("landbridge", "top", "--once", on="a-gw1")
    left_alone = person.types("landbridge", "sites", "start")
    nobody = person.types("landbridge", "sites", "start", "nancy")
    results = person.run(limit=400)
    for which in (carried, typed, again):
        assert sorted(results[which].good().out.split()) == ["a-gw1", "b-gw1"], str(results[which])
    for name, _ in SITES:
        assert f"landbridge: {name}: " in results[carried].err and "started, process" in results[carried].err, str(results[carried])
    assert "lyon: its gateway had ended: started" in results[typed].err, str(results[typed])
    for which, name in ((lost, "kyoto"), (status, "kyoto"), (top, "lyon")):
        results[which].bad(starts(name))
    assert "kyoto: gateway started, process" in results[remedy].good().out, str(results[remedy])
    assert "lyon: gateway started, process" in results[at_the_site].good().out, str(results[at_the_site])
    results[top_again].good()
    assert results[left_alone].good().out.count("gateway runs, process") == 2, str(results[left_alone])
    results[nobody].bad("nancy", "lyon, kyoto")


# What cron's own command does with one user's table.
CRONTAB = """#!/bin/sh
table=$HOME/crontab
case $1 in
-l) test -e "$table" || { echo "no crontab for $(id -un)" >&2; exit 1; }; cat "$table" ;;
-) cat >"$table" ;;
esac
"""


def test_a_machine_keeps_its_gateway_and_the_command_can_be_typed_there(person):  # noqa: F811
    person = person()
    for host in ("a-gw1", "b-gw1"):
        (person.home(host) / ".local/bin").mkdir(parents=True)
    home, mine = person.home("a-gw1"), person.home("b-gw1") / ".local/bin/landbridge"
    mine.write_text("mine")
    (home / "crontab").write_text("0 0 * * * own\n")
    neither = person.adds("kyoto", "b-gw1", "--keep", must=False)
    shim = person.folder / "bin/crontab"
    person.types("sh", "-c", f"cat >{shim} <<'E'\n{CRONTAB}E\nchmod 755 {shim}", must=True)
    plain = person.adds("lyon", "a-gw1")
    kept = person.adds("lyon", "a-gw1", "--keep")
    twice = person.adds("lyon", "a-gw1", "--keep")
    version = person.types(home / ".local/bin/landbridge", "--version", on="a-gw1")
    kills(person, "lyon")
    down = person.types("landbridge", "sites", "status")
    # As cron does it: hardly any environment.
    line = f'line=$(tail -n 1 {home}/crontab); exec env -i HOME={home} PATH=/usr/bin:/bin sh -c "${{line#\\*/2 \\* \\* \\* \\* }}"'
    cron = person.types("sh", "-c", line, on="a-gw1")
    # The other site dials again after a while.
    up = person.types("sh", "-c", f"for i in $(seq 40); do {LANDBRIDGE} sites status && exit; sleep 0.3; done; exit 1")
    table = person.types("cat", home / "crontab")
    for name, _ in SITES:
        person.types("landbridge", "sites", "remove", name)
    after = person.types("cat", home / "crontab")
    results = person.run()
    results[neither].bad("kyoto", "keep", "neither", "crontab", "landbridge sites start", f"{mine} is not from `sites add`")
    assert "landbridge sites add lyon --keep` makes a line in your crontab do it" in results[plain].good().out, str(results[plain])
    assert f"`landbridge` can be typed there too: {home}/.local/bin/landbridge" in results[plain].out, str(results[plain])
    assert "a line in your crontab starts its gateway again" in results[kept].good().out, str(results[kept])
    assert "can be typed" not in results[kept].out, str(results[kept])
    results[twice].good()
    assert "landbridge" in results[version].good().out
    results[down].bad(starts("lyon"))
    results[cron].good()
    results[up].good()
    assert results[table].out.splitlines()[0] == "0 0 * * * own" and len(results[table].out.splitlines()) == 2, str(results[table])
    assert results[after].good().out == "0 0 * * * own\n", str(results[after])
    assert not (home / ".local/bin/landbridge").is_symlink() and mine.read_text() == "mine"
    left = [path for path in home.rglob("*") if path.is_file() and path.name != "crontab"]
    assert not left, f"left at the site: {left}"
