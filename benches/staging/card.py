"""Traffic of a network card over time: `card.py DEVICE` prints the monotonic clock and the bytes received and sent,
twenty times a second, until its standard output is closed. `Card` starts it on a host of a lab."""

import subprocess
import sys
import threading
import time
from pathlib import Path

EVERY_S = 0.05
# Fewer bytes than this are messages around a transfer, not its contents.
MESSAGES = 512 << 10


class Card:
    """The card of a host, watched from now on."""

    def __init__(self, words, environment, direction):
        self.samples, self.column = [], {"received": 1, "sent": 2}[direction]
        self.process = subprocess.Popen(
            [*map(str, words), sys.executable, __file__, "eth0"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        while not self.samples and self.process.poll() is None:
            time.sleep(0.01)

    def _read(self):
        for line in self.process.stdout:
            words = line.split()
            self.samples.append((float(words[0]), int(words[self.column])))

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.thread.join()

    def carried(self, start, end):
        """For the time between two moments: when the contents began and ended, and their bytes."""
        inside = [(at, count) for at, count in self.samples if start - EVERY_S <= at <= end + EVERY_S]
        if not inside:
            return start, end, 0
        before, after = inside[0][1], inside[-1][1]
        first = next((at for at, count in inside if count > before + MESSAGES), start)
        last = next((at for at, count in inside if count >= after - MESSAGES), end)
        return first, last, after - before


def timeline(card, start, end):
    """Seconds until the first byte of the contents leaves or arrives, until the last one, and until the target is
    complete; and the rate between the first two, in bytes per second."""
    first, last, count = card.carried(start, end)
    return {
        "start_s": first - start,
        "moving_s": last - first,
        "end_s": end - last,
        "rate": (count - 2 * MESSAGES) / max(last - first, 1e-3),
    }


def main():
    device = f"{sys.argv[1]}:"
    while True:
        # Counters of this network namespace; /sys may show another one's.
        lines = [line.split() for line in Path("/proc/self/net/dev").read_text().splitlines()]
        [words] = [line for line in lines if line[0] == device]
        print(time.monotonic(), words[1], words[9], flush=True)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
