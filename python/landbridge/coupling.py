"""Arrays between two parallel programs, whatever launched them, wherever they run.

>>> import landbridge as lb
>>> with lb.join("ocean@lyon", comm) as coupling:                   # in the ocean model
...     coupling.export("sst", sst, layout, version=step)
>>> with lb.join("ocean@lyon", comm) as coupling:                   # in the atmosphere
...     sst = coupling.fetch("sst", other_layout, version=step)
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from . import _core
from .layout import Layout
from .redistribution import Index, PlanError, Select, expect, picks, private

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Coupling", "CouplingError", "join"]

# What a side holds for the other one by default, in bytes.
BUDGET = 1 << 30
# How long the helper may take to end, in seconds.
FAREWELL = 5.0


class CouplingError(ConnectionError):
    """There is no coupling, or it has ended: the same error on all ranks of a side."""


def join(
    name: str,
    comm: Optional[Intracomm] = None,
    *,
    timeout: Optional[float] = 300.0,
    budget: int = BUDGET,
    site: Optional[str] = None,
) -> Coupling:
    """Couples this program with another one that joins under the same name; collective over `comm`.

    `name`: as `"ocean@lyon"`: any name, and the site at whose gateway both programs find each other.
    `comm`: the ranks of this side; None: this process alone, without MPI.
    `timeout`: seconds to wait for the other program; None: forever.
    `budget`: bytes of exported versions that each rank holds until the other side fetches them.
    `site`: the site this program was started at, if its key is not the only one here.

    Raises `CouplingError` on all ranks if there is no coupling in the end, `TimeoutError` if the other program does not
    come."""
    ranks = _Ranks(comm)
    helper, problem, told = None, None, None
    if ranks.rank == 0:
        try:
            helper = _Helper(name, site)
            told = helper.wait_for("home", 60.0)
        except (OSError, ValueError) as error:
            problem = error
    told, problem = ranks.bcast((told, _text(problem)))
    try:
        _raise(problem)
        return _joined(name, ranks, helper, told, timeout, budget)
    except BaseException as error:
        if helper is not None:
            helper.leave(f"{type(error).__name__}: {error}")
        raise


def _joined(name, ranks, helper, home, timeout, budget) -> Coupling:
    here, listener, problem = None, None, None
    try:
        here, place = _place(home)
        listener = _core.Listener(place["ip"])
    except (OSError, ValueError) as error:
        problem = error
    own = None if listener is None else {"site": here["name"], "node": place["node"], "address": listener.address}
    all_told = ranks.gather((own, _text(problem)))
    coupled = None
    if ranks.rank == 0:
        problem = next((problem for _, problem in all_told if problem), None)
        try:
            _raise(problem)
            helper.tell("processes", [process for process, _ in all_told])
            coupled = helper.wait_for("coupled", timeout)
            coupled["own"] = [process["address"] for process, _ in all_told]
            problem = None
        except (OSError, ValueError) as error:
            problem = _text(error)
    coupled, problem = ranks.bcast((coupled, problem))
    _raise(problem)
    core = None
    try:
        core = _core.Coupled(
            listener,
            {
                "job": coupled["job"],
                "secret": coupled["secret"],
                "roster": coupled["roster"],
                "window": coupled["window"],
                "process": ranks.rank,
                "ranks": coupled["ranks"],
                "addresses": [coupled["own"], coupled["addresses"]],
                "site": here["name"],
                "gateways": [(gateway, _numeric(address)) for gateway, address in here["gateways"]],
                "keys": here["keys"],
            },
        )
    except (OSError, ValueError, RuntimeError) as error:
        problem = f"rank {ranks.rank}: {error}"
    coupling = Coupling(name, ranks, core, helper, budget, coupled["other"])
    try:
        coupling._agree(None if problem is None else CouplingError(problem))
    except BaseException:
        if core is not None:
            core.close()
        raise
    if helper is not None:
        helper.watch(core.fail)
    return coupling


class Coupling:
    """One side of a coupling; made by `join`. All methods are collective over the side's communicator, and every error
    is raised on all its ranks. Used in a `with`, it is closed at the end."""

    def __init__(self, name: str, ranks: Any, core: Any, helper: Optional[_Helper], budget: int, other: str) -> None:
        self.name = name
        self._ranks, self._core, self._helper, self._budget = ranks, core, helper, int(budget)
        self.other = other
        """The other side, for messages."""

    def __repr__(self) -> str:
        return f"<coupling {self.name} with {self.other}>"

    def export(
        self,
        name: str,
        a: Optional[np.ndarray],
        layout: Layout,
        version: int = 0,
        *,
        dtype: Any = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Offers version `version` of variable `name` to the other side. `a`: this rank's part of it in `layout`, whose
        processes are the first ranks; None where a rank has none, if `dtype` says what others' parts are of.

        The part is copied: `a` may be changed at once. Waits only while more than the budget is held, for at most
        `timeout` seconds; None: as long as the other side is there. Versions of a name must increase; its layout and
        dtype stay."""
        rank, problem, part = self._ranks.rank, None, None
        try:
            name, version = _variable(name, version)
            part = self._part(a, layout, rank, dtype)
            self._open.wait_for_room(part.nbytes, self._budget, timeout)
        except Exception as error:  # noqa: BLE001: all ranks must hear of it
            problem = error
        kind = self._agree_on_dtype(problem, part)
        text = repr(np.lib.format.dtype_to_descr(kind))
        strides = list(part.strides) if rank < layout.size else [0] * len(layout.shape)
        address = part.__array_interface__["data"][0]
        # What can be wrong now is wrong on all ranks.
        try:
            self._open.export(name, version, layout._core, text, kind.itemsize, address, strides)
        except ValueError as error:
            _raise(_text(error), self.name)

    def fetch(
        self,
        name: str,
        layout: Layout,
        version: int = 0,
        *,
        select: Union[Select, Sequence[Index], None] = None,
        into: Optional[np.ndarray] = None,
        casting: str = "same_kind",
        timeout: Optional[float] = None,
    ) -> Optional[np.ndarray]:
        """This rank's part, in `layout`, of version `version` of the other side's variable `name`; None where the rank
        is no process of the layout. Waits until it is exported and has arrived, for at most `timeout` seconds; None: as
        long as the other side is there.

        `select`, `into`, `casting`: as for `redistribute`. Older versions can no longer be fetched afterwards."""
        rank, found = self._ranks.rank, []

        def known():
            checked, number = _variable(name, version)
            if not isinstance(layout, Layout):
                raise TypeError(f"layout is {layout!r}: it must be a Layout")
            if select is None and layout.size <= self._ranks.size:
                # Most likely the arrays have the same shape. Then it is packed for this when it is exported.
                self._core.wish(checked, layout._core, *picks(None, layout.shape, layout.shape))
            found.append((checked, number, self._core.variable(checked, timeout)))

        self._together(known)
        ((checked, number, (text, _, source)),) = found

        def work():
            dtype = np.lib.format.descr_to_dtype(ast.literal_eval(text))
            target = self._target(layout, rank, dtype, into, casting)
            shape = source.shape()
            chosen = picks(select, shape, layout.shape)
            strides, size = [0] * len(layout.shape), dtype.itemsize
            if target is not None:
                strides, size = list(target.strides), target.itemsize
            fetching = self._core.fetch(checked, number, layout._core, *chosen, strides, size)
            found.append(target)
            while True:
                arrived = self._core.next(fetching, timeout)
                if not arrived:
                    return
                for elements in arrived:
                    self._unpack(elements, target, dtype)

        self._together(work)
        return found[1]

    def close(self, timeout: Optional[float] = None) -> None:
        """Ends the coupling once the other side has fetched everything that was exported here; waits for that as
        `export` does. Raises `CouplingError` if it never will."""
        if self._core is None:
            return
        try:
            # All ranks are done when it returns.
            self._together(lambda: self._core.finish(timeout))
        except BaseException as error:
            self._end(str(error))
            raise
        self._end("it is done")

    def _end(self, reason: str) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.close()
        if self._helper is not None:
            self._helper.leave(reason)

    def __enter__(self) -> Coupling:
        return self

    def __exit__(self, kind, error, _trace) -> None:
        if error is None:
            self.close()
            return
        # The other ranks may be elsewhere: nothing collective.
        reason = f"rank {self._ranks.rank}: {kind.__name__}: {error}"
        if self._core is not None:
            self._core.fail(reason)
        self._end(reason)

    @property
    def _open(self):
        if self._core is None:
            raise CouplingError(f"{self.name}: this coupling is closed")
        return self._core

    def _part(self, a, layout, rank, dtype) -> np.ndarray:
        if not isinstance(layout, Layout):
            raise TypeError(f"layout is {layout!r}: it must be a Layout")
        if layout.size > self._ranks.size:
            size = self._ranks.size
            raise ValueError(f"the layout is for {layout.size} processes, but this side has {size} ranks")
        if rank >= layout.size:
            if a is not None:
                raise ValueError("a is an array, but this rank is no process of the layout: it must be None")
            return np.empty(0, np.void if dtype is None else dtype)
        shape = layout.local_shape(rank)
        if a is None:
            if 0 not in shape:
                raise ValueError(f"a is None, but this rank is process {rank} of the layout: its part is {shape}")
            a = np.empty(shape, np.void if dtype is None else dtype)
        a = np.asarray(a)
        expect("a", a, shape)
        if a.dtype.hasobject:
            raise TypeError(f"dtype {a.dtype}: Python objects cannot be sent")
        if dtype is not None and a.dtype != dtype:
            raise TypeError(f"a has dtype {a.dtype}, not {np.dtype(dtype)}")
        return a

    def _agree_on_dtype(self, problem, part) -> np.dtype:
        """What the parts of all ranks have in common, unless some rank has a problem; a rank without a part need not
        know it."""
        known = part is not None and part.dtype != np.dtype(np.void)
        code = zlib.crc32(repr(part.dtype).encode()) if known else 0
        # The least is found as the greatest of the negated ones.
        greatest = self._ranks.most([problem is not None, not known, code, -code])
        if greatest[0]:
            self._agree(problem)
        if greatest[1] == 0 and greatest[2] == -greatest[3]:
            return part.dtype
        told = self._ranks.allgather(part.dtype if known else None)
        given = [(rank, dtype) for rank, dtype in enumerate(told) if dtype is not None]
        if not given:
            raise PlanError("no rank gives a dtype: those with a part must, or all by dtype=")
        first, wanted = given[0]
        for rank, dtype in given:
            if dtype != wanted:
                raise PlanError(f"parts have different dtypes: rank {first} {wanted}, rank {rank} {dtype}")
        return wanted

    def _target(self, layout, rank, dtype, into, casting) -> Optional[np.ndarray]:
        if rank >= layout.size:
            if into is not None:
                raise ValueError("into is an array, but this rank is no process of the layout: it must be None")
            return None
        shape = layout.local_shape(rank)
        if into is None:
            return np.zeros(shape, dtype, layout.order)
        if not isinstance(into, np.ndarray):
            raise TypeError(f"into is {type(into).__name__}: it must be a NumPy array")
        expect("into", into, shape)
        if not into.flags.writeable:
            raise ValueError("into is read-only")
        if not np.can_cast(dtype, into.dtype, casting):
            raise TypeError(f"into has dtype {into.dtype}: {dtype} does not cast to it ({casting})")
        return into

    def _unpack(self, elements, target, dtype) -> None:
        address = target.__array_interface__["data"][0]
        if target.dtype == dtype:
            self._core.unpack(elements, address)
            return
        buffer = np.empty(elements.bytes // dtype.itemsize, dtype)
        if self._core.copy(elements, buffer.__array_interface__["data"][0]):
            buffer = np.ascontiguousarray(buffer.astype(target.dtype, casting="unsafe"))
            elements.unpack(buffer.__array_interface__["data"][0], address)

    def _together(self, work: Callable[[], None]) -> None:
        """Does what may fail on some ranks, then on all."""
        problem: Optional[Exception] = None
        _ = self._open
        try:
            work()
        except Exception as error:  # noqa: BLE001: all ranks must hear of it
            problem = error
        self._agree(problem)

    def _agree(self, problem: Optional[Exception]) -> None:
        """Raises on all ranks if any of them has a problem: the same error, of the first rank that has one."""
        if self._ranks.most([problem is not None]) == [0]:
            return
        texts = self._ranks.allgather(None if problem is None else _text(problem))
        rank, text = next((rank, text) for rank, text in enumerate(texts) if text)
        if self._ranks.size > 1:
            text = (text[0], f"rank {rank}: {text[1]}")
        _raise(text, self.name)


def _variable(name: str, version: int) -> tuple[str, int]:
    if not isinstance(name, str) or not name:
        raise TypeError(f"name is {name!r}: it must be a text")
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise TypeError(f"version is {version!r}: it must be a whole number")
    if not 0 <= version < 1 << 64:
        raise ValueError(f"version is {version}: it can be 0 to 2^64 - 1")
    return name, version.__index__()


def _text(problem: Optional[BaseException]) -> Optional[tuple[str, str]]:
    if problem is None:
        return None
    kind = "timeout" if isinstance(problem, TimeoutError) else "value"
    if isinstance(problem, ConnectionError):
        kind = "over"
    return kind, str(problem)


def _raise(problem: Optional[tuple[str, str]], name: Optional[str] = None) -> None:
    if problem is None:
        return
    kind, text = problem
    text = text if name is None or name in text else f"{name}: {text}"
    if kind == "timeout":
        raise TimeoutError(text)
    raise PlanError(text) if kind == "value" and name is not None else CouplingError(text)


def _place(home: dict) -> tuple[dict, dict]:
    """Which site this process is at, and where it can be reached there."""
    site = os.environ.get("LANDBRIDGE_SITE_NAME") or home["site"]
    here = next((place for place in home["sites"] if place["name"] == site), None)
    if here is None:
        raise ValueError(f"this process is at site {site}, which is not in the sites file of site {home['site']}")
    node = os.environ.get("LANDBRIDGE_NODE_NAME") or socket.gethostname()
    node = re.sub("[^A-Za-z0-9._-]", "-", node)[:64] or "node"
    _, address = here["gateways"][0]
    host, port = _numeric(address).rsplit(":", 1)
    # Nothing is sent: the kernel chooses the address that reaches the gateway.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return here, {"node": node, "ip": probe.getsockname()[0]}


def _numeric(address: str) -> str:
    """A host and port with the host as an IPv4 address."""
    host, port = address.rsplit(":", 1)
    found = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)
    return "{}:{}".format(*found[0][4])


class _Ranks:
    """The ranks of a side: those of a communicator, or this process alone."""

    def __init__(self, comm: Optional[Intracomm]) -> None:
        self._comm = None if comm is None else private(comm)
        self.rank = 0 if self._comm is None else self._comm.Get_rank()
        self.size = 1 if self._comm is None else self._comm.Get_size()

    def bcast(self, value: Any) -> Any:
        # The first rank may take long: see there.
        self.most([0])
        return value if self._comm is None else self._comm.bcast(value, 0)

    def gather(self, value: Any) -> Optional[list]:
        return [value] if self._comm is None else self._comm.gather(value, 0)

    def allgather(self, value: Any) -> list:
        return [value] if self._comm is None else self._comm.allgather(value)

    def most(self, numbers: list) -> list[int]:
        """The greatest of each over all ranks, which have all called it when it returns."""
        own = np.array(numbers, np.int64)
        if self._comm is None:
            return own.tolist()
        from mpi4py import MPI

        greatest = np.empty_like(own)
        request = self._comm.Iallreduce(own, greatest, MPI.MAX)
        # Others may still be copying, on this core too: MPI libraries wait without giving it away.
        nap = 2e-5
        while not request.Test():
            time.sleep(nap)
            nap = min(2 * nap, 5e-4)
        return greatest.tolist()


class _Helper:
    """The process that finds the other side: `landbridge couple`. Lines of JSON in both directions."""

    def __init__(self, name: str, site: Optional[str]) -> None:
        words = [_command(), "couple", name]
        if site:
            words += ["--from", site]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._said: Queue = Queue()
        self._waiting = "its helper has not started"
        self._lock = threading.Lock()
        self._ended: Optional[str] = None
        self._watcher: Optional[Callable[[str], None]] = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self._process.stdout:
            said = json.loads(line)
            self._waiting = said.get("waiting", self._waiting)
            if "over" in said:
                self._over(said["over"])
            elif "waiting" not in said:
                self._said.put(said)
        self._over("its helper has ended")

    def _over(self, reason: str) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended, watcher = reason, self._watcher
        self._said.put(None)
        if watcher is not None:
            watcher(reason)

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Calls `watcher` with the reason when the coupling has ended."""
        with self._lock:
            self._watcher, ended = watcher, self._ended
        if ended is not None:
            watcher(ended)

    def tell(self, kind: str, value: Any) -> None:
        try:
            self._process.stdin.write(json.dumps({kind: value}) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            # What it said last says why.
            pass

    def wait_for(self, kind: str, timeout: Optional[float]) -> dict:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # In slices, so that signals are seen.
            left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
            try:
                said = self._said.get(timeout=max(left, 0.001))
            except Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"no coupling within {timeout:g} s: {self._waiting}") from None
                continue
            if said is None:
                raise CouplingError(self._ended)
            if kind in said:
                return said[kind]

    def leave(self, reason: str) -> None:
        with self._lock:
            self._watcher = None
        self.tell("leave", reason)
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(FAREWELL)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # It must not be in our compiled part when the interpreter ends.
        self._listener.join()


def _command() -> str:
    from . import command

    try:
        return str(command())
    except FileNotFoundError as error:
        found = shutil.which("landbridge")
        if found is None:
            raise FileNotFoundError(f"there is no command landbridge in PATH, and {error}") from None
        return found
