"""`landbridge forward`: a TCP port of another site, through the gateways."""

import sys

import pytest

from harness import LANDBRIDGE, PROGRAMS
from services import start

ALLOWED = {"lines": '[site.forward]\nallow = ["127.0.0.1:8888"]\n'}


def forwarded(workshop, case, *, sites=None, gateways=1, **more):
    words = [sys.executable, PROGRAMS / "forwarded.py", LANDBRIDGE, case, str(gateways)]
    if gateways > 1:
        more["options"] = ["--gateways", str(gateways)]
    return start(workshop, {"b": ALLOWED} if sites is None else sites, words, nodes=1, **more).finish()


@pytest.mark.parametrize("gateways", [1, 2])
def test_connections_are_exact_and_many_go_at_once(workshop, isolated, gateways):
    done = forwarded(workshop, "many", gateways=gateways).check()
    assert "many: good" in done.out and "forward ended with 130" in done.out, str(done)


def test_a_connection_that_is_refused_says_from_where(workshop, isolated):
    done = forwarded(workshop, "refused").check()
    said = "site b: connection reset: 127.0.0.1:8888, dialled from b-gw1: Connection refused"
    assert "refused: good" in done.out and said in done.out, str(done)


@pytest.mark.parametrize("case", ["slow", "standard", "killed"])
def test_what_goes_wrong_with_one_connection_concerns_no_other(workshop, isolated, case):
    done = forwarded(workshop, case).check()
    assert f"{case}: good" in done.out, str(done)


def test_a_site_that_is_lost_ends_the_forward_and_is_named(workshop, isolated):
    done = forwarded(workshop, "gateway").check()
    assert "gateway: good" in done.out and "forward ended with 1" in done.out and "site b" in done.out, str(done)


@pytest.mark.parametrize(
    ("sites", "to", "said"),
    [
        ({}, "b:8888", ("site b: no ports are forwarded there", "[site.forward]")),
        ({"b": ALLOWED}, "b:8889", ("site b", "127.0.0.1:8889 is not allowed", "allows 127.0.0.1:8888")),
        ({"b": ALLOWED}, "nosuch:8888", ("unknown site `nosuch`",)),
        ({"b": ALLOWED}, "b:0", ("`0` is not HOST:PORT or PORT",)),
    ],
)
def test_what_is_not_allowed_is_refused_at_once(workshop, isolated, sites, to, said):
    done = start(workshop, sites, [LANDBRIDGE, "forward", "0", to], nodes=1).finish()
    done.fails_naming(*said)
