"""Tables, bars and plots of the results of staging's cases."""

from report import columns

# First words of the cases that are drawn.
PAPER = ["figure3", "figure4", "figure5", "figure6"]
RELATIONS = {"<=": (lambda figure, bar: figure <= bar, "≤"), ">=": (lambda figure, bar: figure >= bar, "≥")}


def _percent(figure):
    values = (100 * figure[key] for key in ("median", "least", "greatest"))
    return "{:.1f} ({:.1f} to {:.1f})".format(*values)


def _with_range(figure, digits=2):
    return f"{figure['median']:.{digits}f} ({figure['least']:.{digits}f} to {figure['greatest']:.{digits}f})"


def _median(row, key, digits=2):
    return f"{row[key]['median']:.{digits}f}" if key in row else ""


def _overlaps(rows):
    heading = [
        "application, MiB",
        "mover",
        "slowdown, %",
        "speedup",
        "optimum",
        "of the optimum",
        "Tcomp, s",
        "Tio, s",
        "Tconc, s",
        "CPU s/GiB",
        "receiver's",
        "others, cores",
    ]
    lines = [heading]
    for row in rows:
        lines.append([
            f"{row['case']}: {row['application']}, {row['size_mib']}", row["mover"], _percent(row["slowdown"]),
            _median(row, "speedup"), _median(row, "optimum"), _with_range(row["of_optimum"]), _median(row, "tcomp_s"),
            _median(row, "tio_s"), _median(row, "tconc_s"), _median(row, "cpu_s_per_gib"),
            _median(row, "receiver_cpu_s_per_gib"), _median(row, "others_cores"),
        ])  # fmt: skip
    return columns(lines)


def _timeline(row):
    return [_median(row, key) for key in ("start_s", "moving_s", "end_s")]


def _of(case, rows):
    return [row for row in rows if row["case"] == case]


def _lines(case, heading, cells):
    """A function that makes the table of a case from its rows."""

    def table(rows):
        return columns([heading, *([row["mover"], *cells(row)] for row in rows)])

    return case, table


TABLES = dict([
    _lines("alone", ["alone: one file over two gateways, 10 ms", "s", "of the card", "of the stream", "start, s",
                     "moving, s", "end, s"],
           lambda row: [_with_range(row["seconds"]), _with_range(row["of_card"], 3), _median(row, "of_tcp", 3),
                        *_timeline(row)]),
    _lines("small", ["small: files of 4 KiB, 10 ms", "files", "s", "of rsync's time"],
           lambda row: [str(row["files"]), _with_range(row["seconds"], 1),
                        _with_range(row["of_rsync"], 3) if "of_rsync" in row else ""]),
    _lines("restart", ["restart after a kill", "killed at", "whole, s", "again, s", "of the whole"],
           lambda row: [_median(row, "killed_at"), _with_range(row["whole_s"]), _with_range(row["again_s"]),
                        _with_range(row["of_whole"], 3)]),
    _lines("fanout", ["fanout: one file to 8 nodes", "s", "of the slowest link's", "WAN payload, of the file",
                      "with headers", "cores", "first node: start, s", "moving, s", "end, s", "last node: start, s",
                      "moving, s", "end, s"],
           lambda row: [_with_range(row["seconds"]), _with_range(row["of_slowest_link"]),
                        _with_range(row["wan_payload_of_file"], 3), _with_range(row["wan_bytes_of_file"], 3),
                        _median(row, "cores"), *_timeline(row["first_node"]), *_timeline(row["last_node"])]),
    _lines("receiver", ["receiver: processor seconds per GiB", "", "of the least"],
           lambda row: [_with_range(row["cpu_s_per_gib"], 3), _median(row, "of_floor")]),
    _lines("victim", ["victim: random reads beside", "IOPS", "alone", "of alone"],
           lambda row: [_median(row, "iops", 0), _median(row, "alone_iops", 0), _with_range(row["of_alone"], 3)]),
    _lines("chain", ["chain of jobs", "jobs", "serial, s", "overlapped, s", "of serial"],
           lambda row: [str(row["jobs"]), _with_range(row["serial_s"]), _with_range(row["overlapped_s"]),
                        _with_range(row["of_serial"], 3)]),
    _lines("phases", ["phases: moved in", "slowdown, %", "mover, s", "Tcomp, s", "Tconc, s",
                      "harm while it moves, %", "of the rate"],
           lambda row: [_percent(row["slowdown"]), _with_range(row["mover_s"]), _median(row, "tcomp_s"),
                        _with_range(row["tconc_s"]), _percent(row["harm"]), _median(row, "busy_rate")]),
    _lines("queue", ["queue (simulated)", "load", "I/O", "harm, %", "makespan, of serial", "waiting, of serial",
                     "waiting, s", "serial, s", "wrong nodes"],
           lambda row: [row["load"], f"{row['io_share']:.2f}", f"{100 * row['harm']:.1f} {row['harm_is']}",
                        _with_range(row["makespan_of_serial"], 3), _with_range(row["wait_of_serial"]),
                        str(row["wait_s"]), str(row["serial_wait_s"]), f"{row['wrong_nodes']:.3f}"]),
    _lines("queue of phases", ["queue (simulated), moved in", "I/O", "harm, %", "rate", "makespan, of serial",
                               "waiting, of serial"],
           lambda row: [f"{row['io_share']:.2f}", f"{100 * row['harm']:.1f} {row['harm_is']}",
                        f"{row['busy_rate']:.2f}", _with_range(row["makespan_of_serial"], 3),
                        _with_range(row["wait_of_serial"])]),
])  # fmt: skip


def table(result):
    rows, parts = result["rows"], []
    if overlaps := [row for row in rows if "of_optimum" in row]:
        parts.append(_overlaps(overlaps))
    parts += [draw(found) for case, draw in TABLES.items() if (found := _of(case, rows))]
    if result["bars"]:
        lines = [["bar", "figure", "", ""]]
        for bar in result["bars"]:
            sign = RELATIONS[bar["relation"]][1]
            lines.append(
                [bar["what"], f"{bar['figure']:.3f}", f"{sign} {bar['bar']:.3f}", "met" if bar["met"] else "MISSED"]
            )
        parts.append(columns(lines))
    said = {text for row in rows for text in row.get("said", [])}
    parts += [f"ours: {text}" for text in sorted(said)]
    parts += [f"left out: {text}" for text in result["left_out"]]
    return "\n\n".join(parts + [f"FAILED {problem}" for problem in result["problems"]])


def judged(found):
    """The bars in the form of the result file."""
    return [
        {"what": what, "figure": round(figure, 4), "relation": relation, "bar": round(bar, 4),
         "met": RELATIONS[relation][0](figure, bar)}
        for what, figure, relation, bar in found
    ]  # fmt: skip


def plot(pyplot, result):
    """The paper's figures 3 to 6: a bar for each mover, and the optimum above it; and the simulated queue."""
    cases = [case for case in dict.fromkeys(row["case"] for row in result["rows"]) if case.split()[0] in PAPER]
    queued = [row for row in _of("queue", result["rows"]) if row["mover"] == "overlapped"]
    if not cases and not queued:
        return None
    panels = len(cases) + bool(queued)
    figure, axes = pyplot.subplots(panels, 1, figsize=(10, 3.4 * panels), squeeze=False)
    for axis, case in zip(axes[:, 0], cases):
        _bars(axis, case, _of(case, result["rows"]))
    if queued:
        _queue(axes[-1, 0], queued)
    return figure


def _bars(axis, case, rows):
    names = list(dict.fromkeys(row["application"] for row in rows))
    movers = list(dict.fromkeys(row["mover"] for row in rows))
    width = 0.8 / len(movers)
    for number, mover in enumerate(movers):
        mine = [row for row in rows if row["mover"] == mover]
        places = [names.index(row["application"]) + (number - (len(movers) - 1) / 2) * width for row in mine]
        middle = [row["speedup"]["median"] for row in mine]
        below = [row["speedup"]["median"] - row["speedup"]["least"] for row in mine]
        above = [row["speedup"]["greatest"] - row["speedup"]["median"] for row in mine]
        axis.bar(places, middle, width * 0.9, yerr=[below, above], capsize=2, label=mover)
        for place, row in zip(places, mine):
            best = row["optimum"]["median"]
            axis.plot([place - width / 2, place + width / 2], [best, best], color="black", linewidth=1.5)
    axis.axhline(1, color="grey", linewidth=0.8)
    axis.set_xticks(range(len(names)), names)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("(Tcomp + Tio) / Tconc")
    axis.set_title(f"{case}: {rows[0]['size_mib']} MiB at 120 MiB/s; black: the optimum; grey: one after the other")
    axis.legend(fontsize="x-small", ncols=len(movers))


def _queue(axis, rows):
    for load in dict.fromkeys(row["load"] for row in rows):
        mine = [row for row in rows if row["load"] == load]
        shares = [row["io_share"] for row in mine]
        axis.plot(shares, [row["wait_of_serial"]["median"] for row in mine], marker="o", label=f"waiting, load {load}")
        axis.plot(shares, [row["makespan_of_serial"]["median"] for row in mine], marker="x", linestyle="--",
                  label=f"makespan, load {load}")  # fmt: skip
    axis.set_xlabel("share of a job's time that is I/O")
    axis.set_title("overlapped, of serial (simulated queue)")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize="x-small", ncols=4)
