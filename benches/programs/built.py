"""The files of Landbridge that are in use here, as JSON: {"found": [path…]}.

built.py provider    a rank: the provider that its MPI loaded
built.py gateway     a host of a lab: the programs of the gateways that run on it
"""

import json
import os
import sys
from pathlib import Path


def provider():
    from mpi4py import MPI

    lines = Path("/proc/self/maps").read_text().splitlines()
    found = sorted({line.split(maxsplit=5)[5] for line in lines if line.endswith("liblandbridge-fi.so")})
    total = MPI.COMM_WORLD.allgather(found)
    return sorted({path for paths in total for path in paths}), MPI.COMM_WORLD.rank == 0


def gateway():
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        if process.joinpath("cmdline").read_bytes().split(b"\0")[1:2] == [b"gateway"]:
            found.add(os.readlink(process / "exe"))
    return sorted(found), True


paths, first = provider() if sys.argv[1] == "provider" else gateway()
if first:
    print(json.dumps({"found": paths}))
