"""`landbridge stage move` of files whose size, times or attributes do not say all, and between file systems that do not
know the same."""

import mmap
import os
import sys

import pytest

from test_stage import MOVE, moved, nothing_hidden
from transfers import MIB, SLOWLY, move, noise


def test_an_attribute_without_room_is_left_out_and_named(workshop, mounts):
    """tmpfs has room for it, ext4 has not."""
    memory, seen = mounts.mount("tmpfs", name="memory")
    disk, there = mounts.mount("ext4")
    source = seen / "source"
    source.mkdir()
    (source / "file").write_text("x")
    try:
        os.setxattr(source / "file", "user.large", b"x" * 20_000)
    except OSError as error:
        pytest.skip(f"this kernel's tmpfs has no such attributes: {error}")
    os.setxattr(source / "file", "user.small", b"small")
    (one,) = moved(mounts.run(move(memory / "source", disk / "target")))
    assert (there / "target" / "file").read_text() == "x"
    assert os.listxattr(there / "target" / "file") == ["user.small"]
    (note,) = [note for note in one["notes"] if "attributes" in note]
    assert "user.large" in note and "target/file" in note and "of 1 files" in note, note
    (one,) = moved(mounts.run(move("--no-xattrs", memory / "source", disk / "without")))
    assert os.listxattr(there / "without" / "file") == [] and not [
        note for note in one["notes"] if "attributes" in note
    ]
    nothing_hidden(there)


def test_a_file_system_that_does_not_say_its_size_is_used(workshop, mounts):
    at = workshop.folder / "sizeless"
    at.mkdir()
    mounts.must("mount", "-t", "ramfs", "ramfs", at)
    seen = mounts.path(at)
    assert os.statvfs(seen).f_blocks == 0
    source = workshop.folder / "source"
    source.write_bytes(noise(2 * MIB))
    moved(mounts.run(move("--keep-free", "0", source, at / "one")))
    moved(mounts.run(move(source, at / "two")))
    assert (seen / "one").read_bytes() == (seen / "two").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("name", ["/proc/version", "/proc/sys/kernel"])
def test_what_says_that_it_is_empty_and_is_not_is_refused(workshop, name):
    """Files that the kernel makes up when they are read."""
    done = workshop.run(move(name, workshop.folder / "target")).fails_naming(name, "says that it has 0 bytes")
    assert f"{name}/ is" not in done.err, str(done)
    assert not (workshop.folder / "target").exists()


# Maps a file, closes it, and writes a new number to each of its pages, again and again.
WRITER = """import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
view = mmap.mmap(file, 0)
os.close(file)
number = 0
while True:
    number += 1
    for at in range(0, len(view), 4096):
        view[at:at + 8] = number.to_bytes(8, "little")
    if number == 2:
        open(sys.argv[2], "w").close()
"""


@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("where", ["here", "between-sites"])
def test_a_file_that_is_rewritten_through_a_mapping_is_refused(workshop, mounts, kind, where):
    """Its pages are dirty before the transfer begins, so its times do not change by themselves."""
    at, seen = mounts.mount("ext4" if kind == "disk" else "tmpfs", size=64 * MIB)
    (seen / "source").write_bytes(noise(4 * MIB))
    target = workshop.folder / "to" / "target"
    target.parent.mkdir()
    writing = workshop.folder / "writing"
    writer = workshop.start([sys.executable, "-c", WRITER, seen / "source", writing])
    writer.wait_for(writing.exists, 30, "a mapping that is written to")
    if where == "here":
        done = mounts.run(move(*SLOWLY, at / "source", target))
    else:
        done = mounts.lab(f"{MOVE} {' '.join(SLOWLY)} b/n1:{at}/source a/n2:{target}").finish()
    writer.end()
    done.fails_naming("source changed while it was being moved", "it was written to")
    assert not target.exists()
    (one,) = moved(mounts.run(move("--block", "256KiB", at / "source", target)))
    assert target.read_bytes() == (seen / "source").read_bytes(), one


def test_a_file_that_is_only_open_for_writing_arrives(workshop):
    """A program that keeps its output open and does not write to it."""
    source, target = workshop.folder / "source", workshop.folder / "target"
    source.write_bytes(noise(MIB))
    with source.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[0] = view[0]
        moved(workshop.run(move(source, target)))
    assert target.read_bytes() == source.read_bytes()
