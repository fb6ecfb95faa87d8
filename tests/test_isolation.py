"""In a lab a node of one site cannot reach the other; the job still runs."""

import json

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
