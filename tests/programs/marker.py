"""Every rank sends every other rank messages full of one text, which an eavesdropper would find; content is checked.

marker.py TEXT [ROUNDS]
"""

import sys

from mpi4py import MPI


def main():
    text = sys.argv[1].encode()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    comm = MPI.COMM_WORLD
    good = 0
    for number in range(rounds):
        for length in (len(text), 1000, 20_000, 300_000):
            content = [(text * (length // len(text) + 1))[:length] + bytes([rank, number]) for rank in range(comm.size)]
            places = [bytearray(length + 2) for _ in range(comm.size)]
            others = [rank for rank in range(comm.size) if rank != comm.rank]
            requests = [comm.Irecv(places[rank], rank, number) for rank in others]
            requests += [comm.Isend(content[comm.rank], rank, number) for rank in others]
            MPI.Request.Waitall(requests)
            for rank in others:
                assert bytes(places[rank]) == content[rank], (
                    f"rank {comm.rank}: from {rank}: {length} bytes, round {number}"
                )
            good += len(others)
    good = comm.reduce(good)
    if comm.rank == 0:
        print(f"marker: {good} good", flush=True)


if __name__ == "__main__":
    main()
