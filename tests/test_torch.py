"""The example of a torch.distributed backend over MPI, across two sites."""

import pytest

from harness import LANDBRIDGE, PROGRAMS, ROOT

HOME = ROOT / ".venv-torch"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (HOME / "bin" / "python").exists(), reason=f"{HOME} is not there: make test-torch makes it"),
]


def across_two_sites(workshop, program):
    lab = [LANDBRIDGE, "lab", "--sites", 2, "--nodes", 2, "--delay", "5ms", "--"]
    words = [LANDBRIDGE, "run", "-n", 4, "--timeout", "100s", "--", HOME / "bin" / "python", program]
    return workshop.run([*lab, *words], environment={"LD_LIBRARY_PATH": str(HOME / "lib")}, limit=150).check()


def test_collectives_and_messages(workshop, isolated):
    assert "4 ranks: all right" in across_two_sites(workshop, PROGRAMS / "torch_collectives.py").out


def test_training_gives_what_one_process_gives(workshop, isolated):
    done = across_two_sites(workshop, ROOT / "examples" / "torch" / "train.py")
    assert "4 ranks, 100 steps: loss" in done.out, str(done)
