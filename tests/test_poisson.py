"""examples/poisson under MPICH's own mpiexec: the reference for the tests across sites must itself be right."""

import json
import subprocess
import sys

import numpy as np
import pytest

from harness import POISSON, ROOT

sys.path.insert(0, str(ROOT / "examples" / "poisson"))
import compare


@pytest.fixture(scope="session", autouse=True)
def built():
    assert POISSON.exists(), f"{POISSON} is not there: run make poisson"


def solve(mpi, folder, ranks, *options, field="field"):
    path = folder / field
    command = [mpi.mpiexec, "-n", ranks, POISSON, *options, "--json", "-", "--field", path]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), path


def himeno(size, iterations):
    """The published algorithm, straight from its definition, in numpy float32; with Himeno's constants b = 0."""
    p = np.broadcast_to(
        (np.arange(size[0], dtype="f4") ** 2 / np.float32((size[0] - 1) ** 2))[:, None, None], size
    ).astype("f4")
    inner = (slice(1, -1),) * 3

    def shifted(i, j, k):
        return p[1 + i : size[0] - 1 + i, 1 + j : size[1] - 1 + j, 1 + k : size[2] - 1 + k]

    for _ in range(iterations):
        s0 = (
            shifted(1, 0, 0)
            + shifted(0, 1, 0)
            + shifted(0, 0, 1)
            + shifted(-1, 0, 0)
            + shifted(0, -1, 0)
            + shifted(0, 0, -1)
        )
        ss = s0 * np.float32(1 / 6) - p[inner]
        residual = float((ss.astype("f8") ** 2).sum())
        p = p.copy()
        p[inner] += np.float32(0.8) * ss
    return p, residual


def test_the_field_is_what_the_definition_gives(mpich_only, tmp_path):
    size = (17, 12, 21)
    report, field = solve(mpich_only, tmp_path, 2, "--size", "17x12x21", "--iterations", 30)
    expected, residual = himeno(size, 30)
    np.testing.assert_allclose(compare.read_field(field, size), expected, rtol=2e-6, atol=1e-7)
    assert report["residual"] == pytest.approx(residual, rel=1e-5)


@pytest.mark.parametrize("coefficients", ["himeno", "varied"])
@pytest.mark.parametrize("size", ["XS", "17x13x11", "33x6x65"])
def test_no_decomposition_changes_a_bit(mpich_only, tmp_path, size, coefficients):
    options = ["--size", size, "--iterations", 15, "--coefficients", coefficients]
    one, reference = solve(mpich_only, tmp_path, 1, *options, field="reference")
    shape = compare.parse_size(size)
    assert np.isfinite(compare.read_field(reference, shape)).all()
    for ranks, decompose in [(2, "2x1x1"), (4, "1x4x1"), (4, "1x1x4"), (4, "2x2x1"), (3, "3x1x1"), (8, "2x2x2")]:
        report, field = solve(mpich_only, tmp_path, ranks, *options, "--decompose", decompose)
        assert compare.first_difference(compare.read_field(reference, shape), compare.read_field(field, shape)) is None
        assert report["residual"] == pytest.approx(one["residual"], rel=1e-12)
        assert report["decomposition"] == [int(part) for part in decompose.split("x")]
        assert len(report["bytes_sent"]) == ranks and min(report["bytes_sent"]) > 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--size", "2x4x4"], "2x4x4"),
        (["--bogus"], "--bogus"),
        (["--size"], "--size needs a value"),
        (["--iterations", "0"], "--iterations 0"),
        (["--iterations", "9", "--seconds", "1"], "exclude"),
        (["--decompose", "3x1x1"], "3x1x1"),
        (["--size", "3x3x3", "--decompose", "1x1x4"], "1x1x4"),
        (["--seconds", "nan"], "nan"),
    ],
)
def test_bad_arguments_are_named(mpich_only, options, named):
    command = [str(mpich_only.mpiexec), "-n", "2", str(POISSON), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1, "said more than once"


def test_compare_names_the_first_difference(tmp_path):
    first = np.arange(60, dtype="<f4").reshape(3, 4, 5)
    second = first.copy()
    second[1, 2, 3] += 1
    second[2, 0, 0] += 2
    assert compare.first_difference(first, first.copy()) is None
    said = compare.first_difference(first, second)
    assert "1,2,3" in said and "2 of 60" in said
