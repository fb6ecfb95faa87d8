"""The provider against libfabric's own tcp provider: same MPI, same program, one host, through sockets, in turns."""

import os
import platform
from statistics import median

from against import Case
from machine import (
    NOT_ITS_OWN_MEMORY,
    OPENMPI,
    OURS,
    PINGPONG,
    PROVIDER,
    VENV,
    Failed,
    clean_environment,
    describe,
    first_match,
    in_lab,
    installed,
    json_lines,
    libraries,
    load,
    need,
    program,
    run,
)
from report import columns, size_name, summary

SIZES = [0, 1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304]
QUICK_SIZES = [0, 64, 1024, 16384, 65536, 1048576, 4194304]
RIVAL = "tcp"
# The lab with two ranks for --against; its network slows nothing down.
LAB = ["--sites", "2", "--nodes", "2", "--delay", "0", "--wan-rate", "0", "--nic-rate", "0"]
PLACES = {
    "inside a node": ["--site", "a=2", "--ranks-per-node", 2],
    "between nodes": ["--site", "a=2", "--ranks-per-node", 1],
    "across sites": ["--site", "a=1", "--site", "b=1"],
}
# An interrupted run must not leave its MPI's files in this machine's shared memory.
OWN_SHM = [
    "unshare",
    *([] if os.geteuid() == 0 else ["--map-root-user"]),
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec "$@"',
    "sh",
]
UNITS = {"latency": "µs", "stream": "messages/s"}


def launch(mpi, provider, words, extra=(), limit=180.0, build=OURS):
    """Runs two ranks with an MPI's own launcher and one provider; returns stdout and stderr."""
    home = VENV[mpi]
    environment = clean_environment()
    environment.update(libraries(mpi), FI_PROVIDER=provider)
    if provider == "landbridge":
        # Intel MPI's own providers are separate files in its lib folder; a path without it would hide them.
        environment["FI_PROVIDER_PATH"] = f"{build.release}:{home / 'lib'}" if mpi == "intel" else str(build.release)
    if mpi == "openmpi":
        environment.update(OPENMPI, OMPI_MCA_pml="cm", OMPI_MCA_mtl="ofi", OMPI_MCA_mtl_ofi_provider_include=provider)
    elif mpi == "intel":
        environment.update(
            I_MPI_FABRICS="ofi", I_MPI_OFI_PROVIDER=provider, LANDBRIDGE_INJECT="16KiB", LANDBRIDGE_CONFIRM_SENDS="no"
        )  # as `landbridge run` sets them
    else:
        environment.update(MPIR_CVAR_NOLOCAL="1", MPIR_CVAR_CH4_NETMOD="ofi", LANDBRIDGE_CONFIRM_SENDS="no")
    environment.update(extra)
    return run([*OWN_SHM, home / "bin" / "mpiexec", "-n", "2", *words], environment, limit)


def chosen(mpi, provider):
    """The provider that MPI has chosen, as MPI prints it, so that a fallback is not measured under another's name."""
    debug = {
        "intel": {"I_MPI_DEBUG": "5"},
        "mpich": {"MPIR_CVAR_DEBUG_SUMMARY": "1"},
        "openmpi": {"OMPI_MCA_opal_common_ofi_verbose": "1"},
    }[mpi]
    out, err = launch(mpi, provider, [program("pingpong", mpi), "latency", "0.01", "1"], debug.items(), limit=40)
    taken = first_match(r"(?:libfabric provider|mtl:ofi:prov(?:ider)?): (\S+)", out + err)
    if taken.split(";")[0] != provider:
        raise Failed(f"{mpi} was told to use {provider} and took {taken}:\n{(out + err)[-3000:]}")
    return taken


def measure(arguments):
    need(PROVIDER, "run make")
    sizes, seconds = _sizes_and_seconds(arguments)
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    mpis = installed(arguments)
    result = {
        "machine": describe(),
        "against": RIVAL,
        "rounds": rounds,
        "seconds_per_size": float(seconds),
        "mpis": {},
        "rows": [],
        "problems": [],
    }
    for mpi in mpis:
        need(VENV[mpi] / "bin" / "mpiexec", "run make venv venv-intel")
        try:
            result["mpis"][mpi] = {provider: chosen(mpi, provider) for provider in ("landbridge", RIVAL)}
            result["rows"] += _mpi(mpi, sizes, rounds, seconds)
        except Failed as failed:
            result["problems"].append(f"{mpi}: {failed}")
    result["machine"]["load_after"] = load()
    result["architecture"] = platform.machine()
    return result


def _sizes_and_seconds(arguments):
    return arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES), "0.08" if arguments.quick else "0.25"


def _words(mpi, kind, sizes, seconds):
    return [program("pingpong", mpi), kind, seconds, *(size for size in sizes if size or kind == "latency")]


def cases(arguments):
    """The cases for --against: with the MPI's own launcher as in `measure`, and with `landbridge run` inside a node,
    between nodes and across sites."""
    sizes, seconds = _sizes_and_seconds(arguments)

    def figures(lines, kind):
        return {size_name(line["size"]): (line[PINGPONG[kind]], UNITS[kind]) for line in lines}

    def sockets(mpi, kind):
        def once(build, _):
            out, _ = launch(mpi, "landbridge", _words(mpi, kind, sizes, seconds), build=build)
            return figures(json_lines(out), kind)

        return Case(f"{mpi}, one host through sockets, {kind}", once)

    def placed(mpi, place, kind):
        def once(build, _):
            words = [build.landbridge, "run", *PLACES[place], "--mpi", mpi, "--", *_words(mpi, kind, sizes, seconds)]
            command = {
                "name": "it",
                "words": words,
                "environment": {**libraries(mpi), **NOT_ITS_OWN_MEMORY[mpi]},
                "limit": 60 + 8 * float(seconds) * len(sizes),
            }
            samples, failures = in_lab(LAB, [command], 1, build)
            if failures:
                raise Failed(failures["it"])
            return figures(samples["it"], kind)

        return Case(f"{mpi}, {place}, {kind}", once)

    found = []
    for mpi in installed(arguments):
        for kind in PINGPONG:
            found += [placed(mpi, place, kind) for place in PLACES]
            found.append(sockets(mpi, kind))
    return found


def _mpi(mpi, sizes, rounds, seconds):
    """Alternates the two providers; one row per kind and size."""
    samples = {}
    for number in range(rounds):
        # The order changes with each round, so that a drift of the machine favours neither.
        order = ["landbridge", RIVAL] if number % 2 == 0 else [RIVAL, "landbridge"]
        for kind in PINGPONG:
            for provider in order:
                out, _ = launch(mpi, provider, _words(mpi, kind, sizes, seconds))
                for line in json_lines(out):
                    samples.setdefault((kind, line["size"]), {}).setdefault(provider, []).append(line)
    return [_row(mpi, kind, size, by_provider) for (kind, size), by_provider in sorted(samples.items())]


def _row(mpi, kind, size, by_provider):
    ours, theirs = by_provider["landbridge"], by_provider[RIVAL]
    figure = PINGPONG[kind]
    if kind == "latency":
        ratios = [a[figure] / b[figure] for a, b in zip(ours, theirs)]
    else:
        ratios = [b[figure] / a[figure] for a, b in zip(ours, theirs)]
    row = {"mpi": mpi, "kind": kind, "size": size, "ratio": summary(ratios)}
    for name, lines in (("landbridge", ours), (RIVAL, theirs)):
        row[name] = summary([line[figure] for line in lines])
        if kind == "latency":
            row[name]["min_us"] = min(line["min_us"] for line in lines)
            row[name]["iterations"] = sum(line["iterations"] for line in lines)
        else:
            for key in ("mbit_s", "sender_cpu_us", "receiver_cpu_us"):
                row[name][key] = round(median(line[key] for line in lines), 3)
    if kind == "latency":
        row["ratio_of_minima"] = round(row["landbridge"]["min_us"] / row[RIVAL]["min_us"], 3)
    return row


def table(result):
    parts = []
    for mpi, taken in result["mpis"].items():
        parts.append(
            f"{mpi}, one host through sockets: {taken['landbridge']} against {taken[RIVAL]}, {result['rounds']} rounds"
        )
        rows = [
            ["half round trip", "landbridge p50/min µs", f"{RIVAL} p50/min µs", "ratio p50", "± spread", "ratio min"]
        ]
        for row in (row for row in result["rows"] if (row["mpi"], row["kind"]) == (mpi, "latency")):
            both = [f"{row[name]['median']:.2f} / {row[name]['min_us']:.2f}" for name in ("landbridge", RIVAL)]
            rows.append(
                [
                    size_name(row["size"]),
                    *both,
                    f"{row['ratio']['median']:.2f}",
                    f"{row['ratio']['spread']:.2f}",
                    f"{row['ratio_of_minima']:.2f}",
                ]
            )
        parts.append(columns(rows))
        both = ["landbridge", RIVAL]
        rows = [
            [
                "stream",
                *(f"{name} Mbit/s" for name in both),
                *(f"{name} msg/s" for name in both),
                *(f"{name} sender CPU µs" for name in both),
                "time ratio",
                "± spread",
            ]
        ]
        for row in (row for row in result["rows"] if (row["mpi"], row["kind"]) == (mpi, "stream")):
            cells = [f"{row[name]['mbit_s']:.0f}" for name in ("landbridge", RIVAL)]
            cells += [f"{row[name]['median']:.0f}" for name in ("landbridge", RIVAL)]
            cells += [f"{row[name]['sender_cpu_us']:.2f}" for name in ("landbridge", RIVAL)]
            rows.append(
                [size_name(row["size"]), *cells, f"{row['ratio']['median']:.2f}", f"{row['ratio']['spread']:.2f}"]
            )
        parts.append(columns(rows) + "\n")
    parts += [f"FAILED {problem}" for problem in result["problems"]]
    parts.append(
        f"load {result['machine']['load_before']} before, {result['machine']['load_after']} after; "
        "a ratio under 1 means landbridge is faster"
    )
    return "\n".join(parts)


def plot(pyplot, result):
    if not result["rows"]:
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4))
    for axis, kind, title in ((axes[0], "latency", "half round trip"), (axes[1], "stream", "stream, time per message")):
        for mpi in sorted({row["mpi"] for row in result["rows"]}):
            rows = [row for row in result["rows"] if row["mpi"] == mpi and row["kind"] == kind]
            axis.plot(
                [max(row["size"], 0.5) for row in rows], [row["ratio"]["median"] for row in rows], marker="o", label=mpi
            )
        axis.axhline(1.0, color="grey", linewidth=0.8)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("bytes")
        axis.set_ylabel("landbridge / tcp (less is better)")
        axis.set_title(title)
        axis.legend()
    return figure
