"""What two gateways cost: Landbridge against direct routing, a socat chain and ssh -L, in one lab, taking turns."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from machine import LANDBRIDGE, OUT, PROVIDER, ROOT, VENV, Failed, Missing, clean_environment, describe, load, need, run
from report import columns, summary

# Which path is compared with which: like with like, so that a program's own cost cancels.
DIRECT = {"landbridge": "MPI direct", "socat": "TCP direct", "ssh -L": "TCP direct"}

LABS = [
    {"name": "5 ms, NIC 200 Mbit/s, WAN 1 Gbit/s", "delay": "5ms", "nic": "200mbit", "wan": "1gbit", "quick": True},
    {"name": "5 ms, NIC unshaped, WAN 1 Gbit/s", "delay": "5ms", "nic": "0", "wan": "1gbit"},
    {"name": "no delay, nothing shaped", "delay": "0", "nic": "0", "wan": "0", "quick": True},
    {"name": "5 ms, 0.1 % loss, WAN 1 Gbit/s", "delay": "5ms", "nic": "0", "wan": "1gbit", "loss": "0.1%"},
]
MOST_LATENESS = 0.1  # of the delay, 99th percentile
ATTEMPTS = 3


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    need(VENV["mpich"] / "bin" / "mpiexec", "run make venv")
    for tool in ("socat", "ssh", "ssh-keygen", "/usr/sbin/sshd"):
        if not shutil.which(tool):
            raise Missing(f"{tool} is not installed: run scripts/packages")
    labs = [lab for lab in LABS if (lab.get("quick") or not arguments.quick) and (arguments.only or "") in lab["name"]]
    plan = {
        "rounds": arguments.rounds or (2 if arguments.quick else 3),
        "latency_s": 0.4 if arguments.quick else 1.0,
        "stream_s": 0.6 if arguments.quick else 2.0,
        "streams": [1] if arguments.quick else [1, 4],
    }
    result = {"machine": describe(), "plan": plan, "labs": [], "problems": []}
    for lab in labs:
        print(f"relay: {lab['name']}", file=sys.stderr, flush=True)
        try:
            result["labs"].append(_lab(lab, plan))
        except Failed as failed:
            result["problems"].append(f"{lab['name']}: {failed}")
    result["machine"]["load_after"] = load()
    return result


def _seconds(time):
    return float(time[:-2]) / 1e3 if time.endswith("ms") else float(time)


def _lab(lab, plan):
    """Brings up a lab until one has an emulator that was on time; the figures of all others are thrown away."""
    rejected = []
    for _ in range(ATTEMPTS):
        before = load()
        figures, wan = _attempt(lab, plan)
        lateness_s, delay_s = wan["lateness"]["p99_ns"] / 1e9, _seconds(lab["delay"])
        reasons = []
        if not wan["realtime"]:
            raise Failed(f"the WAN emulator cannot run at real-time priority ({wan['realtime_refused']}): run as root")
        if delay_s and lateness_s > MOST_LATENESS * delay_s:
            reasons.append(f"99 % of packets were up to {lateness_s * 1e6:.0f} µs late")
        if overruns := sum(port["overruns"] for port in wan["ports"]):
            reasons.append(f"the emulator missed {overruns} packets")
        if not reasons:
            return {**lab, "load": [before, load()], "lateness_us": {key: wan["lateness"][key] / 1e3 for key in ("p50_ns", "p99_ns", "worst_ns")},
                    "rejected": rejected, "samples": figures, **_figures(figures), "failures": figures["failures"]}
        rejected.append(", ".join(reasons))
        print(f"relay: rejected: {rejected[-1]}", file=sys.stderr, flush=True)
    raise Failed(f"no lab of {ATTEMPTS} was on time: {'; '.join(rejected)}")


def _attempt(lab, plan):
    with tempfile.TemporaryDirectory(prefix="relay-", dir=OUT) as folder:
        report, answer = Path(folder) / "wan.json", Path(folder) / "answer.json"
        inside = {**plan, "folder": folder, "answer": str(answer), "landbridge": str(LANDBRIDGE)}
        words = [LANDBRIDGE, "lab", "--sites", "2", "--nodes", "1", "--delay", lab["delay"], "--nic-rate", lab["nic"],
                 "--wan-rate", lab["wan"], "--loss", lab.get("loss", "0"), "--route-directly", "--isolation", "namespaces",
                 "--report", report, "--logs", Path(folder) / "logs",
                 "--", sys.executable, ROOT / "benches" / "relay_inside.py", json.dumps(inside)]
        # Each measurement also warms up and starts processes; none has needed four times its nominal length.
        each = plan["latency_s"] + len(plan["streams"]) * plan["stream_s"]
        run(words, clean_environment(), limit=60 + 5 * plan["rounds"] * (each * 4 + 10))
        return json.loads(answer.read_text()), json.loads(report.read_text())


def _figures(figures):
    """Absolute figures, and ratios to direct routing taken within each round."""
    latency, throughput = [], []
    for path, lines in figures["latency"].items():
        row = {"path": path, "half_round_trip_us": summary([line["p50_us"] for line in lines]), "min_us": min(line["min_us"] for line in lines)}
        base = figures["latency"].get(DIRECT.get(path), [])
        pairs = list(zip(lines, base))
        if pairs:
            row["added_us_per_gateway"] = summary([(a["p50_us"] - b["p50_us"]) / 2 for a, b in pairs])
            row["added_us_per_gateway_of_minima"] = round((row["min_us"] - min(line["min_us"] for line in base)) / 2, 2)
        latency.append(row)
    for path, by_streams in figures["stream"].items():
        for streams, lines in by_streams.items():
            row = {"path": path, "streams": int(streams), "mbit_s": summary([line["mbit_s"] for line in lines])}
            pairs = list(zip(lines, figures["stream"].get(DIRECT.get(path), {}).get(streams, [])))
            if pairs:
                row["ratio_to_direct"] = summary([a["mbit_s"] / b["mbit_s"] for a, b in pairs])
            throughput.append(row)
    added = {row["path"]: row["added_us_per_gateway"]["median"] for row in latency if "added_us_per_gateway" in row}
    against = {}
    for rival in ("socat", "ssh -L"):
        if "landbridge" in added and added.get(rival, 0) > 0:
            against[rival] = round(added["landbridge"] / added[rival], 3)
    return {"latency": latency, "throughput": throughput, "added_latency_ratio": against}


def table(result):
    parts = []
    for lab in result["labs"]:
        parts.append(f"{lab['name']}; emulator's p99 lateness {lab['lateness_us']['p99_ns']:.0f} µs, {len(lab['rejected'])} rejected")
        rows = [["64 B", "half round trip µs", "min", "added per gateway µs", "± spread", "of minima", "n"]]
        for row in lab["latency"]:
            added = row.get("added_us_per_gateway")
            cells = [f"{added['median']:.1f}", f"{added['greatest'] - added['least']:.1f}", f"{row['added_us_per_gateway_of_minima']:.1f}"] if added else ["", "", ""]
            rows.append([row["path"], f"{row['half_round_trip_us']['median']:.1f}", f"{row['min_us']:.1f}", *cells, str(row["half_round_trip_us"]["n"])])
        parts.append(columns(rows))
        for rival, ratio in lab["added_latency_ratio"].items():
            parts.append(f"added latency per gateway, landbridge / {rival}: {ratio:.2f}")
        rows = [["throughput", "streams", "Mbit/s", "ratio to direct", "± spread", "n"]]
        for row in lab["throughput"]:
            ratio = row.get("ratio_to_direct")
            cells = [f"{ratio['median']:.3f}", f"{ratio['spread']:.3f}"] if ratio else ["", ""]
            rows.append([row["path"], str(row["streams"]), f"{row['mbit_s']['median']:.0f}", *cells, str(row["mbit_s"]["n"])])
        parts.append(columns(rows))
        parts += [f"FAILED {failure}" for failure in lab["failures"]]
        parts.append("")
    parts += [f"FAILED {problem}" for problem in result["problems"]]
    parts.append(f"load {result['machine']['load_before']} before, {result['machine']['load_after']} after")
    return "\n".join(parts)

