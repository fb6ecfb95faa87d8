"""silent_callers.py COUNT READY PLACE…: keeps COUNT silent connections to each PLACE, a HOST:PORT or the path of a
local socket, and makes a new one for each that is closed, until it is killed."""

import contextlib
import resource
import selectors
import socket
import sys
import time
from pathlib import Path


def connect(place):
    if place.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place)
    else:
        host, port = place.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=10)
    connection.setblocking(False)
    return connection


def main():
    count, ready, places = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    closed = selectors.DefaultSelector()
    wanted = [place for place in places for _ in range(count)]
    while True:
        for place in wanted:
            with contextlib.suppress(OSError):
                closed.register(connect(place), selectors.EVENT_READ, place)
        ready.touch()
        # They must not take the processor away.
        time.sleep(0.5)
        wanted = []
        for key, _ in closed.select():
            closed.unregister(key.fileobj)
            key.fileobj.close()
            wanted.append(key.data)


main()
