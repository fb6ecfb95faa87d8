"""Trunks through ssh, where nothing else passes: a job runs across them and goes on when the connections are cut, and
no ssh is left of a gateway, however it ended. The sshd is a real one; the gateways have no `advertise`, so there is no
other way."""

import getpass
import os
import random
import re
import subprocess
import time
from pathlib import Path

import pytest

from harness import LANDBRIDGE, CuttingProxy, LoopbackSites, free_port, listening, wait_until
from test_trunks import plain, start_exchange

pytestmark = pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt install openssh-server")


def keygen(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], stdin=subprocess.DEVNULL, check=True)


class SshSites(LoopbackSites):
    """Sites a and b, whose gateways reach each other by an sshd of site b and by nothing else. The sshd stands behind a
    proxy that can be cut."""

    def __init__(self, workshop, proxy, links=None, permit=None, **options):
        """`permit`: where the sshd lets site a's key go, if not to the gateway of site b."""
        super().__init__(workshop, hidden="ab", links=links or 1, **options)
        self.proxy, self.sshd_port = proxy, free_port()
        self.login = f"{getpass.getuser()}@127.0.0.1:{proxy.port}"
        inside = f'inside = "127.0.0.1:{self.ports["b"]}"'
        changes = {"login": (inside, f'ssh = "{self.login}"\n{inside}')}
        if links is None:
            changes["links"] = ("links = 1\n", "")
        self.file = self.write("sites.toml", **changes)
        self.key, self.host_key = workshop.folder / "a.trunk", workshop.folder / "host_key"
        keygen(self.key)
        keygen(self.host_key)
        public = Path(f"{self.key}.pub").read_text()
        self.authorized = workshop.folder / "authorized_keys"
        permit = permit or f"127.0.0.1:{self.ports['b']}"
        self.authorized.write_text(f'restrict,port-forwarding,permitopen="{permit}",command="/bin/false" {public}')
        self.start_sshd()
        proxy.serve(self.sshd_port)

    def start_sshd(self):
        config = self.workshop.folder / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1:{self.sshd_port}\nHostKey {self.host_key}\n"
            f"AuthorizedKeysFile {self.authorized}\nPidFile none\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self.sshd = self.workshop.start(["/usr/sbin/sshd", "-D", "-e", "-f", config], limit=120)
        wait_until(lambda: listening(self.sshd_port) or self.sshd.child.poll() is not None, 10, "sshd")


def ssh_of(gateway):
    """The ssh clients of a gateway; those that are about to become one count too."""
    return [process for process in gateway.processes() if "-W" in process.words]


def is_up(gateway):
    log = plain(gateway.err())
    return log.rfind("trunk up") > log.rfind("trunk down")


@pytest.mark.one_mpi
def test_a_job_runs_through_ssh_and_survives_its_loss(workshop, mpi):
    """The TCP connections are reset, ssh is killed: once all of it, then by chance. Every byte is checked."""
    with CuttingProxy() as proxy:
        sites = SshSites(workshop, proxy, patience="60s")
        gateways = sites.start_gateways()
        a = gateways["a", 1]
        wait_until(lambda: len(ssh_of(a)) >= 2, 10, "a second connection")
        running, stop = start_exchange(workshop, sites, mpi, rounds=20)
        proxy.cut()
        chance, killed, until = random.Random(7), 0, time.monotonic() + 90
        while (proxy.cuts < 8 or killed < 8) and time.monotonic() < until:
            time.sleep(0.5)
            assert running.child.poll() is None, f"{running.finish()}\n{plain(a.err())}\n{sites.sshd.err()}"
            killed += sum(process.kill() for process in ssh_of(a) if chance.random() < 0.4)
            time.sleep(0.5)
            proxy.cut(lambda: chance.random() < 0.7)
            # On a busy machine, ssh may take longer to connect than it is from one cut to the next.
            wait_until(lambda: is_up(a), 30, "the trunk to come back")
        stop.write_text("stop\n")
        done = running.finish().check()
        assert "rounds good on 4 ranks" in done.out, str(done)
        assert proxy.cuts >= 8 and killed >= 8, (
            f"only {proxy.cuts} connections and {killed} clients were there to be cut"
        )
        assert "through ssh to" in plain(a.err()), a.err()


@pytest.mark.one_mpi
def test_a_silent_network_loses_nothing(workshop, mpi):
    """Nothing passes and neither end notices: links are given up after 3 s, and dialled again while the job waits."""
    with CuttingProxy() as proxy:
        sites = SshSites(workshop, proxy, links=2, patience="30s")
        gateways = sites.start_gateways()
        running, stop = start_exchange(workshop, sites, mpi, rounds=20)
        proxy.hold(True)
        wait_until(lambda: "trunk down" in plain(gateways["a", 1].err()), 15, "silence to be noticed")
        proxy.hold(False)
        stop.write_text("stop\n")
        done = running.finish().check()
        assert "rounds good on 4 ranks" in done.out, str(done)


@pytest.mark.parametrize("number", [9, 15])
def test_no_ssh_is_left_of_a_gateway(workshop, number):
    """kill -9 and a stop, while connections stand and while ssh tries in vain to get any."""
    with CuttingProxy() as proxy:
        sites = SshSites(workshop, proxy, links=3)
        for cut in (False, True):
            gateways = sites.start_gateways()
            a = gateways["a", 1]
            wait_until(lambda a=a: len(ssh_of(a)) == 3, 10, "three connections")
            proxy.hold(cut)
            a.child.send_signal(number)
            # Fails if any process that the gateway started is left.
            a.finish(within=30)
            gateways["b", 1].child.terminate()
            gateways["b", 1].finish(within=8)
            proxy.hold(False)
            proxy.cut()


def test_check_and_view_say_that_it_goes_through_ssh(workshop):
    with CuttingProxy() as proxy:
        sites = SshSites(workshop, proxy, links=2)
        sites.start_gateways()
        environment = {"LANDBRIDGE_SITES": str(sites.file)}
        for site in "ab":
            done = workshop.run(
                [LANDBRIDGE, "sites", "check", "--from", site], environment=environment, limit=20
            ).check()
            assert "through ssh" in done.out, str(done)
        done = workshop.run(
            [LANDBRIDGE, "top", "--json", "--once", "--from", "a"], environment=environment, limit=20
        ).check()
        assert f"through ssh to {sites.login}" in done.out, str(done)


@pytest.mark.parametrize(
    "fault, words",
    [
        ("key", ("Permission denied", "landbridge sites add b", "a.trunk.pub")),
        ("permit", ("prohibited", "AllowTcpForwarding")),
        ("host", ("ssh-keygen -R", "trunk_known_hosts")),
        ("sshd", ("through ssh to", "Connection")),
        ("gateway", ("nobody answers at 127.0.0.1:", "is the gateway of site b running?")),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(workshop, fault, words):
    with CuttingProxy() as proxy:
        sites = SshSites(workshop, proxy, permit="127.0.0.1:9" if fault == "permit" else None)
        if fault == "key":
            sites.authorized.write_text("")
        if fault == "host":
            # Another machine was there before.
            keygen(workshop.folder / "old")
            public = (workshop.folder / "old.pub").read_text()
            (workshop.folder / "trunk_known_hosts").write_text(f"[127.0.0.1]:{proxy.port} {public}")
        if fault == "sshd":
            sites.sshd.end()
        a = sites.start_gateway("a")
        if fault != "gateway":
            sites.start_gateway("b")
        environment = {"LANDBRIDGE_SITES": str(sites.file)}
        wait_until(
            lambda: all(word in plain(a.err()) for word in words), 15, f"{words} in what the gateway says: {a.err()}"
        )
        done = workshop.run([LANDBRIDGE, "sites", "check", "--from", "a"], environment=environment, limit=30)
        assert done.code == 1, str(done)
        assert all(word in done.out for word in words), str(done)
        if fault == "host":
            # The remedy, as printed.
            remedy = re.search("`(ssh-keygen -R [^`]* -f [^`]*)`", done.out)[1]
            subprocess.run(remedy, shell=True, check=True, capture_output=True)
            wait_until(lambda: "trunk up" in plain(a.err()), 40, "the trunk")
