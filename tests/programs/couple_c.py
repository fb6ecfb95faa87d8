"""The other side of tests/programs/couple.c and couple.f90: couple_c.py NAME export|fetch|serve|wait."""

import sys

import numpy as np
from mpi4py import MPI

import landbridge as lb

NAME, WHAT = sys.argv[1:]
SHAPE, VERSIONS = (37, 26), 20
comm = MPI.COMM_WORLD
whole = lb.Layout(SHAPE, [lb.Whole(), lb.Whole()])
dealt = lb.Layout(SHAPE, [lb.Cyclic(comm.size, block=3), lb.Whole()], order="F")


def content(version):
    rows, columns = np.indices(SHAPE)
    return 1000.0 * rows + columns + version * 1e6


coupling = lb.join(NAME, comm, timeout=60)
if WHAT in ("export", "serve"):
    for version in range(VERSIONS if WHAT == "export" else 2):
        array = lb.redistribute(content(version) if comm.rank == 0 else None, whole, dealt, comm)
        coupling.export("sst", array, dealt, version, timeout=60)
elif WHAT == "fetch":
    for version in range(VERSIONS):
        came = lb.redistribute(coupling.fetch("sst", dealt, version, timeout=60), dealt, whole, comm)
        assert comm.rank or (came == content(version)).all(), version
if WHAT in ("wait", "serve"):
    try:
        # The other side never exports that.
        coupling.fetch("nothing", whole, timeout=20 if WHAT == "wait" else 3)
    except lb.CouplingError as error:
        assert "the model has diverged" in str(error), error
    except TimeoutError:
        assert WHAT == "serve"
if WHAT != "wait":
    coupling.close(timeout=60)
if comm.rank == 0:
    print(f"{WHAT}: good")
