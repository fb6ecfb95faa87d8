#!/usr/bin/env python3
"""The ocean: tiles of latitudes and longitudes on any even number of ranks.

    mpiexec -n 4 python ocean.py climate@SITE [STEPS]

Each step exports the sea's temperatures, and takes the heat that the atmosphere has computed from them."""

import sys

import numpy as np
from mpi4py import MPI

import climate
import landbridge as lb

comm = MPI.COMM_WORLD
rank, down, across = comm.rank, comm.size // 2, 2
if comm.size % 2:
    sys.exit(f"ocean.py: {comm.size} ranks: the tiles need an even number")
tiles = lb.Layout(climate.SHAPE, [lb.Block(down), lb.Block(across)])
# The same tiles with a row and a column of their neighbours on each side; longitudes go round the earth.
halos = lb.Layout(climate.SHAPE, [lb.Block(down, halo=1), lb.Block(across, halo=1, periodic=True)])
with_neighbours = lb.plan(tiles, halos, np.float64, comm)
whole = lb.Layout(climate.SHAPE, [lb.Whole(), lb.Whole()])


def slices():
    """Of this rank's tile in the whole."""
    high, wide = (-(-extent // over) for extent, over in zip(climate.SHAPE, (down, across)))
    row, column = divmod(rank, across)
    return slice(row * high, (row + 1) * high), slice(column * wide, (column + 1) * wide)


rows, columns = slices()
sea = climate.first_sea(rows, columns)
around = np.zeros(halos.local_shape(rank))
# Each of the atmosphere's longitudes has heat for two of ours.
coarse = lb.Layout(climate.AIR, tiles.axes)
flux = np.zeros(coarse.local_shape(rank))

with lb.join(sys.argv[1], comm) as coupling:
    for step in range(int(sys.argv[2]) if len(sys.argv) > 2 else climate.STEPS):
        coupling.export("sea", sea, tiles, version=step)
        coupling.fetch("flux", coarse, version=step, into=flux)
        with_neighbours.run(sea, into=around)
        # Beyond the poles there is nothing: they are their own neighbours.
        if rows.start == 0:
            around[0] = around[1]
        if rows.stop >= climate.SHAPE[0]:
            around[-1] = around[-2]
        sea = climate.sea_step(around, np.repeat(flux, climate.COARSE, axis=1))

result = lb.redistribute(sea, tiles, whole, comm)
if rank == 0:
    print(f"sea {climate.digest(result)}, {result.mean():.3f} degrees")
