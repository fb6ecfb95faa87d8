"""A sender floods a receiver that does not receive: the gateways' memory stays within its limit, and nothing is
lost."""

import time

import pytest

from harness import PROGRAMS, wait_until

MEBIBYTE = 1 << 20
BOUND = 32 * MEBIBYTE
# Program, libraries, TLS and tables of an idle gateway, with a margin.
IDLE = 48 * MEBIBYTE
FLOOD_S = 3.0


@pytest.mark.one_mpi
@pytest.mark.slow
# Ranks and the emulator use both cores fully, and so would other tests.
@pytest.mark.alone
@pytest.mark.parametrize(
    ("count", "size", "how"),
    [
        pytest.param(200_000, 1000, "asleep", id="200000-small-messages-asleep"),
        pytest.param(200_000, 1000, "awake", id="200000-small-messages-awake", marks=pytest.mark.matrix),
        pytest.param(400, MEBIBYTE, "asleep", id="400-large-messages-asleep", marks=pytest.mark.matrix),
        pytest.param(400, MEBIBYTE, "awake", id="400-large-messages-awake"),
    ],
)
def test_gateway_memory_is_bounded(workshop, mpi, count, size, how):
    go = workshop.folder / "go"
    running = workshop.across(
        mpi,
        2,
        [mpi.python, PROGRAMS / "flood.py", count, size, how, go],
        nodes=1,
        limit=180,
        options=("--gateway-memory", "32MiB", "--nic-rate", "0"),
    )
    gateways = wait_until(
        lambda: len(running.processes("gateway")) == 2 and running.processes("gateway"), 20, "gateways"
    )
    wait_until(lambda: any("flood.py" in word for p in running.processes() for word in p.words), 20, "ranks")
    end = time.monotonic() + FLOOD_S
    peak = 0
    while time.monotonic() < end:
        peaks = [gateway.peak_bytes() for gateway in gateways]
        assert None not in peaks, str(running.finish(within=30))
        peak = max(peak, *peaks)
        assert peak <= BOUND + IDLE, f"a gateway used {peak / MEBIBYTE:.0f} MiB"
        time.sleep(0.1)
    assert running.child.poll() is None, str(running.finish())
    go.write_text("receive now\n")
    done = running.finish().check()
    assert f"flood: {count} messages good" in done.out, str(done)
    print(f"highest gateway memory {peak / MEBIBYTE:.0f} MiB")
