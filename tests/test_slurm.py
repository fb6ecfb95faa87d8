"""The slurm starter against Debian's own Slurm: a munge key and a slurmctld for each site, a slurmd on every node of
a lab."""

import json
import re
import signal
import time

import pytest

from harness import LANDBRIDGE, PROGRAMS
from services import endless, run_words, ssh_site, start
from slurm import EMPTY, queue, shell_words, slurm_site, watched

# From a failure to the end of `run`, services of the lab included.
END_S = 12.0


def hosts(done):
    return sorted(line.split(" on ")[1].rstrip(".") for line in done.out.splitlines() if "Hello" in line)


def hello(mpi):
    return [mpi.python, "-m", "mpi4py.bench", "helloworld"]


@pytest.mark.one_mpi
def test_run_makes_a_job_at_each_site_and_gives_it_back(workshop, mpi, slurm):
    sites = {"a": slurm_site(), "b": slurm_site('partition = "main"\noptions = ["--nodes=2"]')}
    run = run_words(workshop, mpi, hello(mpi))
    script = f"{shell_words(run)}; code=$?; {queue('a')}; {queue('b')}; exit $code"
    done = start(workshop, sites, ["bash", "-c", script], environment=mpi.environment).finish().check()
    assert len(hosts(done)) == 4 and {"b-n1", "b-n2"} <= set(hosts(done)), str(done)
    assert done.out.count(EMPTY) == 2, str(done)


def test_an_ssh_and_a_slurm_site_run_a_job(workshop, mpich_only, slurm):
    sites = {"a": ssh_site("a"), "b": slurm_site()}
    run = run_words(workshop, mpich_only, hello(mpich_only), "--ranks-per-node", 1)
    done = start(workshop, sites, watched(run, "b"), environment=mpich_only.environment).finish().check()
    assert hosts(done) == ["a-n1", "a-n2", "b-n1", "b-n2"], str(done)
    assert EMPTY in done.out, str(done)


@pytest.mark.one_mpi
def test_run_in_a_batch_script_uses_the_jobs_nodes_and_tasks(workshop, mpi, slurm):
    """Under sbatch no job is made: the user's own is used, and outlives the run."""
    run = [LANDBRIDGE, "run", "--mpi", mpi.name, "--", *hello(mpi)]
    across = [LANDBRIDGE, "run", "--mpi", mpi.name, "--site", "a=3", "--site", "b=1", "--", *hello(mpi)]
    script = workshop.folder / "job.sh"
    script.write_text(
        f"#!/bin/bash\n{shell_words(run)}\necho between\n{shell_words(across)}\nsqueue -h -o 'JOB %i %T'\n"
    )
    out = workshop.folder / "job.out"
    batch = ["sbatch", "--wait", "-N2", "--ntasks-per-node=2", f"--output={out}", f"--chdir={workshop.folder}", script]
    sites = {"a": slurm_site(), "b": slurm_site()}
    done = start(workshop, sites, watched(batch), environment=mpi.environment, host="a-gw1").finish()
    text = out.read_text()
    assert done.code == 0, f"{done}\n{text}"
    one, two = text.split("between\n")
    assert [one.count(f"a-n{node}") for node in (1, 2)] == [2, 2], text
    assert two.count(" on a-n") == 3 and two.count(" on b-n") == 1, text
    assert text.count("JOB ") == 1, text


def test_a_task_of_an_array_knows_which_it_is(workshop, mpich_only, slurm):
    """The batch job's variables reach the ranks of all sites. Those that identify another launcher's ranks do not."""
    shown = (
        'echo "TASK $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, X=$SLURM_ARRAY_TASK_MAX, '
        'rank ${SLURM_PROCID-none}"'
    )
    program = [
        LANDBRIDGE,
        "run",
        "-x",
        "SLURM_ARRAY_TASK_MAX=9",
        "--site",
        "a=1",
        "--site",
        "b=1",
        "--",
        "sh",
        "-c",
        shown,
    ]
    script = workshop.folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{shell_words(program)}\n")
    out = workshop.folder / "job-%a.out"
    batch = ["sbatch", "--wait", "--array=3,5", "-n1", f"--output={out}", f"--chdir={workshop.folder}", script]
    sites = {"a": slurm_site(), "b": slurm_site()}
    done = start(workshop, sites, watched(batch), environment=mpich_only.environment, host="a-gw1").finish()
    for task in (3, 5):
        text = (workshop.folder / f"job-{task}.out").read_text()
        assert text.count(f"TASK {task} of 2, X=9, rank none") == 2, f"{done}\n{text}"
    assert done.code == 0, str(done)


@pytest.mark.one_mpi
def test_all_components_of_a_heterogeneous_job_are_used(workshop, mpi, slurm):
    run = [LANDBRIDGE, "run", "--mpi", mpi.name, "--", *hello(mpi)]
    script = workshop.folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{shell_words(run)}\n")
    out = workshop.folder / "job.out"
    batch = [
        "sbatch",
        "--wait",
        f"--output={out}",
        f"--chdir={workshop.folder}",
        "-N1",
        "-n2",
        ":",
        "-N1",
        "-n1",
        script,
    ]
    sites = {"a": slurm_site(), "b": slurm_site()}
    done = start(workshop, sites, watched(batch), environment=mpi.environment, host="a-gw1").finish()
    text = out.read_text()
    assert done.code == 0, f"{done}\n{text}"
    assert sorted(text.count(f" on a-n{node}") for node in (1, 2)) == [1, 2], text


@pytest.mark.one_mpi
def test_a_job_of_one_node_reaches_other_sites(workshop, mpi, slurm):
    """No MPI library takes the number of the batch job's nodes for that of the ranks' nodes."""
    run = [LANDBRIDGE, "run", "--mpi", mpi.name, "--site", "a=2", "--site", "b=2", "--", *hello(mpi)]
    script = workshop.folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{shell_words(run)}\n")
    out = workshop.folder / "job.out"
    batch = [
        "sbatch",
        "--wait",
        "-N1",
        "-n2",
        "--distribution=cyclic",
        f"--output={out}",
        f"--chdir={workshop.folder}",
        script,
    ]
    sites = {"a": slurm_site(), "b": slurm_site()}
    done = start(workshop, sites, watched(batch), environment=mpi.environment, host="a-gw1").finish()
    text = out.read_text()
    assert done.code == 0, f"{done}\n{text}"
    assert text.count(" on a-n") == 2 and text.count(" on b-n") == 2, text


def test_a_refused_job_names_site_and_partition(workshop, mpich_only, slurm):
    sites = {"a": slurm_site(), "b": slurm_site('partition = "nosuch"')}
    done = start(workshop, sites, watched(run_words(workshop, mpich_only, ["true"]))).finish()
    done.fails_naming("site b", "partition=nosuch", "nvalid partition")
    assert EMPTY in done.out, str(done)


def test_a_job_that_a_gateways_memory_cannot_hold_makes_no_batch_job(workshop, mpich_only, slurm):
    """Site b would grant its nodes at once, and its gateway would then refuse the bytes that 300 ranks of site a
    may have in flight."""
    sites = {"a": ssh_site("a"), "b": slurm_site()}
    run = [LANDBRIDGE, "run", "--site", "a=300", "--site", "b=2", "--", "true"]
    asked = f"{LANDBRIDGE} lab enter b-gw1 -- env SLURM_CONF=/run/slurm-b/slurm.conf scontrol show config"
    script = f"{shell_words(run)}; code=$?; {asked} | grep NEXT_JOB_ID; exit $code"
    done = start(workshop, sites, ["bash", "-c", script], options=["--gateway-memory", "16MiB"]).finish()
    done.fails_naming("site b", "gateway gw1 has 16 MiB", "300 ranks", 'memory = "19MiB"', "sites file")
    assert done.out.split() == ["NEXT_JOB_ID", "=", "1"], str(done)


def test_a_job_that_waits_too_long_is_taken_out_of_the_queue(workshop, mpich_only, slurm):
    sites = {"a": slurm_site('partition = "shut"'), "b": slurm_site()}
    run = run_words(workshop, mpich_only, ["true"], "--wait", "3s")
    done = start(workshop, sites, watched(run)).finish()
    done.fails_naming("site a", "no nodes after 3 s", "waits in the queue", "PartitionDown", "--wait")
    assert EMPTY in done.out, str(done)


def test_a_job_that_can_never_start_ends_at_once(workshop, mpich_only, slurm):
    """The partition allows a minute. The other site's nodes, which come at once, are held and charged meanwhile, and
    given back."""
    sites = {"a": slurm_site(), "b": slurm_site('partition = "short"\ntime = "1:00:00"')}
    run = run_words(workshop, mpich_only, ["true"], "--wait", "50s")
    script = f"{shell_words(run)}; code=$?; {queue('a')}; {queue('b')}; exit $code"
    done = start(workshop, sites, ["bash", "-c", script]).finish()
    # Slurm shows PartitionConfig until its scheduler has looked at the job, then PartitionTimeLimit.
    done.fails_naming("site b", "PENDING, Partition", "never starts as it is: the partition", "was cancelled")
    assert "site a has 1 node, held and charged from now on until b has its nodes" in done.err, str(done)
    assert done.out.count(EMPTY) == 2, str(done)


def test_what_the_queue_says_is_shown_and_nodes_that_came_early_are_counted(workshop, mpich_only, slurm):
    """A partition that is down may come back: the job waits, and starts when it does."""
    sites = {"a": slurm_site(), "b": slurm_site('partition = "shut"')}
    run = run_words(workshop, mpich_only, ["true"])
    running = start(workshop, sites, watched(run, "b"))
    running.wait_for(lambda: "(PENDING, PartitionDown)" in running.err(), 60, "the queue")
    assert "site b: Slurm job 1 waits in the queue (PENDING, PartitionDown)" in running.err(), running.err()
    [supervisor] = [process for process in running.processes("gateway") if process.words[-1] == "b"]
    environment = {"SLURM_CONF": "/run/slurm-b/slurm.conf"}
    opens = ["nsenter", "-t", supervisor.pid, "-a", "scontrol", "update", "PartitionName=shut", "State=UP"]
    workshop.run(opens, environment=environment).check()
    done = running.finish().check()
    assert re.search(r"site a held 1 node for \d+ s before the job could start", done.err), str(done)


@pytest.mark.parametrize("what", ["ctrl-c", "kill-9-run", "kill-9-gateway"])
def test_whatever_happens_in_the_queue_no_job_stays_there(workshop, mpich_only, slurm, what):
    sites = {"a": slurm_site(), "b": slurm_site('partition = "shut"')}
    run = run_words(workshop, mpich_only, ["true"])
    running = start(workshop, sites, watched(run, "b"))
    running.wait_for(lambda: "waits in the queue" in running.err(), 60, "the queue")
    assert "site b: Slurm job" in running.err(), running.err()
    if what == "kill-9-gateway":
        victims = [gateway for gateway in running.processes("gateway") if gateway.words[-1] == "b"]
    else:
        victims = running.processes("run")
    assert len(victims) == 1, running.processes()
    victims[0].kill(signal.SIGINT if what == "ctrl-c" else signal.SIGKILL)
    done = running.finish(within=END_S)
    assert done.code == {"ctrl-c": 130, "kill-9-run": 137}.get(what, 1), str(done)
    assert EMPTY in done.out, str(done)
    if what == "kill-9-gateway":
        done.fails_naming("site b", "trunk")


@pytest.mark.parametrize("what", ["scancel", "kill-9-run", "kill-9-gateway", "kill-9-salloc"])
def test_whatever_happens_in_mid_run_no_job_stays(workshop, mpich_only, slurm, what):
    running = endless(workshop, mpich_only, {"a": slurm_site(), "b": slurm_site()}, wrap=lambda run: watched(run, "b"))
    if what == "scancel":
        environment = {"SLURM_CONF": "/run/slurm-b/slurm.conf"}
        [supervisor] = [process for process in running.processes("gateway") if process.words[-1] == "b"]
        workshop.run(
            ["nsenter", "-t", supervisor.pid, "-a", "scancel", "--user", "root"], environment=environment
        ).check()
    else:
        found = {
            "kill-9-run": lambda: running.processes("run"),
            "kill-9-gateway": lambda: [gateway for gateway in running.processes("gateway") if gateway.words[-1] == "b"],
            "kill-9-salloc": lambda: [process for process in running.processes() if process.words[:1] == ["salloc"]],
        }[what]()
        found[-1].kill()
    done = running.finish(within=END_S)
    assert EMPTY in done.out, str(done)
    if what != "kill-9-run":
        done.fails_naming("site " if what == "kill-9-salloc" else "site b")
    if what in ("scancel", "kill-9-salloc"):
        assert "Slurm job 1 " in done.err or "batch job 1," in done.err, str(done)


def test_check_asks_slurm_and_makes_no_job(workshop, mpich_only, slurm):
    sites = {"a": slurm_site(), "b": slurm_site('partition = "nosuch"')}
    done = start(workshop, sites, watched([LANDBRIDGE, "sites", "check", "--json"])).finish()
    assert done.code == 1 and EMPTY in done.out, str(done)
    findings = json.loads(done.out.splitlines()[0])["findings"]
    nodes = {found["site"]: (found["ok"], found["detail"]) for found in findings if found["part"] == "nodes"}
    assert nodes["a"][0] and "partition main" in nodes["a"][1], nodes
    assert not nodes["b"][0] and "nvalid partition" in nodes["b"][1], nodes


def test_check_with_a_job_proves_an_agent_in_it_and_gives_it_back(workshop, mpich_only, slurm):
    """Each site on its own: one is refused, one is an ssh site, one grants a node once its partition is up again."""
    sites = {"a": slurm_site('partition = "shut"'), "b": slurm_site('partition = "nosuch"')}
    check = [LANDBRIDGE, "sites", "check", "--job", "--json", "--quick", "--", "sh"]
    running = start(workshop, sites, watched(check))
    waits = "a: Slurm job 1 waits in the queue (PENDING, PartitionDown)"
    running.wait_for(lambda: waits in running.err(), 60, "the queue")
    assert waits in running.err(), running.err()
    [supervisor] = [process for process in running.processes("gateway") if process.words[-1] == "a"]
    opens = ["nsenter", "-t", supervisor.pid, "-a", "scontrol", "update", "PartitionName=shut", "State=UP"]
    workshop.run(opens, environment={"SLURM_CONF": "/run/slurm-a/slurm.conf"}).check()
    done = running.finish()
    assert done.code == 1 and EMPTY in done.out, str(done)
    findings = json.loads(done.out.splitlines()[0])["findings"]
    found = {(one["site"], one["part"]): (one["ok"], one["detail"]) for one in findings}
    assert found["a", "job"][0] and "a batch job got n1 after" in found["a", "job"][1], findings
    assert found["a", "node n1"] == (True, "agent and provider work"), findings
    assert not found["b", "job"][0] and "nvalid partition" in found["b", "job"][1], findings
    assert "`landbridge sites add b --slurm partition=NAME`" in found["b", "job"][1], findings


def test_check_with_a_job_ends_its_wait_and_needs_no_batch_system(workshop, mpich_only, slurm):
    sites = {"a": ssh_site("a"), "b": slurm_site('partition = "shut"')}
    check = [LANDBRIDGE, "sites", "check", "--job", "--wait", "3s", "--quick", "--", "no-such-program"]
    done = start(workshop, sites, watched(check, "b")).finish()
    assert done.code == 1 and EMPTY in done.out, str(done)
    for words in (r"b +job +FAILED .*no nodes after 3 s.*--wait", r"a +node n1 +FAILED +.*no-such-program"):
        assert re.search(words, done.out), str(done)


def test_check_finds_everything_while_no_gateway_answers(workshop, mpich_only, slurm):
    """The check itself asks Slurm."""
    sites = {"a": slurm_site('partition = "nosuch"'), "b": slurm_site()}
    check = shell_words([LANDBRIDGE, "sites", "check", "--quick"])
    script = f"pkill -9 -f '[g]ateway.*--site a$'; sleep 1; {check}; code=$?; {queue('a')}; exit $code"
    done = start(workshop, sites, ["bash", "-c", script], host="a-gw1").finish()
    for found in (
        r"a +gateway gw1 +FAILED .*`landbridge sites start a`",
        r"b +gateway gw1 +ok +198\.18\.2\.1:\d+ accepts connections from this machine",
        r"a +nodes +FAILED .*nvalid partition.*`landbridge sites add a --slurm partition=NAME`",
    ):
        assert re.search(found, done.out), f"{found}: {done}"
    assert done.code == 1 and EMPTY in done.out, str(done)


def test_run_under_srun_says_where_it_belongs(workshop, mpich_only, slurm):
    """Every task of a step would start the whole job."""
    sites = {"a": slurm_site(), "b": slurm_site()}
    step = ["srun", "-N2", "-n2", LANDBRIDGE, "run", "--", "true"]
    start(workshop, sites, watched(step), host="a-gw1").finish().fails_naming(
        "site a", "srun started several", "script"
    )


def gateways(running, site):
    """A site's gateways, first to last."""
    found = [process for process in running.processes("gateway") if process.words[-1] == site]
    return sorted(found, key=lambda process: process.words[process.words.index("--gateway") + 1])


def leads(workshop, site, number):
    """Whether a gateway has asked Slurm for nodes."""
    log = workshop.folder / "inside" / (f"gateway-{site}.log" if number == 1 else f"gateway-{site}-gw{number}.log")
    return "nodes granted" in log.read_text()


@pytest.mark.parametrize(
    ("site", "number"),
    [("a", signal.SIGKILL), ("b", signal.SIGKILL), ("b", signal.SIGTERM)],
    ids=["own", "other", "stopped"],
)
def test_nodes_stay_when_the_gateway_that_asked_for_them_is_lost(workshop, mpich_only, slurm, site, number):
    """They belong to the job: it continues through the site's other gateway, and gives them back at its end."""
    more = workshop.folder / "more"
    program = [mpich_only.python, PROGRAMS / "until.py", workshop.folder / "working", more]
    run = run_words(workshop, mpich_only, program)
    script = f"{shell_words(run)}; code=$?; {queue('a')}; {queue('b')}; exit $code"
    sites = {"a": slurm_site(), "b": slurm_site()}
    running = start(
        workshop, sites, ["bash", "-c", script], environment=mpich_only.environment, options=["--gateways", 2]
    )
    working = workshop.folder / "working"
    running.wait_for(working.exists, 60, "the job's ranks")
    asked = [which for which in (1, 2) if leads(workshop, site, which)]
    assert len(asked) == 1, asked
    gateways(running, site)[asked[0] - 1].kill(number)
    running.wait_for(lambda: "continues through other" in running.err(), 20, "the loss to be seen")
    time.sleep(2)
    assert running.child.poll() is None, str(running.finish())
    more.touch()
    done = running.finish().check()
    assert done.out.count(EMPTY) == 2, str(done)


@pytest.mark.parametrize("also", ["salloc", "second-gateway"])
def test_no_job_stays_when_all_that_would_give_it_back_is_lost(workshop, mpich_only, slurm, also):
    sites = {"a": slurm_site(), "b": slurm_site()}
    options = ["--gateways", 2]
    running = endless(workshop, mpich_only, sites, wrap=lambda run: watched(run, "b"), options=options)
    victims = gateways(running, "b")
    assert len(victims) == 2
    if also == "salloc":
        # Slurm's own commands of site b: their jobs are on its nodes, but both sites' commands look alike, so both are
        # killed.
        victims += [process for process in running.processes() if process.words[:1] == ["salloc"]]
        victims += [
            process for process in running.processes() if "squeue --noheader --steps" in " ".join(process.words)
        ]
    for process in victims:
        process.kill()
    done = running.finish(within=2 * END_S)
    done.fails_naming("site")
    assert EMPTY in done.out, str(done)
