"""Which tests may run at the same time: many side by side, or one alone, across processes."""

import contextlib
import fcntl


@contextlib.contextmanager
def entered(folder, alone):
    """Waits until this test may run, and holds its slot until it ends.

    A test that waits to be alone keeps the door closed, so no further test starts and the room empties.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "room.lock").open("w") as room:
        with (folder / "door.lock").open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
