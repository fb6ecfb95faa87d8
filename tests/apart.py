"""apart.py ARGUMENTS… becomes `python ARGUMENTS…` with a private network, /tmp, /run and /dev/shm.

Each worker of the whole-system tests starts this way. Two tests side by side never use the same port, and a test's
leftovers are seen as its own. It works as root, and as an ordinary user if unprivileged user namespaces are allowed;
otherwise it fails and names the refused operation.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COVERED = [Path("/run"), Path("/tmp"), Path("/dev/shm")]

# linux/sched.h, sys/mount.h, linux/sockios.h, linux/if.h
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x0002_0000, 0x1000_0000, 0x4000_0000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
IFF_UP = 1

libc = ctypes.CDLL(None, use_errno=True)


def must(code, what):
    if code != 0:
        error = ctypes.get_errno()
        sys.exit(f"apart: {what}: {os.strerror(error)}")


def mount(source, target, kind, flags, options=None):
    words = [word and str(word).encode() for word in (source, target, kind)]
    must(libc.mount(*words, flags, options), f"mount on {target}")


def unshare():
    """Enters new namespaces. An ordinary user keeps its user id, in a user namespace that allows mounts."""
    flags = CLONE_NEWNS | CLONE_NEWNET
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        must(libc.unshare(flags), "namespaces")
        return
    must(libc.unshare(flags | CLONE_NEWUSER), "user namespaces for an ordinary user")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def cover(target, kept):
    """Mounts an empty tmpfs on `target`, in which only those of its entries remain that contain a path of `kept`."""
    inside = [path for path in kept if path != target and path.is_relative_to(target) and path.exists()]
    below = sorted({target / path.relative_to(target).parts[0] for path in inside})
    opened = [(path, os.open(path, os.O_PATH)) for path in below]
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777")
    for path, descriptor in opened:
        path.mkdir()
        mount(f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC)
        os.close(descriptor)


def bring_up_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", request)[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def main():
    kept = {ROOT, Path(sys.prefix), Path(sys.base_prefix), Path(os.environ.get("FABTESTS", "/"))}
    kept |= {ROOT / name for name in ("target", ".venv", ".venv-intel", ".venv-openmpi")}
    kept |= {path.resolve() for path in kept}
    unshare()
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    for target in COVERED:
        if target.is_dir():
            cover(target, kept)
    bring_up_loopback()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
