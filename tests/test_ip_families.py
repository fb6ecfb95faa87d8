"""Sites whose hosts have IPv6 addresses only, or both families."""

import json

import pytest

from coupled import PACKAGE, PATH
from harness import LANDBRIDGE, PROGRAMS

# The address families of the two sites, as `landbridge lab --ip` takes them.
FAMILIES = ["6", "4,6", "both,6", "both"]


@pytest.mark.parametrize("families", FAMILIES)
@pytest.mark.one_mpi
def test_a_job_runs_whatever_families_its_sites_have(workshop, mpi, isolated, families):
    """Every pair of ranks exchanges messages: inside a node, between nodes of a site, and across."""
    program = [mpi.python, PROGRAMS / "messages.py"]
    workshop.across(mpi, 6, program, options=["--ip", families], limit=120).finish().check()


def test_nodes_of_an_ipv6_site_cannot_reach_the_other_site(workshop, mpich_only, isolated):
    program = [mpich_only.python, PROGRAMS / "reach.py"]
    done = workshop.across(mpich_only, 4, program, options=["--ip", "6"]).finish().check()
    answer = json.loads(done.out)
    sites = [host.split("-")[0] for host in answer["hosts"]]
    assert sites == ["a", "a", "b", "b"], answer
    assert all(":" in address for addresses in answer["addresses"] for address in addresses), answer
    for here in range(4):
        for there in range(4):
            assert answer["reaches"][here][there] == (sites[here] == sites[there]), (here, there, answer)


@pytest.mark.parametrize("families", ["6", "4,6"])
def test_what_commands_say_of_such_sites(workshop, isolated, families):
    """`sites check` and `doctor`, on a node and on the gateway of the site with IPv6."""
    report = workshop.folder / "report.txt"
    script = (
        f"{LANDBRIDGE} sites check && {LANDBRIDGE} lab enter b-gw1 -- {LANDBRIDGE} sites check"
        f" && {LANDBRIDGE} doctor --output {report}"
    )
    done = workshop.lab(["sh", "-c", script], options=["--ip", families]).finish().check()
    assert done.out.count("everything works") == 2 and "nothing is wrong" in done.out, str(done)
    assert "[2001:db8:0:2::65]:7700 admits us" in done.out, str(done)


def test_a_link_local_address_is_refused_by_name(workshop, isolated):
    script = (
        f'sed \'s/^address = "2001:db8:0:1::1"/address = "fe80::1"/\' $LANDBRIDGE_SITES > {workshop.folder}/s.toml;'
        f" LANDBRIDGE_SITES={workshop.folder}/s.toml {LANDBRIDGE} sites list"
    )
    done = workshop.lab(["sh", "-c", script], options=["--ip", "6"]).finish()
    done.fails_naming("site a", "node n1", "`fe80::1` is link-local")


# Where a site has both families, the lab's nodes have no address in the sites file, only names.
@pytest.mark.parametrize("options", [["--ip", "6"], ["--ip", "both", "--gateways", "2"]], ids=["ipv6", "both"])
def test_files_are_staged_between_nodes_and_sites(workshop, isolated, options):
    stage, enter = f"{LANDBRIDGE} stage move", f"{LANDBRIDGE} lab enter"
    script = (
        "head -c 5000000 /dev/urandom > /tmp/file && sha256sum < /tmp/file"
        f" && {stage} /tmp/file a/n2:/tmp/ && {stage} a/n2:/tmp/file b/n1:/tmp/"
        f" && {enter} a-n2 -- sha256sum /tmp/file && {enter} b-n1 -- sha256sum /tmp/file"
    )
    done = workshop.lab(["bash", "-c", script], options=options).finish().check()
    sums = [line.split()[0] for line in done.out.splitlines() if len(line.split()[0]) == 64]
    assert len(sums) == 3 and len(set(sums)) == 1, str(done)


COUPLED = """
import sys, numpy as np, landbridge as lb
layout = lb.Layout((600, 400), [lb.Whole(), lb.Whole()])
whole = np.arange(240_000.).reshape(600, 400)
with lb.join(sys.argv[1], timeout=40) as coupling:
    if sys.argv[2] == "exports":
        coupling.export("v", whole, layout)
    else:
        assert (coupling.fetch("v", layout) == whole).all()
print(sys.argv[2], "well")
"""


@pytest.mark.parametrize("families", ["6", "both"])
@pytest.mark.parametrize("other", ["a-n2", "b-n1"], ids=["together", "apart"])
def test_programs_are_coupled(workshop, mpich_only, isolated, families, other):
    """Of two processes without MPI, on nodes of one site and of two."""
    program = workshop.folder / "coupled.py"
    program.write_text(COUPLED)
    words = f"env PYTHONPATH={PACKAGE} PATH={PATH} {mpich_only.python} {program} one@a"
    script = (
        f"LANDBRIDGE_SITE_NAME=a {words} exports & first=$!;"
        f" {LANDBRIDGE} lab enter {other} -- env LANDBRIDGE_SITE_NAME={other[0]} {words} fetches && wait $first"
    )
    done = workshop.lab(["bash", "-c", script], options=["--ip", families], limit=90).finish().check()
    assert "exports well" in done.out and "fetches well" in done.out, str(done)
