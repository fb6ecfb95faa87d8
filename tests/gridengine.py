"""A cell of Debian's Grid Engine: sge_qmaster on one host, sge_execd on each execution host."""

import os
import subprocess
from pathlib import Path

PROGRAMS = Path("/usr/lib/gridengine")
SHARED = Path("/usr/share/gridengine")
PACKAGES = {
    "gridengine-master": PROGRAMS / "sge_qmaster",
    "gridengine-exec": PROGRAMS / "sge_execd",
    "gridengine-client": PROGRAMS / "qsub",
}
QUEUE = "main.q"
# A queue that starts no job until a test enables it: `qmod -e shut.q`.
SHUT = "shut.q"
# Spreads the slots of a job over its hosts, and lets the job start tasks on all of them with `qrsh -inherit`.
PARALLEL_ENVIRONMENT = "mpi"


def missing_packages():
    return [package for package, program in PACKAGES.items() if not program.exists()]


def with_values(text, values):
    """A configuration of lines `name value`, with other values for some names. A value that continues on further lines
    is kept as it is."""
    lines = []
    for line in text.splitlines():
        name = line.split(maxsplit=1)[0] if line.strip() else ""
        lines.append(f"{name} {values[name]}" if name in values else line)
    unknown = set(values) - {line.split(maxsplit=1)[0] for line in lines if line.strip()}
    assert not unknown, f"no such parameters: {sorted(unknown)}"
    return "\n".join(lines) + "\n"


class Cell:
    """One cell of a lab's site. Its daemons stay in the foreground as children of the lab's `inside`; their jobs are in
    the process namespaces of the hosts, which end with the lab."""

    def __init__(self, inside, name, master, hosts, *, slots=2):
        """`master`: the host of sge_qmaster, which also submits jobs. `slots`: of each execution host."""
        self.inside, self.name, self.master, self.hosts, self.slots = inside, name, master, hosts, slots
        self.root = Path(f"/run/gridengine-{name}")
        self.common = self.root / name / "common"
        self.spool = self.root / "spool"
        # Every host has a network of its own, so the usual ports are free.
        self.environment = {
            "SGE_ROOT": str(self.root),
            "SGE_CELL": name,
            "SGE_QMASTER_PORT": "6444",
            "SGE_EXECD_PORT": "6445",
        }

    def start(self):
        """Returns once all execution hosts are up."""
        self.create()
        # A SIGTERM ends sge_qmaster only after many seconds. Nobody needs its state afterwards.
        killed = f'{PROGRAMS}/sge_qmaster & trap "kill -KILL $!" TERM; wait $!'
        self.daemon(self.master, "sh", "-c", killed, log=f"qmaster-{self.name}")
        self.inside.wait_for(f"qmaster of {self.name}", self.master, *self.words("qconf", "-sh"))
        self.configure()
        for host in self.hosts:
            self.daemon(host, PROGRAMS / "sge_execd", log=f"execd-{host}")
        # A queue has the state `u` at hosts whose execd has not reported yet, and shows their architecture after it.
        up = f"test $({PROGRAMS}/qstat -f -q {QUEUE} | grep -Ec '^{QUEUE}@[^ ]+ .* lx-[^ ]+ *$') = {len(self.hosts)}"
        self.inside.wait_for(f"Grid Engine of {self.name}", self.master, *self.with_environment("bash", "-c", up))

    def create(self):
        """The cell's folders and its spool, as Debian's init_cluster and inst_sge make them."""
        self.common.mkdir(parents=True)
        for folder in ("qmaster/job_scripts", *self.hosts):
            (self.spool / folder).mkdir(parents=True)
        (self.root / "util").symlink_to(SHARED / "util")
        architecture = subprocess.check_output([SHARED / "util" / "arch"], text=True).strip()
        for folder in ("bin", "utilbin", "lib"):
            (self.root / folder).mkdir()
            (self.root / folder / architecture).symlink_to(PROGRAMS)
        places = f"{self.common};{self.spool / 'qmaster'}"
        (self.common / "act_qmaster").write_text(f"{self.master}\n")
        (self.common / "bootstrap").write_text(
            with_values(
                (SHARED / "default-bootstrap").read_text(),
                {
                    "admin_user": "none",
                    "spooling_method": "classic",
                    "spooling_lib": "libspoolc",
                    "spooling_params": places,
                    "binary_path": PROGRAMS,
                    "qmaster_spool_dir": self.spool / "qmaster",
                },
            )
        )
        # Jobs of root are refused by default.
        configuration = {"execd_spool_dir": self.spool, "min_uid": 0, "min_gid": 0}
        global_file = self.written("global", with_values((SHARED / "default-configuration").read_text(), configuration))
        resources = SHARED / "util" / "resources"
        self.in_spool("spoolinit", "classic", "libspoolc", places, "init")
        self.in_spool("spooldefaults.bin", "configuration", global_file)
        self.in_spool("spooldefaults.bin", "complexes", resources / "centry")
        self.in_spool("spooldefaults.bin", "usersets", resources / "usersets")
        self.in_spool("spooldefaults.bin", "managers", "root")

    def configure(self):
        """Hosts, queues and the parallel environment."""
        hosts = ",".join(self.hosts)
        self.qconf("-ah", hosts)
        self.qconf("-as", f"{self.master},{hosts}")
        self.qconf("-Ahgrp", self.written("hosts", f"group_name @allhosts\nhostlist {hosts.replace(',', ' ')}\n"))
        shipped = (SHARED / "util" / "resources" / "pe" / "mpi").read_text()
        shipped = "\n".join(line for line in shipped.splitlines() if not line.startswith("#"))
        values = {"pe_name": PARALLEL_ENVIRONMENT, "allocation_rule": "$round_robin", "control_slaves": "TRUE"}
        self.qconf("-Ap", self.written("pe", with_values(shipped, values)))
        template = self.qconf("-sq")
        values = {
            "qname": QUEUE,
            "hostlist": "@allhosts",
            "slots": self.slots,
            "pe_list": PARALLEL_ENVIRONMENT,
            # Other tests may keep the machine busy.
            "shell": "/bin/bash",
            "load_thresholds": "NONE",
        }
        self.qconf("-Aq", self.written("queue", with_values(template, values)))
        values |= {"qname": SHUT, "initial_state": "disabled"}
        self.qconf("-Aq", self.written("shut", with_values(template, values)))
        # By default a job waits up to 15 s for the scheduler.
        quick = {
            "schedule_interval": "0:0:1",
            "flush_submit_sec": 1,
            "flush_finish_sec": 1,
            "job_load_adjustments": "NONE",
            "schedd_job_info": "true",
        }
        self.qconf("-Msconf", self.written("scheduler", with_values(self.qconf("-ssconf"), quick)))

    def with_environment(self, *words):
        return ["env", *(f"{name}={value}" for name, value in self.environment.items()), *words]

    def words(self, program, *arguments):
        """The words of one of Grid Engine's commands in this cell."""
        return self.with_environment(PROGRAMS / program, *arguments)

    def daemon(self, host, *words, log):
        # SGE_ND: it stays in the foreground. Jobs inherit the environment of their execd.
        environment = {**self.environment, "SGE_ND": "1", "LD_LIBRARY_PATH": str(PROGRAMS)}
        self.inside.start(host, *words, log=log, environment=environment)

    def in_spool(self, program, *arguments):
        environment = {**os.environ, **self.environment, "LD_LIBRARY_PATH": str(PROGRAMS)}
        subprocess.run([PROGRAMS / program, *arguments], check=True, stdin=subprocess.DEVNULL, env=environment)

    def qconf(self, *arguments):
        enter = self.inside.enter(self.master, *self.words("qconf", *arguments))
        done = subprocess.run(enter, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"qconf {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def written(self, name, text):
        path = self.root / f"{name}.conf"
        path.write_text(text)
        return path
