"""Labs whose sites have real services: see inside.py, which runs in them."""

import json
import sys

from harness import LANDBRIDGE, PROGRAMS, ROOT, wait_until


def start(workshop, sites, command, *, environment=None, nodes=2, limit=90, host="a-n1"):
    """A command inside a lab whose sites have real services."""
    folder = workshop.folder / "inside"
    folder.mkdir()
    plan = workshop.folder / "plan.json"
    words = [str(word) for word in command]
    plan.write_text(json.dumps({
        "folder": str(folder), "landbridge": str(LANDBRIDGE), "sites": sites, "command": words, "host": host,
    }))
    inside = [sys.executable, ROOT / "tests" / "inside.py", plan]
    # An empty command: gateways are started by inside.py, once there is what they need.
    return workshop.lab(inside, nodes=nodes, options=["--gateway-command", ""], environment=environment, limit=limit)


def run_words(workshop, mpi, program, *options):
    return [LANDBRIDGE, "run", "-n", 4, "--mpi", mpi.name, f"--json={workshop.folder / 'run.json'}", *options, "--", *program]


def endless(workshop, mpi, sites, **options):
    working = workshop.folder / "working"
    program = [mpi.python, PROGRAMS / "endless.py", working]
    running = start(workshop, sites, run_words(workshop, mpi, program), environment=mpi.environment, **options)
    wait_until(lambda: working.exists() or running.child.poll() is not None, 60, "the job's ranks")
    assert working.exists(), str(running.finish())
    return running
