"""A person with ssh accounts at the sites of a lab, who types commands on a laptop and on login nodes."""

import json
import sys

import pytest

from accounts import PORT, wan
from harness import LANDBRIDGE, ROOT

# Nobody's site: the machine on which the person types.
LAPTOP = "c-gw1"


class Person:
    """Commands of a person, typed one after the other on hosts of a lab."""

    def __init__(self, workshop, environment, logins=("a-gw1", "b-gw1"), **plan):
        self.workshop = workshop
        self.folder = workshop.folder / "accounts"
        self.folder.mkdir()
        self.plan = {
            "folder": str(self.folder),
            "landbridge": str(LANDBRIDGE),
            "logins": list(logins),
            "environment": environment,
            **plan,
        }
        self.steps, self.family = [], plan.get("family", "4")

    def types(self, *words, on=LAPTOP, must=False, **step):
        """Notes a command; `run` runs them all. Gives its place among the results."""
        words = [str(word) for word in words]
        if words[0] == "landbridge":
            words[0] = str(LANDBRIDGE)
        self.steps.append({"host": on, "words": words, "must": must, **step})
        return len(self.steps) - 1

    def follows(self, which, pattern, on=LAPTOP, fill=None, **step):
        """Notes the command that an earlier one prints between backquotes, to be typed as printed."""
        self.steps.append({"host": on, "follows": which, "pattern": pattern, "fill": fill or {}, **step})
        return len(self.steps) - 1

    def adds(self, name, host, *options, must=True, **step):
        address = self.wan(host)
        address = f"[{address}]" if ":" in address else address
        login = f"{self.plan.get('user', 'root')}@{address}:{PORT}"
        return self.types("landbridge", "sites", "add", name, login, *options, must=must, **step)

    def wan(self, host):
        return wan(host, self.family)

    def home(self, host):
        return self.folder / "homes" / host

    def file(self, host):
        return self.home(host) / ".config/landbridge/sites.toml"

    def run(self, limit=300):
        plan = self.workshop.folder / "plan.json"
        plan.write_text(json.dumps({**self.plan, "steps": self.steps}))
        command = [sys.executable, ROOT / "tests" / "accounts.py", plan]
        lab = self.workshop.lab(
            command,
            sites=3,
            nodes=1,
            options=["--gateway-command", "", "--nic-rate", "0", "--ip", self.family],
            limit=limit,
        )
        finished = lab.finish().check()
        results = [Result(self, **result) for result in json.loads((self.folder / "results.json").read_text())]
        assert len(results) == len(self.steps), f"ended early: {results[-1]}\n{finished}"
        return results


class Result:
    def __init__(self, person, words, code, out, err, seconds):
        self.person, self.words, self.code, self.out, self.err, self.seconds = person, words, code, out, err, seconds

    def __str__(self):
        logs = "".join(
            f"\n--- {path}\n{path.read_text()[-1500:]}" for path in sorted(self.person.folder.rglob("*.log"))
        )
        return (
            f"$ {' '.join(self.words)}\ncode {self.code} after {self.seconds:.1f} s\n--- out\n{self.out}\n--- err\n"
            f"{self.err}{logs}"
        )

    def good(self):
        assert self.code == 0, str(self)
        return self

    def bad(self, *names, codes=(1, 2)):
        """The command failed, or was wrong as typed (2), and names all these."""
        assert self.code in codes, str(self)
        for name in names:
            assert name in self.out + self.err, f"does not say `{name}`\n{self}"
        assert "panicked" not in self.err, str(self)
        return self


def process_of(person, host, site):
    """Shell words for the process of a site's gateway, as that host numbers it."""
    return f"$(sed 's/.*\"process\":\\([0-9]*\\).*/\\1/' {person.home(host)}/.local/state/landbridge/{site}.gateway)"


@pytest.fixture
def person(workshop, isolated, mpich_only):
    def make(**options):
        return Person(workshop, mpich_only.environment, **options)

    return make
