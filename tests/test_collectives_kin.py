"""Reductions, gathers, scatters and exchanges of all ranks with all, across sites: results, order, bits and errors."""

import os
import random
import re

import pytest

from harness import LANDBRIDGE, PROGRAMS

REDUCTIONS = PROGRAMS / "reductions.py"
BLOCKS = PROGRAMS / "blocks.py"
CALLBACKS = PROGRAMS / "callbacks.py"
RANDOMIZED = PROGRAMS / "randomized.py"
MATRIX = pytest.mark.matrix
UNLIKE = [
    pytest.param((2, 2), 1, marks=MATRIX),
    pytest.param((3, 1), 1, marks=MATRIX),
    ((2, 1, 3), 1),
    pytest.param((4, 2), 2, marks=pytest.mark.one_mpi),
    pytest.param((1, 3, 2), 3, marks=MATRIX),
]


def run(workshop, mpi, way, sites, *words, nodes=1, program=REDUCTIONS, plain=False):
    """Runs the program with these numbers of ranks at the sites, spread over the nodes of each. `plain`: with the MPI
    library as it comes, also where it is wrong."""
    places = [word for site, ranks in zip("abcd", sites) for word in ("--site", f"{site}={ranks}")]
    each = ["--ranks-per-node", -(-max(sites) // nodes)]
    options = [*places, *each, "--mpi", mpi.name, "--collectives", way]
    if mpi.name == "openmpi" and not plain:
        # Its han, which gets the calls that the layer leaves alone, misplaces blocks of interleaved ranks, also in one
        # site.
        options += ["-x", "OMPI_MCA_coll=^han"]
    if mpi.name == "intel" and not plain:
        # Its collectives in shared memory, which it chooses on some processors (Sapphire Rapids), take the gaps of a
        # resized datatype for elements, under its own mpiexec too, and write beyond the end of arrays.
        options += ["-x", "I_MPI_COLL_INTRANODE=pt2pt"]
    command = [LANDBRIDGE, "run", *options, "--", mpi.python, program, *words]
    started = workshop.lab(command, sites=len(sites), nodes=nodes, environment=mpi.environment, limit=240)
    done = started.finish().check()
    assert "checks good" in done.out, str(done)
    return done


@pytest.mark.parametrize("sites,nodes", UNLIKE)
def test_results_are_right(workshop, mpi, sites, nodes):
    """Also where sites have different numbers of nodes, and nodes of ranks."""
    assert "layer: True" in run(workshop, mpi, "auto", sites, nodes=nodes).out


@pytest.mark.parametrize("sites,nodes", UNLIKE)
def test_blocks_of_unlike_lengths(workshop, mpi, sites, nodes):
    assert "layer: True" in run(workshop, mpi, "auto", sites, nodes=nodes, program=BLOCKS).out


@pytest.mark.parametrize(
    "sites,nodes",
    [
        ((3, 3), 2),
        pytest.param((2, 1, 3), 1, marks=MATRIX),
        pytest.param((4, 2), 1, marks=MATRIX),
    ],
)
def test_what_is_covered_is_right_whatever_the_library_does(workshop, mpi, sites, nodes):
    """Intel MPI's MPI_Reduce is wrong for datatypes with gaps, for example."""
    seed = int(os.environ.get("LANDBRIDGE_SEED", random.randrange(1 << 32)))
    print(f"LANDBRIDGE_SEED={seed}")
    cases = int(os.environ.get("LANDBRIDGE_ROUNDS", 150 if "LANDBRIDGE_MATRIX" in os.environ else 50))
    done = run(workshop, mpi, "auto", sites, seed, cases, nodes=nodes, program=RANDOMIZED, plain=True)
    assert "layer: True" in done.out


def test_callbacks_use_a_communicator_that_is_being_freed(workshop, mpi):
    """Also when ranks made their attributes in different orders; nothing is left that MPI_Finalize stumbles over."""
    assert "layer: True" in run(workshop, mpi, "auto", (2, 2), program=CALLBACKS).out


@pytest.mark.one_mpi
def test_lengths_that_do_not_match_are_reported(workshop, mpi):
    """They are an error of the program; nobody waits forever."""
    assert "layer: True" in run(workshop, mpi, "auto", (2, 3), "mismatched", program=BLOCKS).out


@pytest.mark.one_mpi
def test_exact_sums_have_the_bits_of_the_mpi(workshop, mpi):
    """The digest is of sums of fractions, which depend on the order in which ranks' numbers are added."""
    done = {way: run(workshop, mpi, way, (2, 2, 2, 2), "fractions").out for way in ("native", "exact", "auto")}
    digest = {way: re.search(r"digest: (\w+)", out)[1] for way, out in done.items()}
    assert digest["exact"] == digest["native"] != digest["auto"], digest
    assert "layer: True" in done["exact"] and "layer: False" in done["native"]
