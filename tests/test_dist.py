"""What `make dist` made, as a user gets it: the wheel in a fresh environment, the archive, their checksums."""

import hashlib
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

from harness import ROOT

DIST = ROOT / "target" / "dist"
# MPICH and mpi4py, fetched by make: a test may have no network.
WHEELS = ROOT / "target" / "dist-wheels"
MACHINE = platform.machine()
pytestmark = pytest.mark.slow


def one(pattern):
    found = sorted(DIST.glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} in {DIST}: run make dist (make test-dist does)")
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def installed(workshop):
    """A fresh environment with the wheel, and MPICH and mpi4py of the versions that the other tests use. No index is
    asked."""
    home = workshop.folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not WHEELS.is_dir():
        pytest.skip(f"{WHEELS} is not there: make test-dist fills it")
    wanted = (ROOT / "tests/requirements/mpich.txt").read_text().splitlines()
    mpi = [line for line in wanted if line.startswith(("mpi4py==", "mpich=="))]
    subprocess.run([*pip, "--no-index", "--find-links", WHEELS, one(f"*{MACHINE}.whl"), *mpi], check=True)
    return home


def alone(home):
    """An environment that finds nothing but what is in this one, and the system's own commands."""
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


def test_the_wheel_has_what_it_says(workshop, installed):
    ask = "import landbridge; print(landbridge.__version__, landbridge.command(), landbridge.provider(), sep='\\n')"
    done = workshop.run([installed / "bin" / "python", "-c", ask], environment=alone(installed)).check()
    version, command, provider = done.out.splitlines()
    shown = workshop.run([command, "--version"], environment=alone(installed)).check().out.strip()
    assert re.fullmatch(rf"landbridge {re.escape(version)} \([0-9a-f]{{12}}(-dirty)?\)", shown), shown
    assert provider == str(installed.resolve() / "lib/landbridge/liblandbridge-fi.so")
    bash = installed / "share/bash-completion/completions/landbridge"
    complete = f"source {bash}; COMP_WORDS=(landbridge si); COMP_CWORD=1; _landbridge landbridge si landbridge; echo ${{COMPREPLY[@]}}"
    assert workshop.run(["bash", "-c", complete]).check().out.split() == ["sites"]
    assert ".TH landbridge-run 1" in (installed / "share/man/man1/landbridge-run.1").read_text()


def test_every_program_that_is_linked_has_its_licence():
    with zipfile.ZipFile(one(f"*{MACHINE}.whl")) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith("licenses/THIRD-PARTY.txt")]
        text = wheel.read(name).decode()
    listed, _, texts = text.partition("=" * 100)
    programs = re.findall(r"^- ([\w-]+) [\d.+a-z-]+: \S", listed, re.MULTILINE)
    assert {"rustls", "ring", "tokio", "clap", "libc"} <= set(programs) and "proptest" not in programs, programs
    assert all(f"{program} " in texts for program in programs)


def test_all_machines_need_no_more_than_glibc_2_17():
    """The proof where no system that old is at hand: what the dynamic linker would look for."""
    archives = sorted(DIST.glob("*.tar.zst"))
    if not archives:
        pytest.skip(f"no *.tar.zst in {DIST}: run make dist (make test-dist does)")
    for archive in archives:
        folder = ROOT / "target" / "dist-stage" / re.search(r"x86_64|aarch64", archive.name)[0]
        for file in ("bin/landbridge", "lib/landbridge/liblandbridge-fi.so"):
            shown = subprocess.run(
                ["objdump", "-T", folder / file], stdout=subprocess.PIPE, check=True, text=True
            ).stdout
            versions = {tuple(map(int, text.split("."))) for text in re.findall(r"\bGLIBC_([0-9.]+)", shown)}
            assert versions and max(versions) <= (2, 17), f"{archive.name}: {file}: {sorted(versions)}"


def test_the_archive_runs_where_it_is_unpacked(workshop):
    archive = one(f"*{MACHINE}*.tar.zst")
    plain = workshop.folder / "landbridge.tar"
    subprocess.run(["zstd", "--quiet", "-d", archive, "-o", plain], check=True)
    with tarfile.open(plain) as tar:
        assert all((entry.uid, entry.gid) == (0, 0) and not entry.name.startswith("/") for entry in tar)
        tar.extractall(workshop.folder, filter="data")
    (folder,) = workshop.folder.glob("landbridge-*-linux-*")
    workshop.run([folder / "bin" / "landbridge", "--version"]).check()
    check = [folder / "bin" / "landbridge", "lab", "--", folder / "bin" / "landbridge", "sites", "check"]
    workshop.run(check, environment={"PATH": os.environ["PATH"]}, limit=60).check()
    for name in ("LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.txt"):
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
