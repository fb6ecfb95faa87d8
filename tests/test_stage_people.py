"""`landbridge stage` and all other writers to folders that another user can write to, who renames, plants links, or
owns the files there. Users are real."""

import hashlib
import json
import os
import struct
import subprocess

import pytest

from harness import LANDBRIDGE
from test_stage import arrived, description, moved, nothing_hidden
from transfers import MIB, SLOWLY, areas, move, noise


@pytest.fixture
def shared(workshop, people):
    """A folder in which both can rename everything, and a private folder of anna's in it."""
    anna, _ = people
    workshop.folder.chmod(0o755)
    folder = workshop.folder / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    anna.owns(folder)
    precious = folder / "precious"
    (precious / "tree").mkdir(parents=True)
    (precious / "journal").write_text("precious")
    (precious / "tree" / "deep").write_text("precious")
    precious.chmod(0o700)
    anna.owns(precious, precious / "journal", precious / "tree", precious / "tree" / "deep")
    return folder


def source_of(person, folder, length=6 * MIB):
    source = folder / "source"
    source.mkdir()
    (source / "file").write_bytes(noise(length))
    person.owns(source, source / "file")
    return source


def as_user(person, workshop, words, **options):
    own = ["env", "-u", "XDG_RUNTIME_DIR", "-u", "XDG_STATE_HOME", "-u", "XDG_CONFIG_HOME"]
    return workshop.start(person.words(*own, *words), **options)


def untouched(precious):
    return (precious / "journal").read_text() == (precious / "tree" / "deep").read_text() == "precious"


def test_renaming_the_hidden_folder_makes_nobody_delete_another(workshop, people, shared):
    """Bob renames it away in flight, and anna's own folder to its name: her transfer must not take that for its own."""
    anna, bob = people
    source = source_of(anna, workshop.folder)
    running = as_user(anna, workshop, move(*SLOWLY, source, shared / "target"))
    running.wait_for(lambda: arrived(shared) > 3, 30, "some blocks")
    (area,) = areas(shared)
    swap = f"mv {area} {shared}/aside && mv {shared}/precious {area}"
    workshop.run(bob.words("sh", "-c", swap)).check()
    done = running.finish()
    assert untouched(area), str(done)
    if done.code == 0:
        assert description(shared / "target") == description(source)
        assert "somebody has renamed" in done.out + done.err


def test_a_folder_that_got_the_hidden_name_beforehand_is_not_used(workshop, people, shared):
    anna, bob = people
    source = source_of(anna, workshop.folder, 100_000)
    running = as_user(anna, workshop, move("--rate", "10kB/s", "--harm", "100", source, shared / "target"))
    running.wait_for(lambda: areas(shared), 30, "the hidden folder")
    (area,) = areas(shared)
    for process in running.processes():
        process.kill()
    running.finish()
    swap = f"mv {area} {shared}/aside && mv {shared}/precious {area}"
    workshop.run(bob.words("sh", "-c", swap)).check()
    done = as_user(anna, workshop, move(source, shared / "target")).finish()
    done.fails_naming(str(area), "somebody may have renamed it")
    assert untouched(area)


def test_a_target_that_is_exchanged_in_flight_gets_nothing(workshop, people, shared):
    """Anna adds to a folder of hers; bob gives its name to another one of hers."""
    anna, bob = people
    source = source_of(anna, workshop.folder)
    (source / "journal").write_text("new")
    target = shared / "target"
    target.mkdir()
    anna.owns(target, source / "journal")
    running = as_user(anna, workshop, move(*SLOWLY, source, target))
    running.wait_for(lambda: arrived(shared) > 3, 30, "some blocks")
    swap = f"mv {target} {shared}/aside && mv {shared}/precious {target}"
    workshop.run(bob.words("sh", "-c", swap)).check()
    running.finish().fails_naming(str(target), "another name meanwhile")
    assert untouched(target) and not (target / "file").exists()


def test_a_folder_of_another_user_is_refused_unless_it_is_allowed(workshop, people, shared):
    anna, bob = people
    source = source_of(anna, workshop.folder, 1000)
    target = shared / "target"
    target.mkdir()
    target.chmod(0o777)
    bob.owns(target)
    for typed in (target, shared / "outer"):
        if typed != target:
            (typed / "sub").mkdir(parents=True)
            anna.owns(typed)
            (typed / "sub").chmod(0o777)
            bob.owns(typed / "sub")
            (source / "sub").mkdir()
            (source / "sub" / "file").write_text("x")
            anna.owns(source / "sub", source / "sub" / "file")
        done = as_user(anna, workshop, move(source, typed)).finish()
        done.fails_naming(str(typed), f"belongs to user id {bob.uid}", "--allow-other-owner")
        assert not (typed / "file").exists()
        moved(as_user(anna, workshop, move("--allow-other-owner", source, typed)).finish())
        assert (typed / "file").read_bytes() == (source / "file").read_bytes()
    nothing_hidden(shared)
    around = shared / "around"
    around.mkdir()
    around.chmod(0o777)
    bob.owns(around)
    for typed in (f"{around}/", around / "new"):
        for who in (lambda words: as_user(anna, workshop, words), workshop.start):
            who(move(source, typed)).finish().fails_naming(
                f"{around}: this", f"user id {bob.uid}", "--allow-other-owner"
            )
            assert os.listdir(around) == []
    moved(as_user(anna, workshop, move("--allow-other-owner", source, f"{around}/")).finish())


def test_a_link_of_another_user_leads_nowhere(workshop, people, shared):
    anna, bob = people
    source = source_of(anna, workshop.folder, 1000)
    workshop.run(bob.words("ln", "-s", shared / "precious", shared / "way")).check()
    for typed in (f"{shared}/way/", f"{shared}/way/target"):
        done = as_user(anna, workshop, move(source, typed)).finish()
        done.fails_naming("shared/way", f"is a link of user id {bob.uid}")
    assert sorted(os.listdir(shared / "precious")) == ["journal", "tree"]
    # The owner of a folder could change everything in it, and may lead others.
    workshop.run(anna.words("ln", "-s", "precious", shared / "own")).check()
    moved(as_user(anna, workshop, move(source, f"{shared}/own/")).finish())
    assert (shared / "precious" / "source" / "file").exists()


OWNER, USER, GROUP, NAMED_GROUP, MASK, OTHER, NONE = 1, 2, 4, 8, 16, 32, 0xFFFFFFFF


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def listed(path):
    value = os.getxattr(path, "system.posix_acl_access")
    return [struct.unpack_from("<HHI", value, at) for at in range(4, len(value), 8)]


def test_access_control_lists_arrive_by_name(workshop, people):
    """Who has no account at the target is left out, and nobody else gets that right."""
    _, bob = people
    source, target = workshop.folder / "source", workshop.folder / "target"
    source.write_text("x")
    named = [(USER, 4, bob.uid), (USER, 6, 54321)]
    entries = [(OWNER, 6, NONE), *named, (GROUP, 0, NONE), (MASK, 6, NONE), (OTHER, 0, NONE)]
    os.setxattr(source, "system.posix_acl_access", acl(*entries))
    (one,) = moved(workshop.run(move(source, target)))
    assert listed(target) == [entry for entry in entries if entry[2] != 54321]
    assert any("without an account here" in note and "#54321" in note for note in one["notes"]), one
    # Without the list, the bits of its mask would be the owning group's.
    moved(workshop.run(move("--no-xattrs", source, workshop.folder / "plain")))
    assert (workshop.folder / "plain").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError):
        listed(workshop.folder / "plain")


def test_staged_folders_keep_the_group_of_the_folder_around_them(workshop, people):
    _, bob = people
    source, shared = workshop.folder / "source", workshop.folder / "project"
    (source / "in").mkdir(parents=True)
    (source / "in" / "file").write_text("x")
    shared.mkdir()
    os.chown(shared, -1, bob.gid)
    shared.chmod(0o2775)
    (source / "own").mkdir()
    (source / "own").chmod(0o2750)
    moved(workshop.run(move(source, shared / "target")))
    for folder in (shared / "target", shared / "target" / "in"):
        assert folder.stat().st_mode & 0o2000 and folder.stat().st_gid == bob.gid, folder
    assert (shared / "target" / "in" / "file").stat().st_gid == bob.gid
    moved(workshop.run(move(source, workshop.folder / "elsewhere")))
    assert (workshop.folder / "elsewhere" / "own").stat().st_mode & 0o7777 == 0o2750
    assert not (workshop.folder / "elsewhere" / "in").stat().st_mode & 0o2000


def test_slurm_install_follows_no_link_of_slurms_user(workshop, people):
    """Slurm's user owns its state folder, and perhaps that of its configuration."""
    slurm, _ = people
    workshop.folder.chmod(0o755)
    outside = workshop.folder / "outside"
    outside.mkdir()
    (outside / "file").write_text("root's")
    outside.chmod(0o755)
    etc, state = workshop.folder / "etc", workshop.folder / "state"
    for folder in (etc, state):
        folder.mkdir()
        slurm.owns(folder)
    conf = etc / "slurm.conf"
    conf.write_text("ClusterName=x\n")
    slurm.owns(conf)
    words = [
        "slurm",
        "install",
        "--controller",
        "--yes",
        "--no-start",
        "--conf",
        conf,
        "--units",
        workshop.folder / "units",
    ]
    words = [LANDBRIDGE, *words, "--state", state / "landbridge", "--socket", workshop.folder / "hooks"]
    workshop.run(slurm.words("ln", "-s", outside, state / "landbridge")).check()
    workshop.run(slurm.words("ln", "-s", outside / "file", etc / "slurm.conf.landbridge-new")).check()
    workshop.run(slurm.words("ln", outside / "file", etc / "burst_buffer.lua.landbridge-new"))
    workshop.run(words).fails_naming("landbridge")
    assert outside.stat().st_uid == 0 and outside.stat().st_mode & 0o777 == 0o755
    assert (outside / "file").read_text() == "root's" and (outside / "file").stat().st_uid == 0
    (state / "landbridge").unlink()
    workshop.run([*words[:3], *words[3:]]).check()
    found = (state / "landbridge").stat()
    assert (found.st_uid, found.st_mode & 0o777) == (slurm.uid, 0o700)
    assert "burst_buffer/lua" in conf.read_text() and conf.stat().st_uid == slurm.uid
    assert (outside / "file").read_text() == "root's"


def pushed(workshop, person, path, contents, mode=0o755):
    """The answer of the other end of `sites push` to a file for this path."""
    item = {
        "path": list(os.fsencode(path)),
        "below_home": False,
        "kind": {"File": {"mode": mode, "length": len(contents)}},
    }
    request = json.dumps({"Place": {"items": [item]}}).encode() + b"\n" + contents + hashlib.sha256(contents).digest()
    environment = {**os.environ, "HOME": str(person.home)}
    words = [str(word) for word in person.words(LANDBRIDGE, "site-end")]
    done = subprocess.run(words, input=request, capture_output=True, timeout=60, check=False, env=environment)
    return json.loads(done.stdout), done


@pytest.mark.parametrize("plant", ["symbolic link", "hard link", "file"])
def test_a_planted_part_makes_a_push_overwrite_nothing(workshop, people, shared, plant):
    anna, bob = people
    secret, part = shared / "precious" / "journal", shared / ".prog.landbridge-part"
    if plant == "symbolic link":
        workshop.run(bob.words("ln", "-s", secret, part)).check()
    elif plant == "hard link":
        os.link(secret, part)
    else:
        workshop.run(bob.words("sh", "-c", f"echo planted > {part}; chmod 666 {part}")).check()
    answer, done = pushed(workshop, anna, shared / "prog", b"#!/bin/sh\n")
    assert "Done" in answer, (answer, done)
    assert untouched(shared / "precious")
    prog = shared / "prog"
    assert (
        prog.read_bytes() == b"#!/bin/sh\n" and prog.stat().st_uid == anna.uid and prog.stat().st_mode & 0o777 == 0o755
    )
    assert sorted(os.listdir(shared)) == ["precious", "prog"]


def test_a_push_is_not_led_elsewhere_by_anothers_link(workshop, people, shared):
    anna, bob = people
    workshop.run(bob.words("ln", "-s", shared / "precious", shared / "bin")).check()
    answer, done = pushed(workshop, anna, shared / "bin" / "journal", b"pushed")
    assert f"is a link of user id {bob.uid}" in json.dumps(answer), (answer, done)
    assert untouched(shared / "precious")
    # Her own link is followed, as before.
    workshop.run(anna.words("ln", "-s", "precious", shared / "own")).check()
    answer, done = pushed(workshop, anna, shared / "own" / "new" / "prog", b"pushed")
    assert "Done" in answer and (shared / "precious" / "new" / "prog").read_bytes() == b"pushed", (answer, done)
