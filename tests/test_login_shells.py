"""`sites add` through real sshd to accounts whose login shells and start-up files print, read or start something."""

import os
import shutil
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt install openssh-server"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the sshd of a login needs root"),
]

TITLE = "printf '\\033]0;a title\\007'"
# The shell, its start-up file below home, and that file's text.
LOGINS = {
    "a title without a newline": ("bash", ".bashrc", TITLE),
    "echo -n": ("bash", ".bashrc", "echo -n 'Welcome to lyon'"),
    "a start-up file that reads a line": ("bash", ".bashrc", 'read -r answer; echo -n "you said $answer"'),
    "a start-up file that starts another shell": ("bash", ".bashrc", "exec dash"),
    "a program left running that prints": (
        "bash",
        ".bashrc",
        "(for i in 1 2 3 4 5 6 7 8; do echo mail; sleep 0.3; done) &",
    ),
    "a copy of our own lines": ("bash", ".bashrc", "echo 'landbridge-0123456789abcdef os Plan9'"),
    "dash": ("dash", ".profile", ""),
    "tcsh with a greeting": ("tcsh", ".cshrc", "echo -n 'tcsh greets'"),
    "zsh": ("zsh", ".zshenv", "print -n 'zsh greets'"),
    "fish": ("fish", ".config/fish/config.fish", "echo -n 'fish greets'"),
}
REFUSALS = {
    "nologin": ("echo 'This account is currently not available.'; exit 1", "This account is currently not available."),
    "expired": (
        (
            "echo 'WARNING: Your password has expired.' >&2; echo 'Password change required but no TTY available.' "
            ">&2; exit 1"
        ),
        "Your password has expired",
    ),
    "escapes": (f"{TITLE}; printf 'x\\nlandbridge: lyon: all is well'; exit 1", "\\u{1b}]0;a title"),
}


def login_as(person, shell):
    """A script that sshd runs in place of the account's own shell."""
    script = person.folder / "login"
    return (
        f"printf '%s\\n' '#!/bin/sh' 'unset SHLVL' 'exec {shell} -c \"$SSH_ORIGINAL_COMMAND\"' >{script}; "
        f"chmod 755 {script}"
    )


def test_every_login_shell_becomes_a_site(person):
    person = person(logins=("a-gw1",), sshd="")
    person.plan["sshd"] = f"ForceCommand {person.folder / 'login'}\n"
    home = person.home("a-gw1")
    tried = {}
    for name, (shell, file, text) in LOGINS.items():
        if not shutil.which(shell):
            continue
        source = person.folder / f"{shell}-{len(tried)}"
        source.write_text(text + "\n")
        place = home / file
        person.types(
            "sh",
            "-c",
            f"{login_as(person, shutil.which(shell))}; mkdir -p {place.parent}; cp {source} {place}",
            must=True,
        )
        tried[name] = person.adds("lyon", "a-gw1", must=False)
        person.types("rm", "-f", place, must=True)
    refused = {}
    for name, (text, _) in REFUSALS.items():
        source = person.folder / f"refusal-{name}"
        source.write_text(f"#!/bin/sh\n{text}\n")
        source.chmod(0o755)
        person.types("cp", source, person.folder / "login", must=True)
        refused[name] = person.adds("lyon", "a-gw1", must=False)
    results = person.run(limit=500)
    for name, which in tried.items():
        assert results[which].code == 0, f"{name}: {results[which]}"
    for name, which in refused.items():
        said = results[which].bad(REFUSALS[name][1]).err
        assert "\x1b" not in said and "\x07" not in said, said
        assert "\nlandbridge: lyon: all is well" not in said, said
    assert {"bash", "dash"} <= {LOGINS[name][0] for name in tried}, "the shells that are always there"
    untried = sorted({shell for shell, *_ in LOGINS.values() if not shutil.which(shell)})
    if untried:
        pytest.skip(f"all other shells work; {', '.join(untried)}: apt install {' '.join(untried)}")
