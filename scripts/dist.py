#!/usr/bin/env python3
"""Builds the releases of `make dist`: checked builds that run on glibc 2.17 and later, as a wheel and a tar.zst for
each machine.

Runs in .venv-dist (scripts/packaging/requirements.txt). Zig links, and knows which symbols each glibc has. ARCH names
the machines. If the Rust standard library for a machine is not installed, the script skips the machine and prints a
line on how to get it; with STRICT=1 this is an error."""

import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import tomllib
import zstandard

ROOT = Path(__file__).resolve().parent.parent
DIST, STAGES = ROOT / "target" / "dist", ROOT / "target" / "dist-stage"
GLIBC = (2, 17)
# The platform tag of each machine's wheel.
MACHINES = {"x86_64": "manylinux2014_x86_64", "aarch64": "manylinux2014_aarch64"}
# Libraries of every Linux system with a glibc.
SYSTEM = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
# Cargo's output files, and the paths at which they are installed.
FILES = {
    "landbridge": "bin/landbridge",
    "liblandbridge_provider.so": "lib/landbridge/liblandbridge-fi.so",
    "liblandbridge_layer.so": "lib/landbridge/liblandbridge-layer.so",
    "liblandbridge_layer_large.so": "lib/landbridge/liblandbridge-layer-large.so",
    "liblandbridge.so": "lib/liblandbridge.so",
}
# Sources that programs compile: their folders, and the paths at which they are installed.
SOURCES = {"arrays/c/include": "include", "arrays/c/fortran": "share/landbridge/fortran"}

# The compiled part of the Python package; only the wheel contains it.
MODULE, MODULE_IN_WHEEL = "liblandbridge_python.so", "landbridge/_core.abi3.so"


def fail(text):
    raise SystemExit(f"dist: {text}")


def output(*words):
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout


def has_library(target):
    """Returns true if this compiler has Rust's standard library for the target."""
    done = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", target],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode == 0 and any(Path(done.stdout.strip()).glob("libstd-*"))


def commit():
    """The commit, marked if the sources differ from it. LANDBRIDGE_COMMIT overrides it; empty without git."""
    given = os.environ.get("LANDBRIDGE_COMMIT")
    if given or not (ROOT / ".git").exists():
        return given or ""
    return output("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").strip()


def build(machine):
    """Builds command, libraries and Python module. Returns the paths in the order of FILES, and the module's path."""
    target = f"{machine}-unknown-linux-gnu"
    names = ("cli", "provider", "layer", "layer-large", "python", "c")
    packages = [word for name in names for word in ("-p", f"landbridge-{name}")]
    environment = {**os.environ, "LANDBRIDGE_COMMIT": commit(), "CARGO_ZIGBUILD_PYTHON_PATH": sys.executable}
    versioned = f"{target}.{GLIBC[0]}.{GLIBC[1]}"
    words = [
        Path(sys.executable).parent / "cargo-zigbuild",
        "zigbuild",
        "--locked",
        "--profile",
        "packaged",
        "--target",
        versioned,
        *packages,
    ]
    subprocess.run(words, cwd=ROOT, env=environment, check=True)
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / target / "packaged"
    return [folder / name for name in FILES], folder / MODULE


def check_symbols(file):
    """Refuses a file that is not stripped, or that needs more than glibc 2.17 or a library that some systems lack."""
    dynamic = output("objdump", "-T", str(file))
    needed = {tuple(map(int, version.split("."))) for version in re.findall(r"\bGLIBC_([0-9.]+)", dynamic)}
    if not needed:
        fail(f"{file}: objdump -T shows no symbol of glibc, so nothing was checked")
    if beyond := sorted(version for version in needed if version > GLIBC):
        lines = [line for line in dynamic.splitlines() if any(f"GLIBC_{'.'.join(map(str, v))}" in line for v in beyond)]
        fail(f"{file} needs a later glibc than {GLIBC[0]}.{GLIBC[1]}:\n" + "\n".join(lines))
    libraries = set(re.findall(r"NEEDED\s+(\S+)", output("objdump", "-p", str(file))))
    if foreign := libraries - SYSTEM:
        fail(f"{file} needs {', '.join(sorted(foreign))}, which not every system has")
    if ".debug_info" in output("objdump", "-h", str(file)) or "no symbols" not in output("objdump", "-t", str(file)):
        fail(f"{file} is not stripped")
    return max(needed)


def stage(machine, files, share):
    """Copies the files into the layout in which they are installed."""
    folder = STAGES / machine
    shutil.rmtree(folder, ignore_errors=True)
    for source, place in zip(files, FILES.values()):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / place)
        (folder / place).chmod(0o755)
        glibc = ".".join(map(str, check_symbols(folder / place)))
        print(f"dist: {machine}: {place}: {source.stat().st_size / 1e6:.1f} MB, glibc {glibc}")
    shutil.copytree(share, folder / "share")
    for source, place in SOURCES.items():
        shutil.copytree(ROOT / source, folder / place)
    licences = folder / "share" / "licenses" / "landbridge"
    licences.mkdir(parents=True)
    for text in (ROOT / "LICENSES").iterdir():
        shutil.copy(text, licences)
    import ziglang  # only where a build is made

    zig = Path(ziglang.__file__).parent
    extra = [f"Zig's compiler-rt={zig / 'LICENSE'}", f"LLVM's libunwind={zig / 'lib/libunwind/LICENSE.TXT'}"]
    third = licences / "THIRD-PARTY.txt"
    subprocess.run(
        [sys.executable, ROOT / "scripts/licences.py", f"{machine}-unknown-linux-gnu", third, *extra],
        cwd=ROOT,
        check=True,
    )
    return folder


def archive(folder, name, time):
    """Makes a tar.zst of the folder; equal files give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            entry = tar.gettarinfo(path, f"{name}/{path.relative_to(folder)}")
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = "root"
            entry.mtime, entry.mode = time, 0o755 if path.is_dir() or entry.mode & 0o100 else 0o644
            if path.is_dir():
                tar.addfile(entry)
            else:
                with path.open("rb") as file:
                    tar.addfile(entry, file)
    file = DIST / f"{name}.tar.zst"
    file.write_bytes(zstandard.ZstdCompressor(level=19).compress(buffer.getvalue()))
    return file


def wheel(machine, folder, module, version, time):
    """The wheel, made by hatchling from arrays/python/, the compiled module and the folder."""
    sources = STAGES / f"{machine}-wheel"
    shutil.rmtree(sources, ignore_errors=True)
    shutil.copytree(
        ROOT / "arrays" / "python", sources, ignore=shutil.ignore_patterns("__pycache__", "src", "Cargo.toml", "*.so")
    )
    shutil.copytree(folder, sources / "built")
    glibc = ".".join(map(str, check_symbols(module)))
    print(f"dist: {machine}: {MODULE_IN_WHEEL}: {module.stat().st_size / 1e6:.1f} MB, glibc {glibc}")
    shutil.copyfile(module, sources / MODULE_IN_WHEEL)
    for file in [ROOT / "README.md", *(folder / "share/licenses/landbridge").iterdir()]:
        shutil.copy(file, sources)
    environment = {
        **os.environ,
        "LANDBRIDGE_VERSION": version,
        "LANDBRIDGE_WHEEL_TAG": MACHINES[machine],
        "SOURCE_DATE_EPOCH": str(time),
    }
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(DIST)]
    subprocess.run(words, cwd=sources, env=environment, check=True, stdout=subprocess.DEVNULL)
    file = DIST / f"landbridge-{version}-cp39-abi3-{MACHINES[machine]}.whl"
    data = f"landbridge-{version}.data"
    wanted = [
        f"{data}/scripts/landbridge",
        *(f"{data}/data/{place}" for place in FILES.values() if place.startswith("lib/")),
        *(f"{data}/data/include/{header.name}" for header in (ROOT / "arrays" / "c" / "include").glob("*.h")),
        f"{data}/data/share/landbridge/fortran/landbridge.f90",
        f"{data}/data/share/man/man1/landbridge-run.1",
        f"{data}/data/share/bash-completion/completions/landbridge",
        *(f"landbridge-{version}.dist-info/licenses/{text.name}" for text in (ROOT / "LICENSES").iterdir()),
        f"landbridge-{version}.dist-info/licenses/THIRD-PARTY.txt",
        "landbridge/__init__.py",
        MODULE_IN_WHEEL,
    ]
    missing = set(wanted) - set(zipfile.ZipFile(file).namelist())
    if missing:
        fail(f"{file} lacks {', '.join(sorted(missing))}")
    return file


def main():
    with (ROOT / "Cargo.toml").open("rb") as file:
        version = tomllib.load(file)["workspace"]["package"]["version"]
    here = platform.machine()
    wanted = (os.environ.get("ARCH") or " ".join(MACHINES)).split()
    if unknown := set(wanted) - set(MACHINES):
        fail(f"ARCH={' '.join(wanted)}: {', '.join(sorted(unknown))} is none of {', '.join(MACHINES)}")
    targets = {machine: f"{machine}-unknown-linux-gnu" for machine in wanted}
    missing = [machine for machine in wanted if not has_library(targets[machine])]
    for machine in missing:
        how = f"rustup target add {targets[machine]}, in this folder"
        print(
            f"dist: {machine} is left out: this Rust has no standard library for {targets[machine]}: {how}",
            file=sys.stderr,
        )
    if missing and os.environ.get("STRICT", "") not in ("", "0"):
        fail(f"STRICT: a release needs {' and '.join(wanted)}")
    if here not in wanted or here in missing:
        fail(f"this machine's own {here} must be built, since its command writes the completions and man pages of all")
    time = int(
        os.environ.get("SOURCE_DATE_EPOCH")
        or (output("git", "log", "-1", "--format=%ct") if commit() and (ROOT / ".git").exists() else 0)
    )
    for folder in (DIST, STAGES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    made, share = [], STAGES / "share"
    for machine in sorted(set(wanted) - set(missing), key=lambda machine: machine != here):
        files, module = build(machine)
        if machine == here:
            subprocess.run([files[0], "share", share], check=True)
        folder = stage(machine, files, share)
        made += [
            archive(folder, f"landbridge-{version}-{machine}-linux-glibc2.17", time),
            wheel(machine, folder, module, version, time),
        ]
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(made))
    (DIST / "SHA256SUMS").write_text(sums)
    for file in sorted(made):
        print(f"dist: {file.relative_to(ROOT)}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
