"""The MPI libraries of the suites, and how each starts a program on our provider and on tcp."""

import os
import re

from conftest import intel, mpich, openmpi
from harness import LANDBRIDGE

from .job import FAILED, PASSED, RIVAL, result
from .process import Child, clean_environment

LIBRARIES = {"mpich": mpich, "intel": intel, "openmpi": openmpi}
# Without these settings the ranks of one node would use the MPI's own shared memory and no provider. Open MPI's pml/cm
# has none.
THROUGH_THE_PROVIDER = {"mpich": {"MPIR_CVAR_NOLOCAL": "1"}, "intel": {"I_MPI_FABRICS": "ofi"}, "openmpi": {}}
# Makes each library use libfabric's tcp.
TAKES_TCP = {
    "mpich": {"MPIR_CVAR_CH4_NETMOD": "ofi"},
    "intel": {"I_MPI_OFI_PROVIDER": RIVAL},
    "openmpi": {
        "OMPI_MCA_pml": "cm",
        "OMPI_MCA_mtl": "ofi",
        "OMPI_MCA_mtl_ofi_provider_include": RIVAL,
        "OMPI_MCA_btl_ofi_provider_include": RIVAL,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    },
}
# Makes each library report the provider it uses.
SAYS_PROVIDER = {
    "mpich": {"MPIR_CVAR_DEBUG_SUMMARY": "1"},
    "intel": {"I_MPI_DEBUG": "5"},
    "openmpi": {"OMPI_MCA_opal_common_ofi_verbose": "1"},
}
# More ranks than cores are refused without this.
MPIEXEC = {"openmpi": ["--oversubscribe"]}


def library(name):
    return LIBRARIES[name]()


def missing(name):
    """Why this MPI cannot be used here, or None."""
    home = library(name).home
    return (
        None
        if (home / "bin" / "python").exists()
        else f"{home.name} is not there: run make venv venv-intel venv-openmpi"
    )


def command(job, program):
    """Command and environment that start a program as this job requires, inside its lab.

    On one node tcp is started by the MPI's own mpiexec; between nodes, for which mpiexec would need ssh, by
    `landbridge run`, whose ranks within a site may use any provider.
    """
    mpi = library(job.mpi)
    environment = dict(mpi.environment)
    if job.where == "one-node":
        environment |= THROUGH_THE_PROVIDER[job.mpi]
    if job.provider == RIVAL:
        environment |= {"FI_PROVIDER": RIVAL, **TAKES_TCP[job.mpi]}
        if job.where == "one-node":
            return [mpi.mpiexec, *MPIEXEC.get(job.mpi, []), "-n", job.ranks, *program], environment
    return [LANDBRIDGE, "run", "-n", job.ranks, "--mpi", job.mpi, "--", *program], environment


def start(job, program, folder, extra=()):
    words, environment = command(job, program)
    kept = {key: os.environ[key] for key in os.environ if key.startswith("LANDBRIDGE_")}
    return Child(words, folder, environment=clean_environment({**kept, **environment, **dict(extra)}))


def check_provider(job, limit):
    """One case: that the library really uses this job's provider. A fallback would be tested under another's name."""
    child = start(
        job,
        [library(job.mpi).python, "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"],
        job.folder,
        SAYS_PROVIDER[job.mpi],
    )
    ended = child.wait(limit)
    taken = re.search(r"(?:libfabric |mtl:ofi:)provider: ([^\s;]+)", child.text(100_000))
    if ended.code == 0 and taken and taken[1] == job.provider:
        return result("provider", PASSED, seconds=ended.seconds)
    return result(
        "provider",
        FAILED,
        f"{ended}; took {taken[1] if taken else 'none that it names'}\n{child.text()}",
        ended.seconds,
    )
