"""Sites whose own network is shared with strangers: `inside = "encrypted"`. Jobs are exact as usual, and an
eavesdropper learns nothing."""

import json
import sys

import pytest

from harness import LANDBRIDGE, PROGRAMS, ROOT, LoopbackSites
from services import start

ENCRYPTED = {"head": 'inside = "encrypted"\n'}
TEXT = "nobody-may-read-this;"
# Three rounds of four lengths, 300 kB the longest, to three others.
SENT = 3 * 3 * 321_000


def across(workshop, mpi, sites, program, *, ranks=4, gateways=1, wrap=(), limit=180):
    words = [*wrap, LANDBRIDGE, "run", "-n", ranks, "--mpi", mpi.name, "--", *program]
    return start(
        workshop, sites, words, environment=mpi.environment, limit=limit, options=["--gateways", str(gateways)]
    )


@pytest.mark.one_mpi
@pytest.mark.parametrize("gateways", [1, 2])
def test_messages_are_exact(workshop, mpi, isolated, gateways):
    sites = {"a": ENCRYPTED, "b": ENCRYPTED}
    done = (
        across(workshop, mpi, sites, [mpi.python, PROGRAMS / "messages.py"], ranks=8, gateways=gateways)
        .finish()
        .check()
    )
    assert "messages: 1408 good" in done.out, str(done)


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    "program, good", [("one_sided.py", "one-sided: 4 ranks good"), ("collectives.py", "collectives: 4 ranks good")]
)
def test_one_site_may_be_encrypted_and_the_other_not(workshop, mpi, isolated, program, good):
    done = across(workshop, mpi, {"a": ENCRYPTED}, [mpi.python, PROGRAMS / program]).finish().check()
    assert good in done.out, str(done)


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    "sites, found", [({}, True), ({"a": ENCRYPTED, "b": ENCRYPTED}, False)], ids=["clear", "encrypted"]
)
def test_who_listens_on_a_node_reads_nothing(workshop, mpi, isolated, sites, found):
    """All packets of a node are examined: to the other node of its site, and to the gateway."""
    report = workshop.folder / "heard.json"
    wrap = [sys.executable, ROOT / "tests" / "eavesdrop.py", report, TEXT]
    done = across(workshop, mpi, sites, [mpi.python, PROGRAMS / "marker.py", TEXT], wrap=wrap).finish().check()
    assert "marker: 144 good" in done.out, str(done)
    heard = json.loads(report.read_text())
    assert heard["missed"] == 0 and heard["bytes"] > 2 * SENT, heard
    assert (heard["found"] > 0) == found, heard


def test_a_fabric_is_refused_when_the_file_is_read(workshop, mpich_only):
    sites = LoopbackSites(workshop)
    name = 'name = "a"\n'
    file = sites.write("fabric.toml", change=(name, f'{name}inside = "encrypted"\nfabric = "verbs"\n'))
    done = workshop.run([LANDBRIDGE, "sites", "check", "--sites", file])
    done.fails_naming("fabric.toml", "site a", "inside", "verbs", "remove `fabric`")


def test_no_setting_of_a_program_turns_it_off(workshop, mpich_only):
    """A rank without TLS would be refused by its gateway, and this one is not: the agent's setting wins."""
    sites = LoopbackSites(workshop)
    name = 'name = "a"\n'
    text = sites.write("encrypted.toml", change=(name, f'{name}inside = "encrypted"\n')).read_text()
    second = text.index("[[site]]", 10)
    sites.file.write_text(
        f'{text[:second]}[site.run]\nenvironment = {{ LANDBRIDGE_INSIDE_KEYS = "" }}\n\n{text[second:]}'
    )
    sites.start_gateways()
    done = sites.run(mpich_only, [mpich_only.python, PROGRAMS / "messages.py", 11])
    assert "messages: 44 good" in done.check().out, str(done)
