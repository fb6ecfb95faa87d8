"""Runs inside a lab, as its command: brings up the services of a real site (sshd on every node, Slurm), gateways with
starters that use it, and then the command of a test, whose exit code is its own.

inside.py PLAN.json, where the plan has
  folder    where keys, configuration and logs go
  landbridge
  sites     for each site: `starter` (the lines of its table), `services` (of "sshd", "slurm", "gridengine", "openpbs"),
            `nodes` (false: the sites file names none), `lines` (more lines for the site in the sites file), `head`
            (lines of the site's own table), `restart` (true: its gateways are started again after a kill); without
            `starter` the lab's own is kept
  command   words; run on `host` (default a-n1) with LANDBRIDGE_SITES
  user      whose gateways those of sites with a Slurm or OpenPBS are, if not root's; with `home`, the home directory
"""

import json
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gridengine
import openpbs

READY_S = 60


class Inside:
    def __init__(self, plan):
        self.folder = Path(plan["folder"])
        self.landbridge = plan["landbridge"]
        self.lab_sites = Path(os.environ["LANDBRIDGE_SITES"])
        self.children = []
        self.user = plan.get("user")
        self.home = plan.get("home")
        self.plans = plan.get("sites", {})
        # By site, the variables that its batch system's commands need.
        self.environments = {}

    def enter(self, host, *words):
        return [self.landbridge, "lab", "enter", host, "--", *map(str, words)]

    def start(self, host, *words, log, environment=None):
        with (self.folder / f"{log}.log").open("ab") as out:
            child = subprocess.Popen(
                self.enter(host, *words),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
            )
        self.children.append((log, child))

    def start_again(self, host, *words, log, environment=None):
        """As systemd does, it is there again soon after it has failed."""
        again = f"while :; do {shlex.join(map(str, words))} & child=$!; wait; sleep 0.5; done"
        self.start(host, "sh", "-c", f"trap 'kill $child; wait; exit' TERM; {again}", log=log, environment=environment)

    def as_user(self, *words):
        """The words of a command of the plan's user."""
        if not self.user:
            return words
        found = pwd.getpwnam(self.user)
        become = ["setpriv", f"--reuid={found.pw_uid}", f"--regid={found.pw_gid}", "--init-groups", "--"]
        return [*become, "env", f"HOME={self.home}", f"USER={self.user}", *words]

    def wait_for(self, what, host, *words):
        end = time.monotonic() + READY_S
        while True:
            done = subprocess.run(
                self.enter(host, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return
            for log, child in self.children:
                if child.poll() not in (None, 0):
                    sys.exit(
                        f"inside: {log} ended with {child.returncode}: "
                        f"{(self.folder / f'{log}.log').read_text()[-2000:]}"
                    )
            if time.monotonic() > end:
                sys.exit(f"inside: {what} is not ready after {READY_S} s: {done.stdout}{done.stderr}")
            time.sleep(0.1)

    def hosts(self, site, kind):
        names = [path.name.removesuffix(".sock") for path in self.lab_sites.parent.rglob("*.sock")]
        return sorted(name for name in names if name.startswith(f"{site}-{kind}"))

    def sshd(self, site):
        """An sshd of its own for every node, with its own host key, that lets in the one key of this test."""
        user_key = self.folder / "user_key"
        known = self.folder / "known_hosts"
        if not user_key.exists():
            keygen(user_key)
            if self.user:
                shutil.chown(user_key, self.user)
        Path("/run/sshd").mkdir(exist_ok=True)
        for host in self.hosts(site, "n"):
            host_key = self.folder / f"{host}.hostkey"
            keygen(host_key)
            home = self.folder / f"{host}.home"
            home.mkdir()
            config = self.folder / f"{host}.sshd"
            config.write_text(
                f"HostKey {host_key}\nAuthorizedKeysFile {user_key}.pub\nPidFile none\nStrictModes no\nUsePAM no\n"
                "PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
                # ssh carries no environment; the harness finds the remains of a test by this variable. Shells that
                # a test kills leave their locks in no home but its own.
                f"SetEnv LANDBRIDGE_TEST_MARKER={os.environ.get('LANDBRIDGE_TEST_MARKER', '')} HOME={home}\n"
            )
            self.start(host, "/usr/sbin/sshd", "-D", "-e", "-f", config, log=f"sshd-{host}")
            with known.open("a") as file:
                file.write(f"{host},{host.split('-')[1]} {Path(f'{host_key}.pub').read_text()}")
        # Names are the same at every site, so host keys differ by the asking host.
        known.rename(self.folder / f"known_hosts.{site}")
        for host in self.hosts(site, "n"):
            self.wait_for(f"sshd of {host}", host, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/22")

    def slurm(
        self,
        site,
        partitions=("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",),
        job_submit=None,
        burst_buffer=False,
    ):
        """A munged, a slurmctld and a slurmd per node, of this site alone. One of the partitions is called main.
        `job_submit`: Lua that judges every job, as many centres have it. `burst_buffer`: with ours."""
        own = Path(f"/run/slurm-{site}")
        (own / "state").mkdir(parents=True, mode=0o755)
        (own / "munge").mkdir(mode=0o755)
        key = own / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        # As a centre has it: the controller is nobody special, and its hooks ask the node service.
        owner = "slurm" if burst_buffer else "root"
        shutil.chown(own / "state", owner, owner)
        [controller] = self.hosts(site, "gw")[:1]
        nodes = self.hosts(site, "n")
        number = ord(site) - ord("a") + 1
        conf = own / "slurm.conf"
        lines = [
            f"ClusterName={site}",
            f"SlurmctldHost={controller}(10.{number}.0.101)",
            f"SlurmUser={owner}",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={own}/munge/socket",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "MpiDefault=none",
            "ReturnToService=2",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core",
            f"SchedulerParameters=sched_interval=1,batch_sched_delay=0{',bf_interval=1' if burst_buffer else ''}",
            "SlurmdParameters=config_overrides",
            "KillWait=2",
            f"StateSaveLocation={own}/state",
            f"SlurmdSpoolDir={own}/spool.%n",
            f"SlurmdPidFile={own}/slurmd.%n.pid",
            f"SlurmctldPidFile={own}/slurmctld.pid",
            f"SlurmdLogFile={self.folder}/slurmd-{site}-%n.log",
            f"SlurmctldLogFile={self.folder}/slurmctld-{site}.log",
        ]
        for host in nodes:
            index = host.split("-n")[1]
            lines.append(
                f"NodeName=n{index} NodeHostname={host} NodeAddr=10.{number}.0.{index} CPUs=2 RealMemory=1000 "
                "State=UNKNOWN"
            )
            (own / f"spool.n{index}").mkdir()
        lines.extend(partitions)
        if job_submit:
            (own / "job_submit.lua").write_text(job_submit)
            lines.append("JobSubmitPlugins=lua")
        lines.append("PartitionName=shut Nodes=ALL MaxTime=INFINITE State=DOWN")
        lines.append("PartitionName=short Nodes=ALL MaxTime=1 State=UP")
        conf.write_text("\n".join(lines) + "\n")
        if burst_buffer:
            install = [self.landbridge, "slurm", "install", "--controller", "--yes", "--no-start", "--conf", conf]
            places = ["--units", own / "units", "--state", own / "state" / "landbridge", "--socket", own / "hooks"]
            with (self.folder / "install.log").open("wb") as log:
                subprocess.run([str(word) for word in [*install, *places]], check=True, stdout=log)
        self.start(
            controller,
            "/usr/sbin/munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={own}/munge/socket",
            f"--pid-file={own}/munge/pid",
            f"--seed-file={own}/munge/seed",
            "--origin=127.0.0.1",
            log=f"munged-{site}",
        )
        self.wait_for(f"munged of {site}", controller, "test", "-S", own / "munge/socket")
        slurm = {"SLURM_CONF": str(conf)}
        self.start(controller, "/usr/sbin/slurmctld", "-D", "-f", conf, log=f"slurmctld-{site}", environment=slurm)
        for host in nodes:
            self.start(
                host,
                "/usr/sbin/slurmd",
                "-D",
                "-f",
                conf,
                "-N",
                host.split("-")[1],
                log=f"slurmd-{host}",
                environment=slurm,
            )
        idle = (
            f"test $(SLURM_CONF={conf} sinfo -h -p main -o '%D %t' | "
            f"awk '$2==\"idle\" {{n+=$1}} END {{print n+0}}') = {len(nodes)}"
        )
        self.wait_for(f"Slurm of {site}", controller, "bash", "-c", idle)

    def gridengine(self, site):
        """A sge_qmaster on the site's first gateway and an sge_execd per node, of this site alone."""
        cell = gridengine.Cell(self, site, self.hosts(site, "gw")[0], self.hosts(site, "n"))
        self.environments[site] = cell.environment
        cell.start()

    def openpbs(self, site, **options):
        """A pbs_server on the site's first gateway and a pbs_mom per node, of this site alone."""
        pbs = openpbs.Complex(self, site, self.hosts(site, "gw")[0], self.hosts(site, "n"), **options)
        self.environments[site] = pbs.environment
        pbs.start()

    def openpbs_vnodes(self, site):
        self.openpbs(site, vnodes=True)

    def slurm_staging(self, site):
        """Slurm with our burst buffer, and its node services."""
        self.slurm(site, burst_buffer=True)
        self.node_service(site)

    def node_service(self, site):
        """The service of each node, and of the controller, which starts movers for the users of Slurm."""
        own = Path(f"/run/slurm-{site}")
        keep = [word for name in ("SLURM_CONF", "LANDBRIDGE_TEST_MARKER") for word in ("--keep-variable", name)]
        environment = {"SLURM_CONF": str(own / "slurm.conf")}
        for host in [*self.hosts(site, "n"), *self.hosts(site, "gw")[:1]]:
            name = host.split("-")[1]
            words = [
                self.landbridge,
                "slurm",
                "node-service",
                "--node",
                name,
                "--munge-socket",
                own / "munge/socket",
                *keep,
            ]
            words += ["--slurm-user", pwd.getpwnam("slurm").pw_uid, "--programs", self.folder / f"programs-{host}"]
            if name.startswith("gw"):
                words += ["--hooks", own / "hooks"]
            # The rights that the unit file leaves it.
            rights = "--bounding-set=-all,+setuid,+setgid,+setpcap,+kill"
            words = ["setpriv", "--no-new-privs", "--inh-caps=-all", rights, "--", *words]
            self.start_again(host, *words, log=f"service-{host}", environment=environment)
        for host in self.hosts(site, "n"):
            self.wait_for(f"service of {host}", host, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7760")

    def write_sites(self, plans):
        """The lab's sites file with other starters; keys stay where they are."""
        sites = self.lab_sites.read_text().split("[[site]]\n")[1:]
        text = ""
        for site in sites:
            name = re.search(r'^name = "(.*)"', site)[1]
            key = self.lab_sites.parent / f"{name}.key"
            if self.is_own(name):
                key = self.own_copy(key)
            site = site.replace(f'key = "{name}.key"', f'key = "{key}"')
            plan = plans.get(name, {})
            site = plan.get("head", "") + site
            if "starter" in plan:
                site = site[: site.index("[site.starter]")]
                if not plan.get("nodes", True):
                    site = re.sub(r"\[\[site\.node\]\]\n(.+\n)+", "", site)
                site += f"[site.starter]\n{plan['starter']}\n{plan.get('lines', '')}\n"
                site = site.replace("{folder}", str(self.folder))
            else:
                site += plan.get("lines", "")
            text += f"[[site]]\n{site}\n"
        path = self.folder / "sites.toml"
        path.write_text(text)
        if self.user:
            # Where a user's commands look for it.
            usual = Path(self.home) / ".config" / "landbridge" / "sites.toml"
            usual.parent.mkdir(parents=True, exist_ok=True)
            usual.write_text(text)
            subprocess.run(["chown", "-R", self.user, Path(self.home) / ".config"], check=True)
        return path, [re.search(r'^name = "(.*)"', site)[1] for site in sites]

    def is_own(self, site):
        """Whether a site's gateway is the plan's user's."""
        services = self.plans.get(site, {}).get("services", [])
        return bool(self.user) and bool({"node_service", "slurm_staging", "openpbs"} & set(services))

    def own_copy(self, key):
        """A site's key for the plan's user alone."""
        copy = self.folder / f"{self.user}-{key.name}"
        copy.write_bytes(key.read_bytes())
        copy.chmod(0o600)
        found = pwd.getpwnam(self.user)
        os.chown(copy, found.pw_uid, found.pw_gid)
        return copy

    def gateway(self, site, sites, own=False):
        environment = {"SLURM_CONF": f"/run/slurm-{site}/slurm.conf"} if Path(f"/run/slurm-{site}").exists() else {}
        environment |= self.environments.get(site, {})
        for host in self.hosts(site, "gw"):
            number = host.split("-gw")[1]
            words = [self.landbridge, "gateway", "--gateway", f"gw{number}", "--sites", sites, "--site", site]
            words = self.as_user(*words) if own else words
            start = self.start_again if self.plans.get(site, {}).get("restart") else self.start
            start(host, *words, log=f"gateway-{site}" if number == "1" else f"gateway-{host}", environment=environment)
            self.wait_for(f"gateway {number} of {site}", host, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/7700")

    def end(self):
        """In reverse order, so that gateways can still reach their services."""
        for _, child in reversed(self.children):
            child.terminate()
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def keygen(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, stdin=subprocess.DEVNULL)


def main():
    plan = json.loads(Path(sys.argv[1]).read_text())
    inside = Inside(plan)
    # Ctrl-C and SIGTERM are for the command; this process waits for it.
    command = None
    signal.signal(signal.SIGTERM, lambda number, _: command and command.send_signal(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for site, wanted in plan["sites"].items():
            for service in wanted.get("services", []):
                getattr(inside, service)(site)
        path, names = inside.write_sites(plan["sites"])
        for site in names:
            inside.gateway(site, path, inside.is_own(site))
        host = plan.get("host", "a-n1")
        host_site = host.split("-")[0]
        conf = Path(f"/run/slurm-{host_site}/slurm.conf")
        batch = {"SLURM_CONF": str(conf)} if conf.exists() else {}
        batch |= inside.environments.get(host_site, {})
        command = subprocess.Popen(
            inside.enter(host, *plan["command"]),
            env={**os.environ, "LANDBRIDGE_SITES": str(path), **batch},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        return command.wait()
    finally:
        inside.end()


if __name__ == "__main__":
    sys.exit(main())
