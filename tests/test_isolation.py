"""In a lab a node of one site cannot reach the other; the job still runs."""

import json
import re
import sys

import pytest

from harness import LANDBRIDGE, PROGRAMS, wait_until


@pytest.mark.parametrize("options", [(), ("--same-range",)], ids=["own-ranges", "same-range"])
def test_sites_cannot_reach_each_other_but_the_job_runs(workshop, mpich_only, isolated, options):
    program = [mpich_only.python, PROGRAMS / "reach.py"]
    done = workshop.across(mpich_only, 4, program, options=options).finish().check()
    answer = json.loads(done.out)
    sites = [host.split("-")[0] for host in answer["hosts"]]
    assert sites == ["a", "a", "b", "b"], answer
    assert len(set(answer["hosts"])) == 4, answer
    assert all(answer["addresses"]), answer
    for here in range(4):
        for there in range(4):
            assert answer["reaches"][here][there] == (sites[here] == sites[there]), (here, there, answer)
    if options:
        one, other = ({*first, *second} for first, second in (answer["addresses"][:2], answer["addresses"][2:]))
        assert one & other, answer


def test_a_node_has_no_way_to_the_other_site(workshop, isolated):
    """No default route: a connection to the other site's gateway is refused by the node's own kernel."""
    script = "grep -o 'advertise = \"[^\"]*' $LANDBRIDGE_SITES | cut -d'\"' -f2 | tail -n 1"
    advertised = workshop.lab(["sh", "-c", script]).finish().check().out.strip()
    host, port = advertised.rsplit(":", 1)
    done = workshop.lab(["bash", "-c", f"exec 3<>/dev/tcp/{host}/{port}"]).finish()
    assert done.code != 0
    assert "unreachable" in done.err, str(done)


ORDERS = r"""
import re, sys
text = open(sys.argv[1]).read() + "\n"
reversed_text = "".join(reversed(re.split(r"(?=^\[\[site\]\])", text, flags=re.M)))
open("reversed.toml", "w").write(reversed_text)
open("plain.toml", "w").write(re.sub("^inside.*\n", "", reversed_text, flags=re.M))
"""


@pytest.mark.parametrize("options", [(), ("--same-range",)], ids=["own-ranges", "same-range"])
def test_a_command_finds_its_own_site_though_it_has_the_keys_of_all(workshop, isolated, options):
    """For any order of the sites, if they use the same addresses, and if their gateways have outer ones only."""
    (workshop.folder / "orders.py").write_text(ORDERS)
    lines = [
        "f=$(dirname $LANDBRIDGE_SITES)",
        f"(cp orders.py $f; cd $f; {sys.executable} orders.py $LANDBRIDGE_SITES)",
    ]
    for order in ("sites", "reversed", "plain"):
        for host in ["a-gw1", "b-gw1"] if order == "plain" else ["a-gw1", "a-n2", "b-gw1", "b-n1"]:
            check = f"{LANDBRIDGE} sites check --quick --sites $f/{order}.toml"
            lines.append(f"echo {order}: typed at {host[0]} $({LANDBRIDGE} lab enter {host} -- {check} | head -n 1)")
    done = workshop.lab(["bash", "-c", "\n".join(lines)], options=options).finish().check()
    typed = re.findall(r"typed at (.) .*from site (.)", done.out)
    assert len(typed) == 10 and all(at == found for at, found in typed), str(done)


def test_a_lost_gateway_does_not_make_a_machine_another_sites(workshop, isolated):
    """Both sites use the same addresses. Another gateway proves the site; if none can, the message says so."""
    check = f"{LANDBRIDGE} lab enter b-n1 -- {LANDBRIDGE} sites check --quick"
    script = f"{LANDBRIDGE} lab unplug b-gw1; {check} | head -n 1; {LANDBRIDGE} lab unplug b-gw2; {check}; true"
    options = ("--same-range", "--gateways", "2")
    done = workshop.lab(["bash", "-c", script], nodes=1, options=options).finish().check()
    assert re.search(r"from site b\b", done.out.splitlines()[0]), str(done)
    assert "this machine was taken for one of site" in done.out and "--from" in done.out, str(done)


def test_two_labs_at_once_know_nothing_of_each_other(workshop, mpich_only, isolated):
    program = [mpich_only.python, "-m", "mpi4py.bench", "helloworld"]
    both = [workshop.across(mpich_only, 4, program, json=False) for _ in range(2)]
    for running in both:
        done = running.finish().check()
        assert done.out.count("Hello, World!") == 4, str(done)


def test_the_labs_exit_code_is_the_commands(workshop):
    assert workshop.lab(["sh", "-c", "exit 37"], sites=1, nodes=1).finish().code == 37


def test_a_killed_lab_leaves_nothing(workshop, isolated):
    started = workshop.folder / "started"
    running = workshop.lab(["sh", "-c", f"touch {started}; sleep 300"])
    wait_until(started.exists, 20, "the lab's command")
    assert len(running.processes()) > 3
    running.child.kill()
    finished = running.finish(within=30)  # checks that nothing is left
    assert finished.code == -9


def test_the_command_line_explains_itself(workshop):
    for words in ([], ["lab"], ["run"], ["gateway"], ["key"], ["sites"], ["sites", "check"]):
        done = workshop.run([LANDBRIDGE, *words, "--help"]).check()
        assert "Usage:" in done.out, str(done)
