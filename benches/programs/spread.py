"""Runs `spread` on all nodes of a lab's first site, from its first node: spread.py LANDBRIDGE ROUNDS REPEATS PACKET
SIZES. Prints the output of `spread root`."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import tomllib

PORT = 5031
SPREAD = Path(__file__).resolve().parent / "spread"
PATIENCE_S = 10


def wait_for(address):
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((address, PORT), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                sys.exit(f"spread.py: nothing listens at {address}:{PORT} after {PATIENCE_S} s: {error}")
            time.sleep(0.05)


def main():
    landbridge, rounds, repeats, packet, sizes = sys.argv[1:]
    site = tomllib.loads(Path(os.environ["LANDBRIDGE_SITES"]).read_text())["site"][0]
    others = site["node"][1:]
    started = []
    try:
        for node in others:
            words = [
                landbridge,
                "lab",
                "enter",
                f"{site['name']}-{node['name']}",
                "--",
                str(SPREAD),
                "serve",
                str(PORT),
            ]
            started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True))
        for node in others:
            wait_for(node["address"])
        words = [str(SPREAD), "root", str(PORT), rounds, repeats, packet, sizes]
        done = subprocess.run([*words, *(node["address"] for node in others)], check=False)
        return done.returncode
    finally:
        # `lab enter` forwards the signal to its command.
        for child in started:
            child.terminate()
        for child in started:
            try:
                child.wait(timeout=3)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


if __name__ == "__main__":
    sys.exit(main())
