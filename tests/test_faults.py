"""Seeded rounds of faults at the start of a job and in mid-run: processes and hosts are killed, hosts hang, cables
are pulled, connections are reset. The job's results are exact to the byte, or it ends and its last lines name the host
that was lost. Nothing is left either way.

`LANDBRIDGE_SEED=n` replays one round; `make test-faults ROUNDS=100` plays that many, each class of fault in turn.
"""

import contextlib
import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import WORKSHOPS, mpich
from faults import LAUNCHER_HOST, FaultLab
from harness import SHARE, Workshop

# Only a hang takes this long.
LIMIT_S = float(os.environ.get("LANDBRIDGE_LIMIT", "60")) * SHARE
# From the fault, or its repair, until `run` ends and until the last process that it started is gone; from then until no
# file is left. The time that processes of this machine waited for a core is added.
ENDED_S, GONE_S, CLEAN_S = 10.0, 10.0, 5.0
# The same for a node that is struck before its agent has connected: agents have 15 s for that, because nobody can tell
# a slow start from a lost node.
STARTED_S = 15.0

# A round's class is its seed modulo the number of classes.
CLASSES = [
    ("kill", "rank"), ("kill", "agent"), ("kill", "agent-worker"), ("kill", "launcher"), ("kill", "gateway"),
    ("kill", "node"), ("kill", "gateway host"), ("kill", "launcher host"), ("kill", "all gateways"),
    ("freeze", "rank"), ("freeze", "agent"), ("freeze", "launcher"),
    ("freeze", "node"), ("freeze", "gateway host"), ("freeze", "launcher host"),
    ("unplug", "node"), ("unplug", "gateway host"), ("unplug", "launcher host"), ("unplug", "all gateways"),
    ("reset", "rank to gateway"), ("reset", "agent to gateway"), ("reset", "launcher to gateway"), ("reset", "trunk"),
    ("reset", "rank to rank"),
]  # fmt: skip


class Round:
    """The events of a round; all of them follow from the seed."""

    def __init__(self, seed, broadcasts=False):
        chance = random.Random(seed)
        self.seed = seed
        # A broadcast is copied by gateways where a message goes to two sites besides the sender's.
        self.sites = "abc" if broadcasts else "ab"
        self.fault, self.victim = CLASSES[seed % len(CLASSES)]
        self.gateways = chance.choice([2, 3])
        kind = chance.choice(["stream", "exchange", "collectives", "onesided"])
        self.kind = "broadcasts" if broadcasts else kind
        # One in five strikes before all ranks work together.
        self.early = chance.random() < 0.2
        self.delay = chance.uniform(0, 1.5)
        self.site = chance.choice(self.sites)
        # Selects one of several possible victims.
        self.number = chance.randrange(1 << 16)
        # Half of the faults that can be repaired are. A stopped process always is resumed: a stopped rank does not
        # count as lost.
        self.mend_after = chance.uniform(0.3, 6)
        self.lasting = chance.random() < 0.5 and self.victim not in ("rank", "agent", "launcher")
        self.times = chance.choice([1, 1, 2, 4])
        self.one_sided = False

    def __str__(self):
        struck = f"{self.fault} {self.victim}" + (f" {self.times} times" if self.fault == "reset" else "")
        when = f"{self.delay:.1f} s after {'its start' if self.early else 'the first round'}"
        mended = f", mended after {self.mend_after:.1f} s" if self.mended else ""
        return f"seed {self.seed}: {self.gateways} gateways a site, {self.kind}: {struck} {when}{mended}"

    @property
    def mended(self):
        return self.fault in ("freeze", "unplug") and not self.lasting

    def survives(self, gateway):
        return not self.early


class Absence(Round):
    """A gateway, leading or not, is unplugged and comes back at any time, also while others give it up."""

    def __init__(self, seed):
        super().__init__(seed)
        chance = random.Random(f"absence {seed}")
        self.fault, self.victim, self.lasting = "unplug", "gateway host", False
        self.early = chance.random() < 0.25
        self.delay = chance.uniform(0.1, 2.5)
        # Half of the time near the limits at which somebody gives somebody up.
        self.mend_after = chance.choice([chance.uniform(0.1, 20), chance.uniform(5.5, 9.5)])

    def survives(self, gateway):
        return not self.early or not gateway.endswith("gw1")


class Departure(Absence):
    """A gateway, leading or not, is unplugged and stays away, also while the job ends."""

    def __init__(self, seed):
        super().__init__(seed)
        self.lasting = True


class Alone(Round):
    """Sites have one gateway each. A connection to one is reset, up to four times. In half of the rounds the gateway
    does not hear of it, as if a firewall on the way had reset it."""

    def __init__(self, seed):
        super().__init__(seed)
        self.fault, self.gateways = "reset", 1
        self.victim = ["rank to gateway", "agent to gateway", "launcher to gateway", "trunk"][seed % 4]
        self.one_sided = self.victim != "trunk" and seed // 4 % 2 == 1 and Path("/usr/sbin/iptables").exists()
        if self.one_sided:
            self.times = 1


@dataclass
class Blow:
    """The struck process or host, and the permitted consequences."""

    what: str
    # Words that the last lines must contain if the job ends. None: nothing is left that could report.
    names: list | None
    # Other gateways that know the job take over: it must continue.
    survivable: bool = False
    # A whole site cannot be reached, so gateways of the other one keep the job waiting. `run` ends at once if it is at
    # the site that was struck.
    whole_site: str | None = None


def pick(items, number):
    items = sorted(items, key=str)
    return items[number % len(items)]


def seeds(default):
    if "LANDBRIDGE_SEED" in os.environ:
        return [int(os.environ["LANDBRIDGE_SEED"])]
    if "LANDBRIDGE_ROUNDS" in os.environ:
        return list(range(int(os.environ["LANDBRIDGE_ROUNDS"])))
    return default


# Rounds of broadcasts by default: a gateway and its host are killed, the host hangs, and connections that a copy goes
# over are reset.
BROADCAST_SEEDS = [4, 6, 13, 19, 22]
# A round of each other class but two, which take long: the launcher's host that hangs or is unplugged (14, 17).
DEFAULT_SEEDS = [seed for seed in range(len(CLASSES)) if seed not in (14, 17, *BROADCAST_SEEDS)]
# Rounds of a gateway that comes back, by default.
ABSENCE_SEEDS = [2, 4, 28, 39]
# Rounds of a gateway that stays away, by default.
DEPARTURE_SEEDS = [1]


class Labs:
    """A lab for each number of gateways and sites, rebuilt after a round that spoiled it."""

    def __init__(self):
        self.folder = WORKSHOPS / f"faults-{os.getpid()}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.workshop = Workshop(self.folder)
        self.labs = {}

    def get(self, plan):
        shape = (plan.gateways, plan.sites)
        if shape not in self.labs:
            self.drop()
            self.labs[shape] = FaultLab(self.workshop, plan.gateways, mpich(), plan.sites)
        self.labs[shape].start_gateways()
        return self.labs[shape]

    def drop(self, check=True):
        """Ends the existing labs: two cores do not carry several."""
        labs, self.labs = self.labs, {}
        for lab in labs.values():
            lab.end() if check else lab.running.end()

    def close(self):
        self.drop()
        self.workshop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def labs():
    labs = Labs()
    yield labs
    labs.close()


def strike(lab, job, plan):
    """Strikes, and returns the blow. Everything that the round needs exists already."""
    site, number = plan.site, plan.number
    gateways = [gateway for gateway in lab.gateways if gateway.startswith(site)]
    match plan.fault, plan.victim:
        case "kill" | "freeze", "rank":
            rank, member = pick(job.ranks().items(), number)
            stop_or_kill(job, member, plan)
            return Blow(f"rank {rank} on {member.host}", named(member.host, f"rank {rank}"))
        case "kill" | "freeze", "agent" | "agent-worker":
            member = pick(job.agents(plan.victim), number)
            stop_or_kill(job, member, plan)
            return Blow(f"{plan.victim} on {member.host}", named(member.host))
        case "kill" | "freeze", "launcher":
            stop_or_kill(job, job.launcher(), plan)
            return Blow("launcher", None)
        case "kill", "gateway":
            gateway = pick(gateways, number)
            next(member for member in lab.members() if member.host == gateway and member.runs("gateway")).kill()
            return Blow(gateway, named(gateway), survivable=plan.survives(gateway))
        case how, "gateway host":
            gateway = pick(gateways, number)
            getattr(lab, how)(gateway)
            return Blow(gateway, named(gateway), survivable=plan.survives(gateway))
        case how, "all gateways":
            for gateway in gateways:
                getattr(lab, how)(gateway)
            return Blow(f"all gateways of site {site}", [f"site {site}"], whole_site=site)
        case how, "node":
            host = pick(set(lab.nodes) - {LAUNCHER_HOST}, number)
            getattr(lab, how)(host)
            return Blow(host, named(host))
        case how, "launcher host":
            getattr(lab, how)(LAUNCHER_HOST)
            return Blow(LAUNCHER_HOST, ["site a"] if how == "unplug" else None)
        case "reset", victim:
            return reset(lab, job, plan, victim)


def named(host, *more):
    """Texts that the last lines must contain about a loss on this host."""
    site, name = host.split("-")
    return [f"site {site}", f"node {name}" if name.startswith("n") else name, *more]


def stop_or_kill(job, member, plan):
    if plan.fault == "kill":
        return member.kill()
    job.stopped(member, True)
    time.sleep(plan.mend_after)
    return job.stopped(member, False)


def reset(lab, job, plan, victim):
    """Resets connections that are re-established or not needed: the job continues."""
    site, number = plan.site, plan.number
    gateway = pick([gateway for gateway in lab.gateways if gateway.startswith(site)], number)
    if victim == "trunk":
        other = pick(set(plan.sites) - {site}, number)
        host, to, of = gateway, f"198.18.{plan.sites.index(other) + 1}.{number % plan.gateways + 1}", "landbridge"
    else:
        if victim == "launcher to gateway":
            member, gateway = job.launcher(), f"a-gw{number % plan.gateways + 1}"
        elif victim == "agent to gateway":
            member = pick([agent for agent in job.agents("agent-worker") if agent.host.startswith(site)], number)
        else:
            member = pick([rank for rank in job.ranks().values() if rank.host.startswith(site)], number)
        other = next((node for node in lab.nodes if node[0] == site and node != member.host), None)
        host, to, of = member.host, other if victim == "rank to rank" else gateway, member.number_on_host()
    done = []
    with lab.no_resets_from(host) if plan.one_sided else contextlib.nullcontext():
        for _ in range(plan.times):
            done.append(job.reset(host, to=to, of=of, limit=10))
            time.sleep(0.3)
    assert any(done), f"nothing was reset: {victim} of {host} to {to}"
    what = f"{victim}: {', '.join(map(str, done))}"
    if victim == "rank to rank":
        # Both ends fail, and the report is about whichever fails first.
        return Blow(what, [f"site {site}", "node n", "rank "])
    return Blow(what, named(host), survivable=not plan.early)


def ready(lab, job, plan):
    """Whether the round's victim exists."""
    match plan.victim:
        case "rank" | "rank to gateway" | "rank to rank":
            return len(job.ranks()) == len(lab.nodes)
        case "agent" | "agent-worker":
            return len(job.agents(plan.victim)) == len(lab.nodes)
        case "agent to gateway":
            return len(job.agents("agent-worker")) == len(lab.nodes)
        case "launcher" | "launcher to gateway":
            return job.launcher() is not None
    return True


def play(lab, plan):
    """One round; returns a line that describes its outcome."""
    job = lab.start_job(plan.kind, plan.seed)
    if plan.early:
        until(lambda: ready(lab, job, plan), lambda: f"{plan.victim} to be there\n{story(lab, job)}")
    else:
        until(lambda: job.started.exists() or job.over(), lambda: f"the first round\n{story(lab, job)}")
        assert job.started.exists(), story(lab, job)
    time.sleep(plan.delay)
    blow = strike(lab, job, plan)
    clock = Clock()
    if lab.frozen | lab.unplugged and plan.mended:
        time.sleep(plan.mend_after)
        lab.thaw()
        lab.plug()
        clock = Clock()
    end = time.monotonic() + 1
    while time.monotonic() < end and not job.over():
        time.sleep(0.05)
    job.stop.write_text("stop\n")

    def waited(what):
        return lambda: f"{what} after {blow.what} was struck ({plan})\n{story(lab, job)}"

    if LAUNCHER_HOST in lab.dead:
        # As with ssh, the command entered there is not notified.
        job.running.child.terminate()
    if LAUNCHER_HOST not in lab.frozen:
        until(job.over, waited("the end of run"))
        if LAUNCHER_HOST not in lab.dead:
            limit = STARTED_S if plan.early and plan.victim == "node" else ENDED_S
            clock.check(limit, waited("the end of run"))
    ended = clock.seconds()
    until(lambda: not [m for m in lab.of_jobs() if m.host not in lab.frozen], waited("the end of what the job started"))
    clock.check(GONE_S, waited("the end of what the job started"))
    gone = clock.seconds()
    lab.thaw()
    lab.plug()
    until(job.over, waited("the end of run"))
    clock = Clock()
    until(lambda: not lab.left(), waited("nothing to be left"))
    clock.check(CLEAN_S, waited("nothing to be left"))
    outcome = judge(job, blow, plan, lab)
    lab.start_gateways()
    return f"{plan}: {blow.what}: {outcome}, {ended:.1f} s after; gone after {gone:.1f} s"


def judge(job, blow, plan, lab):
    """Exact results, or ended with the right last lines."""
    out, err, code = job.running.out(), job.running.err(), job.running.child.returncode

    def told(problem):
        return f"{problem}: {plan}: {blow.what}\n{story(lab, job)}"

    assert "WRONG BYTES" not in out + err, told("wrong bytes")
    assert "panicked" not in err, told("a panic")
    if code == 0:
        assert f"rounds exact on {len(lab.nodes)} ranks" in out, told("exit code 0, but not all bytes were checked")
        return "exact"
    assert not blow.survivable, told("the job did not survive")
    if blow.names is None:
        return f"ended ({code})"
    last = "\n".join(job.last_lines())
    missing = [name for name in blow.names if name not in last]
    assert not missing, told(f"the last lines do not name {', '.join(missing)}")
    return f"ended ({code}: {job.last_lines(1)[0]})"


class Clock:
    """Runs from its creation."""

    def __init__(self):
        self.began, self.busy = time.monotonic(), waited_for_cores()

    def seconds(self):
        return time.monotonic() - self.began

    def check(self, limit, what):
        late = waited_for_cores() - self.busy
        seconds = self.seconds()
        assert seconds <= limit + late, (
            f"took {seconds:.1f} s, at most {limit:g} and {late:.1f} for busy cores: {what()}"
        )


def waited_for_cores():
    """Total time that processes of this machine have waited for a core, in seconds, since the machine started."""
    some = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    return int(some.rsplit("total=", 1)[1]) / 1e6


def until(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT_S:.0f} s for {what()}"
        time.sleep(0.1)


def story(lab, job):
    """The evidence to read when a round failed."""
    parts = [str(job.running.words[5:]), f"exit code {job.running.child.poll()}", "--- out", job.running.out()[-1000:]]
    parts += ["--- err", job.running.err()[-4000:], "--- left", *lab.left()]
    for name, gateway in lab.gateways.items():
        lines = [line for line in gateway.err().splitlines() if " INFO " not in line]
        parts += [f"--- {name}", *lines[-6:]]
    return "\n".join(parts)


def name(seed):
    fault, victim = CLASSES[seed % len(CLASSES)]
    return f"{seed}-{fault}-{victim.replace(' ', '-')}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(DEFAULT_SEEDS), ids=name)
def test_a_round(labs, isolated, seed):
    play_in(labs, Round(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(BROADCAST_SEEDS), ids=name)
def test_a_round_of_broadcasts(labs, isolated, seed):
    play_in(labs, Round(seed, broadcasts=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(range(8)))
def test_a_reset_at_an_only_gateway(labs, isolated, seed):
    play_in(labs, Alone(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(ABSENCE_SEEDS))
def test_a_gateway_that_comes_back_ends_nothing(labs, isolated, seed):
    play_in(labs, Absence(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(DEPARTURE_SEEDS))
def test_a_job_ends_without_the_gateway_that_stays_away(labs, isolated, seed):
    play_in(labs, Departure(seed))


def play_in(labs, plan):
    print(plan, flush=True)
    lab = labs.get(plan)
    try:
        print(play(lab, plan), flush=True)
    except BaseException as error:
        print(f"seed {plan.seed} FAILED:", str(error).split("\n", 1)[0], flush=True)
        labs.drop(check=False)
        raise
    if lab.dead:
        labs.drop()
