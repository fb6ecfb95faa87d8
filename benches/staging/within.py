"""The part of staging that runs inside a lab, on the first node of site a: `within.py CASE PLAN`, PLAN in JSON. Prints
one JSON object."""

import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from machine import LANDBRIDGE, OUT, PROGRAMS, Failed, clean_environment, json_lines, run
from relay_inside import Lab
from staging import card, chain, disk, movers, overlap, sample

PORT, STREAM_PORT = 5022, 5023
# Other programs of this user on the machine count as applications, and without these options ours would wait for them.
REGARDLESS = ["--rate", "1GiB/s", "--harm", "100"]
FILES_IN_A_FOLDER = 1000


class Ways:
    """The ways to move a file or a folder from this node to b-n1."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.lab = Lab({"lab": LANDBRIDGE, "landbridge": LANDBRIDGE, "folder": folder})
        config = movers.write_sshd(self.folder, PORT)
        sshd = f"mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e -f {config}"
        self.user = getpass.getuser()
        self.ssh = ["ssh", "-F", "none", "-p", PORT, "-i", self.folder / "user"]
        for option in ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"):
            self.ssh += ["-o", option]
        self.problems, self.left_out = [], []
        self.known, self.timelines = ["ours"], {}
        self.card = watched("b-n1", "received")
        if not shutil.which("sshd", path="/usr/sbin:/usr/bin"):
            self.left_out.append("rsync, scp and rclone: sshd is not installed")
            return
        self.lab.start("b-n1", "sh", "-c", sshd)
        self.lab.wait_for(self.lab.far, PORT)
        for name in ("rsync", "scp", "rclone"):
            if shutil.which(name):
                self.known.append(name)
            else:
                self.left_out.append(f"{name}: it is not installed")

    def words(self, way, source, target):
        there = f"{self.user}@{self.lab.far}:{target}"
        if way == "ours":
            return [LANDBRIDGE, "stage", "move", "--json", *REGARDLESS, source, f"b/n1:{target}"]
        is_folder = source.is_dir()
        if way == "rsync":
            slash = "/" if is_folder else ""
            options = ["--archive", "--whole-file", "--fsync", "-e", " ".join(map(str, self.ssh))]
            return ["rsync", *options, f"{source}{slash}", f"{there}{slash}"]
        if way == "scp":
            options = ["-P" if word == "-p" else word for word in self.ssh[1:]]
            return ["scp", "-q", *(["-r"] if is_folder else []), *options, source, there]
        backend = f":sftp,host={self.lab.far},port={PORT},user={self.user},key_file={self.folder / 'user'}:{target}"
        return ["rclone", "--config", "", "sync" if is_folder else "copyto", source, backend]

    def move(self, way, source, target):
        """Seconds of one transfer, until the target is on the disk."""
        remove(target)
        start = time.monotonic()
        run(self.words(way, source, target), self.lab.environment, limit=900)
        if way in ("scp", "rclone"):
            os.sync()
        end = time.monotonic()
        self.timelines.setdefault(way, []).append(card.timeline(self.card, start, end))
        return end - start

    def tcp(self, seconds):
        """Bytes per second that one connection carries over the route, without disks, after its slow start."""
        self.lab.start("b-n1", PROGRAMS / "stream", "serve", STREAM_PORT)
        self.lab.wait_for(self.lab.far, STREAM_PORT)
        words = [PROGRAMS / "stream", "stream", self.lab.far, STREAM_PORT, seconds, 1, 1 << 18]
        return json_lines(run(words)[0])[-1]["mbit_s"] * 1e6 / 8

    def end(self):
        self.card.end()
        self.lab.end()


def watched(host, direction):
    return card.Card([LANDBRIDGE, "lab", "enter", host, "--"], _environment(), direction)


def disk_rate(source, target):
    """Bytes per second from one file to another of this disk, by a program in C that waits for the disk."""
    movers.forget(source)
    out, _ = run([PROGRAMS / "pull_mover", "--copy", source, target])
    target.unlink()
    return json_lines(out)[-1]["bytes"] / json_lines(out)[-1]["seconds"]


def remove(path):
    for found in path.parent.glob(f"{path.name}*"):
        if found.is_dir():
            shutil.rmtree(found)
        else:
            found.unlink()


def make_file(path, size):
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    return path


def make_files(path, count):
    for number in range(count):
        folder = path / str(number // FILES_IN_A_FOLDER)
        if number % FILES_IN_A_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"file{number}").write_bytes(os.urandom(4096))
    os.sync()
    return path


def _in_turns(folder, ways, source, rounds, same):
    """Runs every way in turns; a failed one is not tried again."""
    target, seconds = folder / "target", {}
    try:
        for number in range(rounds):
            for way in ways.known[:: 1 if number % 2 == 0 else -1]:
                try:
                    took = ways.move(way, source, target)
                    if not same(source, target):
                        raise Failed(f"{way}: the target is not what the source is")
                    seconds.setdefault(way, []).append(took)
                except Failed as failed:
                    ways.problems.append(str(failed))
                    ways.known = [other for other in ways.known if other != way]
    finally:
        ways.end()
    return {
        "seconds": seconds,
        "timelines": ways.timelines,
        "problems": ways.problems,
        "left_out": ways.left_out,
    }


def alone(folder, plan):
    source, ways = make_file(folder / "source", plan["size"]), Ways(folder)
    ways.known = [way for way in ways.known if way in plan.get("ways", ways.known)]
    reference = {"tcp": ways.tcp(plan["stream_s"]), "disk": disk_rate(source, folder / "copy")}
    answer = _in_turns(folder, ways, source, plan["rounds"], movers.same)
    return {**answer, **reference}


def small(folder, plan):
    def same(source, target):
        found = sum(1 for path in target.rglob("file*") if path.stat().st_size == 4096)
        return found == plan["files"]

    source, ways = make_files(folder / "source", plan["files"]), Ways(folder)
    # These ask the far end about each file several times, which takes an hour and more.
    ways.known = [way for way in ways.known if way not in ("scp", "rclone")]
    return _in_turns(folder, ways, source, plan["rounds"], same)


def _environment():
    ours = {key: value for key, value in os.environ.items() if key.startswith("LANDBRIDGE_")}
    return {**clean_environment(), **ours}


def _move(source, target):
    words = [LANDBRIDGE, "stage", "move", "--json", *REGARDLESS, source, target]
    out, _ = run(words, _environment(), limit=300)
    return json_lines(out)[-1]


def restart(folder, plan):
    source, target = make_file(folder / "source", plan["size"]), folder / "to" / "target"
    target.parent.mkdir()
    answer = {"whole_s": [], "killed_at": [], "again_s": [], "of_whole": [], "problems": []}
    for _ in range(plan["rounds"]):
        remove(target)
        start = time.monotonic()
        _move(source, f"b/n1:{target}")
        whole = time.monotonic() - start
        remove(target)
        share = _killed(source, target, 0.9)
        start = time.monotonic()
        moved = _move(source, f"b/n1:{target}")
        again = time.monotonic() - start
        if not movers.same(source, target):
            answer["problems"].append("restart: the target is not what the source is")
        elif not moved["moved"][0]["resumed"]:
            answer["problems"].append("restart: the second transfer began anew")
        else:
            figures = {"whole_s": whole, "killed_at": share, "again_s": again, "of_whole": again / whole}
            for key, value in figures.items():
                answer[key].append(value)
    return answer


def _killed(source, target, share):
    """Starts a transfer, kills it as soon as this share has arrived, and returns the share that had arrived."""
    child = subprocess.Popen(
        [LANDBRIDGE, "stage", "move", *map(str, REGARDLESS), source, f"b/n1:{target}"],
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end, arrived = time.monotonic() + 120, 0.0
    while child.poll() is None and time.monotonic() < end and arrived < share:
        out, _ = run([LANDBRIDGE, "stage", "status", "--json"], _environment())
        for transfer in json_lines(out)[-1]["transfers"]:
            arrived = transfer["arrived"] / max(transfer["total"], 1)
        time.sleep(0.05)
    child.kill()
    child.wait()
    return arrived


def fanout(folder, plan):
    source = make_file(folder / "source", plan["size"])
    answer = {"seconds": [], "payload": [], "wire": [], "first": [], "last": [], "cores": [], "problems": []}
    ends = {"first": watched("b-n1", "received"), "last": watched(f"b-n{plan['nodes']}", "received")}
    # Each node has its own /tmp, in memory.
    target = f"/tmp/target-{os.getpid()}"
    for _ in range(plan["rounds"]):
        for node in range(1, plan["nodes"] + 1):
            run([LANDBRIDGE, "lab", "enter", f"b-n{node}", "--", "rm", "-f", target], _environment())
        before, busy, start = _crossed(), sample.busy_s(), time.monotonic()
        _move(source, f"b/*:{target}")
        end = time.monotonic()
        answer["seconds"].append(end - start)
        answer["cores"].append((sample.busy_s() - busy) / (end - start))
        for name, watch in ends.items():
            answer[name].append(card.timeline(watch, start, end))
        wire, segments = (after - earlier for after, earlier in zip(_crossed(), before))
        answer["wire"].append(wire)
        answer["payload"].append(wire - segments * HEADERS)
    for watch in ends.values():
        watch.end()
    for node in range(1, plan["nodes"] + 1):
        same = f"cmp {source} {target} && echo '{{}}'"
        run([LANDBRIDGE, "lab", "enter", f"b-n{node}", "--", "sh", "-c", same], _environment())
    return answer


# Bytes of each segment: framing of Ethernet, its header, and the headers of IP and of TCP with timestamps.
HEADERS = 24 + 14 + 20 + 32


def _crossed():
    """Bytes and segments that have crossed the WAN from a to b."""
    out, _ = run([LANDBRIDGE, "lab", "wan", "report"], _environment())
    [counters] = [link["counters"] for link in json_lines(out)[-1]["links"] if (link["from"], link["to"]) == ("a", "b")]
    return counters["wire_bytes"], counters["segments"]


def beside(_folder, plan):
    """The experiments with ours as the only mover."""
    record, rows = sample.Record(), []
    # Processes that a lab's agents start are not children of this one, and would count as other programs.
    sample.REPEATS = 0
    for name in ("idle", "busy"):
        experiment = overlap.experiments(plan["quick"])[name]
        experiment.movers = ["ours"]
        rows += overlap.measure(name, experiment, plan["rounds"], record, between_nodes=True)
    return {"rows": rows, "problems": record.problems, "left_out": record.left_out}


def receiver(folder, plan):
    return disk.receiver(folder, plan["rounds"], plan["size_mib"])


CASES = {
    "receiver": receiver,
    "chain": chain.within,
    "alone": alone,
    "small": small,
    "restart": restart,
    "fanout": fanout,
    "overlap": beside,
}


def main():
    case, plan = sys.argv[1], json.loads(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="staging-", dir=OUT) as folder:
        print(json.dumps(CASES[case](Path(folder), plan)))


if __name__ == "__main__":
    main()
