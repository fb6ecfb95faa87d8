"""Labs whose sites have real services: see inside.py, which runs in the lab."""

import json
import sys

from harness import LANDBRIDGE, PROGRAMS, ROOT

KNOWN = '"-o", "UserKnownHostsFile={folder}/known_hosts.SITE"'


def ssh_site(site, *, known=True, lines="", **more):
    """A site whose nodes each run an sshd. `known`: true if their host keys are known."""
    options = KNOWN.replace("SITE", site) if known else '"-o", "UserKnownHostsFile={folder}/nobody"'
    starter = f'kind = "ssh"\nidentity = "{{folder}}/user_key"\noptions = [{options}]\n{lines}'
    return {"starter": starter, "services": ["sshd"], **more}


def start(workshop, sites, command, *, environment=None, nodes=2, limit=90, host="a-n1", options=(), person=None):
    """Starts a command inside a lab whose sites have real services. `person`: the owner of the gateways of sites with a
    node service."""
    folder = workshop.folder / "inside"
    folder.mkdir()
    plan = workshop.folder / "plan.json"
    words = [str(word) for word in command]
    plan.write_text(
        json.dumps(
            {
                "folder": str(folder),
                "landbridge": str(LANDBRIDGE),
                "sites": sites,
                "command": words,
                "host": host,
                **({"user": person.name, "home": str(person.home)} if person else {}),
            }
        )
    )
    inside = [sys.executable, ROOT / "tests" / "inside.py", plan]
    # An empty gateway command: inside.py starts the gateways, once the services they need are up.
    return workshop.lab(
        inside, nodes=nodes, options=["--gateway-command", "", *options], environment=environment, limit=limit
    )


def run_words(workshop, mpi, program, *options):
    return [
        LANDBRIDGE,
        "run",
        "-n",
        4,
        "--mpi",
        mpi.name,
        f"--json={workshop.folder / 'run.json'}",
        *options,
        "--",
        *program,
    ]


def endless(workshop, mpi, sites, wrap=lambda command: command, **options):
    """Starts an endless job; returns once all its ranks work together."""
    working = workshop.folder / "working"
    command = wrap(run_words(workshop, mpi, [mpi.python, PROGRAMS / "endless.py", working]))
    running = start(workshop, sites, command, environment=mpi.environment, **options)
    running.wait_for(working.exists, 60, "the job's ranks")
    return running
