"""The products of `make dist`, as a user gets them: the wheel in a fresh environment, here and in an older
Debian, the archive, their checksums."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from harness import PROGRAMS, ROOT

DIST = ROOT / "target" / "dist"
# MPICH and mpi4py, fetched by make: a test may have no network.
WHEELS = ROOT / "target" / "dist-wheels"
MACHINE = platform.machine()
OLD_SYSTEM = ROOT / "scripts" / "old-system"
README_INSTALL = "pip install target/dist/landbridge-*_$(uname -m).whl"
pytestmark = pytest.mark.slow


def one(pattern):
    found = sorted(DIST.glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} in {DIST}: run make dist (make test-dist does)")
    assert len(found) == 1, found
    return found[0]


# MPICH and mpi4py of the versions that the other tests use.
MPI = [
    line
    for line in (ROOT / "tests/requirements/mpich.txt").read_text().splitlines()
    if line.startswith(("mpi4py==", "mpich=="))
]


@pytest.fixture
def installed(workshop):
    """A fresh environment with the wheel, as the README installs it, and MPI. No index is asked."""
    home = workshop.folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    if not WHEELS.is_dir():
        pytest.skip(f"{WHEELS} is not there: make test-dist fills it")
    one(f"*{MACHINE}.whl")
    quiet = {**alone(home), "PIP_NO_INDEX": "1", "PIP_QUIET": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    workshop.run(["bash", "-c", README_INSTALL], cwd=ROOT, environment=quiet, limit=60).check()
    mpi = ["pip", "install", "--find-links", WHEELS, *MPI]
    workshop.run([home / "bin" / mpi[0], *mpi[1:]], environment=quiet, limit=120).check()
    return home


def alone(home):
    """An environment that finds only the commands of this one and of the system."""
    return {"PATH": f"{home / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin", "VIRTUAL_ENV": str(home), "PYTHONPATH": ""}


def test_a_job_across_two_sites_with_nothing_but_the_installed_wheel(workshop, installed):
    hello = ["landbridge", "run", "-n", 4, "--json", "--", "python", "-m", "mpi4py.bench", "helloworld"]
    lab = [installed / "bin" / "landbridge", "lab", "--delay", "1ms", "--", *hello]
    done = workshop.run(lab, environment=alone(installed), limit=60).check()
    assert len(re.findall(r"Hello, World! I am process \d of 4", done.out)) == 4, str(done)
    assert {f"on {site}-n{node}" for site in "ab" for node in (1, 2)} == set(re.findall(r"on [ab]-n\d", done.out)), str(
        done
    )
    check = [installed / "bin" / "landbridge", "lab", "--", "landbridge", "sites", "check"]
    workshop.run(check, environment=alone(installed), limit=60).check()


class OldSystem:
    """Debian 11 for a machine, with a folder that both systems see. Missing tools are skips that name them."""

    def __init__(self, workshop, machine):
        self.workshop, self.machine = workshop, machine
        self.folder = workshop.folder / "shared"
        self.folder.mkdir()
        tried = subprocess.run(
            [OLD_SYSTEM, "run", machine, self.folder, "true"], capture_output=True, text=True, check=False
        )
        if tried.returncode != 0:
            pytest.skip(tried.stderr.strip())

    def run(self, script, limit):
        """Types a script there, in the shared folder."""
        path = f"{self.folder}/venv/bin:/usr/sbin:/usr/bin"
        words = [OLD_SYSTEM, "run", self.machine, self.folder, "bash", "-ec", script]
        return self.workshop.run(words, environment={"PATH": os.environ["PATH"], "OLD_PATH": path}, limit=limit).check()

    def install(self, limit):
        """The wheel and MPI in a fresh environment of its Python."""
        wheels = [*WHEELS.glob(f"*{self.machine}.whl"), one(f"*{self.machine}.whl")]
        if not WHEELS.is_dir():
            pytest.skip(f"{WHEELS} is not there: make test-dist fills it")
        for wheel in wheels:
            shutil.copy(wheel, self.folder)
        script = f"python3 -m venv venv; pip install --quiet --no-index --find-links . landbridge {' '.join(MPI)}"
        self.run(f"PATH=$OLD_PATH; {script}", limit)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_job_across_two_sites_on_the_oldest_glibc_that_can_be_had(workshop, machine):
    """Debian 11 has glibc 2.31. Another machine's programs are emulated by QEMU, which cannot shape a lab's networks:
    there the sites have addresses of their own, and nothing else."""
    old = OldSystem(workshop, machine)
    limit, isolation = (60, "namespaces") if machine == MACHINE else (300, "loopback")
    old.install(limit)
    hello = "landbridge run -n 4 --prefix --json -- python -m mpi4py.bench helloworld"
    ask = "uname -m; ldd --version; landbridge --version"
    done = old.run(f"PATH=$OLD_PATH; {ask}; landbridge lab --isolation {isolation} -- {hello}", limit)
    assert done.out.startswith(f"{machine}\n") and "GLIBC 2.31" in done.out, str(done)
    places = set(re.findall(r"^\[(\w/\w+/\d)\] Hello, World! I am process \d of 4", done.out, re.MULTILINE))
    assert places == {"a/n1/0", "a/n2/1", "b/n1/2", "b/n2/3"}, str(done)
    assert '"ok":true' in done.out and '"mpi":"mpich"' in done.out, str(done)


def test_lmod_loads_the_unpacked_archive(workshop):
    """Lmod of Debian 11 itself, the modulefile as the release has it, and the command on the path that it makes."""
    old = OldSystem(workshop, MACHINE)
    version = re.search(r"landbridge-([\d.]+)-", one(f"*{MACHINE}*.tar.zst").name)[1]
    module = old.folder / "modules" / "landbridge" / f"{version}.lua"
    module.parent.mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "packaging" / "modulefiles" / "landbridge.lua", module)
    script = """
        export PATH=/usr/sbin:/usr/bin MODULEPATH=$PWD/modules LANDBRIDGE_ROOT_FOLDER=$PWD/opt
        lmod() { lua5.2 /usr/share/lmod/lmod/libexec/lmod bash "$@"; }
        lmod load landbridge 2>&1 | grep -q "unpack Landbridge's tar.zst to"
        mkdir -p opt; mv unpacked/landbridge-* opt/VERSION
        eval "$(lmod load landbridge)"
        type -P landbridge; landbridge --version; echo "$MANPATH"; echo "${LANDBRIDGE_PROVIDER-none}"
        eval "$(lmod unload landbridge)"
        type -P landbridge || echo gone
    """.replace("VERSION", version)
    unpack(one(f"*{MACHINE}*.tar.zst"), old.folder / "unpacked")
    done = old.run(script, limit=60)
    root = f"{old.folder}/opt/{version}"
    lines = done.out.splitlines()
    assert lines[0] == f"{root}/bin/landbridge" and lines[1].startswith(f"landbridge {version} "), str(done)
    assert lines[2:] == [f"{root}/share/man", "none", "gone"], str(done)


def unpack(archive, folder):
    """Unpacks a tar.zst into a new folder; nothing in it belongs to anybody, or goes elsewhere."""
    folder.mkdir()
    plain = folder / "plain.tar"
    subprocess.run(["zstd", "--quiet", "-d", archive, "-o", plain], check=True)
    with tarfile.open(plain) as tar:
        assert all((entry.uid, entry.gid) == (0, 0) and not entry.name.startswith("/") for entry in tar)
        tar.extractall(folder, filter="data")
    plain.unlink()


def test_the_wheel_has_what_it_says(workshop, installed):
    ask = "import landbridge; print(landbridge.__version__, landbridge.command(), landbridge.provider(), sep='\\n')"
    done = workshop.run([installed / "bin" / "python", "-c", ask], environment=alone(installed)).check()
    version, command, provider = done.out.splitlines()
    shown = workshop.run([command, "--version"], environment=alone(installed)).check().out.strip()
    assert re.fullmatch(rf"landbridge {re.escape(version)} \([0-9a-f]{{12}}(-dirty)?\)", shown), shown
    assert provider == str(installed.resolve() / "lib/landbridge/liblandbridge-fi.so")
    bash = installed / "share/bash-completion/completions/landbridge"
    words = "COMP_WORDS=(landbridge si); COMP_CWORD=1; _landbridge landbridge si landbridge"
    complete = f"source {bash}; {words}; echo ${{COMPREPLY[@]}}"
    assert workshop.run(["bash", "-c", complete]).check().out.split() == ["sites"]
    assert ".TH landbridge-run 1" in (installed / "share/man/man1/landbridge-run.1").read_text()


def test_c_programs_are_compiled_with_the_wheel(workshop, installed, mpich_only):
    program = workshop.folder / "redistribute"
    words = [mpich_only.home / "bin" / "mpicc", "-std=c99", f"-I{installed / 'include'}", PROGRAMS / "redistribute.c"]
    words += ["-o", program, f"-L{installed / 'lib'}", "-llandbridge", f"-Wl,-rpath,{installed.resolve() / 'lib'}"]
    workshop.run(words).check()
    done = workshop.run([mpich_only.mpiexec, "-n", 4, program, 20, 1], environment=mpich_only.environment).check()
    assert "20 redistributions are right" in done.out, str(done)
    assert (installed / "share/landbridge/fortran/landbridge.f90").exists()


def test_every_program_that_is_linked_has_its_licence():
    with zipfile.ZipFile(one(f"*{MACHINE}.whl")) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("licenses/THIRD-PARTY.txt")]
        text = wheel.read(name).decode()
    listed, _, texts = text.partition("=" * 100)
    programs = re.findall(r"^- ([\w-]+) [\d.+a-z-]+: \S", listed, re.MULTILINE)
    assert {"rustls", "ring", "tokio", "clap", "libc"} <= set(programs) and "proptest" not in programs, programs
    assert all(f"{program} " in texts for program in programs)


def test_all_machines_need_no_more_than_glibc_2_17():
    """The proof where no system that old is at hand: the symbols that the dynamic linker would look for."""
    archives = sorted(DIST.glob("*.tar.zst"))
    if not archives:
        pytest.skip(f"no *.tar.zst in {DIST}: run make dist (make test-dist does)")
    for archive in archives:
        folder = ROOT / "target" / "dist-stage" / re.search(r"x86_64|aarch64", archive.name)[0]
        layers = [f"lib/landbridge/liblandbridge-{name}.so" for name in ("fi", "layer", "layer-large")]
        for file in ("bin/landbridge", "lib/liblandbridge.so", *layers):
            shown = subprocess.run(
                ["objdump", "-T", folder / file], stdout=subprocess.PIPE, check=True, text=True
            ).stdout
            versions = {tuple(map(int, text.split("."))) for text in re.findall(r"\bGLIBC_([0-9.]+)", shown)}
            assert versions and max(versions) <= (2, 17), f"{archive.name}: {file}: {sorted(versions)}"


def test_the_archive_runs_where_it_is_unpacked(workshop):
    unpack(one(f"*{MACHINE}*.tar.zst"), workshop.folder / "unpacked")
    (folder,) = workshop.folder.glob("unpacked/landbridge-*-linux-*")
    workshop.run([folder / "bin" / "landbridge", "--version"]).check()
    check = [folder / "bin" / "landbridge", "lab", "--", folder / "bin" / "landbridge", "sites", "check"]
    workshop.run(check, environment={"PATH": os.environ["PATH"]}, limit=60).check()
    for name in ("MIT.txt", "Apache-2.0.txt", "THIRD-PARTY.txt"):
        assert (folder / "share/licenses/landbridge" / name).stat().st_size > 500


def test_checksums_fit():
    one("SHA256SUMS")
    lines = dict(reversed(line.split("  ")) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    made = {
        str(file.relative_to(DIST)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in DIST.rglob("*")
        if file.is_file() and file.name != "SHA256SUMS"
    }
    assert lines == made
