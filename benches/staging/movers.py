"""Movers of a file from one folder of this machine to another at a rate: Landbridge, the paper's movers, and common
tools. Each ends only after the file is on the disk: `sync FILE` follows those that do not call fsync."""

import functools
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from machine import LANDBRIDGE, PROGRAMS, VENV, Failed, Missing, run

from .applications import MPI

MIB = 1 << 20
BLOCK = 4 * MIB


@dataclass
class Mover:
    """The command that moves `source` to `target`, and the programs that it needs."""

    name: str
    words: list
    source: Path
    target: Path
    environment: dict = field(default_factory=dict)

    def prepare(self):
        """Removes the target, and the source's pages in the page cache, because input is rarely there."""
        for path in self.target.parent.glob(f"{self.target.name}*"):
            path.unlink()
        forget(self.source)

    def check(self):
        if not same(self.source, self.target):
            raise Failed(f"{self.name}: {self.target} is not what {self.source} is")
        forget(self.target)


def same(one, other):
    """Returns true if two files have the same contents."""
    with open(one, "rb") as first, open(other, "rb") as second:
        while block := first.read(MIB):
            if second.read(MIB) != block:
                return False
        return not second.read(1)


def forget(path):
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _shell(*commands):
    return ["sh", "-ec", "; ".join(shlex.join(str(word) for word in words) for words in commands)]


@functools.cache
def knows(option):
    """Returns true if the measured build has this option of `landbridge stage move`."""
    out, _ = run([LANDBRIDGE, "stage", "move", "--help"])
    return option in out.split()


def _ours(source, target, rate, *options):
    return [LANDBRIDGE, "stage", "move", "--json", "--rate", f"{rate // 1024}KiB/s", *options, source, target]


def _mpi(mode):
    def words(source, target, rate):
        program = [PROGRAMS / "mpi_mover", "--mode", mode, "--block", BLOCK, "--rate", rate]
        return [VENV["mpich"] / "bin" / "mpiexec", "-n", 2, *program, source, target]

    return words


def _rsync(source, target, rate):
    return ["rsync", "--whole-file", "--fsync", f"--bwlimit={rate // 1024}", source, target]


def _rclone(source, target, rate):
    # An empty file name: rclone does not read the user's own configuration.
    copy = ["rclone", "--config", "", "copyto", "--bwlimit", f"{rate // 1024}k", source, target]
    return _shell(copy, ["sync", target])


def _fpsync(source, target, rate):
    """fpsync copies folders, here with one rsync."""
    options = f"-lptgoD --numeric-ids --whole-file --fsync --bwlimit={rate // 1024}"
    words = ["fpsync", "-n", 1, "-o", options, "-t", f"{target}.work", f"{source.parent}/", f"{target.parent}/copied/"]
    move = ["mv", target.parent / "copied" / source.name, target]
    return _shell(words, move, ["rm", "-rf", f"{target}.work", target.parent / "copied"])


# The minimal work of a receiver over TCP.
FLOOR = "recv and RWF_DONTCACHE in C"
# For each name: the words for a source, a target and a rate in bytes per second, and the programs that it needs.
MOVERS = {
    "ours": (_ours, []),
    "TCP pull": (lambda source, target, rate: [PROGRAMS / "pull_mover", "--rate", rate, source, target], []),
    FLOOR: (lambda source, target, rate: [PROGRAMS / "pull_mover", "--uncached", "--rate", rate, source, target], []),
    "MPI send": (_mpi("send"), []),
    "MPI broadcast": (_mpi("bcast"), []),
    "buffered copy": (
        lambda source, target, rate: [PROGRAMS / "pull_mover", "--copy", "--rate", rate, source, target],
        [],
    ),
    "rsync": (_rsync, ["rsync"]),
    "rclone": (_rclone, ["rclone"]),
    "fpsync": (_fpsync, ["fpsync", "rsync"]),
    "scp": (None, ["scp", "sshd"]),
}


def missing(names):
    """The movers whose programs are not installed, each with the missing programs."""
    path = os.environ["PATH"] + ":/usr/sbin"
    wanted = {name: [word for word in MOVERS[name][1] if not shutil.which(word, path=path)] for name in names}
    return {name: ", ".join(words) for name, words in wanted.items() if words}


class Place:
    """A folder with a source of some size, and the movers from there. Runs an sshd for scp on the loopback interface,
    with keys made only for it."""

    def __init__(self, folder, size, between_nodes=False):
        self.folder, self.size = Path(folder), size
        # In a lab: from its second node to the first, where this code runs.
        self.nodes = ("a/n2:", "a/n1:") if between_nodes else ("", "")
        self.source = self.folder / "from" / "source"
        self.target = self.folder / "to" / "target"
        self.sshd = None
        for path in (self.source, self.target):
            path.parent.mkdir()
        with open(self.source, "wb") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
            os.fsync(file.fileno())

    def mover(self, name, rate, *options, label=None):
        """A mover; `options` apply only to ours."""
        environment = MPI if name.startswith("MPI") else {}
        if name == "scp":
            words = self._scp(rate)
        elif name == "ours":
            places = (f"{node}{path}" for node, path in zip(self.nodes, (self.source, self.target)))
            words = _ours(*places, rate, *options)
            environment = {key: value for key, value in os.environ.items() if key.startswith("LANDBRIDGE_")}
        else:
            words = MOVERS[name][0](self.source, self.target, rate)
        return Mover(label or name, words, self.source, self.target, environment)

    def _scp(self, rate):
        port = self._serve()
        options = [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "IdentitiesOnly=yes",
            f"IdentityFile={self.folder / 'user'}",
            "LogLevel=ERROR",
        ]
        words = [word for option in options for word in ("-o", option)]
        kbit = rate * 8 // 1000
        copy = ["scp", "-q", "-F", "none", *words, "-P", port, "-l", kbit, self.source]
        return _shell([*copy, f"{getpass.getuser()}@127.0.0.1:{self.target}"], ["sync", self.target])

    def _serve(self):
        if self.sshd:
            return self.sshd[1]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        config = write_sshd(self.folder, port)
        process = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", config], stderr=subprocess.DEVNULL)
        self.sshd = (process, port)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return port
            except OSError:
                time.sleep(0.05)
        raise Missing("scp: a private sshd does not listen")

    def close(self):
        if self.sshd:
            self.sshd[0].terminate()
            self.sshd[0].wait()


def write_sshd(folder, port):
    """Writes the configuration of a private sshd, and makes its key and the user's beside it."""
    folder = Path(folder)
    for name in ("host", "user"):
        if not (folder / name).exists():
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name])
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    # Without privileges, sshd cannot see that an account without a password or a shell is not locked; PAM can. Files go
    # to sshd's internal SFTP server, so they need no shell.
    pam = "no" if os.geteuid() == 0 else "yes"
    lines = [
        f"Port {port}",
        f"HostKey {folder / 'host'}",
        f"AuthorizedKeysFile {folder / 'authorized'}",
        "PidFile none",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        f"UsePAM {pam}",
        "PermitRootLogin prohibit-password",
        "StrictModes no",
        "Subsystem sftp internal-sftp",
        "LogLevel ERROR",
    ]
    config = folder / "sshd_config"
    config.write_text("\n".join(lines) + "\n")
    return config
