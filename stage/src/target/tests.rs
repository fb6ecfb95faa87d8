//! Transfers on one machine, with files of every kind.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::manifest::Stamp;
use crate::manifest::{Entry, EntryKind};
use crate::mover::Settings;
use crate::pressure::Whose;
use crate::source::Source;
use crate::supervise::Before;
use crate::transfer::local;
use rustix::fs::FileType;

/// The metadata and contents of all files below a path, for comparison.
fn contents(path: &Path) -> BTreeMap<OsString, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![path.to_owned()];
    while let Some(at) = waiting.pop() {
        let what = std::fs::symlink_metadata(&at).unwrap();
        let name = at.strip_prefix(path).unwrap().as_os_str().to_owned();
        let mut line = format!("{:o} {}.{:09}", what.mode(), what.mtime(), what.mtime_nsec());
        if what.is_dir() {
            waiting.extend(std::fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()));
        } else if what.is_symlink() {
            line = format!("-> {:?}", std::fs::read_link(&at).unwrap());
        } else {
            line += &format!(" {} {} {}", what.len(), what.nlink(), blake3::hash(&std::fs::read(&at).unwrap()));
        }
        found.insert(name, line);
    }
    found
}

fn settings() -> Settings {
    Settings { harm: 50_000, ..Settings::default() }
}

fn options(block: u32) -> Options {
    Options { block, kept: Some(0), ..Options::default() }
}

fn open(from: &Path, to: &Path, block: u32) -> Result<(Source, Target), StageError> {
    let source = Source::open(from)?;
    let identity = Some(source.identity()?);
    let target = Target::open(to, from.as_os_str().as_bytes(), source.manifest().clone(), identity, options(block))?;
    Ok((source, target))
}

fn moved(from: &Path, to: &Path, block: u32) -> Result<Report, StageError> {
    let (mut source, target) = open(from, to, block)?;
    local(&mut source, target, &settings(), Before::look(Whose::Users), false, &mut |_, _| Vec::new())
        .map(|done| done.unwrap().0)
}

/// Moves some blocks, in any order, then stops as if the process were killed.
fn interrupted(from: &Path, to: &Path, block: u32, which: impl Fn(u32) -> bool) -> u64 {
    let (mut source, mut target) = open(from, to, block).unwrap();
    let mut bytes = Pages::default();
    let missing: Vec<u32> = target.done().missing().filter(|block| which(*block)).collect();
    for block in missing.into_iter().rev() {
        let hash = source.read(target.blocks().pieces(block), &mut bytes).unwrap();
        target.write(block, &bytes, Check::Now(hash)).unwrap();
    }
    target.resumed()
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A folder of files that are difficult to move.
fn difficult() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir_all(at.join("a/b/empty")).unwrap();
    std::fs::write(at.join("a/large"), noise(3_000_000, 1)).unwrap();
    std::fs::write(at.join("a/b/none"), "").unwrap();
    for number in 0..50 {
        std::fs::write(at.join(format!("a/b/{number}")), noise(number * 37, number as u64)).unwrap();
    }
    std::fs::write(at.join(OsStr::from_bytes(b"no \xff\xfe UTF-8")), "x").unwrap();
    std::fs::write(at.join("a new\nline"), "y").unwrap();
    symlink("../large", at.join("a/b/link")).unwrap();
    symlink("/no/such/file", at.join("a/dangling")).unwrap();
    std::fs::hard_link(at.join("a/large"), at.join("a/b/same")).unwrap();
    let sparse = std::fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(5 << 30).unwrap();
    sparse.write_all_at(&noise(5000, 2), 1 << 30).unwrap();
    sparse.write_all_at(&noise(70_000, 3), (5 << 30) - 100_000).unwrap();
    std::fs::write(at.join("secret"), noise(9000, 4)).unwrap();
    std::fs::set_permissions(at.join("secret"), std::fs::Permissions::from_mode(0o400)).unwrap();
    std::fs::set_permissions(at.join("a/b"), std::fs::Permissions::from_mode(0o555)).unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    for name in ["secret", "a/b", "a"] {
        std::fs::File::open(at.join(name)).unwrap().set_modified(old).unwrap();
    }
    folder
}

/// The names in a folder, to check that only the target is left there.
fn names(folder: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// Sparse files are compared by their data: hashing 5 GiB of zeros takes seconds.
fn without_sparse(mut contents: BTreeMap<OsString, String>) -> BTreeMap<OsString, String> {
    contents.remove(OsStr::new("sparse"));
    contents
}

fn same_sparse(one: &Path, other: &Path) {
    let (one, other) = (std::fs::File::open(one).unwrap(), std::fs::File::open(other).unwrap());
    let (a, b) = (one.metadata().unwrap(), other.metadata().unwrap());
    assert_eq!((a.len(), a.mtime_nsec()), (b.len(), b.mtime_nsec()));
    assert!(b.blocks() * 512 < 1 << 20, "{} blocks", b.blocks());
    for (offset, length) in [((1u64 << 30) - 10, 6000usize), ((5 << 30) - 100_010, 100_010)] {
        let (mut x, mut y) = (vec![0; length], vec![1; length]);
        one.read_exact_at(&mut x, offset).unwrap();
        other.read_exact_at(&mut y, offset).unwrap();
        assert!(x == y);
    }
}

#[test]
fn a_folder_arrives_with_all_that_it_has() {
    let from = difficult();
    let to = tempfile::tempdir().unwrap();
    let target = to.path().join("new");
    for block in [4096, 64 << 10, 4 << 20] {
        let report = moved(from.path(), &target, block).unwrap();
        assert_eq!(report.resumed, 0);
        std::fs::remove_file(from.path().join("sparse.copy")).ok();
        same_sparse(&from.path().join("sparse"), &target.join("sparse"));
        std::fs::remove_file(target.join("sparse")).unwrap();
        let (mut before, mut after) = (contents_but_sparse(from.path()), contents_but_sparse(&target));
        // The root's time changed with the removal.
        before.remove(OsStr::new(""));
        after.remove(OsStr::new(""));
        assert_eq!(before, after);
        assert_eq!(names(to.path()), ["new"]);
        make_removable(&target);
        std::fs::remove_dir_all(&target).unwrap();
    }
    make_removable(from.path());
}

fn contents_but_sparse(path: &Path) -> BTreeMap<OsString, String> {
    let sparse = path.join("sparse");
    let aside = path.parent().unwrap().join(format!("aside-{}", std::process::id()));
    let moved = std::fs::rename(&sparse, &aside).is_ok();
    let found = contents(path);
    if moved {
        std::fs::rename(&aside, &sparse).unwrap();
    }
    without_sparse(found)
}

/// Makes its folders removable for users other than root.
fn make_removable(path: &Path) {
    std::fs::set_permissions(path.join("a/b"), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_file_replaces_a_file_and_never_what_a_link_names() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("new"), noise(10_000, 7)).unwrap();
    std::fs::write(at("precious"), "precious").unwrap();
    std::fs::write(at("old"), "old").unwrap();
    symlink(at("precious"), at("link")).unwrap();
    for target in ["old", "link", "none"] {
        moved(&at("new"), &at(target), 4096).unwrap();
        assert_eq!(contents(&at("new")), contents(&at(target)));
    }
    assert_eq!(std::fs::read(at("precious")).unwrap(), b"precious");
    assert_eq!(names(folder.path()), ["link", "new", "none", "old", "precious"]);
}

#[test]
fn a_folder_is_added_to_a_folder() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir_all(from.path().join("in/deep/er")).unwrap();
    std::fs::write(from.path().join("in/deep/file"), "new").unwrap();
    std::fs::write(from.path().join("in/deep/er/file"), "newer").unwrap();
    symlink("file", from.path().join("in/deep/link")).unwrap();
    std::fs::hard_link(from.path().join("in/deep/file"), from.path().join("in/same")).unwrap();
    std::fs::create_dir_all(to.path().join("in/deep")).unwrap();
    std::fs::write(to.path().join("in/deep/file"), "old").unwrap();
    std::fs::write(to.path().join("in/other"), "other").unwrap();
    moved(&from.path().join("in"), &to.path().join("in"), 4096).unwrap();
    let mut expected = contents(&from.path().join("in"));
    let mut found = contents(&to.path().join("in"));
    assert!(found.remove(OsStr::new("other")).is_some());
    // Existing folders keep their times.
    for folder in ["", "deep"] {
        expected.remove(OsStr::new(folder));
        found.remove(OsStr::new(folder));
    }
    assert_eq!(expected, found);
}

#[test]
fn what_cannot_be_is_refused_before_the_first_byte() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("from/sub")).unwrap();
    std::fs::write(at("from/sub/file"), "x").unwrap();
    std::fs::write(at("file"), "x").unwrap();
    std::fs::create_dir_all(at("to/sub/file")).unwrap();
    std::fs::create_dir_all(at("hostile")).unwrap();
    symlink("/etc", at("hostile/sub")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let refused = |from: &str, to: &str| moved(&at(from), &at(to), 4096).unwrap_err().to_string();
    let expected = [
        ("from", "from", "its own source"),
        ("from", "from/sub/new", "inside its source"),
        ("file", "file", "its own source"),
        ("from", "file", "a file is where a folder should go: remove it first"),
        (
            "file",
            "to",
            "a folder is where a file should go: with a slash at its end, the file goes into it; or: remove",
        ),
        ("from", "to", "to/sub/file: a folder is where a file should go"),
        ("from", "hostile", "hostile/sub: a link is where a folder should go"),
        ("pipe", "new", "pipe is a pipe"),
        ("none", "new", "none: No such file"),
        ("file", "none/new", "none: No such file"),
        ("file", "file/new", "Not a directory"),
    ];
    for (from, to, text) in expected {
        let error = refused(from, to);
        assert!(error.contains(text), "{from} to {to}: {error}");
    }
    for block in [0, 4095, (1 << 30) + 1] {
        assert!(moved(&at("file"), &at("new"), block).unwrap_err().to_string().contains(&format!("{block} bytes")));
    }
    let source = Source::open(&at("file")).unwrap();
    let much = Options { block: 4096, kept: Some(1 << 60), ..Options::default() };
    let error = Target::open(&at("new"), b"", source.manifest().clone(), None, much).unwrap_err();
    assert!(matches!(error, StageError::NoRoom { kept, .. } if kept == 1 << 60), "{error}");
    assert_eq!(names(folder.path()), ["file", "from", "hostile", "pipe", "to"]);
    assert_eq!(names(&at("from")), ["sub"]);
}

#[test]
fn a_source_that_changes_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let changes: [(&str, &(dyn Fn() + Sync)); 4] = [
        ("it was written to", &|| {
            std::fs::File::options().write(true).open(at("from/b")).unwrap().write_all_at(b"z", 5).unwrap()
        }),
        ("100000 bytes became 7", &|| std::fs::write(at("from/b"), "shorter").unwrap()),
        ("it was removed", &|| std::fs::remove_file(at("from/b")).unwrap()),
        ("", &|| {
            std::fs::write(at("other"), noise(100_000, 9)).unwrap();
            std::fs::rename(at("other"), at("from/b")).unwrap();
        }),
    ];
    for (text, change) in changes {
        // Change it before it is read, or after.
        for when in [1, 48] {
            std::fs::remove_dir_all(at("from")).ok();
            std::fs::create_dir(at("from")).unwrap();
            for name in ["a", "b"] {
                std::fs::write(at("from").join(name), noise(100_000, 8)).unwrap();
            }
            let (mut source, target) = open(&at("from"), &at("to"), 4096).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(10));
            let mut blocks = 0;
            let mut progress = |_, _| {
                if blocks == when {
                    change();
                }
                blocks += 1;
                Vec::new()
            };
            let error =
                local(&mut source, target, &settings(), Before::look(Whose::Users), false, &mut progress).unwrap_err();
            assert!(matches!(error, StageError::Changed { .. }), "{error}");
            assert!(error.to_string().contains(text) || text == "100000 bytes became 7", "{error}");
            assert!(!at("to").exists());
        }
    }
    // Blocks of other files are not moved again.
    let report = moved(&at("from"), &at("to"), 4096).unwrap();
    assert!(report.resumed >= 90_000, "{report:?}");
    assert_eq!(contents(&at("from")), contents(&at("to")));
    assert_eq!(names(folder.path()), ["from", "to"]);
}

#[test]
fn a_flipped_bit_is_found() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("from"), noise(10_000, 1)).unwrap();
    let (mut source, mut target) = open(&folder.path().join("from"), &folder.path().join("to"), 4096).unwrap();
    let mut bytes = Pages::default();
    let hash = source.read(target.blocks().pieces(1), &mut bytes).unwrap();
    bytes[4000] ^= 1;
    let error = target.write(1, &bytes, Check::Now(hash)).unwrap_err();
    assert!(matches!(error, StageError::Damaged { block: 1, .. }), "{error}");
    bytes[4000] ^= 1;
    target.write(1, &bytes, Check::Now(hash)).unwrap();
}

#[test]
fn a_flipped_bit_is_found_later_too() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, noise(10_000, 1)).unwrap();
    let (mut source, mut target) = open(&from, &to, 4096).unwrap();
    let mut bytes = Pages::default();
    for block in 0..3 {
        let hash = source.read(target.blocks().pieces(block), &mut bytes).unwrap();
        bytes[100] ^= u8::from(block == 1);
        target.write(block, &bytes, Check::Later(hash)).unwrap();
    }
    let found: Vec<_> = (0..3).map(|_| target.check_one().unwrap()).collect();
    assert_eq!(found, [None, Some(1), None]);
    assert_eq!((target.unchecked(), target.done().missing().collect::<Vec<_>>()), (0, vec![1]));
    // A process killed before the comparison leaves it to the next one.
    let hash = source.read(target.blocks().pieces(1), &mut bytes).unwrap();
    bytes[7] ^= 1;
    target.write(1, &bytes, Check::Later(hash)).unwrap();
    drop(target);
    let (_, target) = open(&from, &to, 4096).unwrap();
    assert_eq!(target.done().missing().collect::<Vec<_>>(), [1]);
    drop(target);
    moved(&from, &to, 4096).unwrap();
    assert_eq!(contents(&from), contents(&to));
}

#[test]
fn a_folder_that_others_rename_meanwhile_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("from"), noise(10_000, 7)).unwrap();
    for replaced in [false, true] {
        let parent = at(&format!("parent{replaced}"));
        std::fs::create_dir(&parent).unwrap();
        let to = parent.join("to");
        interrupted(&at("from"), &to, 4096, |_| true);
        let (_, target) = open(&at("from"), &to, 4096).unwrap();
        let elsewhere = at(&format!("elsewhere{replaced}"));
        std::fs::rename(&parent, &elsewhere).unwrap();
        if replaced {
            std::fs::create_dir(&parent).unwrap();
        }
        let notes = target.place().unwrap().notes;
        assert!(notes.iter().any(|note| note.contains(&parent.display().to_string())), "{notes:?}");
        assert_eq!(names(&elsewhere), ["to"]);
    }
}

/// A crashed machine may have lost blocks that its journal lists.
#[test]
fn after_another_boot_blocks_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, noise(40_960, 1)).unwrap();
    interrupted(&from, &to, 4096, |block| block < 8);
    let area = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let area = area.filter(|path| area::is_area(path.file_name().unwrap().as_bytes())).last().unwrap();
    // Simulate another boot: rewrite the header with its hash.
    let journal = area.join("journal");
    let bytes = std::fs::read(&journal).unwrap();
    let length = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) as usize;
    let mut header = bytes[48..48 + length].to_vec();
    let boot = header.iter().position(|byte| *byte == b'-').unwrap();
    header[boot - 1] = if header[boot - 1] == b'0' { b'1' } else { b'0' };
    let hash = blake3::hash(&header);
    std::fs::write(&journal, [&bytes[..16], hash.as_bytes(), &header, &bytes[48 + length..]].concat()).unwrap();
    let tree = std::fs::File::options().write(true).open(area.join("tree")).unwrap();
    tree.write_all_at(&[0; 4096], 3 * 4096).unwrap();
    let (_, target) = open(&from, &to, 4096).unwrap();
    assert_eq!(target.done().missing().collect::<Vec<_>>(), [3, 8, 9]);
    drop(target);
    moved(&from, &to, 4096).unwrap();
    assert_eq!(contents(&from), contents(&to));
}

#[test]
fn what_was_being_put_in_place_is_put_in_place() {
    for (before, moved_already) in [(false, false), (false, true), (true, false), (true, true)] {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir_all(from.join("sub")).unwrap();
        for name in ["one", "two", "sub/three"] {
            std::fs::write(from.join(name), noise(5000, name.len() as u64)).unwrap();
        }
        if before {
            std::fs::create_dir(&to).unwrap();
        }
        let (mut source, mut target) = open(&from, &to, 4096).unwrap();
        let mut bytes = Pages::default();
        for block in 0..target.blocks().count() {
            let hash = source.read(target.blocks().pieces(block), &mut bytes).unwrap();
            target.write(block, &bytes, Check::Now(hash)).unwrap();
        }
        target.make_links_and_dress().unwrap();
        target.journal.place().unwrap();
        if moved_already {
            let tree = target.area.path().join("tree");
            match before {
                false => std::fs::rename(tree, &to).unwrap(),
                true => std::fs::rename(tree.join("one"), to.join("one")).unwrap(),
            }
        }
        drop(target);
        let report = moved(&from, &to, 4096).unwrap();
        assert_eq!(report.resumed, report.bytes);
        let (mut one, mut other) = (contents(&from), contents(&to));
        if before {
            one.remove(OsStr::new(""));
            other.remove(OsStr::new(""));
        }
        assert_eq!(one, other, "{before} {moved_already}");
        assert_eq!(names(folder.path()), ["from", "to"]);
    }
}

/// A process killed at the very end leaves the whole target, and its journal, a part of the area, or nothing.
#[test]
fn the_same_command_finds_what_it_has_put_in_place() {
    for left in ["all", "no journal", "nothing", "nothing, and something else"] {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir_all(from.join("sub")).unwrap();
        for name in ["one", "two", "sub/three"] {
            std::fs::write(from.join(name), noise(5000, name.len() as u64)).unwrap();
        }
        let (mut source, mut target) = open(&from, &to, 4096).unwrap();
        let mut bytes = Pages::default();
        for block in 0..target.blocks().count() {
            let hash = source.read(target.blocks().pieces(block), &mut bytes).unwrap();
            target.write(block, &bytes, Check::Now(hash)).unwrap();
        }
        if left == "all" {
            target.make_links_and_dress().unwrap();
            target.journal.place().unwrap();
            std::fs::rename(target.area.path().join("tree"), &to).unwrap();
            drop(target);
        } else {
            let area = target.area.path().to_owned();
            target.place().unwrap();
            if left == "no journal" {
                std::fs::create_dir(&area).unwrap();
                std::fs::set_permissions(&area, std::fs::Permissions::from_mode(0o700)).unwrap();
            }
        }
        if left.ends_with("else") {
            std::fs::write(to.join("another"), "x").unwrap();
        }
        let source = Source::open(&from).unwrap();
        let origin = from.as_os_str().as_bytes();
        let mut target = Target::open(&to, origin, source.manifest().clone(), None, options(4096)).unwrap();
        if left.ends_with("else") {
            assert_eq!(target.resumed(), 0, "this folder is another");
            target.evict().unwrap();
            continue;
        }
        assert_eq!(target.resumed(), source.manifest().bytes(), "{left}");
        // Another target may lack this block.
        target.read(1, &mut bytes).unwrap();
        target.place().unwrap();
        assert_eq!(contents(&from), contents(&to), "{left}");
        assert_eq!(names(folder.path()), ["from", "to"], "{left}");
    }
}

#[test]
fn a_transfer_continues_one_that_is_just_ending() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("from"), vec![7; 9000]).unwrap();
    let (_, ending) = open(&at("from"), &at("to"), 4096).unwrap();
    let end = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(ending);
    });
    moved(&at("from"), &at("to"), 4096).unwrap();
    end.join().unwrap();
    assert_eq!(names(folder.path()), ["from", "to"]);
}

/// Files by name, with the length and the seed of their contents.
fn files() -> impl Strategy<Value = Vec<(u8, usize, u64)>> {
    prop::collection::vec((0u8..12, prop_oneof![0usize..200, 4000usize..20_000], 0u64..4), 1..12)
}

fn fill(folder: &Path, files: &[(u8, usize, u64)]) {
    for (name, length, seed) in files {
        let inner = folder.join((name % 3).to_string());
        std::fs::create_dir_all(&inner).unwrap();
        let path = inner.join(name.to_string());
        let wanted = noise(*length, *seed);
        // A file with the same contents stays the same file.
        if std::fs::read(&path).ok().as_ref() != Some(&wanted) {
            std::fs::write(&path, wanted).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("STAGE_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
    ))]

    /// After kills at any block, changes of the source between attempts, and changes of the block size, the target
    /// still equals the source.
    #[test]
    fn a_transfer_continues(
        attempts in prop::collection::vec((files(), prop::sample::select(vec![4096u32, 5000, 16_384]), 0u32..12), 1..4),
        before in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        if before {
            std::fs::create_dir(&to).unwrap();
        }
        for (files, block, salt) in &attempts {
            fill(&from, files);
            interrupted(&from, &to, *block, |number| !number.wrapping_mul(7).wrapping_add(*salt).is_multiple_of(5));
        }
        let (_, block, _) = attempts.last().unwrap();
        moved(&from, &to, *block).unwrap();
        let (mut one, mut other) = (contents(&from), contents(&to));
        if before {
            one.remove(OsStr::new(""));
            other.remove(OsStr::new(""));
        }
        prop_assert_eq!(one, other);
        prop_assert_eq!(names(folder.path()), ["from", "to"]);
    }

    /// The same command continues, and moves nothing twice.
    #[test]
    fn nothing_is_moved_twice(files in files(), salt in 0u32..7) {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        fill(&from, &files);
        interrupted(&from, &to, 4096, |number| (number + salt) % 3 != 0);
        let (_, target) = open(&from, &to, 4096).unwrap();
        let expected: Vec<u32> = (0..target.blocks().count()).filter(|number| (number + salt) % 3 == 0).collect();
        prop_assert_eq!(target.done().missing().collect::<Vec<_>>(), expected);
    }
}

/// An untrusted manifest may state any sizes: no memory is allocated for its parts before the space is checked.
#[test]
fn a_list_of_more_than_the_file_system_has_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for sizes in [&[1 << 62][..], &[1 << 62, 1 << 62, 1 << 62, 1 << 62, 1 << 62]] {
        let root =
            Entry { path: Vec::new(), kind: EntryKind::Folder, mode: 0o700, modified: (0, 0), attributes: Vec::new() };
        let file = |(number, size): (usize, &u64)| {
            let stamp = Stamp { inode: 1, size: *size, modified: 0, changed: 0, attempt: 0 };
            let kind = EntryKind::File { stamp, data: vec![(0, *size)] };
            Entry { path: number.to_string().into_bytes(), kind, ..root.clone() }
        };
        let entries = std::iter::once(root.clone()).chain(sizes.iter().enumerate().map(file)).collect();
        let error =
            Target::open(&folder.path().join("to"), b"", Manifest { entries }, None, options(4096)).unwrap_err();
        assert!(matches!(error, StageError::NoRoom { needed, .. } if needed >= 1 << 62), "{error}");
    }
    assert!(names(folder.path()).is_empty());
}

/// A sender cannot set attributes that belong to the machine, or set-id bits.
#[test]
fn attributes_that_are_not_the_senders_to_set_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("from"), "x").unwrap();
    let mut source = Source::open(&at("from")).unwrap();
    let mut manifest = source.manifest().clone();
    manifest.entries[0].mode = 0o4755;
    manifest.entries[0].attributes = vec![
        (b"security.capability".to_vec(), b"\x01\0\0\x02".to_vec()),
        (b"trusted.overlay.opaque".to_vec(), b"y".to_vec()),
        (b"system.posix_acl_access".to_vec(), b"\x02\0\0\0".to_vec()),
        (b"user.mine".to_vec(), b"mine".to_vec()),
    ];
    let mut target = Target::open(&at("to"), b"", manifest, None, options(4096)).unwrap();
    let mut bytes = Pages::default();
    let hash = source.read(target.blocks().pieces(0), &mut bytes).unwrap();
    target.write(0, &bytes, Check::Now(hash)).unwrap();
    let report = target.place().unwrap();
    assert!(report.notes[0].contains("of 1 files") && report.notes[0].contains("security.capability"), "{report:?}");
    let mut names = [0u8; 512];
    let length = rustix::fs::listxattr(at("to"), &mut names).unwrap();
    assert_eq!(names[..length], *b"user.mine\0");
    assert_eq!(std::fs::metadata(at("to")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn a_manifest_that_leaves_its_root_is_refused() {
    let root =
        |path: &[u8], kind| Entry { path: path.to_vec(), kind, mode: 0o700, modified: (0, 0), attributes: Vec::new() };
    let folder = tempfile::tempdir().unwrap();
    let hostile: [&[u8]; 6] = [b"../out", b"/etc/passwd", b"a/../../out", b".", b"sub/file", b"a\0b"];
    for path in hostile {
        let manifest = Manifest { entries: vec![root(b"", EntryKind::Folder), root(path, EntryKind::Folder)] };
        let error = Target::open(&folder.path().join("to"), b"", manifest, None, options(4096)).unwrap_err();
        assert!(matches!(error, StageError::Manifest(_)), "{error}");
    }
    // A link cannot serve as the folder of a later entry.
    let link = root(b"x", EntryKind::Link(b"/etc".to_vec()));
    let entries = vec![root(b"", EntryKind::Folder), link, root(b"x/y", EntryKind::Link(b"z".to_vec()))];
    let error = Target::open(&folder.path().join("to"), b"", Manifest { entries }, None, options(4096)).unwrap_err();
    assert!(matches!(error, StageError::Manifest(_)), "{error}");
    assert!(names(folder.path()).is_empty());
    let _ = OsString::from_vec(Vec::new());
}

/// Somebody removes the lock of the hidden folder, and the same command is typed again while the first one goes on.
#[test]
fn a_transfer_whose_lock_is_removed_leaves_the_rest_to_the_next_one() {
    for (is_folder, second_is_over, all_arrived) in
        [false, true].iter().flat_map(|a| [false, true].iter().flat_map(move |b| [(*a, *b, false), (*a, *b, true)]))
    {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        match is_folder {
            true => {
                std::fs::create_dir_all(from.join("sub")).unwrap();
                std::fs::write(from.join("one"), noise(5000, 1)).unwrap();
                std::fs::write(from.join("sub/two"), noise(9000, 2)).unwrap();
            }
            false => std::fs::write(&from, noise(14_000, 3)).unwrap(),
        }
        let (mut source, mut first) = open(&from, &to, 4096).unwrap();
        let mut bytes = Pages::default();
        let last = first.blocks().count() - u32::from(!all_arrived);
        for block in 0..last {
            let hash = source.read(first.blocks().pieces(block), &mut bytes).unwrap();
            first.write(block, &bytes, Check::Now(hash)).unwrap();
        }
        let area = first.area.path().to_owned();
        std::fs::remove_file(area.join("lock")).unwrap();
        let (_, second) = open(&from, &to, 4096).unwrap();
        let mut finish = |mut second: Target| {
            for block in second.done().missing().collect::<Vec<_>>() {
                let hash = source.read(second.blocks().pieces(block), &mut bytes).unwrap();
                second.write(block, &bytes, Check::Now(hash)).unwrap();
            }
            second.place().unwrap()
        };
        let mut going_on = None;
        match second_is_over {
            true => drop(finish(second)),
            false => going_on = Some(second),
        }
        let error = match all_arrived {
            true => first.place().unwrap_err(),
            false => {
                let block = vec![0; first.blocks().bytes(last) as usize];
                let error = first.write(last, &block, Check::Needless).unwrap_err();
                // A cancelled transfer does this.
                first.evict().unwrap_err();
                error
            }
        };
        let text = error.to_string();
        assert!(text.contains("another transfer took over") && text.contains(&area.display().to_string()), "{text}");
        going_on.map(finish);
        assert_eq!(contents(&from), contents(&to));
        assert_eq!(names(folder.path()), ["from", "to"], "{is_folder} {second_is_over} {all_arrived}");
    }
}
