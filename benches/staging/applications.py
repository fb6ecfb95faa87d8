"""Applications that compute while a mover moves: examples/poisson for the paper's accelerator code, and
examples/mpbench."""

from dataclasses import dataclass, field

from machine import ROOT, VENV, clean_environment, json_lines, libraries, need, run

POISSON = ROOT / "examples" / "poisson" / "poisson"
MPBENCH = ROOT / "examples" / "mpbench" / "mpbench"
# MPICH's own broadcast in shared memory spins: if another program takes a core for a moment, one of 4 MiB takes up to
# half a second instead of four milliseconds. The plain one waits as all other communication does.
MPI = {**libraries("mpich"), "MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM": "mpir"}
MPIEXEC = VENV["mpich"] / "bin" / "mpiexec"
CORES = 2

# Each with the number of iterations of the first run, which determines the number for a given time.
POISSON_SIZES = {"poisson S": ("S", 200), "poisson M": ("M", 15)}
HIT, MISS = ["--memory", "64k", "--stride", 8, "--passes", 2000], ["--memory", "64M", "--stride", 64, "--passes", 1]
BROADCASTS = ["--pattern", "broadcast", "--message", "4M"]
MPBENCHES = {
    "cache hits, reads": ([*HIT], 30),
    "cache hits, writes": ([*HIT, "--access", "writes"], 60),
    "cache misses, reads": ([*MISS], 60),
    "cache misses, writes": ([*MISS, "--access", "writes"], 60),
    "cache hits, broadcasts": ([*HIT, *BROADCASTS], 30),
    "cache misses, broadcasts": ([*MISS, *BROADCASTS], 60),
    "both cores busy": ([*HIT], 30),
    "blocks a third": ([*HIT, "--block", 0.0065], 20),
    "one core idle": ([*HIT], 30),
}


@dataclass
class Application:
    """A program whose running time was made `seconds` long by its number of iterations."""

    name: str
    words: list
    environment: dict = field(default_factory=lambda: dict(MPI))


def _words(name, iterations):
    if name in POISSON_SIZES:
        program = [POISSON, "--size", POISSON_SIZES[name][0], "--json", "-"]
    else:
        program = [MPBENCH, *MPBENCHES[name][0]]
    ranks = 1 if name == "one core idle" else CORES
    return [MPIEXEC, "-n", ranks, *program, "--iterations", iterations]


def check():
    need(MPIEXEC, "run make venv")
    need(POISSON, "run make poisson")
    need(MPBENCH, "run make kernels")


def calibrated(name, seconds, trials=3):
    """This application, with the number of iterations that take about `seconds` here. The best of the trials counts,
    because other users of the machine only make them longer."""
    iterations = (POISSON_SIZES.get(name) or MPBENCHES[name])[1]
    best = min(_seconds_of_an_iteration(name, iterations) for _ in range(trials))
    return Application(name, _words(name, max(int(seconds / best), 1)))


def _seconds_of_an_iteration(name, iterations):
    out, _ = run(_words(name, iterations), {**clean_environment(), **MPI})
    return json_lines(out)[-1]["seconds"] / iterations
