"""Start-up: 64 ranks over two sites against the MPI's own mpiexec on one host, from the command to its end."""

from against import Case
from machine import LANDBRIDGE, OPENMPI, OURS, VENV, Failed, describe, in_lab, installed, libraries, load, need, program
from report import columns, summary

LAB = ["--sites", "2", "--nodes", "2", "--delay", "5ms", "--nic-rate", "0"]


def measure(arguments):
    need(LANDBRIDGE, "run make")
    counts = _counts(arguments)
    rounds = arguments.rounds or 3
    result = {"machine": describe(), "rounds": rounds, "rows": [], "problems": []}
    for mpi in installed(arguments):
        home = VENV[mpi]
        words = [program("waiting", mpi), "start"]
        ours = libraries(mpi)
        theirs = {**ours, **OPENMPI} if mpi == "openmpi" else ours
        commands = []
        for count in counts:
            commands.append({"name": f"{count} landbridge", "words": _run(OURS, mpi, count), "environment": ours})
            commands.append(
                {
                    "name": f"{count} mpiexec",
                    "words": [home / "bin" / "mpiexec", "-n", count, *words],
                    "environment": theirs,
                }
            )
        try:
            samples, failures = in_lab(LAB, commands, rounds)
        except Failed as failed:
            result["problems"].append(f"{mpi}: {failed}")
            continue
        result["problems"] += [f"{mpi}: {name}: {text}" for name, text in failures.items()]
        for count in counts:
            ours, theirs = samples.get(f"{count} landbridge"), samples.get(f"{count} mpiexec")
            if ours and theirs:
                both = [[sample["wall_s"] for sample in lines] for lines in (ours, theirs)]
                result["rows"].append(
                    {
                        "mpi": mpi,
                        "ranks": count,
                        "landbridge_s": summary(both[0]),
                        "mpiexec_s": summary(both[1]),
                        "ratio": summary([a / b for a, b in zip(*both)]),
                    }
                )
    result["machine"]["load_after"] = load()
    return result


def _counts(arguments):
    return [4, 16] if arguments.quick else [4, 16, 64]


def _run(build, mpi, count):
    return [build.landbridge, "run", "-n", count, "--mpi", mpi, "--", program("waiting", mpi), "start"]


def cases(arguments):
    """The cases for --against."""

    def case(mpi):
        def once(build, problems):
            commands = [
                {"name": f"{count} ranks", "words": _run(build, mpi, count), "environment": libraries(mpi)}
                for count in _counts(arguments)
            ]
            samples, failures = in_lab(LAB, commands, 1, build)
            problems += failures.values()
            return {name: (lines[0]["wall_s"], "s") for name, lines in samples.items()}

        return Case(f"{mpi}, start to end", once)

    return [case(mpi) for mpi in installed(arguments)]


def table(result):
    rows = [["start to end", "ranks", "landbridge, two sites, s", "mpiexec, one host, s", "ratio", "± spread"]]
    for row in result["rows"]:
        rows.append(
            [
                row["mpi"],
                str(row["ranks"]),
                f"{row['landbridge_s']['median']:.2f}",
                f"{row['mpiexec_s']['median']:.2f}",
                f"{row['ratio']['median']:.2f}",
                f"{row['ratio']['spread']:.2f}",
            ]
        )
    return "\n".join([columns(rows), *(f"FAILED {problem}" for problem in result["problems"])])
