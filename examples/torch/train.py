"""Trains a small network with DistributedDataParallel over all ranks of the job, and compares it with one process.

Each rank has its share of every batch; rank 0 also trains on whole batches by itself. Both must end with the same
weights, up to rounding: the script fails if they do not.
"""

import argparse
import copy
import os

# Ranks share cores here; torch would start a thread per core in each.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import mpi_backend

FEATURES, HIDDEN = 32, 64


def network():
    torch.manual_seed(1)
    layers = [torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)]
    return torch.nn.Sequential(*layers).double()


def batches(steps, size):
    """The same batches in every process."""
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(FEATURES, 1, dtype=torch.float64, generator=generator)
    for _ in range(steps):
        inputs = torch.randn(size, FEATURES, dtype=torch.float64, generator=generator)
        yield inputs, torch.sin(inputs @ weights)


def train(model, steps, size, part=slice(None)):
    """Trains on this part of each batch; gives the last loss."""
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), None
    for inputs, targets in batches(steps, size):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[part]), targets[part])
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64, help="samples per rank in each step")
    arguments = parser.parse_args()
    mpi_backend.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    alone = network()
    model = DistributedDataParallel(copy.deepcopy(alone))
    size = ranks * arguments.batch
    loss = train(model, arguments.steps, size, slice(rank * arguments.batch, (rank + 1) * arguments.batch))
    mean = torch.tensor([loss])
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    if rank == 0:
        train(alone, arguments.steps, size)
        pairs = zip(model.module.parameters(), alone.parameters())
        apart = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
        print(
            f"{ranks} ranks, {arguments.steps} steps: loss {mean.item():.4f}, weights within {apart:.1e} of one process"
        )
        if apart > 1e-9:
            raise SystemExit("the weights differ from those of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
