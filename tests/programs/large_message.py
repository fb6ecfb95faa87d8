"""One message of BYTES from the first rank to the last, and back; every byte is checked.

large_message.py BYTES
"""

import sys

import numpy as np
from mpi4py import MPI

PIECE = 1 << 24


def fill(buffer, salt):
    """A pattern without a short period, so that a misplaced frame is detected."""
    for start in range(0, buffer.size, PIECE):
        words = np.arange(start // 8, start // 8 + PIECE // 8, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        piece = (words ^ np.uint64(salt)).view(np.uint8)
        yield start, piece[: min(PIECE, buffer.size - start)]


def send(comm, buffer, target, salt):
    for start, piece in fill(buffer, salt):
        buffer[start : start + piece.size] = piece
    comm.Send([buffer, MPI.BYTE], target, tag=9)


def receive(comm, buffer, source, salt):
    buffer[:] = 0
    comm.Recv([buffer, MPI.BYTE], source, tag=9)
    for start, piece in fill(buffer, salt):
        if not np.array_equal(buffer[start : start + piece.size], piece):
            at = start + int(np.argmax(buffer[start : start + piece.size] != piece))
            sys.exit(f"rank {comm.rank}: byte {at} of {buffer.size} is wrong")


def main():
    comm = MPI.COMM_WORLD
    last = comm.size - 1
    if comm.rank in (0, last):
        buffer = np.empty(int(sys.argv[1]), dtype=np.uint8)
        if comm.rank == 0:
            send(comm, buffer, last, 1)
            receive(comm, buffer, last, 2)
            print(f"large message: {buffer.size} bytes good both ways", flush=True)
        else:
            receive(comm, buffer, 0, 1)
            send(comm, buffer, 0, 2)
    comm.Barrier()


main()
