"""The states of processes and of their machine, as text: for the message of a test that has waited too long."""

import ipaddress
import os
from pathlib import Path

TCP_STATES = {"01": "ESTABLISHED", "02": "SYN_SENT", "03": "SYN_RECV", "04": "FIN_WAIT1", "05": "FIN_WAIT2"}
TCP_STATES |= {"06": "TIME_WAIT", "07": "CLOSE", "08": "CLOSE_WAIT", "09": "LAST_ACK", "0A": "LISTEN", "0B": "CLOSING"}
# No test needs more rows to be understood, and some have hundreds of processes.
MOST_ROWS = 60


def text_of(path):
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return "?"


def scene(found):
    """Describes these processes (an iterable of harness.Process): their states, the wait channels of their
    threads, and the TCP connections of their networks on which data is on its way or unread."""
    rows, networks = [], {}
    for process in sorted(found, key=lambda process: process.pid)[:MOST_ROWS]:
        folder = f"/proc/{process.pid}"
        # The name, which a program chooses, ends at the last parenthesis.
        fields = text_of(f"{folder}/stat").rpartition(")")[2].split()
        state, parent = (fields[0], fields[1]) if len(fields) > 12 else ("ended", "?")
        ticks = sum(map(int, fields[11:13])) if len(fields) > 12 else 0
        waits = sorted({text_of(f"{folder}/task/{task}/wchan") for task in listing(f"{folder}/task")})
        seconds = ticks / os.sysconf("SC_CLK_TCK")
        words = " ".join(" ".join(process.words).split())[:160]
        rows.append(f"{process.pid} of {parent}: {state}, ran {seconds:.1f} s, in {', '.join(waits)}: {words}")
        networks.setdefault(link_of(f"{folder}/ns/net"), process.pid)
    for pid in networks.values():
        rows += [f"network of {pid}: {row}" for row in waiting(pid)][:MOST_ROWS]
    return "\n".join([*rows, *machine()])


def listing(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


def link_of(path):
    try:
        return os.readlink(path)
    except OSError:
        return None


def waiting(pid):
    """TCP connections in the network of this process that are not idle."""
    for family in ("tcp", "tcp6"):
        for line in text_of(f"/proc/{pid}/net/{family}").splitlines()[1:]:
            _, local, remote, state, queues, _, again, *_ = line.split()
            if queues != "00000000:00000000" and state != "0A":
                sent, unread = (int(queue, 16) for queue in queues.split(":"))
                ends = f"{end_of(local)} to {end_of(remote)} {TCP_STATES.get(state, state)}"
                yield f"{ends}: {sent} B not acknowledged, {unread} B unread, sent again {int(again, 16)} times"


def end_of(text):
    """ADDRESS:PORT of the kernel's text for it, which writes each four bytes of an address as a number in hexadecimal
    digits."""
    address, port = text.split(":")
    swapped = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
    return f"{ipaddress.ip_address(swapped)}:{int(port, 16)}"


def machine():
    """The machine's load and the time that its host gave to other machines."""
    yield f"load {text_of('/proc/loadavg')}"
    yield text_of("/proc/stat").splitlines()[0] + " (user nice system idle iowait irq softirq steal, in ticks)"
    for what in ("cpu", "io", "memory"):
        yield f"{what}: {text_of(f'/proc/pressure/{what}').splitlines()[0]}"
