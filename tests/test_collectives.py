"""Collective operations across sites: those that the layer covers, those that it leaves alone, and its switch."""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import BUILT, LANDBRIDGE, ONCE, PROGRAMS

BROADCAST = PROGRAMS / "broadcast.py"
KIN = PROGRAMS / "kin.py"


def layers(mpi):
    """The layer that ranks of this MPI preload."""
    return BUILT / ("liblandbridge-layer.so" if mpi.name == "openmpi" else "liblandbridge-layer-large.so")


def symbols(library):
    """The MPI functions that a library defines."""
    words = ["nm", "-D", "--defined-only", str(BUILT / library)]
    listed = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    return {name for name in (line.split()[-1] for line in listed.splitlines()) if re.match("P?MPI_", name)}


def test_each_function_is_defined_under_both_names():
    """The program calls one, a profiling tool the other. The launcher reads the names from the layers."""
    plain, large = symbols("liblandbridge-layer.so"), symbols("liblandbridge-layer-large.so")
    for defined in (plain, large):
        both = {name.removeprefix("P") for name in defined}
        assert defined == both | {f"P{name}" for name in both}
    counted = {name for name in plain if f"{name}_c" in large}
    assert large == plain | {f"{name}_c" for name in counted}
    assert {"MPI_Bcast", "MPI_Alltoallv"} <= counted


@pytest.mark.one_mpi
@pytest.mark.parametrize("sites", [pytest.param(2, marks=pytest.mark.matrix), 3])
def test_broadcast_is_right_from_every_root(workshop, mpi, sites):
    most = (8 << 20) + 1 if sites == 2 else 1 << 20
    done = workshop.across(mpi, 2 * sites, [mpi.python, BROADCAST, most], sites=sites, nodes=1, limit=240).finish()
    done.check()
    assert "layer: True" in done.out and "checks good" in done.out, str(done)


@pytest.mark.one_mpi
@pytest.mark.parametrize("sites", [pytest.param(2, marks=pytest.mark.matrix), 3])
def test_kin_are_right(workshop, mpi, sites):
    # Open MPI's han, which gets the calls that the layer leaves alone, misplaces blocks of interleaved ranks and of two
    # datatypes that differ, on several nodes of one site too.
    options = ["-x", "OMPI_MCA_coll=^han"] if mpi.name == "openmpi" else []
    program = [mpi.python, KIN]
    started = workshop.across(mpi, 2 * sites, program, run_options=options, sites=sites, nodes=1, limit=240)
    done = started.finish().check()
    assert "layer: True" in done.out and "checks good" in done.out, str(done)


@pytest.mark.parametrize("way", ["option", "variable", "a site"])
def test_native_loads_no_layer(workshop, mpich_only, way):
    program = [mpich_only.python, BROADCAST, 100_003]
    run = [LANDBRIDGE, "run", "-n", 4, "--mpi", "mpich"]
    environment = dict(mpich_only.environment)
    if way == "option":
        command = [*run, "--collectives", "native", "--", *program]
    elif way == "variable":
        environment["LANDBRIDGE_COLLECTIVES"] = "native"
        command = [*run, "--", *program]
    else:
        # Only the last site's ranks have this setting; the others must not use the layer either.
        setting = '[site.run.environment]\\nLANDBRIDGE_COLLECTIVES = "native"\\n'
        words = " ".join(map(str, [*run, "--", *program]))
        copy = f"own=$LANDBRIDGE_SITES-own && cp $LANDBRIDGE_SITES $own && printf '\\n{setting}' >> $own"
        command = ["bash", "-c", f"{copy} && LANDBRIDGE_SITES=$own {words}"]
    done = workshop.lab(command, nodes=1, environment=environment).finish().check()
    assert "layer: False" in done.out, str(done)


@pytest.mark.one_mpi
def test_a_job_of_one_site_loads_no_layer(workshop, mpi):
    done = workshop.across(mpi, 4, [mpi.python, BROADCAST, 100_003], sites=1).finish().check()
    assert "layer: False" in done.out, str(done)


@pytest.mark.one_mpi
def test_each_trunk_is_crossed_once(workshop, mpi):
    """8 MiB from rank 0 to three sites: two crossings, and little more."""
    size, times = 8 << 20, 4
    code = (
        "from mpi4py import MPI; import numpy as np; c = MPI.COMM_WORLD\n"
        f"x = np.full({size}, 7 if c.rank == 0 else 0, np.uint8)\n"
        f"for _ in range({times}): c.Bcast(x, 0)\n"
        "assert (x == 7).all()"
    )
    program = [mpi.python, "-c", code]
    workshop.across(mpi, 12, program, sites=3, nodes=1, options=("--nic-rate", "1gbit"), limit=120).finish().check()
    crossed = workshop.summary()["bytes_relayed"] / (size * times)
    assert 2 <= crossed <= 2 * ONCE, crossed


@pytest.mark.one_mpi
def test_a_long_message_leaves_from_another_node(workshop, mpi):
    """More chunks than a rank awaits: the node that exports them gets several at a time, in any order."""
    code = (
        "from mpi4py import MPI; import numpy as np; c = MPI.COMM_WORLD\n"
        "for turn in range(3):\n"
        "    x = np.arange(12 << 20, dtype=np.uint64) + turn if c.rank == 0 else np.zeros(12 << 20, np.uint64)\n"
        "    c.Bcast(x, 0); assert x[0] == turn and (np.diff(x) == 1).all()"
    )
    program = [mpi.python, "-c", code]
    workshop.across(mpi, 6, program, sites=3, options=("--nic-rate", "1gbit"), limit=150).finish().check()


@pytest.mark.one_mpi
@pytest.mark.parametrize("room", ["64MiB", "64KiB"])
def test_receivers_may_be_late(workshop, mpi, room):
    """A short broadcast does not wait for its receivers, and a long one only where they have no room."""
    program = [mpi.python, PROGRAMS / "late.py", workshop.folder / "returned"]
    options = ["-x", f"LANDBRIDGE_UNEXPECTED={room}"]
    done = workshop.across(mpi, 6, program, run_options=options, sites=3, nodes=1, limit=150).finish().check()
    assert "late receivers good" in done.out, str(done)


def test_communicators_come_and_go(workshop, mpi):
    program = [mpi.python, BROADCAST, "churn", 5000 if mpi.name == "mpich" else 1000]
    done = workshop.across(mpi, 4, program, nodes=1, delay="100us", limit=240).finish().check()
    assert "communicators good" in done.out, str(done)


def test_a_profiling_tool_sees_every_call(workshop, mpi, mpich_only):
    # impi-rt has no compiler wrapper, but MPICH's ABI.
    home = mpich_only.home if mpi.name == "intel" else mpi.home
    tool = workshop.folder / "libtool.so"
    flags = ["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,--as-needed"]
    words = [home / "bin" / "mpicc", *flags, PROGRAMS / "tool.c", "-o", tool]
    subprocess.run([str(word) for word in words], check=True, timeout=60)
    code = (
        "from mpi4py import MPI; import numpy as np; c = MPI.COMM_WORLD\n"
        "for n in (10, 50_000, 200_000):\n"
        "    x = np.full(n, 7 if c.rank == 3 else 0, np.uint8); c.Bcast(x, 3); assert (x == 7).all()"
    )
    options = ["-x", f"LD_PRELOAD={tool}"]
    done = workshop.across(mpi, 4, [mpi.python, "-c", code], run_options=options, nodes=1).finish().check()
    assert done.out.count("tool: 3 calls") == 4, str(done)


@pytest.mark.one_mpi
def test_a_rank_without_the_layer_does_not_start(workshop, mpi):
    """Otherwise the others would wait for it in their first broadcast."""
    wrapper = workshop.folder / "wrapped"
    again = f"os.execv('{mpi.python}', ['{mpi.python}', '{BROADCAST}', '100003'])"
    wrapper.write_text(f"#!{mpi.python}\nimport os\nos.environ.pop('LD_PRELOAD', None)\n{again}\n")
    wrapper.chmod(0o755)
    done = workshop.across(mpi, 4, [wrapper], nodes=1).finish()
    done.fails_naming(layers(mpi).name, "--collectives native")
    done = workshop.across(mpi, 4, [wrapper], run_options=["--collectives", "native"], nodes=1).finish().check()
    assert "layer: False" in done.out, str(done)


def test_what_is_wrong_is_named(workshop, mpich_only):
    run = [LANDBRIDGE, "run", "-n", 2, "--", mpich_only.python, BROADCAST, 1]
    environment = {**mpich_only.environment, "LANDBRIDGE_COLLECTIVES": "mine"}
    workshop.lab(run, environment=environment).finish().fails_naming("LANDBRIDGE_COLLECTIVES=mine", "`native`")
    provider = workshop.folder / "liblandbridge-fi.so"
    provider.write_bytes((BUILT / provider.name).read_bytes())
    run[2:2] = ["-x", f"LANDBRIDGE_PROVIDER={provider}"]
    done = workshop.lab(run, environment=mpich_only.environment).finish()
    done.fails_naming(f"{workshop.folder}/liblandbridge-layer-large.so", "--collectives native")


def covered(folder, compiler):
    """The program that calls every covered operation from C, made by a compiler wrapper of MPICH's."""
    program = folder / "covered"
    flags = ["-std=c99", "-D_XOPEN_SOURCE=700", "-Wall", "-Wextra", "-Werror", "-O2"]
    words = [compiler, *flags, PROGRAMS / "covered.c", "-o", program]
    subprocess.run([str(word) for word in words], check=True, timeout=60)
    return program


def test_the_standard_abi(workshop, mpi, mpich_only):
    """MPI-5's, which MPICH 5 and Intel MPI have beside their own: one program runs on both."""
    if mpi.name == "openmpi":
        pytest.skip("Open MPI 5.0 does not have MPI-5's ABI")
    program = covered(workshop.folder, mpich_only.home / "bin" / "mpicc_abi")
    done = workshop.across(mpi, 6, [program], sites=3, nodes=1, limit=120).finish().check()
    library = "MPICH Version" if mpi.name == "mpich" else "Intel(R) MPI Library"
    assert f"covered: good, layer on 6 of 6 ranks, {library}" in done.out, str(done)


@pytest.mark.slow
def test_more_elements_than_an_int_counts(workshop, mpich_only):
    """A broadcast and a maximum of 2 GiB and 1 MiB of bytes, on three ranks: 7 GB of memory, and minutes."""
    if not os.environ.get("LANDBRIDGE_LARGE"):
        pytest.skip("LANDBRIDGE_LARGE is not set: set it to 1 where 8 GB of memory are free")
    program = covered(workshop.folder, mpich_only.home / "bin" / "mpicc")
    unlimited = ("--nic-rate", "0", "--wan-rate", "0")
    words = [program, (2 << 30) + (1 << 20)]
    done = workshop.across(mpich_only, 3, words, sites=3, nodes=1, options=unlimited, limit=600).finish().check()
    assert "covered: good, layer on 3 of 3 ranks" in done.out, str(done)


FORTRAN = PROGRAMS / "broadcast.f90"


def fortran_compiler():
    found = shutil.which("gfortran") or shutil.which("gfortran-12")
    if found is None:
        pytest.skip("no gfortran: apt install gfortran")
    return found


@pytest.mark.parametrize("interface", ["mpif.h", "use mpi", "use mpi_f08"])
def test_fortran_over_open_mpi(workshop, interface):
    """Debian's Open MPI: its Fortran library calls the C functions by their profiling names."""
    wrapper = shutil.which("mpifort.openmpi")
    if wrapper is None:
        pytest.skip("mpifort.openmpi is not there: apt install openmpi-bin libopenmpi-dev")
    program = workshop.folder / "broadcast"
    macro = {"mpif.h": [], "use mpi": ["-DMODULE"], "use mpi_f08": ["-DF08"]}[interface]
    words = [wrapper, "-cpp", "-w", "-fallow-argument-mismatch", *macro, FORTRAN, "-o", program]
    environment = os.environ | {"OMPI_FC": fortran_compiler()}
    subprocess.run([str(word) for word in words], check=True, timeout=60, env=environment)
    command = [LANDBRIDGE, "run", "-n", 8, f"--json={workshop.folder / 'run.json'}", "--", program]
    done = workshop.lab(command, nodes=1).finish().check()
    assert done.out.count("fortran: good") == 8, str(done)
    # Eight broadcasts once, and two allreduces each way; Open MPI's own cross three times as much.
    assert workshop.summary()["bytes_relayed"] < ONCE * 12 * 400_000


@pytest.mark.parametrize("interface", ["mpif.h", "use mpi", "use mpi_f08"])
def test_fortran_over_mpich(workshop, mpich_only, interface):
    """Debian's Fortran library of MPICH 4 on MPICH 5, whose C library has the same ABI: PyPI's MPICH has no Fortran."""
    headers = Path("/usr/include") / f"{platform.machine()}-linux-gnu" / "mpich"
    library = Path("/usr/lib") / f"{platform.machine()}-linux-gnu" / "libmpichfort.so.12"
    if not (library.exists() and (headers / "mpi_f08.mod").exists()):
        pytest.skip(f"{library} or {headers} is not there: apt install libmpich-dev")
    # The Fortran library asks for the C library by Debian's name.
    links = workshop.folder / "lib"
    links.mkdir()
    (links / "libmpich.so.12").symlink_to(mpich_only.home / "lib" / "libmpi.so.12")
    (links / library.name).symlink_to(library)
    program = workshop.folder / "broadcast"
    macro = {"mpif.h": [], "use mpi": ["-DMODULE"], "use mpi_f08": ["-DF08"]}[interface]
    words = [fortran_compiler(), "-cpp", "-w", "-fallow-argument-mismatch", *macro, f"-I{headers}", FORTRAN]
    words += ["-o", program, links / library.name, links / "libmpich.so.12"]
    # It also uses three functions that MPICH 5 has renamed, and no program here calls.
    words += [f"-Wl,--allow-shlib-undefined,-z,lazy,--disable-new-dtags,-rpath,{links}:{mpich_only.home / 'lib'}"]
    subprocess.run([str(word) for word in words], check=True, timeout=60)
    done = workshop.across(mpich_only, 8, [program], nodes=1, limit=180).finish().check()
    assert done.out.count("fortran: good") == 8, str(done)
    assert workshop.summary()["bytes_relayed"] < ONCE * 12 * 400_000


def test_fortran_over_intel_mpi(workshop, mpich_only):
    """Its Fortran library calls the C functions by their first names."""
    home = mpich_only.home.with_name(".venv-intel")
    if not (home / "lib" / "libmpifort.so.12").exists():
        pytest.skip(f"{home} is not there: run make venv-intel")
    program = workshop.folder / "broadcast"
    libraries = [home / "lib" / name for name in ("libmpifort.so.12", "libmpi.so.12")]
    words = [fortran_compiler(), "-cpp", "-w", "-DMPICH_ABI", "-fallow-argument-mismatch", FORTRAN, "-o", program]
    words += [*libraries, "-Wl,--allow-shlib-undefined"]
    subprocess.run([str(word) for word in words], check=True, timeout=60)
    command = [LANDBRIDGE, "run", "-n", 8, "--", program]
    environment = {"LD_LIBRARY_PATH": str(home / "lib")}
    done = workshop.lab(command, nodes=1, environment=environment).finish().check()
    assert done.out.count("fortran: good") == 8, str(done)
