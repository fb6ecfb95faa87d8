#!/usr/bin/env python3
"""The atmosphere: whole circles of latitude on any number of ranks, because the wind blows along them.

    mpiexec -n 3 python atmosphere.py climate@SITE [STEPS]

It takes each second of the ocean's longitudes."""

import sys

import numpy as np
from mpi4py import MPI

import climate
import landbridge as lb

comm = MPI.COMM_WORLD
circles = lb.Layout(climate.AIR, [lb.Block(comm.size), lb.Whole()])
whole = lb.Layout(climate.AIR, [lb.Whole(), lb.Whole()])
air = np.full(circles.local_shape(comm.rank), 10.0)
sea = np.zeros_like(air)
every_second = [slice(None), slice(None, None, climate.COARSE)]

with lb.join(sys.argv[1], comm) as coupling:
    for step in range(int(sys.argv[2]) if len(sys.argv) > 2 else climate.STEPS):
        coupling.fetch("sea", circles, version=step, select=every_second, into=sea)
        air, flux = climate.air_step(air, sea)
        coupling.export("flux", flux, circles, version=step)

result = lb.redistribute(air, circles, whole, comm)
if comm.rank == 0:
    print(f"air {climate.digest(result)}, {result.mean():.3f} degrees")
