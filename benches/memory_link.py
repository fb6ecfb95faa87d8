"""The memory link against libfabric's shm provider, and against Open MPI's own shared memory: two ranks of one
node, in turns."""

from machine import (
    LANDBRIDGE,
    NOT_ITS_OWN_MEMORY,
    OPENMPI,
    PINGPONG,
    PROVIDER,
    VENV,
    Failed,
    describe,
    in_lab,
    libraries,
    load,
    need,
    program,
)
from report import columns, size_name, summary

LAB = ["--sites", "1", "--nodes", "1", "--delay", "0", "--wan-rate", "0", "--nic-rate", "0"]
SIZES = [0, 8, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304]
QUICK_SIZES = [0, 64, 1024, 16384, 65536, 1048576]


def rivals(mpi):
    """Name, command and environment of each rival of the memory link, and the environment that makes MPI use the
    provider inside a node."""
    home = VENV[mpi]
    launcher = [home / "bin" / "mpiexec", "-n", "2"]
    if mpi == "mpich":
        ours = NOT_ITS_OWN_MEMORY[mpi]
        return (
            "shm provider",
            launcher,
            {**libraries(mpi), **ours, "FI_PROVIDER": "shm", "MPIR_CVAR_CH4_NETMOD": "ofi"},
            ours,
        )
    if mpi == "intel":
        ours = {**libraries(mpi), **NOT_ITS_OWN_MEMORY[mpi]}
        theirs = {**ours, "FI_PROVIDER": "shm", "I_MPI_OFI_PROVIDER": "shm", "FI_PROVIDER_PATH": str(home / "lib")}
        return "shm provider", launcher, theirs, ours
    return (
        "Open MPI's own",
        [*launcher, "--mca", "pml", "ob1", "--mca", "btl", "self,sm"],
        {**libraries(mpi), **OPENMPI},
        {},
    )


def measure(arguments):
    need(LANDBRIDGE, "run make")
    need(PROVIDER, "run make")
    sizes = arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES)
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    seconds = 0.08 if arguments.quick else 0.25
    result = {"machine": describe(), "rounds": rounds, "rows": [], "problems": []}
    for mpi in [arguments.mpi] if arguments.mpi else [mpi for mpi in VENV if VENV[mpi].exists()]:
        rival, launcher, theirs, ours = rivals(mpi)
        commands = []
        for kind in PINGPONG:
            words = [program("pingpong", mpi), kind, seconds, *(size for size in sizes if size or kind == "latency")]
            limit = 60 + 4 * seconds * len(sizes)
            commands.append(
                {
                    "name": f"{kind} landbridge",
                    "words": [LANDBRIDGE, "run", "-n", 2, "--mpi", mpi, "--", *words],
                    "environment": ours,
                    "limit": limit,
                }
            )
            commands.append(
                {"name": f"{kind} rival", "words": [*launcher, *words], "environment": theirs, "limit": limit}
            )
        try:
            samples, failures = in_lab(LAB, commands, rounds)
        except Failed as failed:
            result["problems"].append(f"{mpi}: {failed}")
            continue
        result["problems"] += [f"{mpi}: {name}: {text}" for name, text in failures.items()]
        result["rows"] += _rows(mpi, rival, samples)
    result["machine"]["load_after"] = load()
    return result


def _rows(mpi, rival, samples):
    rows = []
    for kind, figure in PINGPONG.items():
        ours, theirs = samples.get(f"{kind} landbridge", []), samples.get(f"{kind} rival", [])
        for size in sorted({sample["size"] for sample in ours}):
            a, b = [s for s in ours if s["size"] == size], [s for s in theirs if s["size"] == size]
            if not b:
                continue
            ratios = [x[figure] / y[figure] for x, y in zip(a, b)]
            if kind == "stream":
                ratios = [1 / ratio for ratio in ratios]
            row = {
                "mpi": mpi,
                "rival": rival,
                "kind": kind,
                "size": size,
                "ratio": summary(ratios),
                "landbridge": summary([s[figure] for s in a]),
                "theirs": summary([s[figure] for s in b]),
            }
            if kind == "latency":
                row["ratio_of_minima"] = round(min(s["min_us"] for s in a) / min(s["min_us"] for s in b), 3)
            rows.append(row)
    return rows


def table(result):
    rows = [["one node", "size", "what", "landbridge", "rival", "time ratio", "± spread", "ratio of minima"]]
    for row in result["rows"]:
        unit = "µs" if row["kind"] == "latency" else "msg/s"
        digits = 2 if row["kind"] == "latency" else 0
        minima = f"{row['ratio_of_minima']:.2f}" if "ratio_of_minima" in row else ""
        rows.append(
            [
                f"{row['mpi']} against {row['rival']}",
                size_name(row["size"]),
                f"half round trip, {unit}" if row["kind"] == "latency" else f"stream, {unit}",
                f"{row['landbridge']['median']:.{digits}f}",
                f"{row['theirs']['median']:.{digits}f}",
                f"{row['ratio']['median']:.2f}",
                f"{row['ratio']['spread']:.2f}",
                minima,
            ]
        )
    return "\n".join([columns(rows), *(f"FAILED {problem}" for problem in result["problems"])])


def plot(pyplot, result):
    if not result["rows"]:
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    for axis, kind, title in zip(axes, PINGPONG, ("half round trip", "stream, time per message")):
        for mpi in dict.fromkeys(row["mpi"] for row in result["rows"]):
            rows = [row for row in result["rows"] if (row["mpi"], row["kind"]) == (mpi, kind)]
            if rows:
                axis.plot(
                    [max(row["size"], 1) for row in rows],
                    [row["ratio"]["median"] for row in rows],
                    marker="o",
                    label=f"{mpi} against {rows[0]['rival']}",
                )
        axis.axhline(1.0, color="grey", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("bytes")
        axis.set_ylabel("time of the rival's (less is better)")
        axis.set_title(title)
        axis.legend()
    return figure
