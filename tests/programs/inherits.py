"""Each rank starts a child, which inherits everything it can, and prints the parts of the job's secret that either has:
nothing is expected."""

import os
import subprocess
import sys

LOOK = r"""
import os, re
def look(who, environment):
    found = [name for name, value in environment if re.fullmatch("[0-9a-f]{64}", value)]
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if target.startswith("/memfd:landbridge "):
            found.append("descriptor " + name)
    print("inherits:", who, "has", ", ".join(found) or "nothing", flush=True)
"""


def main():
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    exec(LOOK, globals())
    with open("/proc/self/environ", "rb") as file:
        words = file.read().decode(errors="replace").split("\0")
    look("rank", [word.split("=", 1) for word in words if "=" in word])  # noqa: F821 (LOOK defines it)
    child = LOOK + "look('child', os.environ.items())"
    subprocess.run([sys.executable, "-c", child], close_fds=False, env=dict(os.environ), check=True)


main()
