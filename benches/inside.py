"""The part of a benchmark that runs inside a lab: commands that take turns, round after round, and their output as
JSON.

    inside.py PLAN      PLAN is a JSON file: {"rounds", "answer", "commands": [COMMAND…]}, where a COMMAND is
                        {"name", "words", "environment", "limit", "may_fail"}

Writes {"samples": {name: [object…]}, "failures": {name: text}} to the file that PLAN names.
A failed command is not tried again.
"""

import json
import os
import sys
import time
from pathlib import Path

from machine import Failed, clean_environment, run


def objects(text):
    """The output of a program: one JSON object over several lines, or one per line."""
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def main():
    plan = json.loads(Path(sys.argv[1]).read_text())
    environment = clean_environment()
    environment.update({key: value for key, value in os.environ.items() if key.startswith("LANDBRIDGE_")})
    answer = {"samples": {}, "failures": {}}
    for number in range(plan["rounds"]):
        commands = plan["commands"] if number % 2 == 0 else plan["commands"][::-1]
        for command in commands:
            name = command["name"]
            if name in answer["failures"]:
                continue
            start = time.monotonic()
            try:
                out, _ = run(
                    command["words"], {**environment, **command.get("environment", {})}, command.get("limit", 120)
                )
                found = objects(out)
                if not found:
                    raise Failed(f"{name}: printed no figures:\n{out[-500:]}")
                for sample in found:
                    answer["samples"].setdefault(name, []).append(
                        {**sample, "wall_s": round(time.monotonic() - start, 4)}
                    )
            except (Failed, ValueError) as failure:
                answer["failures"][name] = str(failure)
    Path(plan["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
