"""Processes under test: started with a marker, always ended, and checked to leave nothing behind."""

import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

from scene import scene

ROOT = Path(__file__).resolve().parent.parent
# Cargo's folder of the build under test; `debug` is quicker to build while working.
BUILT = ROOT / "target" / os.environ.get("LANDBRIDGE_TEST_PROFILE", "release")
LANDBRIDGE = BUILT / "landbridge"
PROVIDER = BUILT / "liblandbridge-fi.so"
PROGRAMS = ROOT / "tests" / "programs"
POISSON = ROOT / "examples" / "poisson" / "poisson"
KERNELS = ROOT / "examples" / "kernels"

MARKER = "LANDBRIDGE_TEST_MARKER"
# Places outside its namespaces where a lab could leave files.
LITTERED = [Path("/tmp"), Path("/run"), Path("/dev/shm"), Path("/run/netns")]
# Number of tests that share a core. A test's limits assume a core of its own; with others it takes that much longer.
SHARE = max(1.0, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)) / len(os.sched_getaffinity(0)))
# Limit of the data that crosses a trunk, relative to crossing once. If all cores are busy a connection may be lost, and
# its data is sent again.
ONCE = 1.03 if SHARE == 1 else 1.4
# Seconds from the end of a command until its last process must have ended.
GRACE_S = 5.0 * SHARE


def litter():
    """Names of leftovers of a lab, a gateway or a rank outside its namespaces, as a set of texts."""
    # Not from /sys, which shows the devices of the namespace in which it was mounted.
    found = {f"network device {name}" for _, name in socket.if_nameindex()}
    for folder in LITTERED:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        found |= {str(folder / name) for name in names if "landbridge" in name or folder.name == "netns"}
    return found


@dataclass
class Process:
    """One process found by its marker."""

    pid: int
    words: list

    def peak_bytes(self):
        """Its peak resident memory, or None if it has ended."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return None
        lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(lines[0].split()[1]) * 1024 if lines else None

    def kill(self, number=signal.SIGKILL):
        """Sends a signal. Returns False if the process has ended since it was found."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def has(self, variable):
        """Returns true if its environment has this variable, as NAME=VALUE."""
        try:
            return variable.encode() in Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def is_landbridge(self, subcommand):
        """Returns true if it runs `landbridge … subcommand …`."""
        names = [os.path.basename(word) for word in self.words]
        return "landbridge" in names[:2] and subcommand in self.words[1:4]


def processes(marker):
    """All living processes whose environment carries the marker. Zombies have no environment and do not count."""
    wanted = f"{MARKER}={marker}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            if wanted in environment:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")
                yield Process(int(entry), words[:-1])
        except OSError:
            continue  # it ended, or is not ours


def wait_until(condition, seconds, what):
    """Returns the first true value of `condition()`. Fails the test after `seconds`, longer if tests share cores
    (SHARE)."""
    seconds *= SHARE
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


@dataclass
class Finished:
    """The outcome of a command."""

    words: list
    code: int
    out: str
    err: str
    seconds: float
    marker: str

    def __str__(self):
        return (
            f"$ {' '.join(self.words)}\nexit code {self.code} after {self.seconds:.1f} s\n"
            f"--- stdout\n{self.out[-6000:]}\n--- stderr\n{self.err[-6000:]}"
        )

    def check(self):
        """Returns itself if the command succeeded, else fails the test."""
        assert self.code == 0, str(self)
        return self

    def fails_naming(self, *names, within=None):
        """Returns itself if the command failed with an error (not by a signal or a panic) whose text contains all these
        names."""
        assert self.code not in (0, 101) and self.code > 0, str(self)
        for name in names:
            assert name in self.err, f"stderr does not name `{name}`\n{self}"
        assert "panicked" not in self.err, str(self)
        if within is not None:
            within *= SHARE
            assert self.seconds <= within, f"took {self.seconds:.1f} s, at most {within:g}\n{self}"
        return self


@dataclass
class Running:
    """A started command. `finish` ends it in any case."""

    words: list
    child: subprocess.Popen
    marker: str
    limit: float
    out_path: Path
    err_path: Path
    started: float = field(default_factory=time.monotonic)

    def processes(self, subcommand=None):
        found = list(processes(self.marker))
        return [p for p in found if p.is_landbridge(subcommand)] if subcommand else found

    def out(self):
        return self.out_path.read_text(errors="replace")

    def err(self):
        return self.err_path.read_text(errors="replace")

    def wait_for(self, condition, seconds, what):
        """Waits until the condition holds. Fails the test, with the command's output, if the command ends before that
        or after `seconds`, longer if tests share cores."""
        end = time.monotonic() + seconds * SHARE
        while not condition():
            if self.child.poll() is not None and not condition():
                raise AssertionError(f"it ended before {what}: {self.finish()}")
            if time.monotonic() > end:
                seen = scene(self.processes())
                self.end()
                raise AssertionError(f"waited {seconds * SHARE:g} s for {what}: {self.result()}\n--- processes\n{seen}")
            time.sleep(0.02)

    def result(self):
        seconds = time.monotonic() - self.started
        return Finished(self.words, self.child.returncode, self.out(), self.err(), seconds, self.marker)

    def finish(self, within=None):
        """Waits for the end of the command, then of all processes with its marker. Fails the test if the command
        exceeds its limit or leaves processes."""
        limit = (
            within * SHARE if within is not None else max(0.1, self.limit * SHARE - (time.monotonic() - self.started))
        )
        overdue = False
        try:
            self.child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            overdue = True
        seconds = time.monotonic() - self.started
        seen = ""
        if overdue:
            seen = scene(self.processes())
            self.end()
        finished = replace(self.result(), seconds=seconds)
        assert not overdue, f"still running after {limit:.0f} s\n{finished}\n--- processes\n{seen}"
        end = time.monotonic() + GRACE_S
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.02)
        self.end()
        assert not left, f"left behind: {[(p.pid, ' '.join(p.words)) for p in left]}\n{finished}"
        return finished

    def end(self):
        """Ends all running processes, with SIGTERM first. For tests that have already failed, and for teardown."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.child.poll() is None:
                self.child.send_signal(number)
                try:
                    self.child.wait(timeout=GRACE_S)
                except subprocess.TimeoutExpired:
                    continue
        for process in self.processes():
            process.kill()


class Workshop:
    """Starts commands for one test, in its own folder below target/ (labs give every node a private /tmp)."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []
        self.litter = litter()

    def start(self, words, *, environment=None, limit=60.0, cwd=None, stdin=subprocess.DEVNULL):
        words = [str(word) for word in words]
        marker = uuid.uuid4().hex
        out, err = self.folder / f"{marker}.out", self.folder / f"{marker}.err"
        variables = {
            key: value for key, value in os.environ.items() if not key.startswith(("LANDBRIDGE_", "FI_", "PMI"))
        }
        # NumPy's linear algebra, which no test uses, starts a spinning thread for each core: half of the cost of
        # starting a rank.
        variables["OPENBLAS_NUM_THREADS"] = "1"
        variables.update(environment or {})
        variables[MARKER] = marker
        with out.open("wb") as out_file, err.open("wb") as err_file:
            child = subprocess.Popen(
                words,
                cwd=cwd or self.folder,
                env=variables,
                stdin=stdin,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
            )
        running = Running(words, child, marker, limit, out, err)
        self.running.append(running)
        return running

    def run(self, words, **options):
        return self.start(words, **options).finish()

    def lab(self, command, *, sites=2, nodes=2, delay="1ms", options=(), environment=None, limit=60.0):
        """Starts a command on the first node of a fresh lab."""
        words = [LANDBRIDGE, "lab", "--sites", sites, "--nodes", nodes, "--delay", delay, *options, "--", *command]
        return self.start(words, environment=environment, limit=limit)

    def across(self, mpi, ranks, program, *, run_options=(), json=True, **lab_options):
        """Starts a program of an MPI across the sites of a fresh lab. `summary()` returns its summary."""
        report = [f"--json={self.folder / 'run.json'}"] if json else []
        command = [LANDBRIDGE, "run", "-n", ranks, "--mpi", mpi.name, *report, *run_options, "--", *program]
        environment = {**mpi.environment, **lab_options.pop("environment", {})}
        return self.lab(command, environment=environment, **lab_options)

    def summary(self):
        """The `--json` summary of the last `across`."""
        return json.loads((self.folder / "run.json").read_text())

    def end_all(self):
        for running in self.running:
            running.end()

    def close(self):
        self.end_all()
        end = time.monotonic() + GRACE_S
        while (left := litter() - self.litter) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left, f"left behind: {sorted(left)}"


FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


class LoopbackSites:
    """Sites (`a` and `b` by default) on this machine, with gateways on 127.0.0.1 that are started one by one: for cases
    that a lab, whose gateways are always correct, cannot show."""

    def __init__(
        self,
        workshop,
        memory="64MiB",
        *,
        names="ab",
        hidden="",
        gateways=1,
        proxies=None,
        links=1,
        patience="10s",
        pages=False,
    ):
        """`names`: the sites, in the order of the sites file. `hidden`: those that can only dial out. `gateways`:
        number per site, or by site. `proxies`: by site, a proxy between its first gateway and the peers that dial it.
        `pages`: true if each gateway has a page."""
        self.workshop = workshop
        self.memory, self.proxies, self.links, self.patience = memory, proxies or {}, links, patience
        self.names, self.hidden = names, hidden
        counts = gateways if isinstance(gateways, dict) else dict.fromkeys(names, gateways)
        self.gateways = {(site, number): free_port() for site in names for number in range(1, counts[site] + 1)}
        self.pages = {which: free_port() for which in self.gateways} if pages else {}
        self.fingerprints = {}
        for site in names:
            shown = workshop.run([LANDBRIDGE, "key", workshop.folder / f"{site}.key"]).check()
            self.fingerprints[site] = FINGERPRINT.search(shown.out)[0]
        for site, proxy in self.proxies.items():
            proxy.serve(self.ports[site])
        self.file = self.write("sites.toml")

    @property
    def ports(self):
        """Ports of the first gateways."""
        return {site: port for (site, number), port in self.gateways.items() if number == 1}

    def write(self, name, **changed):
        """Writes a sites file; `changed` replaces whole texts in it, as old=new pairs under any names."""
        text = ""
        for site in self.names:
            text += (
                f'[[site]]\nname = "{site}"\nkey = "{site}.key"\nfingerprint = "{self.fingerprints[site]}"\n'
                f'patience = "{self.patience}"\n'
            )
            for (of, number), own in self.gateways.items():
                if of == site:
                    dialled = self.proxies[site].port if site in self.proxies and number == 1 else own
                    advertise = "" if site in self.hidden else f'advertise = "127.0.0.1:{dialled}"\n'
                    text += (
                        f'[[site.gateway]]\nname = "gw{number}"\n{advertise}inside = "127.0.0.1:{own}"\n'
                        f'listen = "127.0.0.1:{own}"\nmemory = "{self.memory}"\nlinks = {self.links}\n'
                    )
                    if (site, number) in self.pages:
                        text += f'page = "127.0.0.1:{self.pages[site, number]}"\n'
            text += '[[site.node]]\nname = "n1"\naddress = "127.0.0.1"\n\n'
        for old, new in changed.values():
            assert old in text
            text = text.replace(old, new)
        path = self.workshop.folder / name
        path.write_text(text)
        return path

    def start_gateway(self, site, file=None, wait=True, number=1):
        words = [LANDBRIDGE, "gateway", "--sites", file or self.file, "--site", site, "--gateway", f"gw{number}"]
        running = self.workshop.start(words, limit=120)
        if wait:
            port = self.gateways[site, number]
            ports = {port, self.pages.get((site, number), port)}
            wait_until(
                lambda: all(map(listening, ports)) or running.child.poll() is not None,
                5,
                f"gateway {number} of site {site}",
            )
            assert running.child.poll() is None, str(running.finish())
        return running

    def start_gateways(self):
        """Starts all gateways, by site and number. Returns once all their trunks are up, so that the first gateway of
        each site leads jobs."""
        started = {(site, number): self.start_gateway(site, number=number) for site, number in self.gateways}
        for (site, number), gateway in started.items():
            trunks = sum(other != site for other, _ in self.gateways)

            def connected(gateway=gateway, trunks=trunks):
                return gateway.err().count("trunk up") >= trunks

            wait_until(connected, 10, f"the trunks of gateway {number} of site {site}")
        return started

    def run(self, mpi, program, *options, ranks=2, file=None, limit=30):
        words = [LANDBRIDGE, "run", "-n", ranks, "--mpi", mpi.name, *options, "--", *program]
        return self.workshop.run(
            words, environment={**mpi.environment, "LANDBRIDGE_SITES": str(file or self.file)}, limit=limit
        )


class CuttingProxy:
    """A TCP proxy whose connections can be reset or stalled. Stands for a failing WAN."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.pairs, self.cuts = [], 0
        self.lock = threading.Lock()
        self.flows, self.ended = threading.Event(), threading.Event()
        self.flows.set()

    def serve(self, port):
        """Accepts connections forever, for a server on this port."""
        threading.Thread(target=self._accept, args=(port,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.flows.set()
        self.server.close()
        self.cut()

    def _accept(self, port):
        while not self.ended.is_set():
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            self.flows.wait()
            try:
                far = socket.create_connection(("127.0.0.1", port), timeout=5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self.lock:
                self.pairs.append((near, far))
            threading.Thread(target=self._serve_pair, args=(near, far), daemon=True).start()

    def _serve_pair(self, near, far):
        back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
        back.start()
        self._carry(near, far)
        back.join()
        for end in (near, far):
            # Reset the connection, and discard data in flight.
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

    def _carry(self, source, target):
        try:
            while data := source.recv(65536):
                self.flows.wait()
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self, chosen=lambda: True):
        """Resets the existing connections for which `chosen()` is true."""
        with self.lock:
            cut = [pair for pair in self.pairs if chosen()]
            self.pairs = [pair for pair in self.pairs if pair not in cut]
        for near, _ in cut:
            try:
                near.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it has already ended
            self.cuts += 1

    def hold(self, on):
        """While `on`, stalls all connections without closing them, so that neither end gets an error."""
        self.flows.clear() if on else self.flows.set()

    @contextlib.contextmanager
    def cutting_every(self, seconds):
        """Inside the `with` block, resets all connections at this interval."""
        over = threading.Event()

        def work():
            while not over.wait(seconds):
                self.cut()

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            yield
        finally:
            over.set()
            worker.join()


# Outside the range that Linux uses for outgoing connections (from 32768 on), which might take a port before its use.
PORTS = range(10_000, 32_000)
next_port = itertools.count(random.randrange(len(PORTS)))


def free_port():
    """A port on which nothing listened a moment ago; each call returns a different one."""
    for _ in PORTS:
        port = PORTS[next(next_port) % len(PORTS)]
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError(f"no port from {PORTS.start} to {PORTS.stop} is free")


def listening(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
