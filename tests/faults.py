"""A lab as its operator sees it, from outside: gateways that can be restarted, jobs, faults, and the remains of jobs
behind.

The lab's command runs on a-n1, which takes part in no job, so that any other host can fail.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from harness import LANDBRIDGE, MARKER, PROGRAMS, wait_until

CHECKED = PROGRAMS / "checked.py"
LAUNCHER_HOST = "a-n2"
ENDLESS_S = 100_000.0
READY_S = 60.0
PAGE = 'page = "127.0.0.1:7780"\n'
LOOK = """import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:7780/view.json", timeout=5).read().decode())
"""


@dataclass
class Member:
    """A process on a host of the lab."""

    host: str
    pid: int
    words: list
    environment: dict

    @property
    def rank(self):
        """Its rank number, if it is a rank."""
        number = self.environment.get("PMI_RANK")
        return int(number) if number is not None and str(CHECKED) in self.words else None

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def runs(self, subcommand):
        return os.path.basename(self.words[0]) == "landbridge" and subcommand in self.words[1:3]

    def number_on_host(self):
        """Its process id as seen by processes of its host."""
        return int(re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{self.pid}/status").read_text(), re.M)[1])


class FaultLab:
    """Sites whose hosts fail one at a time; two nodes of each, `nodes`, have a rank."""

    def __init__(self, workshop, gateways, mpi, site_names="ab"):
        self.workshop, self.mpi = workshop, mpi
        self.site_names = site_names
        self.nodes = [f"{site}-n{node}" for site in site_names for node in (2, 3)]
        self.folder = workshop.folder
        options = ["--gateways", gateways, "--isolation", "namespaces", "--gateway-command", ""]
        shape = {"sites": len(site_names), "nodes": 3, "delay": "5ms", "options": options}
        self.running = workshop.lab(["sleep", "infinity"], limit=ENDLESS_S, **shape)
        command = ["sleep", "infinity"]

        def up():
            return any(process.words == command for process in self.running.processes())

        wait_until(lambda: up() or self.running.child.poll() is not None, READY_S, "the lab")
        assert self.running.child.poll() is None, self.running.err()
        supervisor = next(process.pid for process in self.running.processes() if "lab-supervisor" in process.words)
        self.state = Path(f"/proc/{supervisor}/root/run/landbridge-lab")
        self.hosts = {}
        for process in self.running.processes("lab-node"):
            self.hosts[os.readlink(f"/proc/{process.pid}/ns/uts")] = process.words[2]
        self.sites = self._write_sites()
        self.gateways = {f"{site}-gw{number}": None for site in site_names for number in range(1, gateways + 1)}
        self.frozen, self.unplugged, self.dead = set(), set(), set()
        self.jobs = 0

    def _write_sites(self):
        """The lab's sites file without the nodes that take part in no job, and with a page for each gateway."""
        text = (self.state / "sites.toml").read_text()
        text = re.sub(r'\[\[site\.node\]\]\nname = "n1"\naddress = ".*"\n', "", text)
        text = re.sub(r'^key = "(.*)"', r'key = "/run/landbridge-lab/\1"', text, flags=re.M)
        text = text.replace("[[site.gateway]]\n", f"[[site.gateway]]\n{PAGE}")
        path = self.folder / f"sites-{self.running.marker}.toml"
        path.write_text(text)
        return path

    def words(self, host, *words):
        """The command line of a command on a host; the lab's folder has another path there than for us."""
        return [LANDBRIDGE, "lab", "enter", host, "--", "env", "-u", "LANDBRIDGE_LAB", *words]

    @property
    def environment(self):
        return {"LANDBRIDGE_LAB": str(self.state)}

    def enter(self, host, *words, limit=ENDLESS_S, environment=None):
        variables = {**(environment or {}), **self.environment}
        return self.workshop.start(self.words(host, *words), environment=variables, limit=limit)

    def ask(self, *words, limit=20):
        """`landbridge lab …`, which must succeed; returns its output."""
        done = self._run([LANDBRIDGE, "lab", *words], limit)
        assert done.returncode == 0, f"landbridge lab {words}: {done.stderr}"
        return done.stdout.strip()

    @contextlib.contextmanager
    def no_resets_from(self, host):
        """Nobody hears that connections of this host are reset."""
        rule = ["OUTPUT", "-p", "tcp", "--tcp-flags", "RST", "RST", "-j", "DROP"]
        self.ask("enter", host, "--", "/usr/sbin/iptables", "-A", *rule)
        try:
            yield
        finally:
            self.ask("enter", host, "--", "/usr/sbin/iptables", "-D", *rule)

    def start_gateways(self):
        """Starts the gateways that are not running; returns once all trunks are up."""
        for host, running in self.gateways.items():
            if host not in self.dead and (running is None or running.child.poll() is not None):
                site, name = host.split("-")
                words = [LANDBRIDGE, "gateway", "--sites", self.sites, "--site", site, "--gateway", name]
                self.gateways[host] = self.enter(host, *words)
        self.settle(READY_S)

    def settle(self, limit):
        """Waits until nothing of a job is left at any gateway, and trunks are up between all running gateways."""
        end = time.monotonic() + limit
        while found := self.unsettled():
            assert time.monotonic() < end, f"after {limit:.0f} s: {'; '.join(found)}"
            time.sleep(0.2)

    def view(self, gateway):
        """A gateway's view of itself, or None."""
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            return json.loads(self._run(self.words(gateway, sys.executable, "-c", LOOK), 10).stdout)
        return None

    def _run(self, words, limit):
        return subprocess.run(
            [str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=limit, env={**os.environ, **self.environment},
        )  # fmt: skip

    def unsettled(self):
        """A job's remains in gateways, and the trunks that gateways still miss."""
        found = []
        for gateway in self.gateways:
            if gateway in self.dead:
                continue
            view = self.view(gateway)
            if view is None:
                found.append(f"{gateway} does not answer")
                continue
            found += [f"{gateway} has job {job['job']} open" for job in view["jobs"]]
            peers = {f"{trunk['site']}-{trunk['gateway']}": trunk["up"] for trunk in view["trunks"]}
            down = [peer for peer, up in peers.items() if not up and peer not in self.dead]
            found += [f"{gateway}: the trunk to {peer} is down" for peer in down]
            found += [f"{gateway}: a member at {peer} is connected" for peer in self.members_connected(gateway)]
        return found

    def members_connected(self, gateway):
        """Peers inside the site with an established connection to the gateway's port."""
        gateways = [member.pid for member in self.members() if member.host == gateway and member.runs("gateway")]
        if not gateways:
            return []
        lines = Path(f"/proc/{gateways[0]}/net/tcp").read_text().splitlines()[1:]
        peers = []
        for _, local, remote, state, *_ in (line.split() for line in lines):
            address = ".".join(str(byte) for byte in reversed(bytes.fromhex(remote.split(":")[0])))
            if state == "01" and local.endswith(":1E14") and address.startswith("10."):
                peers.append(address)
        return peers

    def members(self):
        """All processes on hosts that take part in jobs, except the hosts' own first ones."""
        found = []
        ours = {running.marker for running in self.workshop.running}
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                host = self.hosts.get(os.readlink(f"/proc/{int(entry)}/ns/uts"))
                words = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                if host in (None, "a-n1", *self.dead) or not words or "lab-node" in words:
                    continue
                environment = Path(f"/proc/{entry}/environ").read_bytes().decode(errors="replace").split("\0")
                variables = dict(pair.split("=", 1) for pair in environment if "=" in pair)
                # The kernel reuses a dead host's namespace numbers for namespaces that are not ours.
                if variables.get(MARKER) not in ours:
                    continue
                found.append(Member(host, int(entry), words, variables))
        return found

    def of_jobs(self):
        """Processes of jobs: all but gateways."""
        return [member for member in self.members() if not member.runs("gateway") and LOOK not in member.words]

    def shared_memory(self):
        """Files in the hosts' /dev/shm."""
        found = []
        for process in self.running.processes("lab-node"):
            with contextlib.suppress(OSError):
                names = os.listdir(f"/proc/{process.pid}/root/dev/shm")
                found += [f"{process.words[2]}:/dev/shm/{name}" for name in names]
        return found

    def left(self):
        """Leftovers of a job on running hosts, except gateways."""
        return [f"{m.host}: {' '.join(m.words[:4])} ({m.pid})" for m in self.of_jobs()] + self.shared_memory()

    def start_job(self, kind, seed):
        self.jobs += 1
        name = f"{self.running.marker}-{self.jobs}"
        started, stop = self.folder / f"{name}.started", self.folder / f"{name}.stop"
        program = [self.mpi.python, CHECKED, started, stop, kind, seed]
        run = [LANDBRIDGE, "run", "-n", len(self.nodes), "--mpi", self.mpi.name, "--", *program]
        environment = {**self.mpi.environment, "LANDBRIDGE_SITES": str(self.sites)}
        running = self.enter(LAUNCHER_HOST, *run, environment=environment)
        return Job(self, running, started, stop)

    def freeze(self, host):
        self.ask("freeze", host)
        self.frozen.add(host)

    def unplug(self, host):
        self.ask("unplug", host)
        self.unplugged.add(host)

    def kill(self, host):
        self.ask("kill", host)
        self.dead.add(host)

    def thaw(self):
        for host in list(self.frozen):
            self.ask("thaw", host)
            self.frozen.discard(host)

    def plug(self):
        for host in list(self.unplugged):
            self.ask("plug", host)
            self.unplugged.discard(host)

    def end(self):
        """Ends the lab. Nothing of it may be left."""
        self.running.child.send_signal(signal.SIGTERM)
        self.running.finish(within=30)


@dataclass
class Job:
    """A run of `checked.py`."""

    lab: FaultLab
    running: object
    started: Path
    stop: Path

    def launcher(self):
        found = [member for member in self.lab.of_jobs() if member.host == LAUNCHER_HOST and member.runs("run")]
        return found[0] if found else None

    def ranks(self):
        return {member.rank: member for member in self.lab.of_jobs() if member.rank is not None}

    def agents(self, subcommand):
        return [member for member in self.lab.of_jobs() if member.runs(subcommand)]

    def over(self):
        return self.running.child.poll() is not None

    def last_lines(self, count=3):
        return [line for line in self.running.err().splitlines() if line.strip()][-count:]

    def stopped(self, member, on):
        """Stops one process, or resumes it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(member.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def reset(self, host, *, to, of, limit):
        """Resets one connection as soon as there is one; returns its name, or None if the job ended first."""
        end = time.monotonic() + limit
        while time.monotonic() < end and not self.over():
            with contextlib.suppress(AssertionError):
                return self.lab.ask("reset", host, "--to", to, "--of", of)
            time.sleep(0.05)
        return None
