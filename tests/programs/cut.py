"""Work on two ranks or more, after which rank 0 cuts the network under them: it takes an address from its node.

cut.py ADDRESS/BITS DEVICE
"""

import subprocess
import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
for step in range(1000):
    comm.allreduce(step)
if comm.rank == 0:
    subprocess.run(["ip", "address", "del", sys.argv[1], "dev", sys.argv[2]], check=True)
    print("cut", flush=True)
for step in range(1000):
    comm.allreduce(step)
print("went on all the same", flush=True)
