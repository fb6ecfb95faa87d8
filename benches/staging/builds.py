"""One build against another (`benches/run staging --against FOLDER`): from typing a move to its end, job included."""

import os
import random
import shutil

from against import Case
from machine import OUT, in_lab

# In the unshaped lab the disk or the processor is the limit. The other network is a WAN across a continent.
NETWORKS = {
    "unshaped": ["--delay", "0", "--wan-rate", "0", "--nic-rate", "0"],
    "10 ms, 1 Gbit/s": ["--delay", "10ms", "--wan-rate", "1gbit", "--nic-rate", "0"],
}
# Bytes of the large file and of the pieces that it consists of; number and bytes of the small files.
LARGE, PIECE, SMALL = 512 << 20, 16 << 20, (5000, 4096)


def cases(arguments):
    """The cases for --against."""
    return [
        Case(f"{network}: {what}", _once(options, what, nodes))
        for network, options in NETWORKS.items()
        for what, nodes in (("a file", 1), ("5,000 files", 1), ("a file to two nodes", 2))
    ]


def _once(options, what, nodes):
    def once(build, problems):
        source = _source("files" if "files" in what else "file")
        target = OUT / f"staging-against-{os.getpid()}"
        shutil.rmtree(target, ignore_errors=True)
        names = [f"n{number + 1}" for number in range(nodes)]
        # Each node of a lab has the disk of this machine.
        for name in names:
            (target / name).mkdir(parents=True)
        move = [build.landbridge, "stage", "in", "--json", "--harm", "100"]
        move += ["--host", ",".join(f"b/{name}" for name in names), f"a/n1:{source}={target}/%n/"]
        command = {"name": "move", "words": move, "limit": 120}
        try:
            samples, failures = in_lab(["--sites", "2", "--nodes", "2", *options], [command], 1, build)
        finally:
            shutil.rmtree(target, ignore_errors=True)
        problems += failures.values()
        return {"start to end": (samples["move"][0]["wall_s"], "s")} if samples else {}

    return once


def _source(kind):
    """Made once, and then mostly in the page cache."""
    path = OUT / "staging-sources" / kind
    if not path.exists():
        make = random.Random(1)
        if kind == "file":
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for _ in range(LARGE // PIECE):
                    file.write(make.randbytes(PIECE))
        else:
            path.mkdir(parents=True)
            count, length = SMALL
            for number in range(count):
                (path / f"f{number:05}").write_bytes(make.randbytes(length))
    return path
