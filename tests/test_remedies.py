"""Every command in a message about sites is typed by a test, as printed, and helps.

`REMEDIES` lists each command that stands between backquotes in a message of `SOURCES`, with the tests that type it. A
new message with a command fails `test_every_command_of_a_message_is_typed` until a test types it."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from accounts import PORT, wan
from harness import LANDBRIDGE, ROOT, LoopbackSites
from test_sites_add import CLOSED_BUT_FOR_SSH
from test_upkeep import adds_both, kills

needs_sshd = pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt install openssh-server")
needs_iptables = pytest.mark.skipif(not Path("/usr/sbin/iptables").exists(), reason="no iptables: apt install iptables")

SOURCES = (
    "user/setup/src",
    "user/watching/src/check",
    "user/watching/src/check.rs",
    "site/starters/src",
    "user/commands/src/gateways.rs",
    "user/commands/src/carried.rs",
    "user/cli/src/sites/*.rs",
    "user/cli/src/page.rs",
    "site/gateway/src/services/join.rs",
)  # fmt: skip

# Commands that a message names, but not to be typed as they stand.
NAMED = {
    "landbridge": "the program",
    "landbridge run": "where it may be typed",
    "landbridge sites add NAME [USER@]HOST": "a form; test_sites_add.py types it all the time",
    "landbridge sites add {name}": "comment in a kept file",
    "landbridge sites add --keep": "comment in a crontab",
    "landbridge sites add SITE": "help text",
    "landbridge sites add {site} --accept NAME": "what follows a ticket; test_sites_add.py types it with the name",
    "ssh {words} true": "a person's own login, to see that it ends",
    "landbridge sites join NAME": "help text",
    "landbridge sites remove": "where a kept file comes from, what ends a crontab line",
    "landbridge sites check": "doctor: what tried it, and shows whether the cause is gone",
    "landbridge lab": "doctor: what needs user namespaces",
    "ssh -G": "doctor: what failed",
    "landbridge sites add {name} HOST": "a form, beside the command that makes it work",
    "ssh {words}": "a person's own login, to compare a host key",
    "ssh -v {words}": "a person's own login, to see more",
}

UPKEEP, ADD, HERE = "test_upkeep.py", "test_sites_add.py", "test_remedies.py"
REMEDIES = {
    "chmod 600 {}": (HERE, "test_what_is_printed_about_a_site_that_joined"),
    "chmod 600 {typed}": (HERE, "test_a_key_that_others_can_read"),
    "chmod o-w {}": (HERE, "test_a_sites_file_that_everybody_can_write"),
    "landbridge gateway --site {name}": (HERE, "test_a_gateway_made_by_hand"),
    "landbridge gateway --site {name}{sites}": (HERE, "test_a_gateway_made_by_hand"),
    "landbridge sites add {}": (HERE, "test_what_is_printed_about_a_gateway"),
    "landbridge sites add {name} --advertise HOST": (HERE, "test_what_is_printed_about_firewalls"),
    "landbridge sites add {name} --advertise {address}": (HERE, "test_what_is_printed_about_firewalls"),
    "landbridge sites add {name} {place}": (HERE, "test_what_is_printed_about_names_and_removed_sites"),
    "landbridge sites add {site}": (HERE, "test_what_is_printed_about_a_key_for_trunks"),
    "landbridge sites add {site} --keep": (
        UPKEEP,
        "test_a_machine_keeps_its_gateway_and_the_command_can_be_typed_there",
    ),
    "landbridge sites add {site} --slurm {setting}": (ADD, "test_slurm_that_wants_a_partition_and_an_account"),
    "landbridge sites apply {}": (HERE, "test_what_is_printed_about_a_site_that_joined"),
    "landbridge sites apply": (HERE, "test_what_is_printed_about_an_edited_file"),
    "landbridge sites invite": (HERE, "test_what_is_printed_about_a_site_that_joined"),
    "landbridge sites join {0} --ticket FILE": (HERE, "test_what_is_printed_about_a_site_that_joined"),
    "landbridge sites join {name} --ticket FILE": (HERE, "test_what_is_printed_about_a_site_that_joined"),
    "landbridge sites links --measure": ("test_links.py", "test_unknown_links_are_measured_on_request_in_turns"),
    "landbridge sites remove {0} --force": (HERE, "test_what_is_printed_about_names_and_removed_sites"),
    "landbridge sites remove {name}": (HERE, "test_what_is_printed_about_names_and_removed_sites"),
    "landbridge sites start": (UPKEEP, "test_a_machine_keeps_its_gateway_and_the_command_can_be_typed_there"),
    "landbridge sites start {name}": (HERE, "test_what_is_printed_about_a_site_that_joined"),
    "landbridge sites start {name}{sites}": (HERE, "test_what_is_printed_about_a_gateway"),
    "landbridge sites status": (HERE, "test_what_is_printed_about_a_site_that_joined"),
    "ssh-keygen -R {} -f {}": ("test_ssh_trunks.py", "test_what_is_wrong_is_named_with_what_to_do"),
}

RAW_OR_PLAIN = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"', re.DOTALL)


def commands():
    """The commands between backquotes in string literals, tests of the crates left out."""
    paths = [path for source in SOURCES for path in ROOT.glob(source)]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.rs"))]
    assert len(files) > 30
    for file in files:
        text = file.read_text().split("#[cfg(test)]")[0]
        if file.name == "tests.rs":
            continue
        for literal in RAW_OR_PLAIN.findall(text):
            if not literal.startswith("//"):
                joined = re.sub(r"\\\n\s*", "", literal)
                yield from re.findall(r"`((?:landbridge|ssh|ssh-keygen|chmod)(?: [^`]*)?)`", joined)


def types(file, test, command):
    """Whether a string in this test has the shape of the command."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    [function] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == test]
    constants = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
    texts = [text for text in constants if isinstance(text, str)]
    shape = re.sub(r"(\\\{[^}]*\\\})+", ".*", re.escape(command))
    return any(re.fullmatch(shape, re.sub(r"[\\`()]", "", text)) for text in texts)


def test_every_command_of_a_message_is_typed():
    found = set(commands()) - set(NAMED)
    assert found == set(REMEDIES), f"not typed: {found - set(REMEDIES)}; not printed: {set(REMEDIES) - found}"
    for command, (file, test) in REMEDIES.items():
        assert types(file, test, command), f"{file}::{test} does not type `{command}`"


def until_good(command):
    """Shell words that repeat a command until it works: a gateway dials again after a pause."""
    return ["sh", "-c", f"for i in $(seq 40); do landbridge {command} && exit; sleep 0.3; done; exit 1"]


@pytest.mark.slow
@needs_sshd
def test_what_is_printed_about_a_gateway(person):
    """By status, top, run and check; and about one that hangs."""
    person = person()
    adds_both(person)
    kills(person, "kyoto")
    steps = [person.follows(person.types("landbridge", "sites", "status"), "landbridge sites start kyoto")]
    steps.append(person.types(*until_good("sites status")))
    kills(person, "lyon")
    top = person.types("landbridge", "top", "--once", on="a-gw1")
    steps.append(person.follows(top, "landbridge sites start lyon", on="a-gw1"))
    steps.append(person.types("landbridge", "top", "--once", on="a-gw1"))
    steps.append(person.types(*until_good("sites status")))
    kills(person, "kyoto")
    job = ["landbridge", "run", "-n", 2, "--", "uname", "-n"]
    lost = person.types(*job, on="a-gw1", cwd="/")
    steps.append(person.follows(lost, "landbridge sites start kyoto", on="a-gw1"))
    steps.append(person.types(*until_good("run -n 2 -- uname -n"), on="a-gw1", cwd="/"))
    kills(person, "lyon")
    check = person.types("landbridge", "sites", "check", "--quick")
    steps.append(person.follows(check, "landbridge sites start lyon"))
    steps.append(person.types(*until_good("sites check --quick")))
    stop = "kill -STOP $(sed 's/.*\"process\":\\([0-9]*\\).*/\\1/' ~/.local/state/landbridge/kyoto.gateway)"
    person.types("sh", "-c", stop, on="b-gw1", must=True)
    hangs = person.types("landbridge", "sites", "status")
    steps.append(person.follows(hangs, "landbridge sites add kyoto"))
    steps.append(person.types(*until_good("sites status")))
    results = person.run(limit=500)
    for which in (lost, check, hangs):
        results[which].bad()
    for which in steps:
        results[which].good()


@pytest.mark.slow
@needs_sshd
def test_what_is_printed_about_an_edited_file(person):
    person = person()
    adds_both(person)
    edit = 's/^name = "a-gw1"/&\\nslots = 3/'
    person.types("sed", "-i", edit, person.file("c-gw1"), must=True)
    noticed = person.types("landbridge", "sites", "status")
    steps = [person.follows(noticed, "landbridge sites apply"), person.types(*until_good("sites status"))]
    person.types("sed", "-i", "s/^slots = 3/slots = 4/", person.file("a-gw1"), on="a-gw1", must=True)
    unread = person.types("landbridge", "sites", "check", "--quick", on="a-gw1")
    steps.append(person.follows(unread, "landbridge sites apply", on="a-gw1"))
    steps.append(person.types(*until_good("sites check --quick"), on="a-gw1"))
    none = person.types("landbridge", "page", on="a-gw1")
    person.types(
        "sed", "-i", 's/^name = "gw1"/&\\npage = "127.0.0.1:7780"/', person.file("a-gw1"), on="a-gw1", must=True
    )
    steps.append(person.follows(none, "landbridge sites apply", on="a-gw1"))
    steps.append(person.types("landbridge", "page", on="a-gw1"))
    results = person.run(limit=400)
    for which in (noticed, unread, none):
        results[which].bad()
    for which in steps:
        results[which].good()


@pytest.mark.slow
@needs_sshd
@needs_iptables
def test_what_is_printed_about_firewalls(person):
    """The commands for when administrators open a port."""
    person = person()
    person.adds("lyon", "a-gw1")
    person.types(*CLOSED_BUT_FOR_SSH, on="b-gw1", must=True)
    out = person.adds("kyoto", "b-gw1")
    person.types("iptables", "-F", on="b-gw1", must=True)
    steps = [person.follows(out, r"landbridge sites add kyoto --advertise 198\.18\.2\.1:7700")]
    listed = person.types("landbridge", "sites", "list", "--json")
    person.types("landbridge", "sites", "remove", "kyoto", must=True)
    for host in ("a-gw1", "b-gw1"):
        person.types(*CLOSED_BUT_FOR_SSH, on=host, must=True)
    through = person.adds("kyoto", "b-gw1")
    for host in ("a-gw1", "b-gw1"):
        person.types("iptables", "-F", on=host, must=True)
    steps.append(person.follows(through, "landbridge sites add kyoto --advertise HOST", fill={"HOST": wan("b-gw1")}))
    direct = person.types("landbridge", "sites", "check", "--quick", on="a-gw1")
    steps.append(person.follows(through, "landbridge sites remove kyoto"))
    gone = person.types("cat", person.home("b-gw1") / ".ssh/authorized_keys", on="b-gw1")
    results = person.run(limit=500)
    for which in steps:
        results[which].good()
    assert '"advertise":"198.18.2.1:7700"' in results[listed].good().out.replace(" ", ""), str(results[listed])
    assert "through ssh" not in results[direct].good().out, str(results[direct])
    assert "landbridge" not in results[gone].out, str(results[gone])


@pytest.mark.slow
@needs_sshd
@needs_iptables
def test_what_is_printed_about_a_key_for_trunks(person):
    """Somebody empties ~/.ssh/authorized_keys at the site that the trunk logs in to."""
    person = person()
    for host in ("a-gw1", "b-gw1"):
        person.types(*CLOSED_BUT_FOR_SSH, on=host, must=True)
    person.adds("lyon", "a-gw1")
    person.adds("kyoto", "b-gw1", must=True)
    # The person's own key is on the person's machine and not at lyon.
    shim = person.folder / "bin" / "ssh"
    without_own = f"sed -i '1a case $HOME in */a-gw1) exec /usr/bin/ssh -F none \"$@\";; esac' {shim}"
    person.types("sh", "-c", without_own, must=True)
    person.types("sh", "-c", ": >~/.ssh/authorized_keys", on="b-gw1", must=True)
    ours = f"grep -lz HOME={person.home('a-gw1')} /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
    cut = f'for p in $({ours}); do test "$(cat /proc/$p/comm 2>/dev/null)" = ssh && kill $p; done; true'
    person.types("bash", "-c", cut, on="a-gw1", must=True)
    until_refused = (
        f"for i in $(seq 40); do said=$({LANDBRIDGE} sites check --quick 2>&1); code=$?; "
        'case $said in *"Permission denied"*) break;; esac; sleep 0.5; done; echo "$said"; exit $code'
    )
    refused = person.types("bash", "-c", until_refused, on="a-gw1")
    steps = [person.follows(refused, "landbridge sites add kyoto")]
    steps.append(person.types(*until_good("sites check --quick"), on="a-gw1"))
    steps.append(person.types(*until_good("run -n 2 -- uname -n"), on="a-gw1", cwd="/"))
    results = person.run(limit=400)
    results[refused].bad("Permission denied", "lyon.trunk.pub in there")
    for which in steps:
        results[which].good()


@pytest.mark.slow
@needs_sshd
@needs_iptables
def test_what_is_printed_about_names_and_removed_sites(person):
    person = person()
    adds_both(person)
    taken = person.adds("kyoto", "a-gw1", must=False)
    person.types("sh", "-c", f"printf '[site.run]\\ndirectory = \"/tmp\"\\n' >>{person.file('c-gw1')}", must=True)
    steps = [person.follows(taken, "landbridge sites remove kyoto")]
    steps.append(person.follows(steps[0], rf"landbridge sites add kyoto root@198\.18\.2\.1:{PORT}"))
    kept = person.types("cat", person.file("c-gw1"))
    person.types("landbridge", "sites", "remove", "kyoto", must=True)
    person.types("iptables", "-A", "INPUT", "-p", "tcp", "--dport", PORT, "-j", "REJECT", on="a-gw1", must=True)
    unreached = person.adds("kyoto", "b-gw1", must=False)
    forced = person.follows(unreached, "landbridge sites remove lyon --force")
    steps.append(person.adds("kyoto", "b-gw1", must=False))
    results = person.run(limit=400)
    results[taken].bad("is taken by the site at")
    results[unreached].bad("make it reachable and try again")
    for which in steps:
        results[which].good()
    assert 'directory = "/tmp"' in results[kept].out, str(results[kept])
    assert "the files there stay" in results[forced].out, str(results[forced])


@pytest.mark.slow
@needs_sshd
def test_what_is_printed_about_a_site_that_joined(person):
    """Nobody reaches it by ssh, so the command is typed there."""
    person = person(logins=("a-gw1",))
    person.adds("lyon", "a-gw1")
    ticket = person.folder / "ticket"
    invite, join = (
        f"rm -f {ticket}; {LANDBRIDGE} sites invite --ticket {ticket}",
        f"{LANDBRIDGE} sites join kyoto <{ticket}",
    )
    person.types("sh", "-c", invite, must=True)
    person.types("sh", "-c", join, on="b-gw1", must=True)
    unknown = person.types("landbridge", "sites", "add", "lyon")
    handed = person.types("landbridge", "sites", "apply")
    steps = [person.follows(handed, "landbridge sites apply --accept kyoto")]
    person.types("landbridge", "sites", "add", "lyon", "--accept", "kyoto", must=True)
    told = person.types("landbridge", "sites", "add", "lyon", must=True)
    used = person.types("sh", "-c", join, on="b-gw1")
    steps += [person.follows(used, "landbridge sites invite"), person.follows(told, "landbridge sites invite")]
    status = person.types("landbridge", "sites", "status")
    steps.append(person.follows(status, "landbridge sites status", on="b-gw1"))
    kills(person, "kyoto")
    away = person.types("landbridge", "sites", "start", "kyoto")
    steps.append(person.follows(away, "landbridge sites start kyoto", on="b-gw1"))
    kills(person, "kyoto")
    check = person.types("landbridge", "sites", "check", "--quick", on="a-gw1")
    steps.append(person.follows(check, "landbridge sites start kyoto", on="b-gw1"))
    steps.append(person.types(*until_good("sites check --quick"), on="a-gw1"))
    refused = []
    for message in (person.types("landbridge", "sites", "add", "kyoto"), told):
        person.types("sh", "-c", invite, must=True)
        person.types("chmod", "644", ticket, must=True)
        there = {"on": "b-gw1", "fill": {"FILE": str(ticket)}}
        open_to_all = person.follows(message, "landbridge sites join kyoto --ticket FILE", **there)
        refused.append(open_to_all)
        steps.append(person.follows(open_to_all, f"chmod 600 {ticket}", on="b-gw1"))
        steps.append(person.follows(message, "landbridge sites join kyoto --ticket FILE", **there))
    removed = person.types("landbridge", "sites", "remove", "kyoto")
    removed_there = person.follows(removed, "landbridge sites remove kyoto", on="b-gw1")
    results = person.run(limit=400)
    results[unknown].bad("names site kyoto (key sha256:", "type this again with --accept kyoto", "Nothing was changed")
    # How lyon is reached is not its guest's to know.
    results[removed_there].bad(
        "site lyon: cannot be told from here: type `landbridge sites remove kyoto` where you add"
    )
    for which in refused:
        results[which].bad("others can read this ticket")
    for which in (used, status, away, check, removed):
        results[which].bad()
    for which in steps:
        results[which].good()
    # Its sites file still names the site that was left.
    left = [path.name for path in person.home("b-gw1").rglob("*") if path.is_file()]
    assert left == ["sites.toml"], f"left at the site: {left}"


def printed(text, pattern):
    """The command between backquotes that matches, as printed."""
    found = [command for command in re.findall(r"`([^`]+)`", text) if re.fullmatch(pattern, command)]
    assert found, f"no `{pattern}` in {text}"
    return found[0].replace("landbridge ", f"{LANDBRIDGE} ", 1)


def test_a_key_that_others_can_read(workshop):
    sites = LoopbackSites(workshop)
    for site in "ab":
        sites.start_gateway(site)
    check = [LANDBRIDGE, "sites", "check", "--quick", "--from", "a"]
    environment = {"LANDBRIDGE_SITES": str(sites.file)}
    (workshop.folder / "a.key").chmod(0o644)
    done = workshop.run(check, environment=environment, limit=20)
    assert done.code == 1, str(done)
    subprocess.run(printed(done.out, "chmod 600 .*a.key"), shell=True, check=True)
    workshop.run(check, environment=environment, limit=20).check()


def test_a_sites_file_that_everybody_can_write(workshop):
    """It decides which programs run as its user: nothing obeys it."""
    (workshop.folder / "a b").mkdir()
    file = LoopbackSites(workshop).file
    file = file.rename(workshop.folder / "a b" / file.name)
    file.chmod(0o666)
    environment = {"LANDBRIDGE_SITES": str(file)}
    for words in (["sites", "list"], ["run", "-n", "1", "--", "true"], ["sites", "check"], ["gateway", "--site", "a"]):
        done = workshop.run([LANDBRIDGE, *words], environment=environment)
        assert done.code == 1 and "everybody can write to it" in done.err, str(done)
    subprocess.run(printed(done.err, "chmod o-w .*"), shell=True, check=True)
    workshop.run([LANDBRIDGE, "sites", "list"], environment=environment).check()


def test_a_gateway_made_by_hand(workshop):
    sites = LoopbackSites(workshop)
    sites.start_gateway("a")
    environment = {"LANDBRIDGE_SITES": str(sites.file)}
    check = [LANDBRIDGE, "sites", "check", "--quick", "--from", "a"]
    done = workshop.run(check, environment=environment, limit=20)
    assert done.code == 1, str(done)
    command = printed(done.out, "landbridge gateway --site b")
    workshop.start(["sh", "-c", f"exec {command}"], environment=environment, limit=60)
    again = ["sh", "-c", f"for i in $(seq 40); do {' '.join(map(str, check))} && exit; sleep 0.3; done; exit 1"]
    workshop.run(again, environment=environment, limit=60).check()
