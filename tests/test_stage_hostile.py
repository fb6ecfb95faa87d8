"""`landbridge stage move` where somebody plants links, changes the source, damages or removes arrived files, starts
the same transfer twice or kills a process at the worst moment. Files, signals and mounts are real."""

import contextlib
import os
import shutil
import sys
import time

import pytest

from test_stage import MOVE, arrived, description, in_lab, make_tree, moved, nothing_hidden
from transfers import MIB, ORDINARY, SLOWLY, areas, contents, interrupted, killed, move, noise

BOOT = "/proc/sys/kernel/random/boot_id"
# With this seed ext4 lists `tree` before `journal`.
TREE_FIRST = "hash_seed=00000005-1111-4111-8111-111111111111"


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("names", ["outside", "nothing"])
def test_a_link_at_the_target_is_not_followed(workshop, kind, names):
    """The target's name in the folder that was typed is a link that somebody planted."""
    source, outside, folder = (workshop.folder / name for name in ("source", "outside", "to"))
    folder.mkdir()
    if kind == "file":
        source.write_text("new")
        outside.write_text("precious")
    else:
        source.mkdir()
        (source / "file").write_text("new")
        outside.mkdir()
        (outside / "file").write_text("precious")
    link = folder / "source"
    link.symlink_to(outside if names == "outside" else workshop.folder / "none")
    done = workshop.run(move(source, f"{folder}/"))
    if kind == "file":
        moved(done)
        assert not link.is_symlink() and link.read_text() == "new" and outside.read_text() == "precious"
    else:
        done.fails_naming(str(link), "something else is where a folder should go", "remove it first")
        assert link.is_symlink() and (outside / "file").read_text() == "precious"
        assert os.listdir(outside) == ["file"]
    assert not (workshop.folder / "none").exists()
    nothing_hidden(folder)


def test_links_in_the_source_arrive_as_links(workshop):
    """The targets of links are not read, even if secret, missing or above the link."""
    source, target = workshop.folder / "source", workshop.folder / "target"
    (source / "in").mkdir(parents=True)
    (workshop.folder / "secret").write_text("secret")
    for name, to in {"out": "../secret", "all": "/", "round": ".", "none": "/no/such", "in/up": "../.."}.items():
        (source / name).symlink_to(to)
    (one,) = moved(workshop.run(move(source, target)))
    assert one["bytes"] == 0 and description(target) == description(source)


def test_a_source_folder_that_becomes_a_link_is_refused(workshop):
    source, folder, outside = (workshop.folder / name for name in ("source", "to", "outside"))
    for at, seed in ((source / "in", 1), (outside, 2)):
        at.mkdir(parents=True)
        for number in range(24):
            (at / f"{number:02}").write_bytes(noise(256 << 10, seed))
    folder.mkdir()
    running = workshop.start(move(*SLOWLY, source, folder / "target"))
    running.wait_for(lambda: arrived(folder) > 3, 30, "some blocks")
    (source / "in").rename(workshop.folder / "aside")
    (source / "in").symlink_to(outside)
    running.finish().fails_naming(str(source / "in"), "changed while it was being moved", "removed or replaced")
    assert not (folder / "target").exists()
    (source / "in").unlink()
    (workshop.folder / "aside").rename(source / "in")
    moved(workshop.run(move("--block", "256KiB", source, folder / "target")))
    assert description(folder / "target") == description(source)
    nothing_hidden(folder)


def test_a_parent_that_is_swapped_once_gets_nothing(workshop):
    """The target's folder was typed by a link. In flight it names another folder, which has a transfer of its own."""
    source, link = workshop.folder / "source", workshop.folder / "link"
    source.write_bytes(noise(4 * MIB))
    one, two = workshop.folder / "one", workshop.folder / "two"
    one.mkdir()
    two.mkdir()
    link.symlink_to("one")
    running = workshop.start(move(*SLOWLY, source, link / "target"))
    running.wait_for(lambda: arrived(one) > 3, 30, "some blocks")
    (area,) = areas(one)
    (two / area.name).mkdir(mode=0o700)
    (two / area.name / "precious").write_text("precious")
    (workshop.folder / "new").symlink_to("two")
    (workshop.folder / "new").rename(link)
    done = running.finish()
    assert (two / area.name / "precious").read_text() == "precious", str(done)
    assert os.listdir(two) == [area.name]
    moved(done)
    assert (one / "target").read_bytes() == source.read_bytes()
    nothing_hidden(one)


SWAP = """import os, sys, time
folder = sys.argv[1]
while True:
    for name in ("one", "two"):
        os.symlink(name, folder + "/new")
        os.rename(folder + "/new", folder + "/link")
        time.sleep(0.0005)
"""


def test_a_parent_that_is_swapped_in_a_loop_harms_nobody(workshop):
    source, link = workshop.folder / "source", workshop.folder / "link"
    make_tree(source)
    folders = [workshop.folder / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        (folder / "precious").write_text(folder.name)
    link.symlink_to("one")
    swapper = workshop.start([sys.executable, "-c", SWAP, workshop.folder])
    words = move("--block", "256KiB", source, f"{link}/")
    results = [workshop.run(words) for _ in range(2)]
    swapper.end()
    for done in results:
        assert done.code == 0 or "link" in done.err, str(done)
    # The same command removes, or names, the remains of a failed attempt.
    for folder in folders:
        if (folder / "source").exists():
            assert contents(folder / "source") == contents(source)
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        if workshop.run(words).code:
            # See test_a_transfer_that_is_killed_while_it_removes_its_hidden_folder_ends.
            (area,) = areas(folder)
            shutil.rmtree(area)
            moved(workshop.run(words))
        assert contents(folder / "source") == contents(source)
        assert sorted(os.listdir(folder)) == ["precious", "source"]
        assert (folder / "precious").read_text() == folder.name


PLANTS = ["link", "file", "another-owner", "open-to-others", "junk", "links-within", "journal-of-another"]


@pytest.mark.parametrize("plant", PLANTS)
def test_a_hidden_folder_that_somebody_planted_does_no_harm(workshop, isolated, plant):
    if plant == "another-owner" and os.geteuid() != 0:
        pytest.skip("only root makes folders for others")
    source, target, outside = workshop.folder / "source", workshop.folder / "to" / "target", workshop.folder / "outside"
    make_tree(source)
    target.parent.mkdir()
    outside.mkdir(mode=0o700)
    for name in ("journal", "tree", "lock", "journal.new"):
        (outside / name).write_text(f"precious {name}")
    area = interrupted(workshop, source, target)
    says = []
    if plant == "open-to-others":
        area.chmod(0o777)
        says = ["belongs to somebody else, or others may write there: remove it"]
    elif plant == "another-owner":
        os.chown(area, ORDINARY, ORDINARY)
        says = ["belongs to somebody else, or others may write there: remove it"]
    elif plant in ("junk", "journal-of-another"):
        if plant == "junk":
            (area / "journal").write_bytes(noise(100_000))
        else:
            other = workshop.folder / "other"
            (other / "tree").mkdir(parents=True)
            (other / "tree" / "file").write_bytes(noise(4 * MIB))
            (workshop.folder / "elsewhere").mkdir()
            left = interrupted(workshop, other, workshop.folder / "elsewhere" / "target")
            (left / "journal").rename(area / "journal")
        shutil.rmtree(area / "tree")
        (area / "tree").symlink_to(outside)
        (area / "more").mkdir()
        (area / "more" / "link").symlink_to(outside)
    else:
        shutil.rmtree(area)
        if plant == "link":
            area.symlink_to(outside)
            says = ["ot a directory"]
        elif plant == "file":
            area.write_text("planted")
            says = ["ot a directory"]
        else:
            area.mkdir(mode=0o700)
            for name in ("journal", "tree", "lock", "journal.new"):
                (area / name).symlink_to(outside / name)
            says = ["somebody may have renamed it"]
    done = workshop.run(move(source, target))
    for name in ("journal", "tree", "lock", "journal.new"):
        assert (outside / name).read_text() == f"precious {name}", str(done)
    assert sorted(os.listdir(outside)) == ["journal", "journal.new", "lock", "tree"]
    if says:
        done.fails_naming(str(area), *says)
        assert not target.exists()
        area.unlink() if area.is_symlink() or area.is_file() else shutil.rmtree(area)
        done = workshop.run(move(source, target))
    moved(done)
    assert description(target) == description(source)
    nothing_hidden(target.parent)


# Sources that change in flight


def rewrite_and_restore_the_time(path):
    """The same size and the same time as before, as `rsync --times` and `cp -p` leave it."""
    what = path.stat()
    with path.open("r+b") as file:
        file.write(b"changed")
    os.utime(path, ns=(what.st_atime_ns, what.st_mtime_ns))


def replace(path):
    what = path.stat()
    new = path.with_name("new")
    new.write_bytes(noise(what.st_size, 77))
    os.utime(new, ns=(what.st_atime_ns, what.st_mtime_ns))
    new.rename(path)


def grow(path):
    with path.open("ab") as file:
        file.write(b"more")


CHANGES = {
    "rewritten": (rewrite_and_restore_the_time, "it was written to"),
    "truncated": (lambda path: os.truncate(path, 5), "bytes"),
    "grown": (grow, "bytes became"),
    "replaced": (replace, ""),
    "deleted": (os.unlink, "removed"),
}


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_in_flight_is_refused(workshop, change, kind):
    """Its time lies in the future, as after a clock that was set back."""
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    target.parent.mkdir()
    changing = source
    if kind == "folder":
        source.mkdir()
        (source / "another").write_bytes(noise(3 * MIB, 2))
        changing = source / "changing"
    changing.write_bytes(noise(3 * MIB))
    future = time.time_ns() + 10**9 * 86_400 * 365
    os.utime(changing, ns=(future, future))
    running = workshop.start(move(*SLOWLY, source, target))
    running.wait_for(lambda: arrived(target.parent) > 3, 30, "some blocks")
    what, says = CHANGES[change]
    what(changing)
    done = running.finish()
    done.fails_naming(f"{changing} changed while it was being moved", says, "nothing was put in place")
    assert os.listdir(target.parent) == [area.name for area in areas(target.parent)]
    if change == "deleted":
        changing.write_bytes(noise(3 * MIB, 3))
    (one,) = moved(workshop.run(move("--block", "256KiB", source, target)))
    if kind == "file":
        assert target.read_bytes() == source.read_bytes() and target.stat().st_mtime_ns == source.stat().st_mtime_ns
        assert one["resumed"] == 0
    else:
        assert description(target) == description(source)
        assert one["resumed"] > MIB // 2
    nothing_hidden(target.parent)


@pytest.mark.parametrize("mode", ["pull", "send", "bcast"])
def test_a_rewritten_file_with_its_old_time_is_refused_between_sites(workshop, isolated, mode):
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    source.write_bytes(noise(6 * MIB))
    target.parent.mkdir()
    place = f"--mode {mode} b/n1:{source} a/n2:{target}"
    running = in_lab(
        workshop,
        f"{MOVE} {' '.join(SLOWLY)} {place} && exit 1 || true",
        f"{MOVE} --json --block 256KiB {place}",
    )
    running.wait_for(lambda: arrived(target.parent) > 3, 30, "some blocks")
    rewrite_and_restore_the_time(source)
    done = running.finish()
    (one,) = moved(done)
    assert f"{source} changed while it was being moved (it was written to)" in done.err, str(done)
    assert one["resumed"] == 0 and target.read_bytes() == source.read_bytes()
    nothing_hidden(target.parent)


def test_a_folder_that_gains_files_in_flight_arrives_as_it_was_listed(workshop):
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    (source / "in").mkdir(parents=True)
    target.parent.mkdir()
    for number in range(3):
        (source / "in" / str(number)).write_bytes(noise(MIB, number))
    listed = description(source)
    running = workshop.start(move(*SLOWLY, source, target))
    running.wait_for(lambda: arrived(target.parent) > 3, 30, "some blocks")
    (source / "in" / "new").write_text("new")
    (source / "another").mkdir()
    (source / "in" / "link").symlink_to("new")
    done = running.finish()
    if done.code == 0:
        assert description(target) == listed
    else:
        done.fails_naming(str(source), "changed while it was being moved")
        assert not target.exists()
    moved(workshop.run(move(source, workshop.folder / "again")))
    assert description(workshop.folder / "again") == description(source)
    nothing_hidden(target.parent)


# The part that was damaged between two attempts


def flip(path, at, bit=0):
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        where = file.tell()
        byte = file.read(1)[0]
        file.seek(where)
        file.write(bytes([byte ^ 1 << bit]))


def records_begin(journal):
    head = journal.read_bytes()[:16]
    return 48 + int.from_bytes(head[8:], "little")


DAMAGE = {
    "its kind": lambda journal: flip(journal, 3),
    "a length": lambda journal: flip(journal, 8, 4),
    "a length of exabytes": lambda journal: flip(journal, 15, 6),
    "the hash of its list": lambda journal: flip(journal, 20),
    "its list": lambda journal: flip(journal, 90),
    "a block's hash": lambda journal: flip(journal, records_begin(journal) + 10),
    "a block's number": lambda journal: flip(journal, records_begin(journal), 4),
    "a block's number, by far": lambda journal: flip(journal, records_begin(journal) + 2, 6),
    "whether a block was compared": lambda journal: flip(journal, records_begin(journal) + 3, 7),
    "cut off in a record": lambda journal: os.truncate(journal, journal.stat().st_size - 17),
    "cut off in its list": lambda journal: os.truncate(journal, 60),
    "empty": lambda journal: os.truncate(journal, 0),
    "gone": os.unlink,
    "more at its end": lambda journal: journal.write_bytes(journal.read_bytes() + noise(40 * 20, 5)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_journal_makes_no_wrong_file(workshop, damage):
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    source.write_bytes(noise(8 * MIB))
    target.parent.mkdir()
    area = interrupted(workshop, source, target)
    DAMAGE[damage](area / "journal")
    words = move("--block", "256KiB", source, target)
    done = workshop.run(words)
    if done.code:
        done.fails_naming(str(target.parent))
        assert not target.exists()
        shutil.rmtree(area, ignore_errors=True)
        done = workshop.run(words)
    moved(done)
    assert target.read_bytes() == source.read_bytes()
    nothing_hidden(target.parent)


@pytest.mark.parametrize("damage", ["a bit", "cut off", "gone"])
def test_after_another_boot_damaged_blocks_are_found(workshop, mounts, damage):
    """A kernel that names another boot, for the second attempt alone."""
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    source.write_bytes(noise(8 * MIB))
    target.parent.mkdir()
    area = interrupted(workshop, source, target)
    tree = area / "tree"
    {"a bit": lambda: flip(tree, 1000), "cut off": lambda: os.truncate(tree, 10), "gone": tree.unlink}[damage]()
    boot = workshop.folder / "boot"
    boot.write_text("11111111-2222-4333-8444-555555555555\n")
    mounts.must("mount", "--bind", boot, BOOT)
    (one,) = moved(mounts.run(move("--block", "256KiB", source, target)))
    assert target.read_bytes() == source.read_bytes()
    # Blocks that arrived while something computed have no hash, and come again.
    assert damage == "a bit" or one["resumed"] == 0
    nothing_hidden(target.parent)


# Targets that are sources, and transfers that meet


@pytest.mark.parametrize(
    ("from_", "to", "says"),
    [
        ("tree", "tree", "the target is its own source"),
        ("tree/sub/file", "tree/sub/", "the target is its own source"),
        ("tree/sub/file", "tree/sub/file", "the target is its own source"),
        ("tree/sub/file", "tree/same", "the target is its own source"),
        ("tree/sub/file", "tree/link", "the target is its own source"),
        ("tree", "tree/sub/new", "the target is inside its source"),
        ("tree", "by-link/sub/new", "the target is inside its source"),
        ("tree/sub", "tree/", "the target is its own source"),
    ],
    ids=lambda value: value.replace("/", "-") if "the target" not in value else "",
)
def test_a_target_that_is_its_source_is_refused(workshop, from_, to, says):
    tree = workshop.folder / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file").write_bytes(noise(100_000))
    os.link(tree / "sub" / "file", tree / "same")
    (tree / "link").symlink_to("sub/file")
    (workshop.folder / "by-link").symlink_to("tree")
    before = description(tree)
    workshop.run(move(workshop.folder / from_, f"{workshop.folder}/{to}")).fails_naming(str(workshop.folder / to), says)
    assert description(tree) == before
    nothing_hidden(tree)
    nothing_hidden(tree / "sub")


def test_a_source_inside_its_target_is_added_to_it(workshop):
    """`d/x/x` goes to `d/`: into the folder `d/x`, in which it is itself."""
    outer = workshop.folder / "d" / "x"
    (outer / "x" / "in").mkdir(parents=True)
    (outer / "x" / "in" / "file").write_text("new")
    (outer / "precious").write_text("precious")
    before = description(outer)
    moved(workshop.run(move(outer / "x", f"{workshop.folder}/d/")))
    assert (outer / "in" / "file").read_text() == "new"
    shutil.rmtree(outer / "in")
    found = description(outer)
    assert found == before
    (outer / "x" / "x").write_text("a file with the name of its folder")
    done = workshop.run(move(outer / "x", f"{workshop.folder}/d/"))
    done.fails_naming(str(outer / "x"), "a folder is where a file should go")
    assert (outer / "x" / "in" / "file").read_text() == "new"
    nothing_hidden(workshop.folder / "d")


def test_sites_that_share_a_file_system_cannot_harm_a_source(workshop, isolated):
    """Between nodes nobody knows that the target is the source, or inside it."""
    file, tree = workshop.folder / "file", workshop.folder / "tree"
    file.write_bytes(noise(MIB))
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file").write_text("x")
    before = contents(tree)
    inside = tree / "sub" / "new"
    done = in_lab(workshop, f"{MOVE} b/n1:{file} a/n2:{file}", f"{MOVE} b/n1:{tree} a/n2:{inside}").finish()
    assert file.read_bytes() == noise(MIB), str(done)
    if inside.exists():
        done.check()
        assert contents(inside) == before
        shutil.rmtree(inside)
    else:
        done.fails_naming(str(workshop.folder))
    assert contents(tree) == before
    for folder in (workshop.folder, tree, tree / "sub"):
        nothing_hidden(folder)


@pytest.mark.parametrize("where", ["here", "between-sites"])
def test_the_second_transfer_to_a_target_is_refused(workshop, where, request):
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    source.write_bytes(noise(30 * MIB))
    target.parent.mkdir()
    # The second one waits 6 s, because the first might be ending.
    slowly = ["--rate", "2MB/s", *SLOWLY[2:]]
    if where == "here":
        running = workshop.start(move(*slowly, source, target))
        running.wait_for(lambda: arrived(target.parent) > 3, 30, "some blocks")
        second = workshop.run(move(source, target))
        second.fails_naming("is being written by another transfer, process ", f" of {os.uname().nodename}")
        assert str(areas(target.parent)[0]) in second.err
        done = running.finish()
    else:
        request.getfixturevalue("isolated")
        place = f"b/n1:{source} a/n2:{target}"
        done = in_lab(
            workshop,
            f"{MOVE} --json {' '.join(slowly)} {place} & first=$!",
            f"until ls {target.parent}/.landbridge-stage-*/journal; do sleep 0.1; done 2>/dev/null >&2",
            f"{MOVE} {place} && exit 1 || true",
            "wait $first",
        ).finish()
        assert "is being written by another transfer, process " in done.err and " of a-n2" in done.err, str(done)
    (one,) = moved(done)
    assert one["resumed"] == 0 and target.read_bytes() == source.read_bytes()
    nothing_hidden(target.parent)


def test_another_source_that_takes_the_target_meanwhile_is_not_overwritten(workshop):
    """Two sources, one new target: the one that is complete first stays, and the other fails with that reason."""
    source, other, target = (workshop.folder / name for name in ("source", "other", "to/target"))
    source.write_bytes(noise(6 * MIB))
    other.write_text("other")
    target.parent.mkdir()
    running = workshop.start(move(*SLOWLY, source, target))
    running.wait_for(lambda: arrived(target.parent) > 3, 30, "some blocks")
    moved(workshop.run(move(other, target)))
    running.finish().fails_naming(str(target), "it appeared while its new contents were on their way")
    assert target.read_text() == "other"
    target.unlink()
    (one,) = moved(workshop.run(move(*SLOWLY, source, target)))
    assert one["resumed"] == 6 * MIB and target.read_bytes() == source.read_bytes()
    nothing_hidden(target.parent)


def test_the_same_command_many_times_at_once_succeeds_or_is_refused(workshop):
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    make_tree(source)
    target.parent.mkdir()
    for _ in range(3):
        together = [workshop.start(move(source, target)) for _ in range(8)]
        results = [running.finish() for running in together]
        assert any(done.code == 0 for done in results), "\n".join(map(str, results))
        for done in results:
            if done.code:
                done.fails_naming("is being written by another transfer")
        assert description(target) == description(source)
        nothing_hidden(target.parent)
        shutil.rmtree(target)


# The part that is removed between two attempts


def added_in_part(workshop):
    """A source, and a folder in which only some of its files have taken their place: a folder has the name of one."""
    source, target = workshop.folder / "source", workshop.folder / "to" / "source"
    source.mkdir()
    for name in "abcdef":
        (source / name).write_bytes(noise(512 << 10, ord(name)))
    target.mkdir(parents=True)
    running = workshop.start(move(*SLOWLY, source, f"{target.parent}/"))
    running.wait_for(lambda: arrived(target.parent) > 3, 30, "some blocks")
    (target / "d").mkdir()
    running.finish().fails_naming(str(target / "d"), "Is a directory")
    return source, target


def test_a_folder_that_was_added_to_in_part_and_is_gone_arrives_whole(workshop):
    """A name in it is taken in flight, so only some files take their place. The user removes all and tries again."""
    source, target = added_in_part(workshop)
    shutil.rmtree(target)
    moved(workshop.run(move("--block", "256KiB", source, f"{target.parent}/")))
    assert description(target) == description(source)
    nothing_hidden(target.parent)


def test_a_folder_that_was_added_to_in_part_is_completed(workshop):
    """The user removes only the file that was in the way."""
    source, target = added_in_part(workshop)
    (target / "d").rmdir()
    (one,) = moved(workshop.run(move("--block", "256KiB", source, f"{target.parent}/")))
    assert one["resumed"] == 3 * MIB and contents(target) == contents(source)
    nothing_hidden(target.parent)


def test_a_target_that_was_removed_after_it_was_in_place_arrives_again(workshop, mounts):
    """The hidden folder cannot be removed at first, because something is mounted there."""
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    source.write_bytes(noise(4 * MIB))
    target.parent.mkdir()
    words = move("--block", "256KiB", source, target)
    running = mounts.start(move(*SLOWLY, source, target))
    running.wait_for(lambda: arrived(target.parent) > 3, 30, "some blocks")
    (area,) = areas(target.parent)
    mounts.must("mount", "--bind", area / "journal", area / "journal")
    running.finish().fails_naming(str(area), "cannot remove")
    assert target.read_bytes() == source.read_bytes()
    mounts.must("umount", area / "journal")
    target.unlink()
    moved(workshop.run(words))
    assert target.read_bytes() == source.read_bytes()
    nothing_hidden(target.parent)


# Kills


def test_a_transfer_that_is_killed_while_it_removes_its_hidden_folder_ends(workshop, mounts):
    """All is in place. The same command afterwards removes the rest."""
    count = 1500
    at, seen = mounts.mount("ext4", size=256 * MIB, options=f"-E {TREE_FIRST}")
    source = workshop.folder / "source"
    for number in range(count):
        (source / str(number)).mkdir(parents=True)
        (source / str(number) / "file").write_text(str(number))
    (seen / "source").mkdir()
    words = move(source, f"{at}/")

    def left(area):
        with contextlib.suppress(OSError):
            return len(os.listdir(area / "tree"))
        return 0

    for _ in range(5):
        running = mounts.start(words)
        running.wait_for(lambda: areas(seen) and left(areas(seen)[0]) == count, 30, "its folders")
        area = areas(seen)[0]
        while left(area) == count:
            pass
        with contextlib.suppress(IndexError):
            killed(running, seen)
        if 0 < left(area) < count and (area / "journal").exists():
            break
        shutil.rmtree(area, ignore_errors=True)
    else:
        pytest.skip("it ended before it could be killed")
    assert contents(seen / "source") == contents(source)
    moved(mounts.run(words))
    assert contents(seen / "source") == contents(source)
    nothing_hidden(seen)


def test_a_mover_of_this_machine_that_is_killed_is_reported(workshop):
    """By the kernel that runs out of memory, for example."""
    source, target = workshop.folder / "source", workshop.folder / "to" / "target"
    source.write_bytes(noise(4 * MIB))
    target.parent.mkdir()
    words = move(*SLOWLY, source, target)
    running = workshop.start(words)
    running.wait_for(lambda: arrived(target.parent) > 3, 30, "some blocks")
    (mover,) = [process for process in running.processes() if process.pid != running.child.pid]
    mover.kill()
    done = running.finish()
    assert done.code > 0, str(done)
    (one,) = moved(workshop.run(words))
    assert one["resumed"] > 0 and target.read_bytes() == source.read_bytes()
    nothing_hidden(target.parent)
    done.fails_naming("signal")
