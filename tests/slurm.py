"""Sites of a lab with Debian's own Slurm, and commands there that also print the queue."""

import os
import shutil

import pytest

from harness import LANDBRIDGE

# Output of our script about a site's queue when nothing is left in it.
EMPTY = "QUEUE[]"


def queue(site):
    """Shell words that print the pending and running jobs of a site, after giving it time to end. Jobs that Slurm only
    cleans up (CG) count as ended."""
    squeue = (
        f"{LANDBRIDGE} lab enter {site}-gw1 -- env SLURM_CONF=/run/slurm-{site}/slurm.conf squeue -h -t PD,CF,R,S -o "
        "%i:%T"
    )
    return (
        f'for i in $(seq 60); do left=$({squeue}) || left=unknown; test -z "$left" && break; sleep 0.1; done; '
        'echo "QUEUE[$left]"'
    )


@pytest.fixture
def slurm(isolated):
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons in a lab need root")
    missing = [
        name for name in ("slurmctld", "slurmd", "munged", "sshd") if not shutil.which(name, path="/usr/sbin:/usr/bin")
    ]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt install slurm-wlm munge openssh-server")


def slurm_site(lines=""):
    return {"starter": f'kind = "slurm"\n{lines}', "services": ["slurm"], "nodes": False}


def shell_words(command):
    return " ".join(f"'{word}'" for word in map(str, command))


def watched(command, site="a"):
    """A command, followed by a list of its leftovers in the queue of a site. The exit code is the command's."""
    return ["bash", "-c", f"{shell_words(command)}; code=$?; {queue(site)}; exit $code"]
