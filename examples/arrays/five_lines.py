#!/usr/bin/env python3
"""Rows to columns, in five lines of mpi4py: mpiexec -n 4 python five_lines.py"""

import numpy as np
from mpi4py import MPI

import landbridge as lb

comm, shape = MPI.COMM_WORLD, (1000, 600)
rows = lb.Layout(shape, [lb.Block(comm.size), lb.Whole()])
columns = lb.Layout(shape, [lb.Whole(), lb.Block(comm.size)])
a = np.full(rows.local_shape(comm.rank), comm.rank)
b = lb.redistribute(a, rows, columns, comm)

print(f"rank {comm.rank}: {a.shape} of rows, {b.shape} of columns, which came from ranks {np.unique(b)}")
