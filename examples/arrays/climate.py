#!/usr/bin/env python3
"""The computations of the ocean and the atmosphere, on parts or on the whole.

    python climate.py [STEPS]

computes all of it in one process, and prints the same digests as the coupled programs."""

import sys
import zlib

import numpy as np

SHAPE = (90, 180)  # of latitudes and longitudes in the ocean
COARSE = 2  # the atmosphere has each second longitude
AIR = (SHAPE[0], SHAPE[1] // COARSE)
STEPS = 40


def first_sea(rows, columns):
    """Temperatures at the beginning, in degrees."""
    latitude = np.linspace(-90, 90, SHAPE[0])[rows, None]
    longitude = np.linspace(0, 360, SHAPE[1], endpoint=False)[None, columns]
    return 28 * np.cos(np.radians(latitude)) ** 2 + 2 * np.sin(np.radians(3 * longitude))


def sea_step(around, flux):
    """Sea temperatures mix with those around and take up heat. `around`: with one more row and column on each side."""
    here = around[1:-1, 1:-1]
    neighbours = around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:]
    return here + 0.1 * (neighbours - 4 * here) + flux


def air_step(air, sea):
    """The wind carries air eastwards, all along a latitude; it takes the sea's temperature slowly. New temperatures,
    and the heat that goes into the sea."""
    moved = np.roll(air, 1, axis=1)
    warmed = moved + 0.2 * (sea - moved)
    return warmed, 0.05 * (moved - sea)


def digest(array):
    """A number for all bits of an array."""
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


def whole(steps):
    every = slice(None)
    sea = first_sea(every, every)
    air = np.full(AIR, 10.0)
    for _ in range(steps):
        air, flux = air_step(air, sea[:, ::COARSE])
        around = np.pad(np.pad(sea, ((1, 1), (0, 0)), "edge"), ((0, 0), (1, 1)), "wrap")
        sea = sea_step(around, np.repeat(flux, COARSE, axis=1))
    return sea, air


if __name__ == "__main__":
    sea, air = whole(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS)
    print(f"sea {digest(sea)}, air {digest(air)}; {sea.mean():.3f} and {air.mean():.3f} degrees")
