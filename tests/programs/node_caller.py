"""node_caller.py ADDRESS:PORT SOCKET REQUEST…: sends a node service this user's version of each REQUEST, and prints its
last answers as a list of JSON.

REQUEST is a list of JSON: how to make the line, then the request as an object (or any text). Ways: "munge" with options
in between, "again" (the line before once more), "raw" (the text itself), "long" (more than a line has), "changed" (a
credential with one other letter).

An answer counts only if a credential of root's with the request's nonce contains it. One without a credential is
printed as {"unproven": answer}.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time


def credential(munged, request, options):
    command, text = ["munge", f"--socket={munged}", *options], json.dumps(request).encode()
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True).stdout.strip()


def opened(munged, line, nonce):
    """The answer in a line of the service's."""
    if not line.startswith(b"MUNGE:"):
        return {"unproven": json.loads(line)}
    command = ["unmunge", f"--socket={munged}", "--numeric", "--keys=UID"]
    head, reply = subprocess.run(command, input=line, stdout=subprocess.PIPE, check=True).stdout.split(b"\n\n", 1)
    reply = json.loads(reply)
    assert head.split() == [b"UID:", b"0"] and reply["nonce"] == nonce, (head, reply)
    return reply["answer"]


def call(address, munged, line, nonce):
    """The last answer. A process that was started is ended as soon as it runs."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        # It may be refused before all was read.
        with contextlib.suppress(OSError):
            connection.sendall(line + b"\n")
        last = None
        with connection.makefile("rb") as answers:
            for answer in answers:
                last = opened(munged, answer.strip(), nonce)
                if last == "started":
                    connection.shutdown(socket.SHUT_WR)
    return last


def main():
    address, munged, whats = sys.argv[1], sys.argv[2], map(json.loads, sys.argv[3:])
    line, answers = b"", []
    for way, *options, request in whats:
        if way == "munge":
            wait = [float(option.removeprefix("wait=")) for option in options if option.startswith("wait=")]
            line = credential(munged, request, [option for option in options if not option.startswith("wait=")])
            time.sleep(sum(wait))
        elif way == "changed":
            line = credential(munged, request, options)
            middle = len(line) // 2
            line = line[:middle] + (b"A" if line[middle : middle + 1] != b"A" else b"B") + line[middle + 1 :]
        elif way == "raw":
            line = request.encode()
        elif way == "long":
            line = b"x" * 300_000
        nonce = request.get("nonce") if isinstance(request, dict) else None
        answers.append(call(address, munged, line, nonce))
    print(json.dumps(answers))


main()
