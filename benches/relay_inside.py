"""The part of relay.py that runs inside the lab, on the first node of site a. Writes its samples to a JSON file."""

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import tomllib

from direct import direct
from machine import PROGRAMS, Failed, clean_environment, json_lines, run

SERVE, SOCAT_A, SOCAT_B, SSHD, SSH = 5003, 5001, 5002, 5022, 5004
LATENCY_SIZE, STREAM_SIZE = 64, 262144


class Lab:
    """The surrounding lab: its addresses, and programs started on its hosts, which end with this object."""

    def __init__(self, plan):
        self.plan = plan
        # The command that made the lab, and the measured one.
        self.lab, self.landbridge = plan["lab"], plan["landbridge"]
        self.started = []
        sites = tomllib.loads(Path(os.environ["LANDBRIDGE_SITES"]).read_text())["site"]
        self.near, self.far = (site["node"][0]["address"] for site in sites)
        self.near_gateway = sites[0]["gateway"][0]["inside"].split(":")[0]
        self.wan = [site["gateway"][0]["advertise"].split(":")[0] for site in sites]
        # `landbridge lab enter` and `landbridge run` need to know the lab. Measured programs get no other variable of
        # ours.
        self.environment = clean_environment()
        self.environment.update({key: value for key, value in os.environ.items() if key.startswith("LANDBRIDGE_")})

    def start(self, host, *words):
        with open(Path(self.plan["folder"]) / f"{host}-{Path(str(words[0])).name}.log", "ab") as log:
            child = subprocess.Popen(
                [self.lab, "lab", "enter", host, "--", *map(str, words)],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(child)

    def wait_for(self, address, port, seconds=10):
        end = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection((address, port), timeout=2).close()
                return
            except OSError as error:
                if time.monotonic() > end:
                    raise Failed(
                        f"nothing listens at {address}:{port} after {seconds} s: {error}\n{self.logs()}"
                    ) from None
                time.sleep(0.05)

    def logs(self):
        texts = []
        for path in sorted(Path(self.plan["folder"]).glob("*.log")):
            if text := path.read_text(errors="replace").strip():
                texts.append(f"--- {path.name}\n{text[-1500:]}")
        return "\n".join(texts)

    def end(self):
        # `lab enter` forwards the signal. After `lab enter` has ended, the host kills the remaining processes.
        for child in self.started:
            child.send_signal(signal.SIGTERM)
        for child in self.started:
            try:
                child.wait(timeout=3)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def start_server(lab):
    lab.start("b-n1", PROGRAMS / "stream", "serve", SERVE)
    lab.wait_for(lab.far, SERVE)


def start_socat(lab):
    # Larger than socat's default of 8 KiB, which would cost it throughput.
    block = "-b65536"
    lab.start("b-gw1", "socat", block, f"TCP-LISTEN:{SOCAT_B},fork,reuseaddr,nodelay", f"TCP:{lab.far}:{SERVE},nodelay")
    lab.wait_for(lab.wan[1], SOCAT_B)
    lab.start(
        "a-gw1", "socat", block, f"TCP-LISTEN:{SOCAT_A},fork,reuseaddr,nodelay", f"TCP:{lab.wan[1]}:{SOCAT_B},nodelay"
    )
    lab.wait_for(lab.near_gateway, SOCAT_A)


def start_ssh(lab):
    """Starts a private sshd on one gateway and a forwarding ssh on the other, with keys made only for this lab."""
    folder = Path(lab.plan["folder"])
    for name in ("host", "user"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name])
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    (folder / "sshd_config").write_text(
        "\n".join(
            [
                f"Port {SSHD}",
                f"HostKey {folder / 'host'}",
                f"AuthorizedKeysFile {folder / 'authorized'}",
                "PidFile none",
                "PasswordAuthentication no",
                "KbdInteractiveAuthentication no",
                "PermitRootLogin prohibit-password",
                "UsePAM no",
                "StrictModes no",
                "AllowTcpForwarding local",
                "LogLevel ERROR",
                "",
            ]
        )
    )
    sshd = f"mkdir -p /run/sshd 2>/dev/null; exec /usr/sbin/sshd -D -e -f {folder / 'sshd_config'}"
    lab.start("b-gw1", "sh", "-c", sshd)
    lab.wait_for(lab.wan[1], SSHD)
    options = [
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "ExitOnForwardFailure=yes",
        "IdentitiesOnly=yes",
        f"IdentityFile={folder / 'user'}",
        "LogLevel=ERROR",
    ]
    words = [word for option in options for word in ("-o", option)]
    lab.start(
        "a-gw1",
        "ssh",
        "-F",
        "none",
        *words,
        "-p",
        SSHD,
        "-N",
        "-L",
        f"0.0.0.0:{SSH}:{lab.far}:{SERVE}",
        f"{getpass.getuser()}@{lab.wan[1]}",
    )
    lab.wait_for(lab.near_gateway, SSH)


def tcp(address, port):
    """The commands that measure over plain TCP to an address."""

    def command(kind, seconds, streams):
        if kind == "latency":
            return [PROGRAMS / "stream", "latency", address, port, seconds, LATENCY_SIZE], {}
        return [PROGRAMS / "stream", "stream", address, port, seconds, streams, STREAM_SIZE], {}

    return command


def program(kind, seconds):
    return [PROGRAMS / "pingpong", kind, seconds, LATENCY_SIZE if kind == "latency" else STREAM_SIZE]


def mpi_direct(lab):
    """MPICH's own launcher and libfabric's tcp provider over the routed path."""
    hosts = {lab.near: "a-n1", lab.far: "b-n1"}

    def command(kind, seconds, streams):
        words, environment = direct("mpich", hosts, streams if kind == "stream" else 1, lab.lab)
        return [*words, *program(kind, seconds)], environment

    return command


def landbridge(lab, *options):
    def command(kind, seconds, streams):
        ranks = 2 * streams if kind == "stream" else 2
        return [lab.landbridge, "run", *options, "-n", ranks, "--mpi", "mpich", "--", *program(kind, seconds)], {}

    return command


def start_rivals(lab):
    """Starts the alternatives to Landbridge, ready to be measured."""
    start_server(lab)
    start_socat(lab)
    start_ssh(lab)
    return {
        "TCP direct": tcp(lab.far, SERVE),
        "socat": tcp(lab.near_gateway, SOCAT_A),
        "ssh -L": tcp(lab.near_gateway, SSH),
        "MPI direct": mpi_direct(lab),
    }


def start_joined(lab):
    """Makes one site that contains both nodes, so that its ranks connect directly over the routed network. Returns its
    sites file."""
    folder, port = Path(lab.plan["folder"]), 7711
    out, _ = run([lab.landbridge, "key", "--json", folder / "joined.key"], lab.environment)
    [key] = json_lines(out)
    command = [lab.lab, "lab", "enter", "{node}", "--"]
    nodes = "".join(
        f'[[site.node]]\nname = "{name}"\naddress = "{address}"\n'
        for name, address in (("a-n1", lab.near), ("b-n1", lab.far))
    )
    (folder / "joined.toml").write_text(
        f'[[site]]\nname = "joined"\nkey = "joined.key"\nfingerprint = "{key["fingerprint"]}"\n'
        f'[[site.gateway]]\nname = "gw1"\ninside = "{lab.near}:{port}"\n{nodes}'
        f'[site.starter]\nkind = "template"\ncommand = {json.dumps(command)}\n'
    )
    lab.start("a-n1", lab.landbridge, "gateway", "--sites", folder / "joined.toml", "--site", "joined")
    lab.wait_for(lab.near, port)
    return folder / "joined.toml"


def main():
    plan = json.loads(sys.argv[1])
    lab = Lab(plan)
    answer = {"latency": {}, "stream": {}, "failures": []}
    try:
        paths = start_rivals(lab) if plan["rivals"] else {}
        paths |= {"landbridge direct": landbridge(lab, "--sites", start_joined(lab)), "landbridge": landbridge(lab)}
        failed = set()
        for number in range(plan["rounds"]):
            names = list(paths) if number % 2 == 0 else list(reversed(paths))
            measurements = [("latency", plan["latency_s"], 1)] + [
                ("stream", plan["stream_s"], streams) for streams in plan["streams"]
            ]
            for kind, seconds, streams in measurements:
                for name in names:
                    if (name, kind, streams) in failed:
                        continue
                    words, environment = paths[name](kind, seconds, streams)
                    try:
                        out, _ = run(words, {**lab.environment, **environment}, limit=30 + 8 * seconds)
                        [line] = json_lines(out)
                    except (Failed, ValueError) as failure:
                        failed.add((name, kind, streams))
                        answer["failures"].append(f"{name}, {kind}, {streams} streams: {failure}")
                        continue
                    into = answer["latency"] if kind == "latency" else answer["stream"].setdefault(name, {})
                    into.setdefault(name if kind == "latency" else str(streams), []).append(line)
    finally:
        lab.end()
        Path(plan["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
