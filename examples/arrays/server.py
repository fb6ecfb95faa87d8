#!/usr/bin/env python3
"""Answers with weights that are spread by columns, each time with the next version that the trainer has made.

mpiexec -n 2 python server.py weights@SITE [STEPS]"""

import sys

import numpy as np
from mpi4py import MPI

import landbridge as lb

comm = MPI.COMM_WORLD
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
INPUTS, OUTPUTS = 384, 256

by_columns = lb.Layout((OUTPUTS, INPUTS), [lb.Whole(), lb.Block(comm.size)])
weights = np.zeros(by_columns.local_shape(comm.rank), np.float32)
first = comm.rank * -(-INPUTS // comm.size)
own = slice(first, first + weights.shape[1])
truth = np.random.default_rng(1).normal(size=(OUTPUTS, INPUTS)).astype(np.float32)
question = np.random.default_rng(3).normal(size=INPUTS).astype(np.float32)

with lb.join(sys.argv[1], comm) as coupling:
    for step in range(steps):
        coupling.fetch("weights", by_columns, version=step, into=weights)
        answer = comm.allreduce(weights @ question[own])
        error = float(np.abs(answer - truth @ question).max())
        if comm.rank == 0:
            print(f"server: version {step}, wrong by {error:.4f} at most", flush=True)
