"""Known differences from tcp, each with its reason. A difference that is not listed here fails the run."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from .job import FAILED, SKIPPED


@dataclass(frozen=True)
class Known:
    """`suite`, `mpi`, `where`, `unit` and `case` are shell patterns. A hang is not accepted unless `may_hang`."""

    reason: str
    suite: str
    unit: str = "*"
    case: str = "*"
    mpi: str = "*"
    where: str = "*"
    may_hang: bool = False


_NO_NAMES = "a job has no name service (MPI_Publish_name): PMI's is refused, at once and with MPI's own error"
_NO_SPAWN = "a job cannot grow (MPI_Comm_spawn): refused at once and with MPI's own error"
_MPICH_GRAPH = (
    "MPICH 5.0.2's MPI_Dist_graph_create mixes the messages of two calls in a row; it fails on tcp too, "
    "in one class or in another"
)
_INTEL_DYNAMIC = (
    "Intel MPI 2021.18 gives a dynamic window the size -1 wherever its provider does RMA (libfabric's shm as "
    "well, and tcp with"
    " MPIR_CVAR_CH4_OFI_ENABLE_RMA=1); with tcp it does not use RMA unless told to"
)
_NO_WAIT_FD = "queues and counters have no file descriptor to wait on (FI_WAIT_FD); fi_cq_sread and fi_cntr_wait work"

KNOWN = [
    Known(_NO_NAMES, "mpi4py", unit="test_dynproc", case="*.testNamePublishing"),
    Known(
        "the test itself dials from one rank to another by IP",
        "mpi4py",
        unit="test_dynproc",
        case="*.testJoin",
        where="two-sites",
        may_hang=True,
    ),
    Known(_NO_SPAWN, "mpi4py", unit="test_spawn"),
    Known(_MPICH_GRAPH, "mpi4py", mpi="mpich", unit="test_comm_topo", case="*.testDistgraphcomm", may_hang=True),
    Known(_INTEL_DYNAMIC, "mpi4py", mpi="intel", unit="test_win", case="*.TestWinCreateDynamic*"),
    Known(_NO_WAIT_FD, "fabtests", unit="* -c fd"),
    Known(_NO_WAIT_FD, "fabtests", unit="fi_ubertest counter-waits"),
]


def known(job, case, outcome):
    """The reason why this outcome of this case is known, or None."""
    for entry in KNOWN:
        pairs = [
            (job.suite, entry.suite),
            (job.unit, entry.unit),
            (case, entry.case),
            (job.mpi, entry.mpi),
            (job.where, entry.where),
        ]
        if all(fnmatchcase(value, pattern) for value, pattern in pairs) and (
            outcome in (FAILED, SKIPPED) or entry.may_hang
        ):
            return entry.reason
    return None
