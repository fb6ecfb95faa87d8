"""Runs inside a lab, as its command: ssh accounts on login nodes, as a person has them, then that person's commands.

accounts.py PLAN.json, where the plan has
  folder     where keys, homes and logs go
  landbridge
  logins     hosts that get an sshd (on port 2222) and a home directory of their own
  user       who logs in, if not root
  family     "6": hosts have IPv6 addresses only
  sshd       more lines for the configuration of each sshd
  sshd_of    the same for single hosts
  slurm      for each site with Slurm: arguments of `Inside.slurm`
  environment   the environment of a login there
  steps      one after the other: `host`, `words`, and perhaps `environment`, `stdin`, `limit`; `interrupt`: a path,
             when it exists the step gets SIGINT; `background`: it runs until the end. Instead of `words`: `follows`,
             the number of an earlier step; what it printed between backquotes and matches `pattern` is typed as
             printed, in a shell, with `fill` in place of words such as NAME. The result of each is written to
             results.json.

A private sshd per login, with its own host key and one user key; the user's ssh is the real one, with its own
configuration.
"""

import json
import os
import pwd
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from inside import Inside

PORT = 2222
READY_S = 60
LIMIT_S = 120


class Accounts:
    def __init__(self, plan):
        self.plan = plan
        self.folder = Path(plan["folder"])
        self.landbridge = plan["landbridge"]
        self.children = []
        self.services = Inside(plan)

    def home(self, host):
        return self.folder / "homes" / host

    def variables(self, host):
        """The environment of this person on a host."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("LANDBRIDGE_SITES", "XDG_"))}
        home = self.home(host)
        home.mkdir(parents=True, exist_ok=True)
        return {**own, "HOME": str(home), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def enter(self, host, words):
        return [self.landbridge, "lab", "enter", host, "--", *map(str, words)]

    def prepare_ssh(self):
        """A user key, and an `ssh` on the path that knows this person's configuration instead of the machine's."""
        keygen(self.folder / "user_key")
        (self.folder / "known_hosts").touch()
        config = self.folder / "ssh_config"
        config.write_text(
            f"Host *\n  IdentityFile {self.folder / 'user_key'}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder / 'known_hosts'}\n  StrictHostKeyChecking yes\n"
            "  GlobalKnownHostsFile /dev/null\n"
            f"{self.plan.get('ssh_config', '')}"
        )
        (self.folder / "bin").mkdir()
        shim = self.folder / "bin" / "ssh"
        shim.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
        shim.chmod(0o755)
        (self.folder / "bin" / "landbridge").symlink_to(self.landbridge)

    def sshd(self, host):
        host_key = self.folder / f"{host}.hostkey"
        keygen(host_key)
        carried = {
            "HOME": self.variables(host)["HOME"],
            "PATH": self.variables(host)["PATH"],
            # ssh forwards no environment; the harness finds a test's leftovers by this variable.
            "LANDBRIDGE_TEST_MARKER": os.environ.get("LANDBRIDGE_TEST_MARKER", ""),
            **self.plan.get("environment", {}),
        }
        conf = Path(f"/run/slurm-{host[0]}/slurm.conf")
        if conf.exists():
            carried["SLURM_CONF"] = str(conf)
        settings = " ".join(f'"{key}={value}"' for key, value in carried.items())
        config = self.folder / f"{host}.sshd"
        config.write_text(
            f"Port {PORT}\nHostKey {host_key}\nAuthorizedKeysFile {self.folder / 'user_key'}.pub "
            f"{self.home(host)}/.ssh/authorized_keys\nPidFile none\nStrictModes no\n"
            "UsePAM no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nSetEnv {settings}\n"
            f"{self.plan.get('sshd', '')}{self.plan.get('sshd_of', {}).get(host, '')}"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        words = ["/usr/sbin/sshd", "-D", "-e", "-f", config]
        if user := self.plan.get("user"):
            # An ordinary user's own sshd admits only that user, and needs no root.
            found = pwd.getpwnam(user)
            for path in (self.home(host), host_key):
                os.chown(path, found.pw_uid, found.pw_gid)
            words = ["setpriv", "--reuid", found.pw_uid, "--regid", found.pw_gid, "--clear-groups", *words]
        log = (self.folder / f"sshd-{host}.log").open("ab")
        self.children.append(
            subprocess.Popen(
                self.enter(host, words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        )
        end = time.monotonic() + READY_S
        while subprocess.run(
            self.enter(host, ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{PORT}"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        ).returncode:
            if time.monotonic() > end:
                sys.exit(f"accounts: no sshd on {host}: {(self.folder / f'sshd-{host}.log').read_text()}")
            time.sleep(0.1)
        public = Path(f"{host_key}.pub").read_text()
        if host not in self.plan.get("strangers", []):
            with (self.folder / "known_hosts").open("a") as file:
                file.write(f"[{wan(host, self.plan.get('family', '4'))}]:{PORT} {public}")

    def step(self, step):
        environment = {**self.variables(step["host"]), **step.get("environment", {})}
        out, err = self.folder / "step.out", self.folder / "step.err"
        begin = time.monotonic()
        with out.open("wb") as out_file, err.open("wb") as err_file:
            child = subprocess.Popen(
                self.enter(step["host"], step["words"]),
                env=environment,
                cwd=step.get("cwd", self.folder),
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
            )
            if step.get("background"):
                self.children.append(child)
                return {"code": None, "out": "", "err": "", "seconds": 0}
            limit = step.get("limit", LIMIT_S)
            if "interrupt" in step:
                while (
                    not Path(step["interrupt"]).exists() and child.poll() is None and time.monotonic() - begin < limit
                ):
                    time.sleep(0.05)
                child.send_signal(signal.SIGINT)
            try:
                code = child.wait(timeout=max(1, limit - (time.monotonic() - begin)))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                code = "overdue"
        texts = {"out": out.read_text(errors="replace"), "err": err.read_text(errors="replace")}
        return {"code": code, **texts, "seconds": time.monotonic() - begin}

    def run(self):
        results = []
        try:
            self.prepare_ssh()
            for site, arguments in self.plan.get("slurm", {}).items():
                self.services.slurm(site, **arguments)
            for host in self.plan["logins"]:
                self.sshd(host)
            for step in self.plan["steps"]:
                if "follows" in step:
                    step["words"] = printed(results[step["follows"]], step["pattern"], step["fill"])
                results.append({"words": step["words"], **self.step(step)})
                (self.folder / "results.json").write_text(json.dumps(results))
                if step.get("must") and results[-1]["code"] != 0:
                    break
        finally:
            for child in reversed(self.children):
                child.terminate()
            for child in self.children:
                try:
                    child.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    child.kill()
            self.services.end()


def printed(result, pattern, fill):
    """The shell's words for the command that a result printed."""
    text = result["out"] + result["err"]
    found = [command for command in re.findall(r"`([^`]+)`", text) if re.fullmatch(pattern, command)]
    if not found:
        return ["sh", "-c", f"echo no command that matches {shlex.quote(pattern)} was printed >&2; exit 99"]
    command = found[0]
    for word, value in fill.items():
        command = command.replace(word, value)
    return ["sh", "-c", command]


def wan(host, family="4"):
    """The address of a lab's gateway host on the wide-area network, IPv4 or ("6") IPv6."""
    site, number = ord(host[0]) - ord("a") + 1, host.rsplit("gw", 1)[1]
    return f"2001:db8:ffff::{site:x}:{int(number):x}" if family == "6" else f"198.18.{site}.{number}"


def keygen(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], stdin=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    Accounts(json.loads(Path(sys.argv[1]).read_text())).run()
