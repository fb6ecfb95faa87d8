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
