"""The cost of two gateways: Landbridge against direct routing, a socat chain and ssh -L, in one lab, in turns."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from against import Case
from machine import (
    LANDBRIDGE,
    OURS,
    OUT,
    PROVIDER,
    ROOT,
    VENV,
    Failed,
    Missing,
    clean_environment,
    describe,
    load,
    need,
    only,
    run,
)
from report import columns, summary

# The paths that each path is compared with. The first is the same program without gateways, which cancels out its own
# cost; MPI direct is the setup of a user whose sites are one routed network.
DIRECT = {"landbridge": ["landbridge direct", "MPI direct"], "socat": ["TCP direct"], "ssh -L": ["TCP direct"]}

LABS = [
    {"name": "5 ms, NIC 200 Mbit/s, WAN 1 Gbit/s", "delay": "5ms", "nic": "200mbit", "wan": "1gbit", "quick": True},
    {"name": "5 ms, NIC unshaped, WAN 1 Gbit/s", "delay": "5ms", "nic": "0", "wan": "1gbit"},
    {"name": "no delay, nothing shaped", "delay": "0", "nic": "0", "wan": "0", "quick": True},
    {"name": "5 ms, 0.1 % loss, WAN 1 Gbit/s", "delay": "5ms", "nic": "0", "wan": "1gbit", "loss": "0.1%"},
]
MOST_LATENESS = 0.1  # relative to the delay, 99th percentile
ATTEMPTS = 3


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    need(VENV["mpich"] / "bin" / "mpiexec", "run make venv")
    for tool in ("socat", "ssh", "ssh-keygen", "/usr/sbin/sshd"):
        if not shutil.which(tool):
            raise Missing(f"{tool} is not installed: run scripts/packages")
    labs, plan = (
        _labs(arguments),
        {**_plan(arguments), "rounds": arguments.rounds or (2 if arguments.quick else 3), "rivals": True},
    )
    result = {"machine": describe(), "plan": plan, "labs": [], "problems": []}
    for lab in labs:
        print(f"relay: {lab['name']}", file=sys.stderr, flush=True)
        try:
            result["labs"].append(_lab(lab, plan))
        except Failed as failed:
            result["problems"].append(f"{lab['name']}: {failed}")
    result["machine"]["load_after"] = load()
    return result


def _labs(arguments):
    labs = {lab["name"]: lab for lab in LABS if lab.get("quick") or not arguments.quick}
    return [labs[name] for name in only(arguments, labs)]


def _plan(arguments):
    return {
        "latency_s": 0.4 if arguments.quick else 1.0,
        "stream_s": 0.6 if arguments.quick else 2.0,
        "streams": [1] if arguments.quick else [1, 4],
    }


def cases(arguments):
    """For --against: only our own paths, each turn in a fresh lab."""
    plan = {**_plan(arguments), "rounds": 1, "rivals": False}

    def case(lab):
        def once(build, problems):
            samples = _lab(lab, plan, build)["samples"]
            problems += samples["failures"]
            figures = {
                f"{path}, half round trip": (lines[0]["p50_us"], "µs") for path, lines in samples["latency"].items()
            }
            for path, by_streams in samples["stream"].items():
                figures |= {
                    f"{path}, streams: {streams}": (lines[0]["mbit_s"], "Mbit/s")
                    for streams, lines in by_streams.items()
                }
            return figures

        return Case(lab["name"], once)

    return [case(lab) for lab in _labs(arguments)]


def _seconds(time):
    return float(time[:-2]) / 1e3 if time.endswith("ms") else float(time)


def _lab(lab, plan, build=OURS):
    """Starts labs until the emulator of one has been on time, and discards the figures of the others."""
    rejected = []
    for _ in range(ATTEMPTS):
        before = load()
        figures, wan = _attempt(lab, plan, build)
        lateness_s, delay_s = wan["lateness"]["p99_ns"] / 1e9, _seconds(lab["delay"])
        reasons = []
        if not wan["realtime"]:
            raise Failed(f"the WAN emulator cannot run at real-time priority ({wan['realtime_refused']}): run as root")
        if delay_s and lateness_s > MOST_LATENESS * delay_s:
            reasons.append(f"99 % of packets were up to {lateness_s * 1e6:.0f} µs late")
        if overruns := sum(port["overruns"] for port in wan["ports"]):
            reasons.append(f"the emulator missed {overruns} packets")
        if not reasons:
            return {
                **lab,
                "load": [before, load()],
                "lateness_us": {key: wan["lateness"][key] / 1e3 for key in ("p50_ns", "p99_ns", "worst_ns")},
                "rejected": rejected,
                "samples": figures,
                **_figures(figures),
                "failures": figures["failures"],
            }
        rejected.append(", ".join(reasons))
        print(f"relay: rejected: {rejected[-1]}", file=sys.stderr, flush=True)
    raise Failed(f"no lab of {ATTEMPTS} was on time: {'; '.join(rejected)}")


def _attempt(lab, plan, build):
    with tempfile.TemporaryDirectory(prefix="relay-", dir=OUT) as folder:
        report, answer = Path(folder) / "wan.json", Path(folder) / "answer.json"
        inside = {
            **plan,
            "folder": folder,
            "answer": str(answer),
            "lab": str(LANDBRIDGE),
            "landbridge": str(build.landbridge),
        }
        words = [
            LANDBRIDGE,
            "lab",
            *build.lab_options(),
            "--sites",
            "2",
            "--nodes",
            "1",
            "--delay",
            lab["delay"],
            "--nic-rate",
            lab["nic"],
            "--wan-rate",
            lab["wan"],
            "--loss",
            lab.get("loss", "0"),
            "--route-directly",
            "--isolation",
            "namespaces",
            "--report",
            report,
            "--logs",
            Path(folder) / "logs",
            "--",
            sys.executable,
            ROOT / "benches" / "relay_inside.py",
            json.dumps(inside),
        ]
        # Each measurement also warms up and starts processes. This has always taken less than four times its nominal
        # length.
        each = plan["latency_s"] + len(plan["streams"]) * plan["stream_s"]
        run(words, clean_environment(), limit=60 + 5 * plan["rounds"] * (each * 4 + 10))
        return json.loads(answer.read_text()), json.loads(report.read_text())


def _figures(figures):
    """Absolute figures, and comparisons with direct routing within each round."""
    latency, throughput = [], []
    for path, lines in figures["latency"].items():
        row = {
            "path": path,
            "half_round_trip_us": summary([line["p50_us"] for line in lines]),
            "min_us": min(line["min_us"] for line in lines),
            "against": {},
        }
        for direct in DIRECT.get(path, []):
            if base := figures["latency"].get(direct):
                row["against"][direct] = {
                    "added_us_per_gateway": summary([(a["p50_us"] - b["p50_us"]) / 2 for a, b in zip(lines, base)]),
                    "of_minima_us": round((row["min_us"] - min(line["min_us"] for line in base)) / 2, 2),
                }
        latency.append(row)
    for path, by_streams in figures["stream"].items():
        for streams, lines in by_streams.items():
            row = {
                "path": path,
                "streams": int(streams),
                "mbit_s": summary([line["mbit_s"] for line in lines]),
                "against": {},
            }
            for direct in DIRECT.get(path, []):
                if base := figures["stream"].get(direct, {}).get(streams):
                    row["against"][direct] = summary([a["mbit_s"] / b["mbit_s"] for a, b in zip(lines, base)])
            throughput.append(row)
    return {"latency": latency, "throughput": throughput, "added_latency_ratio": _added_ratio(latency)}


def _added_ratio(latency):
    """Added latency per gateway, as a ratio of landbridge to a rival, each against its own program without gateways."""
    added = {
        row["path"]: row["against"][DIRECT[row["path"]][0]]
        for row in latency
        if DIRECT.get(row["path"], [None])[0] in row["against"]
    }
    ratios = {}
    for rival in ("socat", "ssh -L"):
        if "landbridge" in added and rival in added:
            ours, theirs = added["landbridge"], added[rival]
            pairs = {
                "of medians": (ours["added_us_per_gateway"]["median"], theirs["added_us_per_gateway"]["median"]),
                "of minima": (ours["of_minima_us"], theirs["of_minima_us"]),
            }
            # On a busy machine a difference of two medians can be negative; then the ratio of such differences is
            # meaningless.
            ratios[rival] = {name: round(a / b, 3) if min(a, b) > 0 else None for name, (a, b) in pairs.items()}
    return ratios


def table(result):
    parts = []
    for lab in result["labs"]:
        parts.append(
            f"{lab['name']}; emulator's p99 lateness {lab['lateness_us']['p99_ns']:.0f} µs, "
            f"{len(lab['rejected'])} rejected"
        )
        rows = [["64 B", "half round trip µs", "min", "against", "added per gateway µs", "± spread", "of minima", "n"]]
        for row in lab["latency"]:
            cells = [row["path"], f"{row['half_round_trip_us']['median']:.1f}", f"{row['min_us']:.1f}"]
            number = str(row["half_round_trip_us"]["n"])
            for direct, against in row["against"].items():
                added = against["added_us_per_gateway"]
                rows.append(
                    [
                        *cells,
                        direct,
                        f"{added['median']:.1f}",
                        f"{added['greatest'] - added['least']:.1f}",
                        f"{against['of_minima_us']:.1f}",
                        number,
                    ]
                )
                cells = ["", "", ""]
            if not row["against"]:
                rows.append([*cells, "", "", "", "", number])
        parts.append(columns(rows))
        for rival, ratios in lab["added_latency_ratio"].items():
            texts = [
                f"{'lost in the noise' if ratio is None else f'{ratio:.2f}'} {name}" for name, ratio in ratios.items()
            ]
            parts.append(f"added latency per gateway, landbridge / {rival}: {', '.join(texts)}")
        rows = [["throughput", "streams", "Mbit/s", "against", "ratio", "± spread", "n"]]
        for row in lab["throughput"]:
            cells = [row["path"], str(row["streams"]), f"{row['mbit_s']['median']:.0f}"]
            for direct, ratio in row["against"].items():
                rows.append([*cells, direct, f"{ratio['median']:.3f}", f"{ratio['spread']:.3f}", str(ratio["n"])])
                cells = ["", "", ""]
            if not row["against"]:
                rows.append([*cells, "", "", "", str(row["mbit_s"]["n"])])
        parts.append(columns(rows))
        parts += [f"FAILED {failure}" for failure in lab["failures"]]
        parts.append("")
    parts += [f"FAILED {problem}" for problem in result["problems"]]
    parts.append(f"load {result['machine']['load_before']} before, {result['machine']['load_after']} after")
    return "\n".join(parts)


def plot(pyplot, result):
    labs = [lab for lab in result["labs"] if lab["throughput"]]
    if not labs:
        return None
    figure, axes = pyplot.subplots(1, len(labs), figsize=(4 * len(labs), 4), squeeze=False)
    for axis, lab in zip(axes[0], labs):
        names = [f"{row['path']} ×{row['streams']}" for row in lab["throughput"]]
        axis.barh(names, [row["mbit_s"]["median"] for row in lab["throughput"]])
        axis.set_xlabel("Mbit/s")
        axis.set_title(lab["name"])
    return figure
