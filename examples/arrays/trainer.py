#!/usr/bin/env python3
"""Trains a layer whose weights are spread by rows, and hands each version to a server that has them by columns.

    mpiexec -n 4 python trainer.py weights@SITE [STEPS]

The server goes on with the version that it has: the trainer waits for it only when it is more than a few behind."""

import sys

import numpy as np
from mpi4py import MPI

import landbridge as lb

comm = MPI.COMM_WORLD
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
INPUTS, OUTPUTS, BATCH, RATE = 384, 256, 512, 0.4

by_rows = lb.Layout((OUTPUTS, INPUTS), [lb.Block(comm.size), lb.Whole()])
weights = np.zeros(by_rows.local_shape(comm.rank), np.float32)
first = comm.rank * -(-OUTPUTS // comm.size)
# The function to learn: the same on all ranks, and in the server.
truth = np.random.default_rng(1).normal(size=(OUTPUTS, INPUTS)).astype(np.float32)[first : first + len(weights)]
chance = np.random.default_rng(2)

with lb.join(sys.argv[1], comm, budget=4 * weights.nbytes) as coupling:
    for step in range(steps):
        inputs = chance.normal(size=(BATCH, INPUTS)).astype(np.float32)
        errors = inputs @ (weights - truth).T
        weights -= RATE / BATCH * errors.T @ inputs
        coupling.export("weights", weights, by_rows, version=step)
        loss = comm.allreduce(float((errors**2).sum())) / (BATCH * OUTPUTS)
        if comm.rank == 0:
            print(f"trainer: version {step}, loss {loss:.4f}", flush=True)
