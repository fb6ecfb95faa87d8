"""Collective operations in the callbacks of a communicator's attributes while it is freed, and broadcasts of nothing
that ranks describe in different ways."""

import numpy as np
from mpi4py import MPI

from verify import all_checks, layers, require, world

RANKS = world.size
called = []


def on_delete(comm, _key, value):
    total = np.zeros(1, np.int64)
    comm.Allreduce(np.array([value]), total)
    comm.Barrier()
    called.append(int(total[0]))


def freed(turn, early, free):
    """`early`: the attribute is older than the layer's own of the communicator."""
    comm = world.Dup()
    if early:
        comm.Set_attr(key, turn)
    for _ in range(3):
        comm.Barrier()
    if not early:
        comm.Set_attr(key, turn)
    free(comm)
    require(called == [turn * RANKS], f"turn {turn}: {called}, not one sum of {turn * RANKS}")
    called.clear()


def nothing():
    """Zero elements at the root, zero bytes in each of several elements elsewhere."""
    empty = MPI.INT32_T.Create_contiguous(0).Commit()
    comm = world.Dup()
    for root in range(RANKS):
        data = np.full(4, root if comm.rank == root else -1, np.int32)
        comm.Bcast([data, 0, MPI.INT32_T] if comm.rank == root else [data, 4, empty], root)
        require((data == (root if comm.rank == root else -1)).all(), f"nothing from {root}")
        for length in (4, 20_000):
            data = np.full(length, root if comm.rank == root else -1, np.int32)
            comm.Bcast(data, root)
            require((data == root).all(), f"{length} from {root} after nothing")
    comm.Free()
    empty.Free()


key = MPI.Comm.Create_keyval(delete_fn=on_delete)
nothing()
# Ranks need not have made their attributes in the same order.
for turn, early in enumerate((False, True, world.rank % 2 == 0, world.rank % 2 == 1), 1):
    freed(turn, early, MPI.Comm.Free)
    freed(turn, early, MPI.Comm.Disconnect)
# When MPI ends, the world's attributes are deleted.
world.Set_attr(key, 1)
everyone = all_checks()
loaded = layers()
if world.rank == 0:
    print(f"layer: {all(loaded)}")
    print(f"callbacks: {everyone} checks good")
