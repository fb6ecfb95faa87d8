"""Who may run at the same time: many tests side by side, or one that is alone, in whatever process they run."""

import contextlib
import fcntl


@contextlib.contextmanager
def entered(folder, alone):
    """Waits until this test may run, and keeps its place until it ends.

    A test that waits to be alone holds the door, so nobody else comes in and the room empties.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "room.lock").open("w") as room:
        with (folder / "door.lock").open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
