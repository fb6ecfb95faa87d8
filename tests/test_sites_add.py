"""First use by a person with ssh accounts: `sites add` against real sshd in a lab, the job that follows, and what goes wrong."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from accounts import PORT, wan
from harness import LANDBRIDGE, PROGRAMS, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt install openssh-server"),
]

# Nobody's site: the machine on which the person types.
LAPTOP = "c-gw1"


class Person:
    """Commands of a person, typed one after the other on hosts of a lab."""

    def __init__(self, workshop, environment, logins=("a-gw1", "b-gw1"), **plan):
        self.workshop = workshop
        self.folder = workshop.folder / "accounts"
        self.folder.mkdir()
        self.plan = {
            "folder": str(self.folder), "landbridge": str(LANDBRIDGE), "logins": list(logins), "environment": environment, **plan,
        }
        self.steps = []

    def types(self, *words, on=LAPTOP, must=False, **step):
        """Notes a command; `run` runs them all. Gives its place among the results."""
        words = [str(word) for word in words]
        if words[0] == "landbridge":
            words[0] = str(LANDBRIDGE)
        self.steps.append({"host": on, "words": words, "must": must, **step})
        return len(self.steps) - 1

    def adds(self, name, host, *options, must=True, **step):
        return self.types("landbridge", "sites", "add", name, f"root@{wan(host)}:{PORT}", *options, must=must, **step)

    def home(self, host):
        return self.folder / "homes" / host

    def file(self, host):
        return self.home(host) / ".config/landbridge/sites.toml"

    def run(self, limit=150):
        plan = self.workshop.folder / "plan.json"
        plan.write_text(json.dumps({**self.plan, "steps": self.steps}))
        command = [sys.executable, ROOT / "tests" / "accounts.py", plan]
        lab = self.workshop.lab(command, sites=3, nodes=1, options=["--gateway-command", "", "--nic-rate", "0"], limit=limit)
        finished = lab.finish().check()
        results = [Result(self, **result) for result in json.loads((self.folder / "results.json").read_text())]
        assert len(results) == len(self.steps), f"ended early: {results[-1]}\n{finished}"
        return results


class Result:
    def __init__(self, person, words, code, out, err, seconds):
        self.person, self.words, self.code, self.out, self.err, self.seconds = person, words, code, out, err, seconds

    def __str__(self):
        logs = "".join(f"\n--- {path}\n{path.read_text()[-1500:]}" for path in sorted(self.person.folder.rglob("*.log")))
        return f"$ {' '.join(self.words)}\ncode {self.code} after {self.seconds:.1f} s\n--- out\n{self.out}\n--- err\n{self.err}{logs}"

    def good(self):
        assert self.code == 0, str(self)
        return self

    def bad(self, *names, code=1):
        assert self.code == code, str(self)
        for name in names:
            assert name in self.out + self.err, f"does not say `{name}`\n{self}"
        assert "panicked" not in self.err, str(self)
        return self


@pytest.fixture
def person(workshop, isolated, mpich_only):
    def make(**options):
        return Person(workshop, mpich_only.environment, **options)

    return make


def test_three_commands_then_a_job(person, mpich_only):
    person = person()
    for name, host in (("lyon", "a-gw1"), ("kyoto", "b-gw1")):
        person.adds(name, host)
    program = [mpich_only.python, "-m", "mpi4py.bench", "helloworld"]
    person.types("landbridge", "run", "-n", 4, "--mpi", "mpich", "--", *program, on="a-gw1")
    again = person.adds("kyoto", "b-gw1")
    person.types("landbridge", "sites", "list", "--json")
    person.types("landbridge", "sites", "status", "--json")
    person.types("landbridge", "sites", "remove", "lyon")
    person.types("landbridge", "sites", "remove", "kyoto")
    person.types("ls", "-A", person.home("a-gw1") / ".config", person.home("a-gw1") / ".local/share", on="a-gw1")
    results = [result.good() for result in person.run()]
    job = results[2]
    assert sorted(line.split()[-1] for line in job.out.splitlines()) == ["a-gw1.", "a-gw1.", "b-gw1.", "b-gw1."], str(job)
    assert "copied to" in results[1].out and "is there already" in results[again].out
    assert "gateway runs, process" in results[again].err, str(results[again])
    sites = json.loads(results[4].out)["sites"]
    assert [site["site"] for site in sites] == ["lyon", "kyoto"]
    assert sites[1]["advertise"] == f"{wan('b-gw1')}:7700"
    status = json.loads(results[5].out)
    assert status["ok"] and [trunk["up"] for site in status["sites"] for trunk in site["gateway"]["trunks"]] == [True, True]
    assert not person.file(LAPTOP).exists(), "the last site is gone, and with it what the command wrote"
    left = [path for host in ("a-gw1", "b-gw1") for path in person.home(host).rglob("*") if path.is_file() and ".bench" not in path.name]
    assert not left, f"left at the sites: {left}"
