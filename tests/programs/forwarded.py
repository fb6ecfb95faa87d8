"""Uses `landbridge forward` as somebody at a node of site a does: forwarded.py LANDBRIDGE CASE [GATEWAYS]. A server
runs beside each gateway of site b, because any of them may be the one that dials."""

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

LANDBRIDGE, CASE = sys.argv[1:3]
GATEWAYS = int(sys.argv[3]) if len(sys.argv) > 3 else 1
SERVER = r"""
import hashlib, socket, sys, threading
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("up", flush=True)
def echo(peer):
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
def digest(peer):
    seen = hashlib.sha256()
    while data := peer.recv(65536):
        seen.update(data)
    peer.sendall(seen.hexdigest().encode())
    peer.close()
while True:
    peer, _ = server.accept()
    kind = peer.recv(1)
    if kind == b"e":
        threading.Thread(target=echo, args=(peer,), daemon=True).start()
    elif kind == b"d":
        threading.Thread(target=digest, args=(peer,), daemon=True).start()
    # "s": a peer that never reads.
    elif kind == b"s":
        globals().setdefault("kept", []).append(peer)
"""


@contextlib.contextmanager
def server(port=8888):
    children = []
    try:
        for gateway in range(1, GATEWAYS + 1):
            words = [LANDBRIDGE, "lab", "enter", f"b-gw{gateway}", "--", sys.executable, "-c", SERVER, str(port)]
            children.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            assert children[-1].stdout.readline().strip() == "up"
        yield
    finally:
        for child in children:
            child.terminate()
            child.wait()


@contextlib.contextmanager
def forward(target="b:8888", *options):
    words = [LANDBRIDGE, "forward", "--json", *options, "0", target]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = child.stdout.readline()
        assert line, child.communicate()[1]
        host, port = json.loads(line)["listen"].rsplit(":", 1)
        yield child, (host, int(port))
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
        errors = child.communicate(timeout=20)[1]
        print("forward ended with", child.returncode, errors.strip(), flush=True)


def read_all(peer):
    parts = []
    while data := peer.recv(65536):
        parts.append(data)
    return b"".join(parts)


def exact(address, length, seed):
    """Sent bytes come back unchanged, while more are still being sent."""
    data = os.urandom(64) * (length // 64 + 1)
    data = data[:length] + bytes([seed])
    with socket.create_connection(address, timeout=60) as peer:

        def send():
            peer.sendall(b"e" + data)
            peer.shutdown(socket.SHUT_WR)

        sending = threading.Thread(target=send)
        sending.start()
        back = read_all(peer)
        sending.join()
    assert back == data, (len(back), len(data))


def many():
    with server(), forward() as (_, address):
        threads = [threading.Thread(target=exact, args=(address, 1 << (10 + n % 11), n)) for n in range(40)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        data = os.urandom(1 << 20) * 8
        with socket.create_connection(address, timeout=60) as peer:
            peer.sendall(b"d" + data)
            peer.shutdown(socket.SHUT_WR)
            assert read_all(peer).decode() == hashlib.sha256(data).hexdigest()
    print("many: good")


def slow():
    """A target that does not read stops its own connection and no other."""
    with server(), forward() as (_, address), socket.create_connection(address, timeout=2) as stuck:
        stuck.sendall(b"s")
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 << 20:
                sent += stuck.send(bytes(65536))
        assert sent < 64 << 20, "nothing bounds what is on its way"
        exact(address, 1 << 20, 1)
    print("slow: good")


def refused():
    """Nobody listens at the target: that connection is reset, and the next one works when somebody does."""
    with forward() as (_, address):
        with socket.create_connection(address, timeout=20) as peer:
            try:
                peer.sendall(b"e")
                gone = peer.recv(1) == b""
            except ConnectionResetError:
                gone = True
            assert gone
        with server():
            exact(address, 1000, 3)
    print("refused: good")


def standard():
    with server():
        words = [LANDBRIDGE, "forward", "-", "b:127.0.0.1:8888"]
        done = subprocess.run(words, input=b"ehello", capture_output=True, timeout=60, check=True)
        assert done.stdout == b"hello", done
    print("standard: good")


def killed():
    """After kill -9 of this end, the other is gone as well."""
    with server(), forward() as (child, address), socket.create_connection(address, timeout=20) as peer:
        peer.sendall(b"ex")
        assert peer.recv(1) == b"x"
        child.kill()
        child.wait()
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
    end = time.monotonic() + 15
    while time.monotonic() < end:
        found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        found += subprocess.run(
            [LANDBRIDGE, "lab", "enter", "b-gw1", "--", "ps", "-eo", "args"], capture_output=True, text=True, check=True
        ).stdout
        if "agent-worker" not in found:
            print("killed: good")
            return
        time.sleep(0.2)
    sys.exit("an agent is left")


def gateway():
    """The only gateway of the other site is lost: the forward ends with that error."""
    with server(), forward() as (child, address), socket.create_connection(address, timeout=20) as peer:
        peer.sendall(b"ex")
        assert peer.recv(1) == b"x"
        subprocess.run([LANDBRIDGE, "lab", "unplug", "b-gw1"], check=True)
        assert child.wait(timeout=60) == 1
    print("gateway: good")


globals()[CASE]()
