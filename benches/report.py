"""Figures: samples as one number with a spread, tables, JSON files, and plots if matplotlib is installed."""

import json
from statistics import median

from machine import OUT


def summary(values):
    """Median, spread and number of a list of measurements. The spread is (greatest - least) / median."""
    middle = median(values)
    return {
        "median": round(middle, 4),
        "least": round(min(values), 4),
        "greatest": round(max(values), 4),
        "spread": round((max(values) - min(values)) / middle, 3) if middle else 0.0,
        "n": len(values),
    }


def write(name, result):
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def columns(rows):
    """Rows of texts as aligned lines; the first row is the heading, the first column is left-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
        if number == 0:
            lines.append("-" * len(lines[0]))
    return "\n".join(lines)


def plots(name, result, draw):
    """Paths of the plots that `draw` makes of a result. Without matplotlib there are none, and a line reports this."""
    if draw is None:
        return []
    try:
        import matplotlib
    except ImportError:
        print("no plots: matplotlib is not installed (benches/requirements.txt)")
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = draw(pyplot, result)
    if drawn is None:
        return []
    path = OUT / f"{name}.png"
    drawn.tight_layout()
    drawn.savefig(path, dpi=120)
    pyplot.close(drawn)
    return [path]
