"""Wrong files, wrong names, missing programs, strangers: each gives a clear error that names the place, within five
seconds."""

import contextlib
import os
import random
import re
import socket
import threading
import time

import pytest

from harness import LANDBRIDGE, PROGRAMS, LoopbackSites, listening, wait_until

# From start to the end of the command that must fail, in addition to the lab's own start and end if there is one.
SOON_S = 5.0
LAB_S = 3.0


def hello(mpi):
    return [mpi.python, "-m", "mpi4py.bench", "helloworld"]


@pytest.fixture
def sites(workshop):
    return LoopbackSites(workshop)


def test_an_unknown_site(workshop, mpich_only):
    running = workshop.across(mpich_only, 2, hello(mpich_only), run_options=["--site", "mars=2"])
    done = running.finish().fails_naming("mars", within=SOON_S + LAB_S)
    assert "a, b" in done.err, "should name the sites there are"


@pytest.mark.parametrize("words", [["-n", "0"], ["-n", "many"], ["--site", "a"], ["--mpi", "lam"], ["--bogus"]])
def test_bad_options_of_run(workshop, mpich_only, words):
    done = workshop.run([LANDBRIDGE, "run", *words, "--", *hello(mpich_only)])
    done.fails_naming(words[-1], within=SOON_S)


def test_no_sites_file(workshop, mpich_only):
    for words in (["sites", "check"], ["run", "--site", "lyon=2", "--", *hello(mpich_only)]):
        workshop.run([LANDBRIDGE, *words]).fails_naming("no sites file", "landbridge sites add", within=SOON_S)
    done = workshop.run(
        [LANDBRIDGE, "run", "-n", "2", "--", *hello(mpich_only)],
        environment={"LANDBRIDGE_SITES": "/nowhere/sites.toml"},
    )
    done.fails_naming("/nowhere/sites.toml", within=SOON_S)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('memory = "64MiB"', 'memory = "lots"', "lots"),
        ('name = "n1"', 'nmae = "n1"', "nmae"),
        ('name = "b"', 'name = "a"', "twice"),
        ("sha256:", "md5:", "md5:"),
        ("[[site]]", "[[site]", "line 1"),
    ],
)
def test_a_wrong_sites_file_is_named(sites, workshop, mpich_only, old, new, named):
    wrong = sites.write("wrong.toml", change=(old, new))
    for done in (
        sites.run(mpich_only, hello(mpich_only), file=wrong),
        sites.start_gateway("a", file=wrong, wait=False).finish(within=SOON_S),
        workshop.run([LANDBRIDGE, "sites", "check"], environment={"LANDBRIDGE_SITES": str(wrong)}),
    ):
        done.fails_naming("wrong.toml", named, within=SOON_S)


def test_a_program_missing_everywhere(workshop, mpich_only):
    """The site that reports it first is named."""
    done = workshop.across(mpich_only, 2, ["./no-such-program"]).finish()
    done.fails_naming("./no-such-program not found", within=SOON_S + LAB_S)
    assert re.search(r"site [ab], node n\d:", done.err), str(done)


def test_a_program_missing_on_one_site_only(workshop, mpich_only, isolated):
    """/tmp is private to each node: a program put there exists on the first node of the first site only."""
    script = f"cp /bin/true /tmp/only-here && exec {LANDBRIDGE} run -n 2 --mpi mpich -- /tmp/only-here"
    done = workshop.lab(["bash", "-c", script], nodes=1).finish()
    done.fails_naming("only-here", "site b", "node", within=SOON_S + LAB_S)
    assert "site a" not in done.err, str(done)


def test_a_working_directory_missing_on_one_site_only(workshop, mpich_only, isolated):
    script = f"mkdir /tmp/here && cd /tmp/here && exec {LANDBRIDGE} run -n 2 --mpi mpich -- /bin/true"
    done = workshop.lab(["bash", "-c", script], nodes=1).finish()
    done.fails_naming("/tmp/here", "site b", within=SOON_S + LAB_S)


def test_two_sites_on_loopback_work_at_all(sites, mpi):
    """The tests below each spoil one part of the input that this one shows to be right."""
    gateways = [sites.start_gateway(site) for site in "ab"]
    done = sites.run(mpi, [mpi.python, PROGRAMS / "messages.py", 11]).check()
    assert "messages: 44 good" in done.out
    for gateway in gateways:
        gateway.child.terminate()
        assert gateway.finish(within=SOON_S).code == 0


def test_what_a_rank_starts_does_not_have_the_jobs_secret(sites, mpi):
    for site in "ab":
        sites.start_gateway(site)
    done = sites.run(mpi, [mpi.python, PROGRAMS / "inherits.py"]).check()
    told = [line for line in done.out.splitlines() if "inherits:" in line]
    assert told and all(line.endswith("has nothing") for line in told), str(done)
    assert sum("child" in line for line in told) == sum("rank has" in line for line in told), str(done)


def test_a_gateway_with_another_key_than_announced(sites, mpich_only):
    """Site a's file has a key for site b that is not the one of site b's gateway."""
    digits = sites.fingerprints["b"][-8:]
    wrong = sites.write("wrong.toml", change=(digits, digits[::-1] if digits != digits[::-1] else "01234567"))
    sites.start_gateway("a", file=wrong)
    sites.start_gateway("b")
    done = sites.run(mpich_only, hello(mpich_only), file=wrong)
    done.fails_naming("site b", "fingerprint", within=SOON_S)


def test_a_key_that_is_not_the_files(sites):
    wrong = sites.write("wrong.toml", change=('key = "a.key"', 'key = "b.key"'))
    done = sites.start_gateway("a", file=wrong, wait=False).finish(within=SOON_S)
    done.fails_naming("site a", "b.key", sites.fingerprints["b"])


def test_a_port_in_use(sites):
    with socket.create_server(("0.0.0.0", sites.ports["a"])):
        done = sites.start_gateway("a", wait=False).finish(within=SOON_S)
    done.fails_naming("gw1", "site a", f":{sites.ports['a']}", "in use")


@pytest.mark.parametrize("down", ["a", "b"])
def test_a_gateway_down_at_start(sites, mpich_only, down):
    sites.start_gateway("b" if down == "a" else "a")
    done = sites.run(mpich_only, hello(mpich_only))
    done.fails_naming(f"site {down}", "gw1", f"127.0.0.1:{sites.ports[down]}", within=SOON_S)


def test_sites_check_finds_what_is_down(sites, workshop):
    running = [sites.start_gateway(site) for site in "ab"]
    environment = {"LANDBRIDGE_SITES": str(sites.file)}
    workshop.run([LANDBRIDGE, "sites", "check"], environment=environment, limit=20).check()
    running[1].child.terminate()
    running[1].finish(within=SOON_S)
    done = workshop.run([LANDBRIDGE, "sites", "check"], environment=environment, limit=20)
    assert done.code != 0
    assert f"127.0.0.1:{sites.ports['b']}" in done.out + done.err, str(done)


def test_a_key_is_never_overwritten_and_only_its_owners(sites, workshop):
    path = workshop.folder / "a.key"
    before = path.read_bytes()
    workshop.run([LANDBRIDGE, "key", path])
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o077 == 0


def strange_openings(seed):
    """First bytes that a stranger may send."""
    chance = random.Random(seed)
    yield b""
    yield b"\0" * 4096
    yield b"\xff" * 4096
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield bytes.fromhex("16030100ff010000fb0303") + chance.randbytes(240)  # looks like TLS
    yield b"SSH-2.0-OpenSSH_9.2\r\n"
    for length in (1, 7, 31, 32, 33, 64, 1000, 20_000):
        yield chance.randbytes(length)
    for length in (0xFFFF, 0xFFFFFFFF):
        for order in ("little", "big"):
            yield length.to_bytes(4, order) * 16  # lengths that invite an allocation


def test_strangers_are_refused_and_harm_nobody(sites, mpich_only):
    seed = int(os.environ.get("LANDBRIDGE_TEST_SEED", "1"))
    gateways = [sites.start_gateway(site) for site in "ab"]
    started = [next(iter(gateway.processes("gateway"))) for gateway in gateways]
    before = [process.peak_bytes() for process in started]
    silent = [socket.create_connection(("127.0.0.1", sites.ports["a"]), timeout=5) for _ in range(50)]
    for number, opening in enumerate(strange_openings(seed)):
        with socket.create_connection(("127.0.0.1", sites.ports["a"]), timeout=15) as stranger:
            try:
                stranger.sendall(opening)
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(4096):  # an answer may come, but then the end must
                    pass
            except TimeoutError:
                pytest.fail(f"opening {number} (seed {seed}) was not closed in 15 s")
            except OSError:
                continue  # reset: closed all the same
    done = sites.run(mpich_only, hello(mpich_only)).check()
    assert done.out.count("Hello, World!") == 2
    for gateway, process, memory in zip(gateways, started, before, strict=True):
        assert gateway.child.poll() is None, str(gateway.finish())
        assert process.peak_bytes() - memory < 32 << 20
        assert "panicked" not in gateway.err(), gateway.err()
    for connection in silent:
        connection.close()
    for gateway in gateways:
        gateway.child.terminate()
        gateway.finish(within=SOON_S)


def test_a_stranger_who_says_nothing_is_let_go(sites):
    """A connection that never proves anything is not kept forever."""
    sites.start_gateway("a")
    begin = time.monotonic()
    # 5 s, and up to eight times that on a busy machine.
    with socket.create_connection(("127.0.0.1", sites.ports["a"]), timeout=60) as stranger:
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            pytest.fail("still connected after 60 s of silence")
    assert time.monotonic() - begin > 0.5, "a slow line must have time for its first byte"
    assert listening(sites.ports["a"])


@pytest.mark.parametrize("opening", [bytes.fromhex("16030100ff0100"), b"LB", b""], ids=["tls", "ours", "nothing"])
def test_a_crowd_that_says_little_keeps_nobody_out(sites, mpich_only, opening):
    """Slow loris: more connections than there are places for unadmitted ones, all from one address, which send a
    byte now and then and reconnect when they are closed."""
    gateways = [sites.start_gateway(site) for site in "ab"]
    (gateway,) = gateways[0].processes("gateway")
    before = gateway.peak_bytes()
    crowd, ended, opened = [], threading.Event(), 0

    def come():
        stranger = socket.create_connection(("127.0.0.1", sites.ports["a"]), timeout=5, source_address=("127.0.0.9", 0))
        stranger.setblocking(False)
        with contextlib.suppress(OSError):  # sent away already
            stranger.send(opening)
        return stranger

    def trickle():
        nonlocal opened
        while not ended.is_set():
            for stranger in crowd[:]:
                try:
                    gone = stranger.send(b"\1") == 0 if opening else stranger.recv(1) == b""
                except BlockingIOError:
                    gone = False
                except OSError:
                    gone = True
                if gone:
                    stranger.close()
                    crowd.remove(stranger)
            while len(crowd) < 700 and not ended.is_set():
                crowd.append(come())
                opened += 1
            ended.wait(0.1)

    strangers = threading.Thread(target=trickle)
    strangers.start()
    try:
        wait_until(lambda: opened >= 700, 10, "the crowd")
        for _ in range(3):
            done = sites.run(mpich_only, hello(mpich_only)).check()
            assert done.out.count("Hello, World!") == 2
    finally:
        ended.set()
        strangers.join()
        for stranger in crowd:
            stranger.close()
    assert opened > 700, "nobody was sent away"
    assert gateway.peak_bytes() - before < 32 << 20
    assert "most of them from its address" in gateways[0].err(), gateways[0].err()
    assert gateways[0].err().count("connection refused") < opened / 2, "each of them has a line"
