"""OpenPBS of a site in a lab: pbs_server with its PostgreSQL, pbs_comm and pbs_sched on one host, pbs_mom on each
execution host.

Debian has no package of OpenPBS, so this uses an installation from its sources, wherever /etc/pbs.conf places it.
"""

import os
import shutil
import subprocess
from pathlib import Path

CONFIGURATION = Path("/etc/pbs.conf")
DEFAULT_PLACE = Path("/opt/pbs")
DATABASE_USER = "postgres"
POSTGRESQL = Path("/usr/lib/postgresql")
# Folders of PBS_HOME with their modes, as pbs_postinstall makes them.
FOLDERS = {
    "aux": 0o755,
    "checkpoint": 0o700,
    "comm_logs": 0o755,
    "mom_logs": 0o755,
    "mom_priv": 0o751,
    "mom_priv/config.d": 0o755,
    "mom_priv/hooks": 0o750,
    "mom_priv/hooks/tmp": 0o750,
    "mom_priv/jobs": 0o751,
    "sched_logs": 0o755,
    "sched_priv": 0o750,
    "server_logs": 0o755,
    "server_priv": 0o750,
    "server_priv/accounting": 0o755,
    "server_priv/hooks": 0o750,
    "server_priv/hooks/tmp": 0o750,
    "server_priv/jobs": 0o750,
    "server_priv/users": 0o750,
    "spool": 0o1777,
    "undelivered": 0o1777,
}


def place():
    """PBS_EXEC of this machine."""
    if CONFIGURATION.exists():
        for line in CONFIGURATION.read_text().splitlines():
            name, _, value = line.strip().partition("=")
            if name == "PBS_EXEC" and value:
                return Path(value)
    return DEFAULT_PLACE


def missing():
    """The reason why no OpenPBS can run here, or None."""
    if not (place() / "sbin" / "pbs_server.bin").exists():
        return f"no OpenPBS in {place()}; Debian has no package of it"
    if not list(POSTGRESQL.glob("*/bin/initdb")):
        return "OpenPBS needs PostgreSQL: apt install postgresql"
    return None


class Complex:
    """PBS's server, communication daemon, scheduler and execution hosts of a lab's site. Daemons stay in the foreground
    as children of the lab's `inside`; the database and the jobs are in the process namespaces of the hosts, which end
    with the lab."""

    def __init__(self, inside, name, server, hosts, *, slots=2, vnodes=False):
        """`server`: the host of pbs_server, which also submits jobs. `slots`: of each execution host. `vnodes`: each
        execution host has a vnode for each of its slots."""
        self.inside, self.server, self.hosts, self.slots, self.vnodes = inside, server, hosts, slots, vnodes
        self.root = Path(f"/run/openpbs-{name}")
        self.exec = place()
        newest = max(POSTGRESQL.glob("*/bin"), key=lambda folder: float(folder.parent.name))
        self.path = f"{self.exec}/bin:{newest}:{os.environ['PATH']}"
        self.environment = self.environment_of(server)

    def environment_of(self, host):
        return {"PBS_CONF_FILE": str(self.home(host) / "pbs.conf"), "PATH": self.path}

    def home(self, host):
        return self.root / host

    def start(self):
        """Returns once all execution hosts are free."""
        for host in (self.server, *self.hosts):
            self.create(host)
        self.create_database()
        self.daemon(self.server, "pbs_comm")
        self.daemon(self.server, "pbs_server", "-t", "create")
        self.daemon(self.server, "pbs_sched")
        for host in self.hosts:
            self.daemon(host, "pbs_mom")
        self.inside.wait_for(f"pbs_server of {self.server}", self.server, *self.words("qstat", "-B"))
        self.configure()
        free = f"test $(pbsnodes -av | grep -c 'state = free') = {len(self.hosts) * (1 + self.vnodes * self.slots)}"
        self.inside.wait_for("OpenPBS", self.server, *self.with_environment("sh", "-c", free))

    def create(self, host):
        """PBS_HOME of a host, as pbs_postinstall makes it."""
        home = self.home(host)
        home.mkdir(parents=True)
        for folder, mode in FOLDERS.items():
            (home / folder).mkdir()
            (home / folder).chmod(mode)
        (home / "pbs.conf").write_text(
            f"PBS_EXEC={self.exec}\nPBS_HOME={home}\nPBS_SERVER={self.server}\n"
            f"PBS_START_SERVER={int(host == self.server)}\nPBS_START_SCHED={int(host == self.server)}\n"
            f"PBS_START_COMM={int(host == self.server)}\nPBS_START_MOM={int(host != self.server)}\n"
        )
        (home / "pbs_environment").write_text("PATH=/bin:/usr/bin\n")
        for name, shipped in {
            "dedicated_time": "pbs_dedicated",
            "holidays": "pbs_holidays",
            "resource_group": "pbs_resource_group",
            "sched_config": "pbs_sched_config",
        }.items():
            shutil.copy(self.exec / "etc" / shipped, home / "sched_priv" / name)
        # The hosts share all files outside /tmp. PBS makes a job's TMPDIR on the job's own nodes only.
        (home / "mom_priv" / "config").write_text(
            f"$clienthost {self.server}\n$usecp *:/ /\n$tmpdir /tmp\n$logevent 0x1ff\n"
        )
        if self.vnodes and host != self.server:
            lines = ["$configversion 2", f"{host}: resources_available.ncpus = 0"]
            for slot in range(self.slots):
                lines.append(f"{host}[{slot}]: resources_available.ncpus = 1")
            (home / "mom_priv" / "config.d" / "vnodes").write_text("\n".join(lines) + "\n")

    def create_database(self):
        """An empty database. Its user must not be root, and its socket is in Debian's place."""
        (self.home(self.server) / "server_priv" / "db_user").write_text(DATABASE_USER)
        (self.home(self.server) / "server_priv" / "db_user").chmod(0o600)
        sockets = Path("/run/postgresql")
        sockets.mkdir(exist_ok=True)
        shutil.chown(sockets, DATABASE_USER, DATABASE_USER)
        script = f". $PBS_CONF_FILE; . {self.exec}/libexec/pbs_db_env; export PBS_EXEC PBS_HOME PBS_SERVER PGSQL_BIN; "
        script += f"PBS_DATA_SERVICE_USER={DATABASE_USER} PBS_DATA_SERVICE_PORT=15007 "
        script += f"exec sh {self.exec}/libexec/pbs_db_utility install_db"
        self.at_server("bash", "-c", script)

    def configure(self):
        """Hosts, queues and limits."""
        commands = [
            # Jobs of root are refused by default.
            "set server acl_roots += root@*",
            "set server flatuid = True",
            "set server job_history_enable = True",
            "set server scheduling = True",
            "set server resources_default.ncpus = 1",
            "create queue workq queue_type = Execution, enabled = True, started = True, kill_delay = 2",
            "set server default_queue = workq",
        ]
        for host in self.hosts:
            commands.append(f"create node {host}")
            if not self.vnodes:
                commands.append(f"set node {host} resources_available.ncpus = {self.slots}")
        for command in commands:
            self.at_server("qmgr", "-c", command)

    def with_environment(self, *words, host=None):
        environment = self.environment_of(host or self.server)
        return ["env", *(f"{name}={value}" for name, value in environment.items()), *words]

    def words(self, program, *arguments):
        """The words of one of PBS's commands at this site."""
        return self.with_environment(self.exec / "bin" / program, *arguments)

    def daemon(self, host, program, *arguments):
        # -N: it stays in the foreground.
        environment = {**self.environment_of(host), "LD_LIBRARY_PATH": f"{self.exec}/lib"}
        words = [self.exec / "sbin" / program, "-N", *arguments]
        # Nobody needs their state after a test, so they end at once.
        killed = f'{" ".join(map(str, words))} & trap "kill -KILL $!" TERM; wait $!'
        self.inside.start(host, "sh", "-c", killed, log=f"{program}-{host}", environment=environment)

    def at_server(self, *words):
        enter = self.inside.enter(self.server, *self.with_environment(*words))
        done = subprocess.run(enter, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout
