"""Arrays and layouts of other libraries, as these describe them."""

import pytest

from conftest import mpich
from harness import BUILT, ROOT

PACKAGE = BUILT / "python"
ARRAYS, TORCH = ROOT / ".venv-arrays", ROOT / ".venv-torch"

pytestmark = pytest.mark.slow
with_arrays = pytest.mark.skipif(
    not (ARRAYS / "bin" / "python").exists(), reason=f"{ARRAYS} is not there: make test-arrays makes it"
)
with_torch = pytest.mark.skipif(
    not (TORCH / "bin" / "python").exists(), reason=f"{TORCH} is not there: make test-torch makes it"
)


def python(workshop, home, text, *, ranks=None):
    environment = {**mpich().environment, "LD_LIBRARY_PATH": str(home / "lib"), "PYTHONPATH": str(PACKAGE)}
    launch = [] if ranks is None else [home / "bin" / "mpiexec", "-n", ranks]
    return workshop.run([*launch, home / "bin" / "python", "-c", text], environment=environment, limit=120).check()


JAX = """
import os
os.environ.update(XLA_FLAGS="--xla_force_host_platform_device_count=8", JAX_PLATFORMS="cpu")
import jax, numpy as np
import landbridge as lb
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

devices, shape, shards = np.array(jax.devices()), (16, 24), 0
whole = np.arange(16 * 24.0).reshape(shape)
specs = [P(), P("x"), P(None, "y"), P("x", "y"), P("y", "x"), P(("x", "y")), P(("y", "x"), None), P(None, ("y", "x"))]
for spec in specs:
    for mesh in (Mesh(devices.reshape(2, 4), ("x", "y")), Mesh(devices.reshape(2, 4).T, ("y", "x"))):
        sharding = NamedSharding(mesh, spec)
        array, layout = jax.device_put(whole, sharding), lb.Layout.from_jax(shape, sharding)
        process = {device: number for number, device in enumerate(mesh.devices.flat)}
        parts = {process[shard.device]: np.asarray(shard.data) for shard in array.addressable_shards}
        assert layout.size == len(parts) == 8
        for number, part in parts.items():
            assert part.shape == layout.local_shape(number), (spec, number)
            shards += 1
        for index in np.ndindex(shape):
            assert whole[index] in parts[layout.owner(index)], (spec, index)
assert shards == 128
for attempt, text in [
    (lambda: lb.Layout.from_jax((15, 24), NamedSharding(mesh, P("x"))),
     "axis 0 has 15 indices, which 2 devices cannot share"),
    (lambda: lb.Layout.from_jax((16,), NamedSharding(mesh, P("x", "y"))), "is for 2 axes, but the array has 1"),
    (lambda: lb.Layout.from_jax(shape, jax.sharding.SingleDeviceSharding(devices[0])), "it must be a NamedSharding"),
]:
    try:
        attempt()
    except (TypeError, ValueError) as error:
        assert text in str(error), error
    else:
        raise SystemExit(f"no error: {text}")
# Elements come out of JAX's memory, which is never written.
from landbridge import arrays
assert (arrays.taken(array.addressable_shards[3].data) == np.asarray(array.addressable_shards[3].data)).all()
try:
    arrays.target(array.addressable_shards[3].data)
except (TypeError, ValueError) as error:
    assert "read-only" in str(error), error
else:
    raise SystemExit("JAX's memory can be written")
print("shardings are right")
"""


@with_arrays
def test_shardings_of_jax(workshop):
    assert "shardings are right" in python(workshop, ARRAYS, JAX).out


NVMATH = """
import nvmath.distributed as distributed
import nvmath.distributed.distribution as of
import landbridge as lb

class Group:
    nranks, rank = 6, 0
    Get_size, Get_rank = (lambda self: 6), (lambda self: 0)

class Context:
    process_group = communicator = Group()

# Without GPUs there is no context; its distributions ask it for the number of processes alone.
distributed.get_context = lambda: Context
rows, columns = of.ProcessGrid.Layout.ROW_MAJOR, of.ProcessGrid.Layout.COL_MAJOR
grids = [of.ProcessGrid(shape=shape, layout=layout) for shape in [(2, 3), (6, 1)] for layout in (rows, columns)]
tried = [(shape, of.Slab(axis)) for axis in (0, 1) for shape in [(14, 8), (12, 5), (3, 4)]]
tried += [((9, 8), of.BlockCyclic(grid, (2, 3), first_process=(1, 0))) for grid in grids]
tried += [((12, 9), of.BlockNonCyclic(grid)) for grid in grids]
for shape, distribution in tried:
    layout = lb.Layout.from_nvmath(shape, distribution, 6)
    for rank in range(6):
        theirs, ours = tuple(distribution.shape(rank, shape)), layout.local_shape(rank)
        assert ours == theirs or (0 in ours and 0 in theirs), (shape, str(distribution), rank, ours, theirs)
try:
    lb.Layout.from_nvmath((8, 9), of.Box((0, 0), (4, 4)), 6)
except TypeError as error:
    assert "say what every process has" in str(error), error
else:
    raise SystemExit("a Box says it?")
print("distributions are right")
"""


@with_arrays
def test_distributions_of_nvmath(workshop):
    assert "distributions are right" in python(workshop, ARRAYS, NVMATH).out


LABELLED = """
import numpy as np, xarray as xr
import landbridge as lb
from mpi4py import MPI

comm, shape = MPI.COMM_WORLD, (9, 8)
values = np.arange(72.0).reshape(shape)
whole = xr.DataArray(values, name="sst", dims=("lat", "lon"), attrs={"units": "K"}, coords={
    "lat": ("lat", np.linspace(-40, 40, 9), {"units": "degrees"}), "lon": np.arange(8) * 45,
    "day": ("lat", np.arange("2026-01-01", "2026-01-10", dtype="M8[D]").astype("M8[s]")),
    "area": (("lon", "lat"), values.T ** 2), "height": 2.0})
rows = lb.Layout(shape, [lb.Block(2), lb.Whole()])
tiles = lb.Layout(shape, [lb.Cyclic(3, block=2), lb.Whole()], grid=[0, 1])
part = whole[5 * comm.rank : 5 * comm.rank + 5] if comm.rank < 2 else None
got = lb.redistribute(part, rows, tiles, comm)
wanted = whole[[at for at in range(9) if at // 2 % 3 == comm.rank]]
xr.testing.assert_identical(got, wanted)
# With halos, coordinates too.
around = lb.Layout(shape, [lb.Whole(), lb.Block(3, sizes=[3, 3, 2], halo=1, periodic=True)])
got = lb.redistribute(part, rows, around, comm)
first, count = 3 * comm.rank, (3, 3, 2)[comm.rank]
xr.testing.assert_identical(got, whole[:, [at % 8 for at in range(first - 1, first + count + 1)]])
# Into one that is there: its labels stay.
into = xr.DataArray(np.zeros(wanted.shape), dims=("y", "x"))
assert lb.redistribute(part, rows, tiles, comm, into=into) is into and (into.data == wanted.data).all()
for wrong, text in [
    (lambda: lb.redistribute(part, rows, tiles, comm, select=[slice(9), slice(8)]),
     "nothing can be selected: pass its .data"),
    (lambda: lb.redistribute(part.drop_vars("day") if comm.rank == 1 else part, rows, tiles, comm),
     "different labels: rank 0 "),
    (lambda: lb.redistribute(part.data if comm.rank == 1 else part, rows, tiles, comm), "rank 1 no DataArray"),
    (lambda: lb.redistribute(None if part is None else part.assign_coords(height=None), rows, tiles, comm),
     "drop_vars('height')"),
]:
    try:
        wrong()
    except lb.PlanError as error:
        assert text in str(error), error
    else:
        raise SystemExit(f"no error: {text}")
print("labels are right")
"""


@with_arrays
def test_arrays_of_xarray_keep_their_coordinates(workshop):
    assert python(workshop, ARRAYS, LABELLED, ranks=3).out.count("labels are right") == 3


PLACED = """
import itertools, torch, numpy as np
import torch.distributed as dist
from torch.distributed._tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as piece
from torch.testing._internal.distributed.fake_pg import FakeStore
import landbridge as lb
from landbridge import arrays

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=6)
pieces = 0
for mesh_shape in [(6,), (2, 3), (3, 2)]:
    for shape in [(12, 10), (7, 5), (5, 1), (2, 2)]:
        kinds = [Replicate(), Shard(0), Shard(1)]
        for placements in itertools.product(kinds, repeat=len(mesh_shape)):
            for rank in range(6):
                mesh = dist.DeviceMesh("cpu", torch.arange(6).reshape(mesh_shape), _init_backend=False)
                # The fake group is in any rank's place.
                mesh._coordinate_on_dim = [int(at) for at in np.unravel_index(rank, mesh_shape)]
                local, offset = piece(torch.Size(shape), mesh, placements)
                layout = lb.Layout.from_dtensor(shape, mesh, placements)
                ours = layout.local_shape(rank)
                where = mesh_shape, shape, placements, rank
                assert ours == tuple(local) or (0 in ours and 0 in local), (*where, ours, local)
                if 0 not in ours and Replicate() not in placements:
                    assert layout.owner(offset) == rank, (*where, offset)
                pieces += 1
assert pieces == 6 * 4 * (3 + 9 + 9), pieces
try:
    lb.Layout.from_dtensor((4, 4), mesh, [Replicate(), Partial()])
except ValueError as error:
    assert "placements[1] is " in str(error) and "reduce them first" in str(error), error
else:
    raise SystemExit("partial sums are moved?")
from torch.distributed.tensor.placement_types import _StridedShard
try:
    lb.Layout.from_dtensor((12, 4), mesh, [_StridedShard(0, split_factor=2), Shard(0)])
except ValueError as error:
    assert "placements[0] is " in str(error) and "strided shards are not supported" in str(error), error
else:
    raise SystemExit("strided shards are taken for others?")

tensor = torch.arange(12.0).reshape(3, 4).t()
memory = arrays.target(tensor)
memory[0, 1] = 70
assert tensor[0, 1] == 70 and arrays.taken(tensor).ctypes.data == tensor.data_ptr()
try:
    arrays.taken(tensor.clone().requires_grad_())
except TypeError as error:
    assert str(error).startswith("a is torch.Tensor, which NumPy cannot use: "), error
else:
    raise SystemExit("gradients are lost?")
print("placements are right")
"""


@with_torch
def test_placements_of_torch(workshop):
    assert "placements are right" in python(workshop, TORCH, PLACED).out
