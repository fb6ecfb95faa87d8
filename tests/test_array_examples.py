"""The commands of examples/arrays/README.md, with programs at two sites on different MPI libraries."""

import re

import pytest

from conftest import intel, mpich, openmpi
from coupled import Coupled
from harness import ROOT

EXAMPLES = ROOT / "examples" / "arrays"


def test_five_lines(workshop):
    done = Coupled(workshop).start(mpich(), "a", 4, EXAMPLES / "five_lines.py").finish().check()
    for rank in range(4):
        line = f"rank {rank}: (250, 600) of rows, (1000, 150) of columns, which came from ranks [0 1 2 3]"
        assert done.out.count(line) == 1, str(done)


@pytest.mark.parametrize(("ocean", "air"), [(4, 3), (2, 1)])
def test_an_ocean_and_an_atmosphere_compute_what_one_process_does(workshop, ocean, air):
    coupled, name = Coupled(workshop), "climate@a"
    runs = [
        coupled.start(mpich(), "a", ocean, EXAMPLES / "ocean.py", name, 12),
        coupled.start(openmpi(), "b", air, EXAMPLES / "atmosphere.py", name, 12),
    ]
    whole = workshop.run([mpich().python, EXAMPLES / "climate.py", 12]).check().out
    sea, atmosphere = re.findall(r"[0-9a-f]{8}", whole)
    done = [run.finish().check().out for run in runs]
    assert f"sea {sea}," in done[0] and f"air {atmosphere}," in done[1], (whole, done)


def test_a_server_answers_with_what_a_trainer_has_learnt(workshop):
    coupled, name = Coupled(workshop), "weights@b"
    runs = [
        coupled.start(intel(), "a", 4, EXAMPLES / "trainer.py", name, 20),
        coupled.start(mpich(), "b", 2, EXAMPLES / "server.py", name, 20),
    ]
    trained, served = (run.finish().check().out for run in runs)
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", trained)]
    errors = [float(error) for error in re.findall(r"wrong by ([0-9.]+)", served)]
    assert len(losses) == len(errors) == 20
    assert losses[-1] < losses[0] / 50 and errors[-1] < errors[0] / 5, (losses, errors)
