"""Every collective of examples/torch: right results, and refusals. Run under `landbridge run`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "torch"))
import mpi_backend

TYPES = [
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.complex64,
    torch.float16,
    torch.bfloat16,
]
OPERATIONS = {"SUM": sum, "PRODUCT": lambda values: torch.tensor(values).prod().item(), "MIN": min, "MAX": max}


def same(found, expected, what):
    assert torch.equal(found, expected), f"rank {rank}: {what}: {found} instead of {expected}"


def refused(what, kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"rank {rank}: {what} was not refused")


mpi_backend.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
everybody = list(range(size))

for dtype in TYPES:
    for name, reduce in OPERATIONS.items():
        if dtype.is_complex and name != "SUM":
            continue
        tensor = torch.full((3, 5), rank + 1, dtype=dtype)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
        same(tensor, torch.full((3, 5), reduce([r + 1 for r in everybody]), dtype=dtype), f"{name} of {dtype}")
    tensor = torch.arange(7).to(dtype) if rank == 1 else torch.zeros(7, dtype=dtype)
    dist.broadcast(tensor, 1)
    same(tensor, torch.arange(7).to(dtype), f"broadcast of {dtype}")

flags = torch.tensor([rank == 0, False])
dist.broadcast(flags, 0)
same(flags, torch.tensor([True, False]), "broadcast of bool")
average = torch.full((4,), float(rank))
dist.all_reduce(average, dist.ReduceOp.AVG)
same(average, torch.full((4,), sum(everybody) / size), "average")
# Not contiguous: the columns of a matrix.
matrix = torch.full((4, 6), float(rank))
dist.all_reduce(matrix[:, ::2])
expected = torch.full((4, 6), float(rank))
expected[:, ::2] = sum(everybody)
same(matrix, expected, "sum of columns")
reduced = torch.full((2,), rank)
dist.reduce(reduced, 1)
same(reduced, torch.full((2,), sum(everybody) if rank == 1 else rank), "reduce")

gathered = [torch.empty(3, dtype=torch.int64) for _ in everybody]
dist.all_gather(gathered, torch.full((3,), rank))
same(torch.stack(gathered), torch.tensor([[r] * 3 for r in everybody]), "all_gather")
flat = torch.empty(size * 2, dtype=torch.int64)
dist.all_gather_into_tensor(flat, torch.full((2,), rank))
same(flat, torch.tensor([r for r in everybody for _ in range(2)]), "all_gather_into_tensor")
received = [torch.empty(2, dtype=torch.int64) for _ in everybody] if rank == 0 else None
dist.gather(torch.full((2,), rank), received, 0)
if rank == 0:
    same(torch.stack(received), torch.tensor([[r] * 2 for r in everybody]), "gather")
part = torch.empty(2, dtype=torch.int64)
dist.scatter(part, [torch.full((2,), 10 * r) for r in everybody] if rank == 1 else None, 1)
same(part, torch.full((2,), 10 * rank), "scatter")
part = torch.empty(2)
dist.reduce_scatter(part, [torch.full((2,), float(r + rank)) for r in everybody])
same(part, torch.full((2,), float(size * rank + sum(everybody))), "reduce_scatter")
part = torch.empty(2)
dist.reduce_scatter_tensor(part, torch.arange(size).repeat_interleave(2).float())
same(part, torch.full((2,), float(size * rank)), "reduce_scatter_tensor")
swapped = torch.empty(size, dtype=torch.int64)
dist.all_to_all_single(swapped, torch.tensor([100 * rank + r for r in everybody]))
same(swapped, torch.tensor([100 * r + rank for r in everybody]), "all_to_all_single")
uneven = torch.empty(size * (rank + 1), dtype=torch.int64)
sizes = [r + 1 for r in everybody]
dist.all_to_all_single(uneven, torch.full((sum(sizes),), rank), [rank + 1] * size, sizes)
same(uneven, torch.tensor([r for r in everybody for _ in range(rank + 1)]), "all_to_all_single of unlike parts")
pieces = [torch.empty(1, dtype=torch.int64) for _ in everybody]
dist.all_to_all(pieces, [torch.tensor([10 * rank + r]) for r in everybody])
same(torch.cat(pieces), torch.tensor([10 * r + rank for r in everybody]), "all_to_all")

# Asynchronous ones, messages meanwhile.
works = [dist.all_reduce(torch.ones(1000) * n, async_op=True) for n in range(20)]
right, left = (rank + 1) % size, (rank - 1) % size
token = torch.empty(70_000, dtype=torch.int64)
request = dist.irecv(token, left, tag=7)
sent = dist.isend(torch.full((70_000,), rank), right, tag=7)
request.wait()
sent.wait()
same(token, torch.full((70_000,), left), "message")
for number, work in enumerate(works):
    work.wait()
    same(work.result()[0], torch.full((1000,), float(number * size)), "asynchronous sum")
if rank == 0:
    any_source = torch.empty(1, dtype=torch.int64)
    found = {dist.recv(any_source) for _ in everybody[1:]}
    assert found == set(everybody[1:]), found
else:
    dist.send(torch.tensor([rank]), 0)

# A group of some ranks, while the others are elsewhere.
odd = dist.new_group([r for r in everybody if r % 2])
if rank % 2:
    mine = torch.tensor([rank])
    dist.all_reduce(mine, group=odd)
    same(mine, torch.tensor([sum(r for r in everybody if r % 2)]), "sum in a group")
dist.barrier()
refused(
    "the average of integers", TypeError, lambda: dist.all_reduce(torch.ones(1, dtype=torch.int64), dist.ReduceOp.AVG)
)
refused("the sum of bool", TypeError, lambda: dist.all_reduce(torch.ones(1, dtype=torch.bool)))
if rank == 0:
    print(f"{size} ranks: all right")
dist.destroy_process_group()
