"""node_impostor.py PORT SOCKET READY: answers at the port of a node service, as any user can while it restarts.

Each caller gets the next of these: two plain answers, one plain answer, credentials of this user's, silence.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ENDED = {"ended": {"code": 0, "output": "[]", "words": ""}}


def sealed(munged, answer):
    reply = json.dumps({"landbridge_node_service": 2, "nonce": "0" * 32, "answer": answer}).encode()
    return subprocess.run(
        ["munge", f"--socket={munged}"], input=reply, stdout=subprocess.PIPE, check=True
    ).stdout.strip()


def main():
    port, munged, ready = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    ways = [
        lambda: [b'"started"', json.dumps(ENDED).encode()],
        lambda: [json.dumps(ENDED).encode()],
        lambda: [sealed(munged, "started"), sealed(munged, ENDED)],
        list,
    ]
    with socket.create_server(("0.0.0.0", port)) as listener:
        ready.touch()
        for way in ways:
            connection, _ = listener.accept()
            with connection:
                connection.makefile("rb").readline()
                for line in way():
                    connection.sendall(line + b"\n")
    os._exit(0)


main()
