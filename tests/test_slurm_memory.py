"""How much memory the movers of a user may have on a Slurm node. See test_slurm_staging.py."""

import random
import re
from pathlib import Path

import pytest

from harness import LANDBRIDGE
from slurm_jobs import MOVE, at_work_as, begin, on

# node_service::memory::TURNS, and the default of --user-memory.
TURNS = 4
USER_BYTES = 2 << 30


def most_data(process):
    """The limit of a process's own memory, in bytes."""
    return int(re.search(r"Max data size +(\d+)", Path(f"/proc/{process.pid}/limits").read_text())[1])


def test_the_movers_of_a_user_have_a_bound(workshop, people, slurm):
    """By control groups where the service may make some, by turns elsewhere. The log names the way."""
    anna, _ = people
    (workshop.folder / "source").write_bytes(random.Random(1).randbytes(8_000_000))
    (workshop.folder / "small").write_text("x")
    full = workshop.folder / "full"

    def move(name, target, rate):
        return f"{LANDBRIDGE} stage move --rate {rate} b:{workshop.folder}/{name} a/n1:/tmp/{target}"

    slow = " ".join(f'{move("source", f"slow{number}", "20kB/s")} & pids="$pids $!";' for number in range(TURNS))
    one_more = (
        f"{move('small', 'fifth', '200MB/s')} && echo FIFTH; kill $pids; wait; {move('small', 'sixth', '200MB/s')} && "
        "echo SIXTH"
    )
    running = begin(
        workshop,
        anna,
        f"anna: {slow} until test -e {full}; do sleep 0.2; done; {one_more}",
        nodes=1,
        limit=280,
    )
    running.wait_for(lambda: len(at_work_as(anna, "mover")) == TURNS, 150, "movers")
    movers = at_work_as(anna, "mover")
    limits = {most_data(mover) for mover in movers}
    groups = [re.search(r"^0::(.*)$", Path(f"/proc/{mover.pid}/cgroup").read_text(), re.MULTILINE) for mover in movers]
    full.touch()
    done = running.finish().check()
    log = (workshop.folder / "inside" / "service-a-n1.log").read_text()
    assert log.count("MiB for the movers of each user") == 1 and "SIXTH" in done.out, f"{done}\n{log}"
    if "by control groups" in log:
        assert all(re.search(rf"/user-{anna.uid}/order-\d+$", group[1]) for group in groups), groups
    else:
        # On a busy machine one of the four may be lost meanwhile; then the fifth has its turn.
        steps = re.findall(r"service: (started|ended) .*what=\"agent\"", log)
        running_at_once = [steps[:end].count("started") - steps[:end].count("ended") for end in range(len(steps) + 1)]
        assert max(running_at_once) == TURNS, f"{running_at_once}\n{done}\n{log}"
        assert len(limits) == 1 and limits.pop() * TURNS <= USER_BYTES, limits


@pytest.mark.slow
@pytest.mark.matrix
def test_blocks_of_the_largest_size_fit_into_a_movers_memory(workshop, people, slurm):
    anna, _ = people
    with (workshop.folder / "source").open("wb") as file:
        for part in range(6):
            file.write(random.Random(part).randbytes(64 << 20))
    done = begin(
        workshop,
        anna,
        f"{MOVE} --block 64MiB b:{workshop.folder}/source a/n1:/tmp/target",
        on("a-n1", f"cmp /tmp/target {workshop.folder}/source && rm /tmp/target && echo THE SAME"),
        nodes=1,
        limit=180,
    ).finish()
    assert "THE SAME" in done.check().out, str(done)
