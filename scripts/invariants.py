#!/usr/bin/env python3
"""Checks the invariants of ARCHITECTURE.md that the source shows. Prints one line per breach; exit code 1 if there is
any."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def code_map():
    """Crates and their rooms, in the order of ARCHITECTURE.md's tables: each crate may use only those below it."""
    section = (ROOT / "ARCHITECTURE.md").read_text().split("\n## Code map\n")[1].split("\n## ")[0]
    room, found = None, {}
    for line in section.splitlines():
        if heading := re.fullmatch(r"### `([\w-]+)/`", line):
            room = heading[1]
        elif cell := re.match(r"\| ((?:`[\w-]+`(?:, )?)+) \|", line):
            found |= dict.fromkeys(re.findall(r"`([\w-]+)`", cell[1]), room)
    return found


ROOM = code_map()
ORDER = list(ROOM)


def crates_in(*rooms):
    return [crate for crate, room in ROOM.items() if room in rooms]


def folder_of(crate):
    return crate if crate == ROOM[crate] else f"{ROOM[crate]}/{crate}"


def crate_of(path):
    """The crate that contains a file of the checkout, or None."""
    name = path.relative_to(ROOT).as_posix()
    return next((crate for crate in ORDER if name.startswith(f"{folder_of(crate)}/")), None)


# These must not depend on the gateway although they are above it: a gateway reaches them through hooks, they reach a
# gateway through client.
WITHOUT_GATEWAY = ["agent", "starters", "job", "launcher", "watching", "setup"]

# Crates that are computation only: no socket, no thread, no clock.
PURE = [*crates_in("core"), "memory", "pool", "simulation"]
# A core crate that holds files open.
HOLDS_FILES = {"folder"}
IMPURE = re.compile(
    r"\bstd::(net::(?!\{?(Ip|Socket|V4|V6)|IpAddr|Ipv[46]Addr|SocketAddr)|thread\b|os::fd|io::std)"
    r"|\b(TcpStream|TcpListener|UdpSocket|UnixStream)\b"
    r"|\b(Instant|SystemTime)\b|\btokio\b|\brustix::(net|event|thread|time)\b|\bthread::(sleep|spawn)\b"
)

# Packages that must never be loaded into a rank or another process of a user.
IN_RANK = crates_in("rank", "arrays")
NOT_IN_RANK = {
    "tokio",
    "signal-hook",
    "signal-hook-registry",
    "tracing-subscriber",
    "async-io",
    "mio",
    "env_logger",
    "ctrlc",
}

# Places that may use `unsafe`: whole crates, and single files that contain only system calls.
UNSAFE_CRATES = {*crates_in("rank", "arrays"), "pmix"} - {"endpoint"}
UNSAFE_FILES = {"testing/lab/src/sys.rs", "stage/src/mover/lent.rs", "stage/src/sys.rs", "site/agent/src/spawn.rs"}

# Code that handles paths below folders that others can write to. There, others can change a path's target between two
# system calls, so all accesses go through the crate `folder`, or relative to a descriptor.
BENEATH = (
    "stage/src/",
    "user/setup/src/here/",
    "user/cli/src/slurm/install.rs",
    "user/commands/src/slurm/install.rs",
    "user/commands/src/slurm/service.rs",
    "user/commands/src/slurm/paths.rs",
    "user/commands/src/transfers/socket.rs",
    "site/node-service/src/record.rs",
    "core/folder/src/",
)
BY_PATH = re.compile(
    r"\bstd::fs::(?!File::from\b|(File|Permissions|Metadata|FileType)\b(?!::))\w+|\b(File|OpenOptions)::(open|create|new)\b"
    r"|\brustix::fs::(open|stat|lstat|mkdir|rename|unlink|rmdir|link|symlink|readlink|chmod|access|statfs|statvfs)\("
    r"|\bCWD\b|\bthrough\(|\bDirBuilder\b|\bstd::os::unix::fs::(symlink|chown|lchown)\b|\.(canonicalize|exists|is_dir|is_file)\(\)"
)
# Exceptions, lines that use a path: their text, and the reason why others cannot exploit them.
BY_PATH_ALLOWED = {
    ("core/folder/src/walk.rs", "CWD"): "the beginning of a path: the root, or the working directory",
    ("core/folder/src/text.rs", "OpenOptions::"): "what the user names; reads only",
    ("core/folder/src/removal.rs", "through("): "the descriptor itself, by its entry in /proc",
    ("core/folder/src/beneath.rs", "through("): "its definition",
    ("user/setup/src/here/stage.rs", "through("): "the descriptor itself, by its entry in /proc",
    ("stage/src/source/lister.rs", "through("): "attributes of a name in an open folder: no call takes both",
    ("stage/src/mover/message.rs", "canonicalize"): "names a source for messages and the hidden folder; opens nothing",
    ("stage/src/journal.rs", "read_to_string"): "/proc/sys: which boot it is",
    ("stage/src/pressure.rs", "std::fs::"): "/proc: how long threads wait for a core",
    ("stage/src/sys.rs", "std::fs::"): "/proc/self",
    ("user/setup/src/here/folders.rs", "std::fs::"): "the account's own folders of mode 0700",
    ("user/setup/src/here/folders.rs", "File::open("): "the account's own folders, or what the user names; reads only",
    ("user/setup/src/here/folders.rs", "is_file()"): "the account's own folders of mode 0700",
    (
        "user/setup/src/here/background.rs",
        "std::fs::",
    ): "the account's own folder, which make_private has examined; /proc",
    ("user/setup/src/here/background.rs", "OpenOptions::"): "the account's own folder, which make_private has examined",
    (
        "user/setup/src/here/background.rs",
        "File::open(log)",
    ): "the account's own folder, which make_private has examined",
    ("user/setup/src/here/background.rs", ".exists()"): "the account's own folder, which make_private has examined",
    ("user/setup/src/here/background.rs", "is_file()"): "the account's own folder, which make_private has examined",
    ("user/setup/src/here/link.rs", "fs::"): "~/.local/bin: who can write there can give the account any command",
    ("user/setup/src/here/access.rs", ".exists()"): "the account's own folder, which make_private has examined",
    ("user/setup/src/here/carried.rs", "is_dir()"): "reports what is there; opens nothing",
    ("user/setup/src/here/keep.rs", "is_file()"): "where systemd and cron keep what is the account's own",
    ("user/setup/src/here/revive.rs", "is_file()"): "whether the account has a key",
    ("user/setup/src/here/survey.rs", "is_file()"): "reports what is there; opens nothing",
    ("user/setup/src/here/survey.rs", "statfs("): "reports the kind of a file system; opens nothing",
    ("user/setup/src/here/survey.rs", "canonicalize"): "reports a program's place; opens nothing",
    ("user/commands/src/slurm/service.rs", "std::fs::"): "root's own folder, which make_private has examined",
    ("user/commands/src/transfers/socket.rs", "std::fs::"): "the account's own folder, which make_private has examined",
    ("user/commands/src/transfers/socket.rs", ".exists()"): "/proc",
    ("site/node-service/src/record.rs", "std::fs::"): "the hooks' own folder, which make_private has examined",
    ("user/commands/src/slurm/install.rs", "is_dir()"): "/run/systemd/system: whether systemd runs here",
    ("user/cli/src/slurm/install.rs", "std::fs::read_to_string"): "shown to the administrator; not written to",
    ("user/commands/src/slurm/install.rs", "std::fs::read_to_string"): "compared; not written to",
}

# The command line's output goes through user/cli/src/output.rs, which escapes characters that act on a terminal. These
# files pass on the output of ranks, forwarded connections and the other end of a conversation.
OUTPUT_FILE = "user/cli/src/output.rs"
RAW_OUTPUT_FILES = {
    "user/cli/src/carried.rs",
    "user/cli/src/forward.rs",
    "user/cli/src/jobs/mod.rs",
    "user/cli/src/sites/add.rs",
    "user/cli/src/stage/mod.rs",
    "user/cli/src/run/terminal.rs",
}
LOG_FILE = "user/cli/src/log.rs"
STREAM = r"\bio::std(out|err)\(\)(?!\.is_terminal\(\)|\)\.map_or)|\be?print(ln)?!"

# Crates that read the output of programs: they use job::capture, which limits it. The exception compresses a file of
# our own.
CAPTURING = {*crates_in("user"), "agent", "starters", "job"}
UNBOUNDED = r"\.(output|wait_with_output)\(\)"
UNBOUNDED_FILES = {"user/setup/src/release.rs"}
# These calls evaluate their argument even if they discard it; then its drop runs although no caller holds the value.
EAGER = r"\.(?:then_some|unwrap_or|or|map_or|ok_or)\(\s*(?:Some\(|Ok\()?\s*(\w+)\s*(?:\(|\{|::)"
DROPS = r"\bimpl(?:<[^>]*>)?\s+Drop\s+for\s+(\w+)"
MOST_LINES = 700
# Lines of a function from its head to its last brace: the most, and the number of functions that may have more than
# LONG_FUNCTION.
LONGEST_FUNCTION, LONG_FUNCTION, MOST_LONG_FUNCTIONS = 100, 60, 15
FUNCTION = re.compile(r"( *)(?:pub(?:\([a-z ]+\))? )?(?:(?:const|async|unsafe|extern \S*) )*fn (\w+)")
# A type name means one thing in the workspace. Names with this many definitions are overused; the rate of overused
# names among all type names has a limit. Names in `abi` are those of C headers, and `fuzz` has targets only.
OVERUSED = 4
MOST_OVERUSED = 0.002
TYPE = re.compile(
    r"^(?:(?: {4})*(?:pub(?:\([a-z ]+\))? )?(?:unsafe )?(?:struct|enum|trait|union)"
    r"|(?:pub(?:\([a-z ]+\))? )?type) (\w+)",
    re.MULTILINE,
)
NOT_COUNTED = {"abi", "fuzz", "tests", "benches", "examples"}


def without_comments_and_strings(text):
    """The code without prose and messages, with its line structure, so that words in them do not count."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', re.DOTALL)
    return pattern.sub(lambda found: "\n" * found.group().count("\n"), text)


def is_test(path):
    return path.name == "tests.rs" or "tests" in path.parts


def production(path):
    """A Rust file's code without comments, strings and inline test modules."""
    code = without_comments_and_strings(path.read_text())
    return re.split(r"#\[cfg\(test\)\]\s*mod \w+ \{", code)[0]


def places(pattern, code, path):
    for number, line in enumerate(code.splitlines(), 1):
        found = re.search(pattern, line)
        if found:
            yield f"{path.relative_to(ROOT)}:{number}: `{found.group().strip()}`"


def tracked(*patterns):
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    return [ROOT / name for name in sorted(set(listing.split("\0")) - {""}) if (ROOT / name).is_file()]


def tree_names(crate):
    """Names of all packages that a crate links, itself included, without build and test dependencies."""
    listing = subprocess.run(
        ["cargo", "tree", "--locked", "-p", f"landbridge-{crate}", "-e", "normal", "--prefix", "none", "-f", "{p}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    return {line.split()[0] for line in listing.splitlines() if line.strip()}


def dependency_direction():
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    )
    for package in metadata["packages"]:
        crate = package["name"].removeprefix("landbridge-")
        if crate not in ORDER:
            yield f"crate {crate} is not in ARCHITECTURE.md's tables"
            continue
        place = Path(package["manifest_path"]).parent.relative_to(ROOT).as_posix()
        if place != folder_of(crate):
            yield f"{place}: ARCHITECTURE.md has {crate} in the room {ROOM[crate]}"
        for dependency in package["dependencies"]:
            other = dependency["name"].removeprefix("landbridge-")
            if dependency["kind"] is None and other in ORDER and ORDER.index(other) <= ORDER.index(crate):
                yield f"{crate} uses {other}: dependencies point down ARCHITECTURE.md's tables only"
            if (
                dependency["kind"] is None
                and ROOM.get(other) == "testing" != ROOM[crate]
                and not dependency["optional"]
            ):
                yield f"{crate} uses {other}: what is in testing/ is never a part of a job"
            if dependency["kind"] is None and crate in WITHOUT_GATEWAY and other == "gateway":
                yield f"{crate} uses gateway: it talks to one by client, and does for one what hooks says"


def by_path(name, code):
    """Calls with a path that others can redirect."""
    allowed = [text for place, text in BY_PATH_ALLOWED if place == name]
    for number, line in enumerate(code.splitlines(), 1):
        found = BY_PATH.search(line)
        if found and not line.lstrip().startswith(("use ", "pub use ")) and not any(text in line for text in allowed):
            yield (
                f"{name}:{number}: `{found.group().strip()}`: others can change what a path means: use the crate folder"
            )


def eager_drops():
    """Eagerly evaluated arguments whose type has a drop."""
    codes = {path: production(path) for path in tracked("*.rs")}
    crate = {path: crate_of(path) for path in codes}
    drop = {(crate[path], name) for path, code in codes.items() for name in re.findall(DROPS, code)}
    for path, code in codes.items():
        # Another type of the same name in this file, without a drop, does not count.
        others = set(re.findall(r"\bstruct (\w+)", code)) - set(re.findall(DROPS, code))
        for found in re.finditer(EAGER, code):
            if (crate[path], found[1]) in drop and found[1] not in others:
                line = code.count("\n", 0, found.start()) + 1
                yield f"{path.relative_to(ROOT)}:{line}: {found[1]} is made, and dropped, in any case: use a closure"


def overused_names():
    """Type names that stand for too many types, if their rate exceeds the limit."""
    files = {}
    for path in tracked("*.rs"):
        if crate_of(path) and not NOT_COUNTED & set(path.relative_to(ROOT).parts):
            for name in TYPE.findall(production(path)):
                files.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    overused = {name: places for name, places in files.items() if len(places) >= OVERUSED}
    if len(overused) > MOST_OVERUSED * len(files):
        share = f"{len(overused)} of {len(files)} type names"
        yield f"{share} have {OVERUSED} definitions or more: at most {MOST_OVERUSED:.1%}"
        for name, places in sorted(overused.items()):
            yield f"type {name} is defined {len(places)} times: {', '.join(places)}"


def functions(path):
    """Name, first line and number of lines of each function of a formatted Rust file, without its tests."""
    lines = production(path).splitlines()
    for at, line in enumerate(lines):
        head = FUNCTION.match(line)
        if not head or line.rstrip().endswith(("}", ";")):
            continue
        for end in range(at + 1, len(lines)):
            if lines[end].startswith(head[1] + "}") or (
                lines[end].endswith(";") and lines[end].startswith(head[1] + ")")
            ):
                yield head[2], at + 1, end - at + 1
                break


def long_functions():
    found = []
    for path in tracked("*.rs"):
        if crate_of(path) and not is_test(path) and not NOT_COUNTED & set(path.relative_to(ROOT).parts):
            found += [(count, f"{path.relative_to(ROOT)}:{at}: {name}") for name, at, count in functions(path)]
    found = sorted((each for each in found if each[0] > LONG_FUNCTION), reverse=True)
    for count, place in found:
        if count > LONGEST_FUNCTION:
            yield f"{place} has {count} lines: at most {LONGEST_FUNCTION}"
    if len(found) > MOST_LONG_FUNCTIONS:
        listed = "; ".join(f"{place} {count}" for count, place in found)
        yield f"{len(found)} functions have over {LONG_FUNCTION} lines: at most {MOST_LONG_FUNCTIONS}: {listed}"


def breaches():
    yield from dependency_direction()
    yield from long_functions()
    yield from eager_drops()
    yield from overused_names()
    for crate in IN_RANK:
        for name in sorted(tree_names(crate) & NOT_IN_RANK):
            yield f"{crate} brings {name} into a user's rank"

    for path in tracked("*.rs"):
        crate = crate_of(path)
        name = str(path.relative_to(ROOT))
        if crate is None or "src" not in path.parts:
            continue
        code = production(path)
        if crate in PURE and not is_test(path):
            for place in places(IMPURE, code, path):
                if crate in HOLDS_FILES and "`std::os::fd`" in place:
                    continue
                yield f"{place} in {crate}, which knows no socket, thread or clock"
        if crate not in UNSAFE_CRATES and name not in UNSAFE_FILES:
            for place in places(r"\bunsafe\b(?!_code)", code, path):
                yield (
                    f"{place}: unsafe belongs in {', '.join(sorted(UNSAFE_CRATES))}, {', '.join(sorted(UNSAFE_FILES))}"
                )
        if name.startswith(BENEATH) and not is_test(path):
            yield from by_path(name, code)
        if crate == "cli" and name not in {OUTPUT_FILE, LOG_FILE}:
            for place in places(STREAM, code, path):
                yield f"{place}: write through {OUTPUT_FILE}, which escapes what acts on a terminal"
            for place in places(r"\boutput::raw", code, path) if name not in RAW_OUTPUT_FILES else ():
                yield f"{place}: only {', '.join(sorted(RAW_OUTPUT_FILES))} pass on bytes as they are"
        if crate in CAPTURING and name not in UNBOUNDED_FILES and not is_test(path):
            for place in places(UNBOUNDED, code, path):
                yield f"{place}: read another program's output by job::capture, which bounds it"
        if crate != "cli" and not is_test(path):
            for place in places(r"\be?print(ln)?!|\bdbg!|\bstd(out|err)\(\)\.(lock|write|flush)", code, path):
                yield f"{place}: only cli prints"

    for path in tracked("*.rs", "*.py", "*.c", "*.h", "*.sh", "*.toml", "scripts/*", ".ci/*", "Makefile"):
        if path == Path(__file__).resolve():
            continue
        text = path.read_text()
        lines = text.count("\n")
        if lines > MOST_LINES:
            yield f"{path.relative_to(ROOT)}: {lines} lines: look for the second noun (at most {MOST_LINES})"
        for place in places(r"\b(TODO|FIXME|XXX|HACK)\b", text, path):
            yield f"{place}: finish it or open an issue"


def main():
    found = list(breaches())
    for line in found:
        print(f"invariants: {line}", file=sys.stderr)
    print(f"invariants: {len(found)} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
