"""Random processes of a transfer, killed or frozen at random times.

`LANDBRIDGE_SEED=n` repeats the choices of a run and `LANDBRIDGE_ROUNDS=n` sets how many there are. Which process is
there to be chosen depends on the machine too."""

import os
import random
import signal
import time

# Longer than the 7 s without a sign of life after which a process counts as lost.
FROZEN_S = 9.0
# How many of those that may be frozen are, so that a run does not consist of waiting for them.
FREEZES = 0.2


class Victims:
    """`kinds`: by name, a function that finds the processes of a kind now. `freezes`: the kinds that are also frozen: a
    process that is killed closes its connections, and one that is frozen, or whose machine is, does not."""

    def __init__(self, kinds, freezes=(), rounds=20):
        self.kinds, self.freezes = kinds, freezes
        self.rounds = int(os.environ.get("LANDBRIDGE_ROUNDS", rounds))
        self.seed = int(os.environ.get("LANDBRIDGE_SEED", random.randrange(1 << 32)))
        self.numbers = random.Random(self.seed)
        self.struck = []

    def __str__(self):
        return f"seed {self.seed}, struck {self.struck}"

    def strike(self, running):
        """Kills or freezes one after the other, while there are some. `running`: returns once there are victims."""
        while len(self.struck) < self.rounds:
            running()
            time.sleep(self.numbers.uniform(0, 2))
            kind = self.numbers.choice(sorted(self.kinds))
            self.hit(kind, self.kinds[kind](), kind in self.freezes and self.numbers.random() < FREEZES)

    def hit(self, kind, found, frozen=False):
        """Kills one of these processes of a kind, or freezes it first, and counts it."""
        if not found:
            return
        victim = self.numbers.choice(sorted(found, key=lambda process: process.pid))
        end = self.numbers.choice([signal.SIGKILL, signal.SIGCONT]) if frozen else signal.SIGKILL
        if frozen and victim.kill(signal.SIGSTOP):
            time.sleep(FROZEN_S)
        # It may have ended by itself, or have been killed while it was frozen.
        if victim.kill(end) or frozen:
            how = "killed" if not frozen else "frozen" if end == signal.SIGCONT else "frozen and killed"
            self.struck.append(f"{kind} {how}")
