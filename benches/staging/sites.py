"""Transfers alone, between two sites of a lab: the rate, many small files, the cost of a restart, and one file for all
nodes of a site; and an application beside a transfer between two nodes."""

import json
import sys

from machine import ROOT, Failed, in_lab
from report import summary

from . import disk, movers


def payload(bits):
    """The payload rate of TCP through a card, in bytes per second: 1448 of 1514 bytes of a frame."""
    return bits / 8 * 1448 / 1514


WAN = ["--delay", "10ms", "--wan-rate", "1gbit", "--nic-rate", "200mbit"]
# A node's card is the slowest: the gateways' two cards and the WAN carry more.
CARD = payload(200e6)
TWO_GATEWAYS = ["--sites", 2, "--nodes", 1, "--gateways", 2, *WAN]
NODES = 8
# One file crosses the WAN at the rate of a card; then each node's card receives and sends it once. Emulating eight
# cards packet by packet takes more than two cores at 200 Mbit/s. At half that rate, a card still loses the time in
# which no core is free for it, so it may make up for 4 ms, 50 kB; a file is 10,000 times as long.
SLOW_CARD = payload(100e6)
FANOUT = ["--sites", 2, "--nodes", NODES, "--gateways", 2, "--delay", "10ms", "--wan-rate", "500mbit"]
FANOUT += ["--nic-rate", "100mbit", "--nic-burst", "4ms"]
# The ways that `alone` can move, and the movers to which it is restricted.
WAYS = ["ours", "rsync", "scp", "rclone"]
MOVERS = []
ONE_SITE = ["--sites", 1, "--nodes", 2, "--delay", 0, "--wan-rate", 0, "--nic-rate", 0]


def inside(options, case, plan, limit):
    """The answer of within.py for a case in a fresh lab."""
    words = [sys.executable, ROOT / "benches" / "staging" / "within.py", case, json.dumps(plan)]
    samples, failures = in_lab(list(map(str, options)), [{"name": case, "words": words, "limit": limit}], 1)
    if failures:
        raise Failed("; ".join(failures.values()))
    return samples[case][0]


def _moved(name, plan, rounds, record, limit):
    """The answer of within.py: seconds of each way to move the same data, in turns. Adds its failures to the record."""
    answer = inside([*TWO_GATEWAYS, "--route-directly"], name, {**plan, "rounds": rounds}, limit)
    record.add(answer)
    return answer


def phases(timelines):
    """From the timelines of transfers: seconds until the contents move, while they move, and from then to the end."""
    keys = ("start_s", "moving_s", "end_s")
    return {key: summary([line[key] for line in timelines]) for key in keys}


def alone(quick, rounds, record):
    """One file over two gateways: the rate relative to the slowest of disk, card and trunks. The file is long, so that
    the start of a job is a small part. Also the rates of one TCP connection over the same cards, and of the disk."""
    size = (24 if quick else 768) << 20
    plan = {"size": size, "stream_s": 1 if quick else 8}
    if quick or MOVERS:
        plan["ways"] = MOVERS or ["ours", "rsync"]
    if quick:
        record.left_out.append("alone, by --quick: scp, rclone")
    answer = _moved("alone", plan, 1 if quick else min(rounds, 3), record, 2400)
    slowest = min(CARD, answer["disk"])
    for way, rate in (("a stream of TCP, no disks", answer["tcp"]), ("disk to disk, no network", answer["disk"])):
        row = {"case": "alone", "mover": way, "seconds": summary([size / rate])}
        yield {**row, "of_card": summary([rate / slowest])}
    for way, values in answer["seconds"].items():
        row = {"case": "alone", "mover": way, "size_mib": size >> 20, "seconds": summary(values)}
        row |= {"of_card": summary([size / slowest / value for value in values])}
        row |= {"of_tcp": summary([size / answer["tcp"] / value for value in values])}
        yield {**row, **phases(answer["timelines"][way])}


def small(quick, rounds, record):
    """Files of 4 KiB: the time relative to rsync's."""
    files = 1000 if quick else 100_000
    seconds = _moved("small", {"files": files}, 1 if quick else min(rounds, 3), record, 3000)["seconds"]
    rsync = seconds.get("rsync", [])
    for way, values in seconds.items():
        row = {"case": "small", "mover": way, "files": files, "seconds": summary(values)}
        if rsync:
            row["of_rsync"] = summary([ours / theirs for ours, theirs in zip(values, rsync)])
        yield row


def restart(quick, rounds, record):
    """A transfer that is killed at nine tenths and started again: the time of the second command relative to a whole
    transfer."""
    size = (48 if quick else 1024) << 20
    plan = {"size": size, "rounds": 1 if quick else min(rounds, 3)}
    answer = inside(TWO_GATEWAYS, "restart", plan, 900)
    record.add(answer)
    if answer["of_whole"]:
        yield {
            "case": "restart",
            "mover": "ours",
            "whole_s": summary(answer["whole_s"]),
            "killed_at": summary(answer["killed_at"]),
            "again_s": summary(answer["again_s"]),
            "of_whole": summary(answer["of_whole"]),
        }


def fanout(quick, rounds, record):
    """One file to eight nodes of the other site."""
    size = (16 if quick else 512) << 20
    answer = inside(FANOUT, "fanout", {"size": size, "nodes": NODES, "rounds": 1 if quick else rounds}, 900)
    record.add(answer)
    if answer["seconds"]:
        yield {
            "case": "fanout",
            "mover": "ours",
            "nodes": NODES,
            "size_mib": size >> 20,
            "seconds": summary(answer["seconds"]),
            "cores": summary(answer["cores"]),
            "of_slowest_link": summary([value / (size / SLOW_CARD) for value in answer["seconds"]]),
            "first_node": phases(answer["first"]),
            "last_node": phases(answer["last"]),
            "wan_payload_of_file": summary([value / size for value in answer["payload"]]),
            "wan_bytes_of_file": summary([value / size for value in answer["wire"]]),
        }


def between_nodes(quick, rounds, record):
    """The experiments with one core idle and both busy, from one node of a lab to another."""
    plan = {"quick": quick, "rounds": rounds}
    answer = inside(ONE_SITE, "overlap", plan, 1200)
    record.add(answer)
    for row in answer["rows"]:
        yield {**row, "case": "nodes"}


def receiver(quick, rounds, record):
    """Processor seconds per GiB on the node that receives a file from another one, at 120 MiB/s, with no load beside
    it."""
    plan = {"rounds": 1 if quick else rounds, "size_mib": 64 if quick else 1024}
    answer = inside(ONE_SITE, "receiver", plan, 600)
    record.add(answer)
    used = answer["cpu_s_per_gib"]
    for way, values in used.items():
        row = {"case": "receiver", "mover": way, "cpu_s_per_gib": summary(values)}
        if pairs := list(zip(values, used.get(movers.FLOOR, []))):
            row["of_floor"] = summary([value / floor for value, floor in pairs])
        yield row


CASES = {
    "receiver": receiver,
    "alone": alone,
    "small": small,
    "restart": restart,
    "fanout": fanout,
    "nodes": between_nodes,
}


def bars(rows):
    """(name, figure, relation, bar)."""
    found = []
    for row in rows:
        if row["case"] == "receiver" and row["mover"] == disk.UNCHECKED:
            found.append(("receiver: s of CPU per GiB, no checks", row["cpu_s_per_gib"]["median"], "<=", 0.3))
        if row["mover"] != "ours":
            continue
        if row["case"] == "alone":
            found.append(("alone over two gateways: of the card", row["of_card"]["median"], ">=", 0.95))
        if row["case"] == "receiver":
            found.append(("receiver: s of CPU per GiB, blocks checked", row["cpu_s_per_gib"]["median"], "<=", 0.6))
        if row["case"] == "small" and "of_rsync" in row:
            found.append((f"{row['files']} files of 4 KiB: of rsync's time", row["of_rsync"]["median"], "<=", 0.1))
        if row["case"] == "restart":
            found.append(("restart after a kill at 90 %: of the whole", row["of_whole"]["median"], "<=", 0.12))
        if row["case"] == "fanout":
            found.append(("8 nodes: WAN bytes, of the file", row["wan_payload_of_file"]["median"], "<=", 1.02))
            found.append(("8 nodes: time, of the slowest link's", row["of_slowest_link"]["median"], "<=", 1.15))
    return found
