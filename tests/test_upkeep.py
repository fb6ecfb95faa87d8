"""Keeping sites at work once they are there, with real sshd in a lab: gateways that died, programs to be copied, files
that were edited."""

import json
import re
import sys
from pathlib import Path

import pytest

from harness import LANDBRIDGE
from laptop import LAPTOP, process_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt install openssh-server"),
]
SITES = (("lyon", "a-gw1"), ("kyoto", "b-gw1"))


def adds_both(person, *options):
    for name, host in SITES:
        person.adds(name, host, *options)


def kills(person, name):
    """The site's gateway dies, and its lock with it."""
    host = dict(SITES)[name]
    return person.types("sh", "-c", f"kill -9 {process_of(person, host, name)}; sleep 0.5", on=host)


def starts(name):
    """The message of every command when the site's gateway does not run."""
    return f"`landbridge sites start {name}` starts it again"


def test_a_gateway_that_died_is_started_again(person):
    """By a job that is carried, by one typed at its site, and by the command that all others name."""
    person = person()
    adds_both(person)
    for name, _ in SITES:
        kills(person, name)
    job = ["landbridge", "run", "-n", 2, "--", "uname", "-n"]
    carried = person.types(*job, cwd="/")
    kills(person, "lyon")
    typed = person.types(*job, on="a-gw1", cwd="/")
    kills(person, "kyoto")
    lost = person.types(*job, on="a-gw1", cwd="/")
    status = person.types("landbridge", "sites", "status")
    remedy = person.types("landbridge", "sites", "start", "kyoto")
    again = person.types(*job, on="a-gw1", cwd="/")
    kills(person, "lyon")
    top = person.types("landbridge", "top", "--once", on="a-gw1")
    at_the_site = person.types("landbridge", "sites", "start", "lyon", on="a-gw1")
    top_again = person.types("landbridge", "top", "--once", on="a-gw1")
    left_alone = person.types("landbridge", "sites", "start")
    nobody = person.types("landbridge", "sites", "start", "nancy")
    results = person.run(limit=400)
    for which in (carried, typed, again):
        assert sorted(results[which].good().out.split()) == ["a-gw1", "b-gw1"], str(results[which])
    for name, _ in SITES:
        assert f"landbridge: {name}: " in results[carried].err and "started, process" in results[carried].err, str(
            results[carried]
        )
    assert "lyon: its gateway had ended: started" in results[typed].err, str(results[typed])
    for which, name in ((lost, "kyoto"), (status, "kyoto"), (top, "lyon")):
        results[which].bad(starts(name))
    assert "kyoto: gateway started, process" in results[remedy].good().out, str(results[remedy])
    assert "lyon: gateway started, process" in results[at_the_site].good().out, str(results[at_the_site])
    results[top_again].good()
    assert results[left_alone].good().out.count("gateway runs, process") == 2, str(results[left_alone])
    results[nobody].bad("nancy", "lyon, kyoto")


# cron's own command does this with one user's table.
CRONTAB = """#!/bin/sh
table=$HOME/crontab
case $1 in
-l) test -e "$table" || { echo "no crontab for $(id -un)" >&2; exit 1; }; cat "$table" ;;
-) cat >"$table" ;;
esac
"""


def test_a_machine_keeps_its_gateway_and_the_command_can_be_typed_there(person):
    person = person()
    for host in ("a-gw1", "b-gw1"):
        (person.home(host) / ".local/bin").mkdir(parents=True)
    home, mine = person.home("a-gw1"), person.home("b-gw1") / ".local/bin/landbridge"
    mine.write_text("mine")
    (home / "crontab").write_text("0 0 * * * own\n")
    neither = person.adds("kyoto", "b-gw1", "--keep", must=False)
    shim = person.folder / "bin/crontab"
    person.types("sh", "-c", f"cat >{shim} <<'E'\n{CRONTAB}E\nchmod 755 {shim}", must=True)
    plain = person.adds("lyon", "a-gw1")
    kept = person.follows(plain, "landbridge sites add lyon --keep")
    twice = person.adds("lyon", "a-gw1", "--keep")
    version = person.types(home / ".local/bin/landbridge", "--version", on="a-gw1")
    kills(person, "lyon")
    down = person.types("landbridge", "sites", "status")
    # As cron does it: hardly any environment.
    line = (
        f'line=$(tail -n 1 {home}/crontab); exec env -i HOME={home} PATH=/usr/bin:/bin sh -c "${{line#\\*/2 \\* \\* '
        f'\\* \\* }}"'
    )
    cron = person.types("sh", "-c", line, on="a-gw1")
    # The other site dials again after a while.
    up = person.types("sh", "-c", f"for i in $(seq 40); do {LANDBRIDGE} sites status && exit; sleep 0.3; done; exit 1")
    table = person.types("cat", home / "crontab")
    for name, _ in SITES:
        person.types("landbridge", "sites", "remove", name)
    after = person.types("cat", home / "crontab")
    results = person.run()
    results[neither].bad(
        "kyoto", "keep", "neither", "crontab", "landbridge sites start", f"{mine} is not from `sites add`"
    )
    assert "landbridge sites add lyon --keep` makes a line in your crontab do it" in results[plain].good().out, str(
        results[plain]
    )
    assert f"`landbridge` can be typed there too: {home}/.local/bin/landbridge" in results[plain].out, str(
        results[plain]
    )
    assert "a line in your crontab starts its gateway again" in results[kept].good().out, str(results[kept])
    assert "can be typed" not in results[kept].out, str(results[kept])
    results[twice].good()
    assert "landbridge" in results[version].good().out
    results[down].bad(starts("lyon"))
    results[cron].good()
    results[up].good()
    assert results[table].out.splitlines()[0] == "0 0 * * * own" and len(results[table].out.splitlines()) == 2, str(
        results[table]
    )
    assert results[after].good().out == "0 0 * * * own\n", str(results[after])
    assert not (home / ".local/bin/landbridge").is_symlink() and mine.read_text() == "mine"
    left = [path for path in home.rglob("*") if path.is_file() and path.name != "crontab"]
    assert not left, f"left at the site: {left}"


def test_a_program_is_pushed_to_where_it_is_below_home_there(person, mpich_only):
    """Files, a Python environment, links and modes; files that are there are not sent again; and `run --push`."""
    person = person()
    adds_both(person)
    home = person.home(LAPTOP)
    tool, folder = home / "work/tool", home / "work/folder"
    folder.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho first on $(uname -n)\n")
    tool.chmod(0o750)
    (folder / "data").write_bytes(bytes(range(256)) * 40_000)
    (folder / "sealed").mkdir()
    (folder / "sealed/inner").write_text("inner")
    (folder / "sealed").chmod(0o555)
    (folder / "up").symlink_to("../tool")
    (folder / "home").symlink_to(home / "work")
    venv = person.types(mpich_only.python, "-m", "venv", "--symlinks", "--without-pip", home / "venv", must=True)
    at_home = {"cwd": str(home / "work")}
    first = person.types("landbridge", "sites", "push", tool, folder, home / "venv", "--json", must=True, **at_home)
    again = person.types("landbridge", "sites", "push", "./tool", "folder/", "../venv", "--json", **at_home)
    python = person.types(
        "landbridge", "run", "-n", 2, "--", "../venv/bin/python", "-c", "import sys; print(sys.prefix)", **at_home
    )
    change = person.types("sh", "-c", f"sed -i s/first/second/ {tool}")
    job = person.types("landbridge", "run", "-n", 2, "--push", "./tool", "--", "./tool", **at_home)
    one = person.types("landbridge", "sites", "push", "./tool", "--to", "kyoto", **at_home)
    missing = person.types("landbridge", "run", "-n", 2, "--push", "./nothing", "--", "true", **at_home)
    person.types(
        "sh", "-c", f"rm {person.home('b-gw1')}/work/tool && mkdir {person.home('b-gw1')}/work/tool", on="b-gw1"
    )
    blocked = person.types("landbridge", "run", "-n", 2, "--push", "./tool", "--", "true", **at_home)
    person.types("sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt", on="b-gw1")
    full = person.types(
        "sh", "-c", f"mkdir -p /mnt/x && head -c 3000000 /dev/zero >/mnt/x/big && {LANDBRIDGE} sites push /mnt/x"
    )
    rest = person.types("ls", "-A", "/mnt/x", on="b-gw1")
    results = person.run(limit=400)
    for which in (venv, change):
        results[which].good()
    sent = {site["site"]: site for site in json.loads(results[first].good().out)["sites"]}
    assert sent["lyon"]["unchanged"] == 0 and sent["lyon"]["bytes"] > 10_240_000, sent
    for site in json.loads(results[again].good().out)["sites"]:
        assert site["sent"] == 0 and site["unchanged"] == sent["lyon"]["sent"], site
    for _, host in SITES:
        there = person.home(host) / "work"
        assert (there / "folder/data").read_bytes() == (folder / "data").read_bytes()
        assert (there / "folder/sealed").stat().st_mode & 0o7777 == 0o555 and (
            there / "folder/sealed/inner"
        ).read_text() == "inner"
        assert (there / "tool").stat().st_mode & 0o7777 == 0o750 or host == "b-gw1", (
            "a folder takes its place there later"
        )
        assert (there.parent / "venv/bin/python").is_symlink() and (there.parent / "venv/pyvenv.cfg").is_file()
        assert (there / "folder/up").readlink() == Path("../tool") and (there / "folder/home").readlink() == there
        assert not list(there.rglob("*landbridge-part"))
    assert str(person.home("a-gw1") / "venv") in results[python].good().out, str(results[python])
    assert sorted(results[job].good().out.splitlines()) == ["second on a-gw1", "second on b-gw1"], str(results[job])
    assert results[job].err.count("1 file(s) sent") == 2, str(results[job])
    assert results[one].good().out == "kyoto: 0 file(s) sent (0.0 MB), 1 unchanged\n", str(results[one])
    results[missing].bad("work/nothing")
    results[blocked].bad("site kyoto", f"{person.home('b-gw1')}/work/tool is a folder there", "nothing was started")
    results[full].bad("kyoto: FAILED", "/mnt/x/big", "No space left", "make room")
    assert results[rest].good().out == "", str(results[rest])


def test_an_edited_sites_file_is_noticed_and_handed_out(person):
    """Nodes of a site concern its own gateway alone, so the other one goes on as the process that it was."""
    person = person()
    adds_both(person)

    def processes():
        return [person.types("sh", "-c", f"echo {process_of(person, host, name)}") for name, host in SITES]

    edit = '/^name = "a-gw1"/s/$/\\nslots = SLOTS/'
    before = processes()
    edited = person.types("sed", "-i", edit.replace("SLOTS", "3"), person.file(LAPTOP))
    job = ["landbridge", "run", "-n", 2, "--", "uname", "-n"]
    noticed = person.types(*job, cwd="/")
    status = person.types("landbridge", "sites", "status")
    applied = person.types("landbridge", "sites", "apply")
    after = processes()
    quiet = person.types(*job, cwd="/")
    there = person.types("sed", "-i", "s/^slots = 3/slots = 5/", person.file("a-gw1"), on="a-gw1")
    at_the_site = person.types(*job, on="a-gw1", cwd="/")
    check = person.types("landbridge", "sites", "check", "--quick", on="a-gw1")
    person.types("landbridge", "sites", "apply", on="a-gw1")
    quiet_there = person.types(*job, on="a-gw1", cwd="/")
    broken = person.types("sh", "-c", f"echo nonsense >>{person.file(LAPTOP)}; {LANDBRIDGE} sites apply")
    results = person.run(limit=400)
    for which in (edited, there):
        results[which].good()
    words = "its sites file is not the one here, beginning with site lyon: `landbridge sites apply`"
    assert words in results[noticed].good().err, str(results[noticed])
    results[status].bad(words)
    assert "lyon: its gateway restarted" in results[applied].good().out, str(results[applied])
    assert "kyoto: its gateway works by it, without a restart" in results[applied].out, str(results[applied])
    assert results[before[0]].out != results[after[0]].out and results[before[1]].out == results[after[1]].out
    assert "apply" not in results[quiet].good().err, str(results[quiet])
    unread = "was edited after this gateway read it: `landbridge sites apply`"
    assert unread in results[at_the_site].good().err, str(results[at_the_site])
    results[check].bad(unread)
    assert "apply" not in results[quiet_there].good().err, str(results[quiet_there])
    results[broken].bad("sites.toml", "nonsense")


def test_check_top_and_page_work_where_no_site_is(person):
    """Each is carried to the first site that ssh reaches, or to the one that is named; nothing of them is left."""
    person = person()
    adds_both(person)
    check = person.types("landbridge", "sites", "check", "--quick", "--json", must=True)
    table = person.types("landbridge", "sites", "check", "--quick", "--from", "kyoto", "--", "uname")
    top = person.types("landbridge", "top", "--once", "--json", "--interval", "200ms")
    kyoto = person.types("landbridge", "top", "--once", "--interval", "200ms", "--from", "kyoto")
    none = person.types("landbridge", "page")
    person.types("sed", "-i", 's/^name = "gw1"/&\\npage = "127.0.0.1:7780"/', person.file(LAPTOP), must=True)
    person.types("landbridge", "sites", "apply", must=True)
    at_the_site = person.types("landbridge", "page", on="a-gw1")
    read = f"import urllib.request as u; print(u.urlopen(open('{person.folder}/page').read().strip(), timeout=10)"
    script = f"""{LANDBRIDGE} page >{person.folder}/page & page=$!
for i in $(seq 100); do test -s {person.folder}/page && break; sleep 0.1; done
{sys.executable} -c "{read}.read().decode())"
kill $page; wait $page; echo ended $?; {LANDBRIDGE} page >{person.folder}/again & page=$!
for i in $(seq 100); do test -s {person.folder}/again && break; sleep 0.1; done
kill -9 $page; sleep 2; pgrep -f '[1]27.0.0.1:7780' && echo left; test -s {person.folder}/again"""
    page = person.types("bash", "-c", script)
    for name, _ in SITES:
        kills(person, name)
    down = person.types("landbridge", "sites", "check", "--quick")
    top_down = person.types("landbridge", "top", "--once")
    results = person.run(limit=400)
    found = json.loads(results[check].good().out)
    assert found["from"] == "lyon" and found["ok"], str(results[check])
    assert "from site kyoto" in results[table].good().out, str(results[table])
    assert json.loads(results[top].good().out)["site"] == "lyon", str(results[top])
    assert results[kyoto].good().out.startswith("site kyoto"), str(results[kyoto])
    results[none].bad("site lyon", 'page = "127.0.0.1:7780"', "`landbridge sites apply`")
    assert results[at_the_site].good().out == "http://127.0.0.1:7780/\n"
    assert "<html" in results[page].good().out.lower() and "ended 143" in results[page].out, str(results[page])
    assert "left" not in results[page].out.splitlines(), str(results[page])
    # All faults, not only the first one; and commands that work without a gateway.
    for found in (
        rf"lyon +gateway gw1 +FAILED .*{re.escape(starts('lyon'))}",
        rf"kyoto +gateway gw1 +FAILED .*port 7700.*{re.escape(starts('kyoto'))}",
        r"lyon +node a-gw1 +ok +an agent starts there and finds the provider",
        r"2 things do not work",
    ):
        assert re.search(found, results[down].bad().out), f"{found}: {results[down]}"
    results[top_down].bad(starts("lyon"))
