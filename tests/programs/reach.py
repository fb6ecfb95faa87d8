"""Which ranks can reach which by plain TCP, as JSON from rank 0; the answers themselves travel by MPI.

Every rank listens on all its own addresses and tries to connect to all the others'. A connection counts only if the
other side presents the nonce that MPI announced: with the same private range at both sites an address may lead to a
different machine.
"""

import json
import secrets
import socket
import subprocess
import threading

from mpi4py import MPI

comm = MPI.COMM_WORLD
nonce = secrets.token_hex(16)
server = socket.create_server(("::", 0), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True)


def serve():
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(nonce.encode())


threading.Thread(target=serve, daemon=True).start()
listing = subprocess.run(["ip", "-json", "address"], capture_output=True, check=True, text=True).stdout
addresses = [
    entry["local"]
    for interface in json.loads(listing)
    if interface.get("ifname") != "lo"
    for entry in interface["addr_info"]
    if entry["scope"] == "global"
]
me = {"host": socket.gethostname(), "addresses": addresses, "port": server.getsockname()[1], "nonce": nonce}
everyone = comm.allgather(me)


def reaches(other):
    for address in other["addresses"]:
        try:
            with socket.create_connection((address, other["port"]), timeout=1.0) as connection:
                if connection.recv(64).decode() == other["nonce"]:
                    return True
        except OSError:
            continue
    return False


table = comm.gather([reaches(other) for other in everyone])
comm.Barrier()
if comm.rank == 0:
    print(
        json.dumps(
            {
                "hosts": [one["host"] for one in everyone],
                "addresses": [one["addresses"] for one in everyone],
                "reaches": table,
            }
        )
    )
