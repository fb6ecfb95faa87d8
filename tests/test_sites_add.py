"""First use by a person with ssh accounts: `sites add` against real sshd in a lab, the job that follows, and
its failures."""

import json
import os
import pwd
import sys
from pathlib import Path

import pytest

from accounts import PORT, wan
from harness import LANDBRIDGE, PROGRAMS, PROVIDER
from laptop import LAPTOP, process_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt install openssh-server"),
]


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
    assert sorted(line.split()[-1] for line in job.out.splitlines()) == ["a-gw1.", "a-gw1.", "b-gw1.", "b-gw1."], str(
        job
    )
    assert "copied to" in results[1].out and "is there already" in results[again].out
    assert "gateway runs, process" in results[again].err, str(results[again])
    sites = json.loads(results[4].out)["sites"]
    assert [site["site"] for site in sites] == ["lyon", "kyoto"]
    assert sites[1]["advertise"] == f"{wan('b-gw1')}:7700"
    status = json.loads(results[5].out)
    assert status["ok"] and [trunk["up"] for site in status["sites"] for trunk in site["gateway"]["trunks"]] == [
        True,
        True,
    ]
    assert not person.file(LAPTOP).exists(), "the last site is gone, and with it what the command wrote"
    left = [
        path
        for host in ("a-gw1", "b-gw1")
        for path in person.home(host).rglob("*")
        if path.is_file() and ".bench" not in path.name
    ]
    assert not left, f"left at the sites: {left}"


def test_sites_whose_machines_have_ipv6_only(person, mpich_only):
    """`sites add` writes files, the commands about sites show them, and a job runs."""
    person = person(family="6")
    for host in ("a-gw1", "b-gw1"):
        person.types("ip", "-6", "route", "add", "default", "dev", "eth0", on=host, must=True)
    added = [person.adds(name, host) for name, host in (("lyon", "a-gw1"), ("kyoto", "b-gw1"))]
    written = person.types("cat", person.file(LAPTOP))
    program = [mpich_only.python, "-m", "mpi4py.bench", "helloworld"]
    job = person.types("landbridge", "run", "-n", 4, "--mpi", "mpich", "--", *program, on="a-gw1")
    check = person.types("landbridge", "sites", "check", on="a-gw1")
    doctor = person.types("landbridge", "doctor", "--output", person.folder / "report.txt", on="a-gw1")
    listed = person.types("landbridge", "sites", "list", "--json")
    for name in ("lyon", "kyoto"):
        person.types("landbridge", "sites", "remove", name)
    results = [result.good() for result in person.run()]
    assert "gateway at [2001:db8:" in results[added[0]].err + results[added[0]].out, str(results[added[0]])
    for line in ('advertise = "[2001:db8:ffff::1:1]:7700"', 'inside = "[2001:db8:', 'listen = "[::]:7700"'):
        assert line in results[written].out, str(results[written])
    assert results[job].out.count("Hello, World!") == 4, str(results[job])
    assert "everything works" in results[check].out and "[2001:db8:" in results[check].out, str(results[check])
    assert "nothing is wrong" in results[doctor].out, str(results[doctor])
    sites = json.loads(results[listed].out)["sites"]
    assert [site["advertise"] for site in sites] == ["[2001:db8:ffff::1:1]:7700", "[2001:db8:ffff::2:1]:7700"]


def test_programs_are_copied_compressed_and_only_what_changed(person):
    """Through an sshd that does not compress."""
    person = person(logins=("a-gw1",), sshd="Compression no\n")
    received = ["cat", "/proc/net/dev"]
    before = person.types(*received, on="a-gw1", must=True)
    person.adds("lyon", "a-gw1")
    after = person.types(*received, on="a-gw1", must=True)
    again = person.adds("lyon", "a-gw1")
    last = person.types(*received, on="a-gw1", must=True)
    # Another program of the same size takes its place there.
    swap = (
        "set -- ~/.local/share/landbridge/*/landbridge; cp $1 ~/new; echo x | dd of=$HOME/new conv=notrunc; mv ~/new $1"
    )
    person.types("sh", "-c", swap, on="a-gw1", must=True)
    repaired = person.adds("lyon", "a-gw1")
    results = person.run()

    def bytes_of(which):
        lines = [line.split(":") for line in results[which].out.splitlines()[2:]]
        return sum(int(rest.split()[0]) for name, rest in lines if name.strip() != "lo")

    total = sum(path.stat().st_size for path in (LANDBRIDGE, PROVIDER))
    counts = [bytes_of(which) for which in (before, after, last)]
    assert counts[1] - counts[0] < total / 2, (counts, total)
    assert counts[2] - counts[1] < total / 50, (counts, total)
    assert "copying" not in results[again].good().err, str(results[again])
    assert "copying landbridge (" in results[repaired].good().err, str(results[repaired])
    assert "copying liblandbridge" not in results[repaired].err, str(results[repaired])


def test_a_job_typed_where_no_site_is(person, mpich_only):
    """Output, exit code and Ctrl-C pass through the ssh connection; nothing of the job is left when it breaks."""
    person = person()
    for name, host in (("lyon", "a-gw1"), ("kyoto", "b-gw1")):
        person.adds(name, host)
    # Below the home directory here means below the home directory there.
    for host in (LAPTOP, "a-gw1", "b-gw1"):
        (person.home(host) / "work").mkdir(parents=True)
    work, working = person.home(LAPTOP) / "work", person.folder / "working"
    at_home = {"cwd": str(work)}
    hello = [mpich_only.python, "-m", "mpi4py.bench", "helloworld"]
    job = person.types("landbridge", "run", "-n", 4, "--mpi", "mpich", "--", *hello, **at_home)
    plain = person.types("landbridge", "run", "-n", 2, "--", "sh", "-c", "pwd; echo to stderr >&2; exit 7", **at_home)
    elsewhere = person.types("landbridge", "run", "-n", 2, "--", "true", cwd=str(person.folder / "bin"))
    nowhere = person.types("landbridge", "run", "-n", 2, "--", "true", cwd="/tmp/..//proc/1")
    summary = person.types("landbridge", "run", "-n", 2, "--json=f", "--", "true", **at_home)
    fed = person.types("sh", "-c", f"echo data | {LANDBRIDGE} run -n 2 wc -c", **at_home)
    much = person.types(
        "sh",
        "-c",
        (
            f"head -c 3000000 /dev/zero | {LANDBRIDGE} run -n 1 -- sh -c 'sleep 1; md5sum'; "
            "head -c 3000000 /dev/zero | md5sum"
        ),
        **at_home,
    )
    unread = person.types(
        "sh",
        "-c",
        (
            f"yes | head -c 9000000 | {LANDBRIDGE} run -n 1 -- true; yes | "
            f"timeout -s INT 20 {LANDBRIDGE} run -n 1 -- sleep 300"
        ),
        **at_home,
    )
    unfed = person.types(
        "sh",
        "-c",
        f"echo data | {LANDBRIDGE} run -n 2 --stdin none wc -c; {LANDBRIDGE} run -n 1 cat </dev/null",
        **at_home,
    )
    several = (
        f"V=5 {LANDBRIDGE} run -n 1 -x V -x A=1 sh -c 'echo a $V $A' : -n 1 -x V --wdir ~ sh -c 'echo b $V $A; pwd'"
    )
    several = person.types("sh", "-c", several, **at_home)
    endless = [mpich_only.python, PROGRAMS / "endless.py", working]
    stopped = person.types(
        "landbridge", "run", "-n", 4, "--mpi", "mpich", "--", *endless, interrupt=str(working), **at_home
    )
    status = person.types("landbridge", "sites", "status", "--json")
    cut = person.types(
        "sh",
        "-c",
        f"rm {working}; {LANDBRIDGE} run -n 4 --mpi mpich -- {' '.join(map(str, endless))} & job=$!; "
        f"until [ -e {working} ]; do sleep 0.1; done; kill -9 $job; wait $job; echo ended $?",
        **at_home,
    )
    idle = person.types(
        "sh",
        "-c",
        f"for i in $(seq 100); do {LANDBRIDGE} sites status --json >{person.folder}/status.json; "
        f"grep -q '\"jobs\":[1-9]' {person.folder}/status.json || exit 0; sleep 0.2; done; exit 1",
    )
    results = person.run(limit=400)
    assert sorted(line.split()[-1] for line in results[job].good().out.splitlines()) == [
        "a-gw1.",
        "a-gw1.",
        "b-gw1.",
        "b-gw1.",
    ]
    assert results[plain].code == 7 and "to stderr" in results[plain].err, str(results[plain])
    assert str(person.home("a-gw1") / "work") in results[plain].out, str(results[plain])
    results[elsewhere].good()
    results[nowhere].good()
    results[summary].bad("--json=f", "lyon")
    assert sorted(results[fed].good().out.split()) == ["0", "5"], str(results[fed])
    assert len(set(results[much].good().out.splitlines())) == 1, str(results[much])
    # Input that nobody reads keeps neither the end of the job nor a signal from its way.
    assert results[unread].code == 124 and "interrupted" in results[unread].err, str(results[unread])
    assert results[unfed].good().out.split() == ["0", "0"] and "standard input" not in results[unfed].err, str(
        results[unfed]
    )
    lines = sorted(results[several].good().out.splitlines())
    assert lines == [str(person.home("b-gw1")), "a 5 1", "b 5"], str(results[several])
    assert results[stopped].code == 130 and "interrupted" in results[stopped].err, str(results[stopped])
    for place in (status, idle):
        results[place].good()
    assert all(site["gateway"]["jobs"] == 0 for site in json.loads(results[status].out)["sites"]), str(results[status])
    assert "ended 137" in results[cut].out, str(results[cut])


@pytest.mark.skipif(os.geteuid() != 0, reason="hiding one home from the other needs root")
def test_homes_that_differ(person):
    """Below home here is below home there, for directory and program. Else the lines of the message make it work."""
    person = person()
    for name, host in (("lyon", "a-gw1"), ("kyoto", "b-gw1")):
        person.adds(name, host)
    for host in (LAPTOP, "a-gw1", "b-gw1"):
        (person.home(host) / "work").mkdir(parents=True)
    for host, names in (("a-gw1", ["solver", "alone"]), ("b-gw1", ["solver", "tool"])):
        for name in names:
            program = person.home(host) / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f"#!/bin/sh\necho {name} of $LANDBRIDGE_SITE_NAME in $(pwd) at $0\n")
            program.chmod(0o755)
    for host, other in (("a-gw1", "b-gw1"), ("b-gw1", "a-gw1")):
        # The hosts of a lab have one disk.
        person.types("mount", "-t", "tmpfs", "tmpfs", person.home(other), on=host, must=True)
    lyon = {"on": "a-gw1", "cwd": str(person.home("a-gw1") / "work")}
    ours = person.home("a-gw1") / "bin"
    laptop = person.types(
        "landbridge", "run", "-n", 2, "--", person.home(LAPTOP) / "bin/solver", cwd=str(person.home(LAPTOP) / "work")
    )
    typed = person.types("landbridge", "run", "-n", 2, "--", ours / "solver", **lyon)
    # As typed, and as bash makes it of that.
    tools = [
        person.types(
            "landbridge", "run", "--site", "lyon=1", "--site", f"kyoto=1:{tool}", "--", ours / "solver", **lyon
        )
        for tool in ("~/bin/tool", ours / "tool")
    ]
    said, file = person.folder / "said", person.file("a-gw1")
    alone = f"{LANDBRIDGE} run -n 2 -- {ours / 'alone'}"
    missing = person.types("sh", "-c", f"{alone} 2>{said}; code=$?; cat {said}; exit $code", **lyon)
    elsewhere = person.home("b-gw1") / "bin/tool"
    edit = f"grep '^  ' {said} | sed 's,/path/at/kyoto,{elsewhere},' >>{file}"
    named = person.types("sh", "-c", f"{edit}; cat {said}; {alone}", **lyon)
    person.types("rm", "-r", person.home("b-gw1") / "work", on="b-gw1")
    nowhere = person.types("landbridge", "run", "--site", "kyoto=1", "--", "true", **lyon)
    wdir = person.types(
        "landbridge", "run", "--site", "kyoto=1", "--wdir", person.home("a-gw1"), "--", "~/bin/solver", **lyon
    )
    results = person.run()
    works = {
        site: f"in {person.home(host) / 'work'} at {person.home(host) / 'bin'}"
        for site, host in (("lyon", "a-gw1"), ("kyoto", "b-gw1"))
    }
    both = sorted(f"solver of {site} {work}/solver" for site, work in works.items())
    for place in (laptop, typed):
        assert sorted(results[place].good().out.splitlines()) == both, str(results[place])
    for place in tools:
        assert f"tool of kyoto {works['kyoto']}/tool" in results[place].good().out, str(results[place])
    places = (
        str(person.home("b-gw1") / "bin"),
        "[site.run]",
        'programs = { "~/bin/alone" = "/path/at/kyoto" }',
        "site kyoto",
    )
    results[missing].bad(*places)
    assert f"tool of kyoto {works['kyoto']}/tool" in results[named].good().out, str(results[named])
    results[nowhere].bad(
        f"working directory {person.home('b-gw1') / 'work'} does not exist", 'directory = "/path/at/kyoto"'
    )
    assert f"solver of kyoto in {person.home('b-gw1')} at" in results[wdir].good().out, str(results[wdir])


def ordinary_user():
    """Somebody on this machine who is not root and may log in, or None."""
    shells = Path("/etc/shells").read_text().split()
    names = [entry.pw_name for entry in pwd.getpwall() if entry.pw_uid and entry.pw_shell in shells]
    return names[0] if names else None


@pytest.mark.skipif(ordinary_user() is None, reason="no user but root has a login shell on this machine")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_sites_of_an_ordinary_user(person):
    """Nothing at a site needs root: the whole way as somebody else, from login to clean-up."""
    person = person(user=ordinary_user())
    for name, host in (("lyon", "a-gw1"), ("kyoto", "b-gw1")):
        person.adds(name, host)
    job = person.types("landbridge", "run", "-n", 4, "--", "id", "-un", cwd="/")
    for name in ("lyon", "kyoto"):
        person.types("landbridge", "sites", "remove", name)
    results = [result.good() for result in person.run()]
    assert results[job].out.split() == [ordinary_user()] * 4, str(results[job])
    assert not [path for path in person.home("a-gw1").rglob("*") if path.is_file()]


def test_what_cannot_be_reached_changes_nothing(person):
    """Every refusal of ssh is reported in ssh's words, with a remedy, and no file is written."""
    person = person(logins=("a-gw1",), strangers=["a-gw1"], ssh_config="")
    unknown = person.adds("lyon", "a-gw1", must=False)
    refused = person.types("landbridge", "sites", "add", "lyon", f"root@{wan('b-gw1')}:2222")
    nobody = person.types("landbridge", "sites", "add", "lyon", f"me@-oProxyCommand=touch${{IFS}}{person.folder}/pwned")
    name = person.types("landbridge", "sites", "add", "../x", f"root@{wan('a-gw1')}:2222")
    nodes = person.types("landbridge", "sites", "add", "lyon", f"root@{wan('a-gw1')}:2222", "--nodes", "n[3-1]")
    both = person.types(
        "landbridge", "sites", "add", "lyon", f"root@{wan('a-gw1')}:2222", "--dial-out", "--advertise", "x"
    )
    missing = person.types("landbridge", "sites", "remove", "lyon")
    run = person.types("landbridge", "run", "--site", "lyon=2", "--", "true")
    nobody_there = person.types("landbridge", "sites", "status")
    results = person.run()
    results[unknown].bad("Host key verification failed", "log in once with `ssh -p 2222")
    results[refused].bad("Connection refused", "ssh -v")
    results[nobody].bad("-oProxyCommand", "is not [USER@]HOST[:PORT]")
    assert not (person.folder / "pwned").exists()
    results[name].bad("`../x`", "cannot be the name of a site")
    results[nodes].bad("n[3-1]", "backwards")
    results[both].bad("--dial-out", "--advertise")
    results[missing].bad("unknown site `lyon`")
    results[run].bad("sites add")
    results[nobody_there].bad("sites add")
    assert not person.file(LAPTOP).exists() and not person.home("a-gw1").joinpath(".config").exists()


def test_a_user_who_is_not_let_in_learns_why(person):
    person = person()
    # Another key than the one that is let in.
    denied = person.types(
        "sh",
        "-c",
        f"ssh-keygen -q -t ed25519 -N '' -f {person.folder}/other && "
        f"sed -i s/user_key/other/ {person.folder}/ssh_config && "
        f"{LANDBRIDGE} sites add lyon root@{wan('a-gw1')}:{PORT}",
    )
    person.run()[denied].bad("Permission denied", "ssh -v", "site lyon")


def test_a_site_that_does_not_work_is_undone(person):
    """The firewall between the sites, a port that is taken, a folder without execution or room: named, and nothing
    is half done."""
    person = person()
    person.adds("lyon", "a-gw1")
    before = person.types("cat", person.file(LAPTOP))
    there = person.types("sha256sum", person.file("a-gw1"))
    # Both dial an address at which nobody is: the firewall in front of the new site.
    wall = person.adds("kyoto", "b-gw1", "--advertise", f"{wan('b-gw1')}:9", must=False)
    stopped = person.types("sh", "-c", f"kill -0 {process_of(person, 'b-gw1', 'kyoto')}", on="b-gw1")
    person.types(
        sys.executable,
        "-c",
        "import socket,time; s=socket.create_server(('0.0.0.0', 7701)); time.sleep(60)",
        on="b-gw1",
        background=True,
    )
    person.types("sleep", "1")
    taken = person.adds("kyoto", "b-gw1", "--port", "7701", must=False)
    noexec = person.types("mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", "/mnt", on="b-gw1")
    cannot = person.adds("kyoto", "b-gw1", "--folder", "/mnt/lb", must=False)
    person.types("sh", "-c", "umount /mnt && mount -t tmpfs -o size=1m tmpfs /mnt", on="b-gw1")
    full = person.adds("kyoto", "b-gw1", "--folder", "/mnt/lb", must=False)
    broken = person.adds("kyoto", "b-gw1", "--folder", "/mnt/a\nb", must=False)
    nobody = f"{LANDBRIDGE} sites add kyoto root@{wan('b-gw1').rsplit('.', 1)[0]}.250"
    interrupted = person.types("timeout", "--preserve-status", "-s", "INT", "2", *nobody.split())
    other = person.adds("lyon", "b-gw1", must=False)
    after = person.types("cat", person.file(LAPTOP))
    there_after = person.types("sha256sum", person.file("a-gw1"))
    status = person.types("landbridge", "sites", "status", "--json")
    good = person.adds("kyoto", "b-gw1", must=False)
    results = person.run(limit=400)
    results[noexec].good()
    results[wall].bad(f"{wan('b-gw1')}:9", "trunk", "the sites file is as it was", "left there")
    assert results[stopped].code == 1, f"the new gateway still runs\n{results[stopped]}"
    results[taken].bad("port 7701", "--port", "kyoto")
    results[cannot].bad("noexec", "--folder", "/mnt/lb")
    results[full].bad("No space left", "--folder", "/mnt/lb")
    results[broken].bad("has a line break", "--folder")
    results[interrupted].bad("interrupted: the sites file is as it was", codes=(130,))
    results[other].bad("the name lyon is taken", wan("a-gw1"))
    assert results[before].out == results[after].out, str(results[after])
    assert results[there].out == results[there_after].out, str(results[there_after])
    assert json.loads(results[status].good().out)["ok"]
    results[good].good()


def test_two_commands_at_once_and_a_sites_file_that_cannot_be_written(person):
    """One changes the sites file after the other, and both sites know each other; a failed write is noticed
    before anything is done."""
    person = person()

    def add(name, host):
        return f"{LANDBRIDGE} sites add {name} root@{person.wan(host)}:{PORT}"

    both = person.types("sh", "-c", f"{add('lyon', 'a-gw1')} & first=$!; {add('kyoto', 'b-gw1')} && wait $first")
    status = person.types("landbridge", "sites", "status", "--json")
    person.types("sh", "-c", "mount -t tmpfs tmpfs /mnt && mount -o remount,ro /mnt")
    unwritable = person.types("sh", "-c", f"XDG_CONFIG_HOME=/mnt {add('nancy', 'b-gw1')}")
    results = person.run()
    results[both].good()
    assert "waiting for its end" in results[both].err, str(results[both])
    sites = json.loads(results[status].good().out)
    assert sites["ok"] and {site["site"] for site in sites["sites"]} == {"lyon", "kyoto"}, str(results[status])
    results[unwritable].bad("sites file", "/mnt/landbridge/sites.toml", "Read-only file system")
    assert not list(person.home("b-gw1").rglob("nancy*")), "something was begun there"


# Accounts of Slurm's own need a database; this is the other way in which centres ask for one.
ACCOUNT_NEEDED = """
function slurm_job_submit(job, partitions, uid)
    if job.partition and job.account ~= "physics" then
        slurm.log_user("Invalid account: give one of yours with --account")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
"""
# Without connection tracking, which not every kernel has: connections from outside reach nothing but sshd.
CLOSED_BUT_FOR_SSH = [
    "iptables",
    "-A",
    "INPUT",
    "-s",
    "198.18.0.0/15",
    "-p",
    "tcp",
    "--syn",
    "!",
    "--dport",
    str(PORT),
    "-j",
    "DROP",
]


@pytest.mark.skipif(not Path("/usr/sbin/iptables").exists(), reason="no iptables: apt install iptables")
@pytest.mark.skipif(os.geteuid() != 0, reason="a firewall needs root")
def test_a_site_closed_but_for_ssh_dials_out(person):
    """Nobody has to know `--dial-out`; a user who gives an address gets an error about firewall and port."""
    person = person()
    person.adds("lyon", "a-gw1")
    person.types(*CLOSED_BUT_FOR_SSH, on="b-gw1", must=True)
    named = person.adds("kyoto", "b-gw1", "--advertise", wan("b-gw1"), must=False)
    alone = person.adds("kyoto", "b-gw1", must=False)
    listed = person.types("landbridge", "sites", "list", "--json")
    job = person.types("landbridge", "run", "-n", 2, "--", "hostname", on="a-gw1")
    results = person.run()
    results[named].bad("firewall", "port 7700", "the sites file is as it was")
    assert f"cannot dial kyoto at {wan('b-gw1')}:7700" in results[alone].good().out, str(results[alone])
    assert [site["advertise"] for site in json.loads(results[listed].out)["sites"]] == [f"{wan('a-gw1')}:7700", None]
    assert sorted(results[job].good().out.split()) == ["a-gw1", "b-gw1"], str(results[job])


@pytest.mark.skipif(not Path("/usr/sbin/iptables").exists(), reason="no iptables: apt install iptables")
@pytest.mark.skipif(os.geteuid() != 0, reason="a firewall needs root")
def test_two_sites_closed_but_for_ssh_run_a_checked_job(person, mpich_only):
    """Neither can dial the other: trunks go through ssh, by keys that are good for nothing else. The connections
    are cut, by killing ssh and by a reset of its connection, and the job goes on; nothing is left after kill -9 and
    `sites remove`."""
    person = person()
    for host in ("a-gw1", "b-gw1"):
        person.types(*CLOSED_BUT_FOR_SSH, on=host, must=True)
    person.adds("lyon", "a-gw1", "--nodes", "a-gw1")
    forbidden = person.adds("kyoto", "b-gw1", "--no-trunk-ssh", must=False)
    kept_out = person.types("ls", person.home("b-gw1") / ".ssh", on="b-gw1")
    added = person.adds("kyoto", "b-gw1", "--nodes", "b-gw1", must=True)
    # On a busy machine ssh may need longer than the usual patience until it is there again.
    for name in ("lyon", "kyoto"):
        person.types("sed", "-i", f's/^name = "{name}"/&\\npatience = "30s"/', person.file(LAPTOP), must=True)
    person.types("landbridge", "sites", "apply", must=True)
    check = person.types("landbridge", "sites", "check", "--quick", on="a-gw1")
    keys = person.types("cat", person.home("b-gw1") / ".ssh/authorized_keys", on="b-gw1")
    # The key opens no shell and reaches nothing else.
    login = [
        "/usr/bin/ssh",
        "-F",
        "none",
        "-oBatchMode=yes",
        "-oIdentitiesOnly=yes",
        "-oStrictHostKeyChecking=no",
        "-oUserKnownHostsFile=/dev/null",
        "-i",
        person.home("a-gw1") / ".config/landbridge/lyon.trunk",
        "-p",
        PORT,
    ]
    shell = person.types(*login, f"root@{wan('b-gw1')}", "echo", "inside", on="a-gw1")
    elsewhere = person.types(*login, "-W", f"127.0.0.1:{PORT}", f"root@{wan('b-gw1')}", on="a-gw1")
    started, stop = person.folder / "started", person.folder / "stop"
    program = [mpich_only.python, PROGRAMS / "exchange.py", started, stop, 20]
    ours = f"grep -lz HOME={person.home('a-gw1')} /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
    tunnels = f'for p in $({ours}); do test "$(cat /proc/$p/comm 2>/dev/null)" = ssh && echo $p; done'
    cut = (
        f"for i in $(seq 300); do test -e {started} && break; sleep 0.1; done; test -e {started} || exit 1\n"
        f"for i in 1 2 3; do kill -9 $({tunnels}); sleep 2; done\n"
        # The network resets both ends for a moment.
        f"for i in 1 2; do ss -K dport = :{PORT} >/dev/null; "
        f"iptables -I OUTPUT -p tcp --dport {PORT} -j REJECT --reject-with tcp-reset; sleep 1; "
        f"iptables -D OUTPUT -p tcp --dport {PORT} -j REJECT --reject-with tcp-reset; sleep 4; done\n"
        f"echo cut; touch {stop}"
    )
    person.types("bash", "-c", f"exec >{person.folder}/cut.log 2>&1; {cut}", on="a-gw1", background=True)
    job = person.types("landbridge", "run", "-n", 4, "--mpi", "mpich", "--", *program, on="a-gw1")
    listed = person.types("cat", person.folder / "cut.log")
    person.types("bash", "-c", f"kill -9 {process_of(person, 'a-gw1', 'lyon')}; sleep 1", on="a-gw1")
    left = person.types("bash", "-c", tunnels, on="a-gw1")
    again = person.types("landbridge", "sites", "add", "lyon")
    removed = person.types("landbridge", "sites", "remove", "kyoto")
    gone = person.types("cat", person.home("b-gw1") / ".ssh/authorized_keys", on="b-gw1")
    results = person.run(limit=500)
    results[forbidden].bad("firewall", "port 7700", "the sites file is as it was")
    assert results[kept_out].code != 0, str(results[kept_out])
    note = results[added].good()
    for words in ("firewall", "port 7700", "through ssh", ".ssh/authorized_keys", "sites remove kyoto"):
        assert words in note.out + note.err, f"does not say `{words}`\n{note}"
    assert "through ssh" in results[check].good().out, str(results[check])
    assert (
        results[keys].out.startswith("restrict,port-forwarding,permitopen=") and "lyon->kyoto" in results[keys].out
    ), str(results[keys])
    assert results[shell].code != 0 and "inside" not in results[shell].out, str(results[shell])
    assert results[elsewhere].code != 0 and "prohibited" in results[elsewhere].err, str(results[elsewhere])
    assert "rounds good on 4 ranks" in results[job].good().out, str(results[job])
    assert "cut\n" in results[listed].out, str(results[listed])
    assert not results[left].out, str(results[left])
    results[again].good()
    results[removed].good()
    assert "landbridge" not in results[gone].out, str(results[gone])


@pytest.mark.skipif(not Path("/usr/sbin/iptables").exists(), reason="no iptables: apt install iptables")
@pytest.mark.skipif(os.geteuid() != 0, reason="a firewall needs root")
def test_only_the_new_site_can_log_in_at_the_older_one(person, mpich_only):
    """The older site's gateway cannot dial the new one, nor log in there: the new one logs in at the older site."""
    person = person()
    person.adds("lyon", "a-gw1")
    for host in ("a-gw1", "b-gw1"):
        person.types(*CLOSED_BUT_FOR_SSH, on=host, must=True)
    person.types(
        "iptables", "-A", "INPUT", "-s", wan("a-gw1"), "-p", "tcp", "--syn", "-j", "DROP", on="b-gw1", must=True
    )
    forbidden = person.adds("kyoto", "b-gw1", "--no-trunk-ssh", must=False)
    added = person.adds("kyoto", "b-gw1")
    check = person.types("landbridge", "sites", "check", "--quick", on="a-gw1")
    keys = person.types("cat", person.home("a-gw1") / ".ssh/authorized_keys", on="a-gw1")
    none = person.types("cat", person.home("b-gw1") / ".ssh/authorized_keys", on="b-gw1")
    program = [mpich_only.python, "-m", "mpi4py.bench", "helloworld"]
    job = person.types("landbridge", "run", "-n", 4, "--mpi", "mpich", "--", *program, on="a-gw1")
    removed = person.types("landbridge", "sites", "remove", "kyoto")
    gone = person.types("cat", person.home("a-gw1") / ".ssh/authorized_keys", on="a-gw1")
    results = person.run(limit=400)
    results[forbidden].bad("firewall", "port 7700", "the sites file is as it was")
    note = results[added].good()
    for words in ("only kyoto can log in at lyon", f"through ssh to root@{wan('a-gw1')}:{PORT}", "port 7700"):
        assert words in note.out, f"does not say `{words}`\n{note}"
    assert "through ssh" in results[check].good().out, str(results[check])
    assert "kyoto->lyon" in results[keys].good().out, str(results[keys])
    assert "landbridge" not in results[none].out, str(results[none])
    hosts = sorted(line.split()[-1] for line in results[job].good().out.splitlines())
    assert hosts == ["a-gw1.", "a-gw1.", "b-gw1.", "b-gw1."], str(results[job])
    results[removed].good()
    assert "landbridge" not in results[gone].out, str(results[gone])


@pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons in a lab need root")
@pytest.mark.skipif(not Path("/usr/sbin/slurmctld").exists(), reason="no Slurm: apt install slurm-wlm munge")
def test_slurm_that_wants_a_partition_and_an_account(person):
    """An error names the missing value and its flag; the printed command completes a site that was kept."""
    partitions = ["PartitionName=main Nodes=ALL MaxTime=INFINITE State=UP"]
    person = person(slurm={"b": {"partitions": partitions, "job_submit": ACCOUNT_NEEDED}})
    person.adds("lyon", "a-gw1")
    unknown = person.adds("kyoto", "b-gw1", "--slurm", "acount=physics", must=False)
    nothing = person.adds("kyoto", "b-gw1", must=False)
    partition = person.follows(nothing, "landbridge sites add kyoto --slurm partition=NAME", fill={"NAME": "main"})
    account = person.follows(partition, "landbridge sites add kyoto --slurm account=NAME", fill={"NAME": "physics"})
    again = person.types("landbridge", "sites", "add", "kyoto")
    job = person.types("landbridge", "run", "--site", "lyon=1", "--site", "kyoto=2", "--", "hostname", on="a-gw1")
    queue = person.types("squeue", "-h", on="b-gw1", environment={"SLURM_CONF": "/run/slurm-b/slurm.conf"})
    results = person.run()
    results[unknown].bad("`acount` is unknown", "account", codes=(2,))
    results[nothing].bad("--slurm partition=NAME", "site kyoto is kept")
    results[partition].bad("--partition=main", "--slurm account=NAME", "site kyoto is kept")
    results[account].good()
    assert "partition main" in results[again].good().out, str(results[again])
    assert sorted(results[job].good().out.split()) == ["a-gw1", "b-n1", "b-n1"], str(results[job])
    assert results[queue].good().out == "", str(results[queue])


def test_repair_and_what_the_user_wrote(person):
    """A gateway that was killed is started again by the same command; comments in the sites file stay."""
    person = person()
    person.adds("lyon", "a-gw1", "--nodes", "a-gw1")
    person.types("sed", "-i", 's/^name = "gw1"/name = "gw1" # mine\\nmemory = "64MiB"/', person.file(LAPTOP))
    person.types("sh", "-c", f"kill -9 {process_of(person, 'a-gw1', 'lyon')}", on="a-gw1")
    down = person.types("landbridge", "sites", "status")
    repaired = person.types("landbridge", "sites", "add", "lyon")
    status = person.types("landbridge", "sites", "status", "--json")
    person.types("rm", "-r", person.home("a-gw1") / ".local/share/landbridge", on="a-gw1")
    again = person.types("landbridge", "sites", "add", "lyon")
    person.types(
        "sh",
        "-c",
        (
            f"cp {person.file(LAPTOP)} {person.folder}/before; printf '[site.run]\\ndirectory = \"~/work\"\\n' "
            f">>{person.file(LAPTOP)}"
        ),
    )
    removed = person.types("landbridge", "sites", "remove", "lyon")
    anew = person.adds("lyon", "a-gw1")
    run = person.types("grep", "-A1", "site.run", person.file("a-gw1"))
    results = person.run()
    assert "lyon.run.toml" in results[removed].good().out, str(results[removed])
    assert "lyon.run.toml" in results[anew].good().out, str(results[anew])
    assert 'directory = "~/work"' in results[run].good().out, str(results[run])
    assert not (person.file(LAPTOP).parent / "lyon.run.toml").exists()
    results[down].bad("its gateway does not run", "`landbridge sites start lyon` starts it again")
    assert "gateway started" in results[repaired].good().err, str(results[repaired])
    assert json.loads(results[status].good().out)["sites"][0]["gateway"]["problem"] is None
    assert "copied to" in results[again].good().out
    assert '# mine\nmemory = "64MiB"' in (person.folder / "before").read_text()


def test_a_site_that_nobody_can_dial_joins_by_a_ticket(person, mpich_only):
    """One command typed there, no ssh from outside; a ticket is good once."""
    person = person(logins=("a-gw1",))
    person.adds("lyon", "a-gw1")
    ticket = person.folder / "ticket"
    invited = person.types("landbridge", "sites", "invite", "--ticket", ticket, must=True)
    joined = person.types("landbridge", "sites", "join", "kyoto", "--ticket", ticket, on="b-gw1", must=True)
    job = person.types(
        "landbridge",
        "run",
        "-n",
        4,
        "--mpi",
        "mpich",
        "--",
        mpich_only.python,
        "-m",
        "mpi4py.bench",
        "helloworld",
        on="b-gw1",
    )
    again = person.types("sh", "-c", f"{LANDBRIDGE} sites join nancy <{ticket}", on="b-gw1")
    broken = person.types("sh", "-c", f"{LANDBRIDGE} sites join nancy $(cut -c1-99 {ticket})", on="b-gw1")
    told = person.types("landbridge", "sites", "add", "lyon", "--accept", "kyoto")
    listed = person.types("landbridge", "sites", "list", "--json")
    results = person.run()
    assert str(ticket) in results[invited].good().err and "lb1/" not in results[invited].out, str(results[invited])
    assert ticket.stat().st_mode & 0o777 == 0o600
    assert "command line" in results[broken].err, str(results[broken])
    assert "trunk from kyoto" in results[joined].good().out, str(results[joined])
    hosts = sorted(line.split()[-1] for line in results[job].good().out.splitlines())
    assert hosts == ["a-gw1.", "a-gw1.", "b-gw1.", "b-gw1."], str(results[job])
    results[again].bad("unknown, used or expired", "sites invite")
    results[broken].bad("no ticket", "sites invite")
    assert "site kyoto taken over" in results[told].good().out, str(results[told])
    assert [site["site"] for site in json.loads(results[listed].out)["sites"]] == ["lyon", "kyoto"]
