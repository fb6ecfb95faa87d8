"""`landbridge stage move` to a disk that is full, fills up, has a quota or no inodes, or cannot be written."""

import os
import shutil

import pytest

from mounts import fill
from test_stage import MOVE, arrived, description, moved, nothing_hidden
from transfers import MIB, ORDINARY, SLOWLY, move, noise, ordinary, owned

DISKS = pytest.mark.parametrize("disk", ["tmpfs", "ext4"])


@DISKS
def test_a_source_that_does_not_fit_is_refused_before_the_first_byte(workshop, mounts, disk):
    at, seen = mounts.mount(disk)
    (seen / "precious").write_bytes(noise(100_000))
    (workshop.folder / "source").write_bytes(noise(40 * MIB))
    before = os.statvfs(seen)
    done = mounts.run(move(workshop.folder / "source", at / "target"))
    done.fails_naming(f"{at}/target", "has room for", str(40 * MIB + 4096), "Nothing was moved")
    nothing_hidden(seen)
    after = os.statvfs(seen)
    assert (after.f_bfree, after.f_ffree) == (before.f_bfree, before.f_ffree)
    assert (seen / "precious").read_bytes() == noise(100_000)


@pytest.mark.parametrize(
    "disk",
    ["tmpfs", "ext4"],
)
def test_a_disk_without_a_free_byte_keeps_nothing_hidden(workshop, mounts, disk):
    at, seen = mounts.mount(disk, size=16 * MIB)
    (workshop.folder / "source").write_bytes(noise(10_000))
    filler = fill(seen)
    size = filler.stat().st_size
    mounts.run(move("--keep-free", "0", workshop.folder / "source", at / "target")).fails_naming(str(at))
    nothing_hidden(seen)
    assert filler.stat().st_size == size and not (seen / "target").exists()
    filler.unlink()
    moved(mounts.run(move(workshop.folder / "source", at / "target")))
    assert (seen / "target").read_bytes() == noise(10_000)


@pytest.mark.parametrize("where", ["here", "between-sites"])
@DISKS
def test_space_that_is_reserved_is_not_taken_by_others(workshop, mounts, disk, where):
    """Somebody fills the disk in flight: the large file arrives all the same."""
    at, seen = mounts.mount(disk)
    source = workshop.folder / "source"
    source.write_bytes(noise(8 * MIB))
    if where == "here":
        running = mounts.start(move(*SLOWLY, source, at / "target"))
    else:
        running = mounts.lab(f"{MOVE} --json {' '.join(SLOWLY)} b/n1:{source} a/n2:{at}/target")
    running.wait_for(lambda: arrived(seen) > 3, 30, "some blocks")
    filler = fill(seen)
    assert not (seen / "target").exists()
    (one,) = moved(running.finish())
    assert one["bytes"] == 8 * MIB and (seen / "target").read_bytes() == source.read_bytes()
    nothing_hidden(seen)
    assert set(filler.read_bytes()) == {ord("f")}


@DISKS
def test_blocks_are_remembered_on_a_disk_that_others_have_filled(workshop, mounts, disk):
    """The journal of blocks takes space too: with many blocks, more than a page."""
    at, seen = mounts.mount(disk)
    source = workshop.folder / "source"
    source.write_bytes(noise(8 * MIB))
    words = move("--rate", "4MB/s", "--harm", "100", "--block", "4KiB", source, at / "target")
    running = mounts.start(words)
    running.wait_for(lambda: arrived(seen) > 10, 30, "some blocks")
    filler = fill(seen)
    assert running.child.poll() is None
    moved(running.finish())
    assert (seen / "target").read_bytes() == source.read_bytes()
    nothing_hidden(seen)
    filler.unlink()


@DISKS
def test_small_files_on_a_disk_that_fills_up_continue_once_there_is_room(workshop, mounts, disk):
    """Files of less than 1 MiB are not reserved one by one."""
    at, seen = mounts.mount(disk, size=32 * MIB)
    source = workshop.folder / "source"
    source.mkdir()
    for number in range(48):
        (source / str(number)).write_bytes(noise(256 << 10, number))
    words = move(*SLOWLY, source, at / "target")
    running = mounts.start(words)
    running.wait_for(lambda: arrived(seen) > 8, 30, "some blocks")
    filler = fill(seen)
    running.finish().fails_naming(f"{at}/", "No space left on device")
    assert not (seen / "target").exists()
    filler.unlink()
    (one,) = moved(mounts.run(words))
    assert one["resumed"] > 8 * (256 << 10)
    assert description(seen / "target") == description(source)
    nothing_hidden(seen)


@pytest.mark.parametrize(
    "kind",
    ["files", "folders"],
)
def test_a_disk_without_inodes_is_refused_before_the_first_byte(workshop, mounts, kind):
    at, seen = mounts.mount("tmpfs", options=",nr_inodes=50")
    source = workshop.folder / "source"
    source.mkdir()
    for number in range(100):
        (source / str(number)).mkdir() if kind == "folders" else (source / str(number)).write_text("x")
    free = os.statvfs(seen).f_ffree
    done = mounts.run(move(source, at / "target"))
    nothing_hidden(seen)
    done.fails_naming(f"{at}/target", "more files and folders", "101 are needed", "Nothing was moved")
    assert os.statvfs(seen).f_ffree == free
    for number in range(60):
        (source / str(number)).rmdir() if kind == "folders" else (source / str(number)).unlink()
    moved(mounts.run(move(source, at / "target")))
    assert description(seen / "target") == description(source)


def test_a_quota_of_the_user_is_kept(workshop, mounts):
    if shutil.which("setquota") is None:
        pytest.skip("there is no setquota")
    try:
        at, seen = mounts.mount("ext4", options="-O quota -E quotatype=usrquota")
    except AssertionError as error:
        pytest.skip(f"this kernel mounts no ext4 with quota: {error}")
    mounts.must("setquota", "-u", str(ORDINARY), "0", "8192", "0", "0", at)
    (seen / "own").mkdir()
    owned(seen / "own")
    source = workshop.folder / "source"
    source.write_bytes(noise(16 * MIB))
    source.chmod(0o644)
    words = ordinary(move(source, at / "own" / "target"), workshop.folder / "home")
    mounts.run(words).fails_naming(f"{at}/own/target", "uota exceeded")
    nothing_hidden(seen / "own")
    mounts.must("setquota", "-u", str(ORDINARY), "0", "32768", "0", "0", at)
    moved(mounts.run(words))
    assert (seen / "own" / "target").read_bytes() == source.read_bytes()


def test_a_limit_on_the_size_of_files_is_named(workshop):
    """`ulimit -f`, which batch systems set."""
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    source.write_bytes(noise(8 * MIB))
    target.parent.mkdir()
    limited = ["prlimit", f"--fsize={2 * MIB}", "--", *move(source, target)]
    workshop.run(limited).fails_naming(str(target))
    assert not target.exists()
    moved(workshop.run(move(source, target)))
    assert target.read_bytes() == source.read_bytes()
    nothing_hidden(target.parent)


# Where nothing can be written


@pytest.mark.parametrize("where", ["here", "between-sites"])
def test_a_read_only_target_is_named(workshop, mounts, where):
    source, folder = workshop.folder / "source", workshop.folder / "to"
    source.write_text("x")
    folder.mkdir()
    (folder / "precious").write_text("precious")
    mounts.must("mount", "--bind", folder, folder)
    mounts.must("mount", "-o", "remount,ro,bind", folder)
    if where == "here":
        done = mounts.run(move(source, f"{folder}/"))
    else:
        done = mounts.lab(f"{MOVE} b/n1:{source} a/n2:{folder}/").finish()
    done.fails_naming(str(folder), "Read-only file system")
    assert os.listdir(folder) == ["precious"]


def test_a_folder_without_permission_is_named(workshop, mounts):
    source, folder, home = workshop.folder / "source", workshop.folder / "to", workshop.folder / "home"
    source.write_text("x")
    folder.mkdir(mode=0o755)
    words = ordinary(move(source, folder / "target"), home)
    workshop.run(words).fails_naming(str(folder), "Permission denied")
    assert os.listdir(folder) == []
    source.chmod(0o600)
    folder.chmod(0o777)
    workshop.run(words).fails_naming(str(source), "Permission denied")
    assert os.listdir(folder) == []
    source.chmod(0o644)
    moved(workshop.run(words))
    assert (folder / "target").stat().st_uid == ORDINARY
    nothing_hidden(folder)


def with_read_only_folder(folder):
    (folder / "sealed").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (folder / "sealed" / name).write_bytes(noise(MIB, ord(name[0])))
    owned(folder)
    (folder / "sealed").chmod(0o555)
    return folder


def test_a_sealed_folder_is_added_to_a_folder_that_is_there(workshop, mounts):
    """A user who is not root cannot take files out of a folder without write permission."""
    source = with_read_only_folder(workshop.folder / "source")
    folder = workshop.folder / "to"
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "precious").write_text("precious")
    owned(folder)
    moved(workshop.run(ordinary(move(source, f"{folder}/"), workshop.folder / "home")))
    found = description(folder / "source")
    assert found.pop(b"precious")[-1] == [(0, b"precious")]
    assert found == description(source)
    nothing_hidden(folder)


def test_a_sealed_folder_that_arrived_in_vain_is_replaced(workshop, mounts):
    """The target appears in flight, so it is refused; then the source changes. The same command succeeds."""
    source = with_read_only_folder(workshop.folder / "source")
    folder = workshop.folder / "to"
    folder.mkdir()
    owned(folder)
    words = ordinary(move(*SLOWLY, source, folder / "target"), workshop.folder / "home")
    running = workshop.start(words)
    running.wait_for(lambda: arrived(folder) > 3, 30, "some blocks")
    (folder / "target").write_text("somebody else's")
    running.finish().fails_naming(str(folder / "target"), "it appeared while its new contents were on their way")
    assert (folder / "target").read_text() == "somebody else's"
    (folder / "target").unlink()
    (source / "sealed" / "two").write_bytes(noise(MIB, 99))
    moved(workshop.run(words))
    assert description(folder / "target") == description(source)
    nothing_hidden(folder)
