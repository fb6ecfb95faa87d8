"""`landbridge stage move` of names, depths, sizes and numbers that are unusual."""

import hashlib
import os
import subprocess

import pytest

from test_stage import description, moved, nothing_hidden
from transfers import MIB, move, noise


def deep(folder, levels, name):
    """A folder below a folder, this many times, and a file in the innermost."""
    folder.mkdir()
    at = os.open(folder, os.O_PATH)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_PATH, dir_fd=at)
        os.close(at)
        at = inner
    with open(os.open("file", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=at), "wb") as file:
        file.write(b"deep")
    os.close(at)


def innermost(folder, levels, name):
    at = os.open(folder, os.O_PATH)
    for _ in range(levels):
        inner = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=at)
        os.close(at)
        at = inner
    with open(os.open("file", os.O_RDONLY, dir_fd=at), "rb") as file:
        found = file.read()
    os.close(at)
    return found


def test_difficult_names_arrive(workshop):
    source, target = workshop.folder / "source", workshop.folder / ("t" * 255)
    source.mkdir()
    names = ["-rf", "a\nb", " ", "b:c", "%n", "*", "'\"`$(x)", "\x01\x1b[31m", "é" * 127, "n" * 255]
    for name in [*map(os.fsencode, names), b"\xff\xfe\x80", b"\xc3("]:
        with open(os.path.join(os.fsencode(source), name), "wb") as file:
            file.write(name)
    os.mkdir(os.fsencode(source) + b"/\xff")
    (source / "empty").touch()
    (source / "empty folder" / "within").mkdir(parents=True)
    deep(source / "deep", 200, "d")
    moved(workshop.run(move(source, target)))
    assert description(target) == description(source)
    assert innermost(target / "deep", 200, "d") == b"deep"
    nothing_hidden(workshop.folder)


def test_a_path_that_is_longer_than_the_system_takes_is_named_or_arrives(workshop):
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    target.parent.mkdir()
    name = "d" * 250
    deep(source, 20, name)
    done = workshop.run(move(source, target))
    if done.code == 0:
        assert innermost(target, 20, name) == b"deep"
    else:
        done.fails_naming(str(source), "File name too long")
        assert not target.exists()
    nothing_hidden(target.parent)
    for path in (source, target):
        subprocess.run(["rm", "-rf", path], check=True)


@pytest.mark.parametrize("kind", ["empty file", "empty folder", "only empty folders", "a hole"])
def test_what_has_no_data_arrives(workshop, kind):
    source, target = workshop.folder / "source", workshop.folder / "target"
    if kind in ("empty file", "a hole"):
        source.touch(mode=0o640)
        os.truncate(source, 0 if kind == "empty file" else 1 << 40)
    else:
        source.mkdir(mode=0o750)
        if kind == "only empty folders":
            (source / "a" / "b" / "c").mkdir(parents=True)
    (one,) = moved(workshop.run(move(source, target)))
    assert one["bytes"] == 0
    for path in (source, target):
        assert path.stat().st_blocks < 100
    for what in ("st_mode", "st_size", "st_mtime_ns"):
        assert getattr(target.stat(), what) == getattr(source.stat(), what)
    if source.is_dir():
        assert description(target) == description(source)
    nothing_hidden(workshop.folder)


def test_a_sparse_file_of_100_gib_takes_no_space(workshop):
    source, target = workshop.folder / "source", workshop.folder / "target"
    data = {0: b"first", 50 << 30: b"middle", (100 << 30) - 4: b"last"}
    with source.open("wb") as file:
        for at, text in data.items():
            file.seek(at)
            file.write(text)
    (one,) = moved(workshop.run(move(source, target)))
    assert one["bytes"] < MIB
    assert target.stat().st_size == source.stat().st_size == 100 << 30
    assert source.stat().st_blocks < 1000 and target.stat().st_blocks < 1000
    with target.open("rb") as file:
        for at, text in data.items():
            file.seek(at)
            assert file.read(len(text)) == text
    nothing_hidden(workshop.folder)


@pytest.mark.matrix
def test_100_000_small_files_arrive(workshop):
    source, target = workshop.folder / "source", workshop.folder / "target"
    for folder in range(100):
        (source / str(folder)).mkdir(parents=True)
        for number in range(1000):
            (source / str(folder) / str(number)).write_bytes(noise(4096, folder * 1000 + number))
    (one,) = moved(workshop.run(move(source, target), limit=300))
    assert one["files"] == 100_000

    def hashes(root):
        found = {}
        for at, _, files in os.walk(root):
            for name in files:
                path = os.path.join(at, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, root)] = hashlib.sha256(file.read()).digest()
        return found

    assert hashes(target) == hashes(source)
    nothing_hidden(workshop.folder)
