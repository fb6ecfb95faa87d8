"""Trunking: what k gateways a site carry against one, after Takano and others' relay over several front-ends.

Four ranks of site a stream to four ranks of site b, each on a node of its own, so that the gateways' cards are what limits them.
"""

from machine import LANDBRIDGE, PROVIDER, ROOT, VENV, Failed, describe, in_lab, libraries, load, need
from report import columns, summary

NODES = 4
NIC, WAN = "200mbit", "1gbit"
DELAYS = ["0", "10ms"]
TRUNKS = [1, 2, 4]


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    need(VENV["mpich"] / "bin" / "python", "run make venv")
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    seconds = 2 if arguments.quick else 4
    result = {"machine": describe(), "rounds": rounds, "nic": NIC, "wan": WAN, "rows": [], "problems": []}
    for delay in DELAYS:
        samples = {count: [] for count in TRUNKS}
        for number in range(rounds):
            # Turn by turn, so that what else the machine does falls on all alike.
            for count in TRUNKS if number % 2 == 0 else TRUNKS[::-1]:
                try:
                    samples[count].append(_once(delay, count, seconds))
                except Failed as failed:
                    result["problems"].append(f"{delay}, {count} trunks: {failed}")
        for count in TRUNKS:
            pairs = list(zip(samples[count], samples[1]))
            if pairs:
                ratio = summary([rate / one for rate, one in pairs])
                result["rows"].append({"delay": delay, "trunks": count, "mbit_s": summary(samples[count]), "of_one": ratio})
    result["machine"]["load_after"] = load()
    return result


def _once(delay, trunks, seconds):
    """Mbit/s of payload that one lab carries."""
    program = [VENV["mpich"] / "bin" / "python", ROOT / "benches" / "programs" / "streams.py", seconds]
    words = [LANDBRIDGE, "run", "--site", f"a={NODES}", "--site", f"b={NODES}", "--mpi", "mpich", "--", *program]
    options = ["--sites", "2", "--nodes", NODES, "--gateways", trunks, "--delay", delay, "--nic-rate", NIC, "--wan-rate", WAN]
    command = {"name": "streams", "words": words, "environment": libraries("mpich"), "limit": 60}
    samples, failures = in_lab([str(option) for option in options], [command], 1)
    if failures:
        raise Failed("; ".join(failures.values()))
    return samples["streams"][0]["mbit_s"]


def table(result):
    rows = [["delay, gateways a site", "Mbit/s", "of one", "± spread", "of k times one", "n"]]
    for row in result["rows"]:
        ratio = row["of_one"]
        rows.append([f"{row['delay']}, {row['trunks']}", f"{row['mbit_s']['median']:.0f}", f"{ratio['median']:.2f}", f"{ratio['spread']:.2f}",
                     f"{ratio['median'] / row['trunks']:.2f}", str(ratio["n"])])
    parts = [f"{NODES}+{NODES} ranks, NIC {result['nic']}, WAN {result['wan']}", columns(rows)]
    parts += [f"FAILED {problem}" for problem in result["problems"]]
    return "\n".join(parts)


def plot(pyplot, result):
    if not result["rows"]:
        return None
    figure, axis = pyplot.subplots(figsize=(5, 4))
    for delay in DELAYS:
        rows = [row for row in result["rows"] if row["delay"] == delay]
        axis.plot([row["trunks"] for row in rows], [row["mbit_s"]["median"] for row in rows], marker="o", label=f"one-way delay {delay}")
    axis.set_xlabel("gateways per site")
    axis.set_ylabel("Mbit/s")
    axis.set_ylim(bottom=0)
    axis.legend()
    return figure
