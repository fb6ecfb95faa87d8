"""Accounts of this machine for a test: users who are not root, with homes in the test's folder."""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Person:
    name: str
    uid: int
    gid: int
    home: Path

    def words(self, *command):
        """The words of a command that root runs as this user."""
        become = ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups", "--"]
        return [*become, "env", f"HOME={self.home}", f"USER={self.name}", *map(str, command)]

    def owns(self, *paths):
        for path in paths:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def add(name, folder):
    home = folder / name
    subprocess.run(["useradd", "--no-create-home", "--home-dir", home, "--shell", "/bin/sh", name], check=True)
    found = pwd.getpwnam(name)
    home.mkdir(parents=True, mode=0o700)
    person = Person(name, found.pw_uid, found.pw_gid, home)
    person.owns(home)
    return person


@pytest.fixture
def people(workshop):
    """Two users; tests name them anna and bob."""
    if os.geteuid() != 0 or not shutil.which("useradd"):
        pytest.skip("accounts need root and useradd")
    names = [f"lb{short}{os.getpid()}" for short in ("anna", "bob")]
    try:
        yield [add(name, workshop.folder / "homes") for name in names]
    finally:
        workshop.end_all()
        for name in names:
            subprocess.run(["userdel", "--force", name], check=False, capture_output=True)
