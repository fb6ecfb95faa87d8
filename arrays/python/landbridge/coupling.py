"""Arrays between two parallel programs, with any launchers and at any sites.

>>> import landbridge as lb
>>> with lb.join("ocean@lyon", comm) as coupling:                   # in the ocean model
...     coupling.export("sst", sst, layout, version=step)
>>> with lb.join("ocean@lyon", comm) as coupling:                   # in the atmosphere
...     sst = coupling.fetch("sst", other_layout, version=step)
"""

from __future__ import annotations

import ast
import contextlib
import shutil
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union, overload

import numpy as np

from . import _core, arrays, directory, scattered
from .arrays import Into
from .layout import Layout, Spread
from .ranks import CouplingError, Ranks, error_of, text_of
from .redistribution import PlanError, expect
from .running import Awaited, Result
from .selection import Index, Select, picks

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Coupling", "CouplingError", "Fetching", "join"]

# Default limit of the exported versions that a rank holds until they are fetched, in bytes.
BUDGET = 1 << 30
# The dtype of a part whose rank does not know it.
UNKNOWN = np.dtype(np.void)


def join(
    name: str,
    comm: Optional[Intracomm] = None,
    *,
    timeout: Optional[float] = 300.0,
    budget: int = BUDGET,
    site: Optional[str] = None,
) -> Coupling:
    """Couples this program with another one that joins under the same name; collective over `comm`.

    `name`: such as `"ocean@lyon"`: any name, and the site at whose gateway both programs meet.
    `comm`: the ranks of this side; None: this process alone, without MPI.
    `timeout`: seconds to wait for the other program; None: forever.
    `budget`: bytes of exported versions that each rank holds until the other side fetches them.
    `site`: the site where this program was started, if there are keys of several sites here.

    Raises `CouplingError` on all ranks if the coupling fails, `TimeoutError` if the other program does not join in
    time."""
    ranks = Ranks(comm)
    command: tuple[Optional[str], str] = (None, "")
    if ranks.rank == 0:
        try:
            command = _command(), ""
        except OSError as error:
            command = None, str(error)
    try:
        core = _core.Coupled.join(ranks, ranks.rank, name, site, command, timeout)
    except ConnectionError as error:
        raise CouplingError(str(error)) from None
    return Coupling(name, ranks, core, budget, scattered.Scattered(comm))


class Coupling:
    """One side of a coupling; made by `join`. All methods are collective over the side's communicator, and all ranks
    raise the same error. A `with` statement closes it at the end."""

    def __init__(self, name: str, ranks: Any, core: Any, budget: int, scattered: scattered.Scattered) -> None:
        self.name, self._scattered = name, scattered
        self._ranks, self._core, self._budget = ranks, core, int(budget)
        ranks.left = lambda: core.left() and f"{name}: {core.left()}"
        self._fetching: Optional[Fetching] = None
        # Fetches in flight that have timed out, by variable: a rank never requests a version twice.
        self._late: dict[str, Fetching] = {}
        self.other = core.other
        """The other side's description, for messages."""

    def __repr__(self) -> str:
        return f"<coupling {self.name} with {self.other}>"

    def export(
        self,
        name: str,
        a: Any,
        layout: Union[Layout, Spread],
        version: int = 0,
        *,
        dtype: Any = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Offers version `version` of variable `name` to the other side. `a`: this rank's part in `layout`, whose
        processes are the first ranks; None if the rank has no part. `dtype`: the dtype of the parts, for ranks that
        pass None.

        A layout of which each rank knows only its own part (`Spread`, such as `Runs`) may differ from version to
        version; every element of the array must belong to a rank.

        The part is copied, so `a` may be changed afterwards. Waits only while the budget is exceeded, for at most
        `timeout` seconds; None: as long as the other side is there. Versions of a name must increase; its layout and
        dtype stay the same."""
        rank, problem, part, what = self._ranks.rank, None, None, ""
        is_scattered = not isinstance(layout, Layout)
        try:
            name, version = _variable(name, version)
            what = _what("export", name, version, layout)
            part = self._part(a, layout, rank, dtype)
            if not is_scattered:
                self._open.wait_for_room(part.nbytes, self._budget, timeout)
        except Exception as error:  # all ranks must raise it
            problem = error
        kind = self._agree_on_dtype(problem, what, part)
        if is_scattered:
            plan = self._scattered.plan(name, True, layout, kind, self._ranks)
            part = plan.run(part if rank < layout.size else None)
            part, layout = np.empty(0, kind) if part is None else part, plan.dst
            self._together(lambda: self._open.wait_for_room(part.nbytes, self._budget, timeout))
        text = repr(np.lib.format.dtype_to_descr(kind))
        strides = list(part.strides) if rank < layout.size else [0] * len(layout.shape)
        address = _core.address_of(part)
        # An error from here on is the same on all ranks.
        try:
            self._open.export(name, version, layout._core, text, kind.itemsize, address, strides)
        except ValueError as error:
            raise error_of(text_of(error), self.name) from error

    @overload
    def fetch(
        self,
        name: str,
        layout: Union[Layout, Spread],
        version: int = 0,
        *,
        select: Union[Select, Sequence[Index], None] = None,
        into: None = None,
        casting: str = "same_kind",
        timeout: Optional[float] = None,
    ) -> Optional[np.ndarray]: ...

    @overload
    def fetch(
        self,
        name: str,
        layout: Union[Layout, Spread],
        version: int = 0,
        *,
        select: Union[Select, Sequence[Index], None] = None,
        into: Into,
        casting: str = "same_kind",
        timeout: Optional[float] = None,
    ) -> Into: ...

    def fetch(
        self,
        name: str,
        layout: Union[Layout, Spread],
        version: int = 0,
        *,
        select: Union[Select, Sequence[Index], None] = None,
        into: Any = None,
        casting: str = "same_kind",
        timeout: Optional[float] = None,
    ) -> Any:
        """Returns this rank's part, in `layout`, of version `version` of the other side's variable `name`; None if the
        rank is no process of the layout. Waits until the version is exported and has arrived, for at most `timeout`
        seconds; None: as long as the other side is there.

        `select`, `into`, `casting`: as for `redistribute`. Afterwards, older versions can no longer be fetched. After a
        TimeoutError the same fetch may be repeated, into the same array."""
        started = self._start(name, layout, version, select, into, casting)
        started.begin_together(timeout)
        self._fetching = started
        try:
            return started.wait(timeout)
        except TimeoutError:
            started.put_off()
            raise

    @overload
    def start_fetch(
        self,
        name: str,
        layout: Union[Layout, Spread],
        version: int = 0,
        *,
        select: Union[Select, Sequence[Index], None] = None,
        into: None = None,
        casting: str = "same_kind",
    ) -> Fetching[Optional[np.ndarray]]: ...

    @overload
    def start_fetch(
        self,
        name: str,
        layout: Union[Layout, Spread],
        version: int = 0,
        *,
        select: Union[Select, Sequence[Index], None] = None,
        into: Into,
        casting: str = "same_kind",
    ) -> Fetching[Into]: ...

    def start_fetch(
        self,
        name: str,
        layout: Union[Layout, Spread],
        version: int = 0,
        *,
        select: Union[Select, Sequence[Index], None] = None,
        into: Any = None,
        casting: str = "same_kind",
    ) -> Fetching[Any]:
        """Begins a fetch and returns it at once, so that elements arrive while the program computes. If the other side
        has not exported any version of the variable yet, the first `test` or `wait` after the export begins the fetch;
        `wait` then raises the errors that this call could not find. One fetch may be in flight at a time."""
        started = self._start(name, layout, version, select, into, casting)
        with contextlib.suppress(TimeoutError):
            started.begin_together(0.0)
        self._fetching = started
        return started

    def _start(self, name, layout, version, select, into, casting) -> Fetching[Any]:
        """Returns a new fetch that has not begun, or the earlier one if the same fetch was put off."""
        asked, is_scattered = (version, layout, select, into, casting), not isinstance(layout, Layout)

        def possible() -> str:
            if self._fetching is not None:
                raise ValueError(f"{self._fetching.what} is still being fetched: wait for that first")
            checked, number = _variable(name, version)
            if is_scattered:
                self._scattered.check(layout)
                if select is not None:
                    raise ValueError("select: it must be a Layout to select elements for")
            late = self._late.get(checked)
            if late is not None and late.version >= number and not late.is_of(asked, self._ranks.rank):
                raise ValueError(f"{late.what} was asked for before: ask for the same, into the same array")
            return _what("fetch", checked, number, layout, select)

        # All ranks must make the same requests to the other side.
        self._together(possible)
        checked, number = _variable(name, version)
        late = self._late.get(checked)
        if late is not None and late.version >= number:
            return self._late.pop(checked).again()
        return Fetching(self, checked, number, asked)

    def close(self, timeout: Optional[float] = None) -> None:
        """Ends the coupling once the other side has fetched all exported versions. Waits for at most `timeout` seconds;
        None: as long as the other side is there. Raises `CouplingError` if the other side never will."""
        if self._core is None:
            return
        try:
            # When this returns, all ranks have finished.
            self._together(lambda: self._core.finish(timeout))
        except BaseException as error:
            self._end(str(error))
            raise
        self._end("it is done")

    def _end(self, reason: str) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.end(reason)

    def __enter__(self) -> Coupling:
        return self

    def __exit__(self, kind, error, _trace) -> None:
        if error is None:
            self.close()
            return
        # The other ranks may be in other code, so call nothing collective.
        reason = f"rank {self._ranks.rank}: {kind.__name__}: {error}"
        if self._core is not None:
            self._core.leave(reason)
        self._end(reason)

    @property
    def _open(self):
        if self._core is None:
            raise CouplingError(f"{self.name}: this coupling is closed")
        return self._core

    def _part(self, a, layout, rank, dtype) -> np.ndarray:
        if not isinstance(layout, Layout):
            self._scattered.check(layout)
        if layout.size > self._ranks.size:
            size = self._ranks.size
            raise ValueError(f"the layout is for {layout.size} processes, but this side has {size} ranks")
        if rank >= layout.size:
            if a is not None:
                raise ValueError("a is an array, but this rank is no process of the layout: it must be None")
            return np.empty(0, UNKNOWN if dtype is None else dtype)
        shape = _local_shape(layout, rank)
        given = a is not None
        if not given:
            if 0 not in shape:
                raise ValueError(f"a is None, but this rank is process {rank} of the layout: its part is {shape}")
            a = np.empty(shape, UNKNOWN if dtype is None else dtype)
        a = arrays.taken(a)
        expect("a", a, shape)
        if a.dtype != UNKNOWN or given:
            arrays.check_dtype(a.dtype)
        if dtype is not None and a.dtype != dtype:
            raise TypeError(f"a has dtype {a.dtype}, not {np.dtype(dtype)}")
        return a

    def _agree_on_dtype(self, problem, what: str, part) -> np.dtype:
        """The dtype of all ranks' parts; a rank without a part need not know it. Raises on all ranks if any rank has a
        problem, or if ranks want different things."""
        known = part is not None and part.dtype != UNKNOWN
        code = zlib.crc32(repr(part.dtype).encode()) if known else 0
        unknown, most, least = self._agree(problem, what, [not known, code, -code])
        if unknown == 0 and most == -least:
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
        shape = _local_shape(layout, rank)
        if into is None:
            return np.zeros(shape, dtype, getattr(layout, "order", "C"))
        into = arrays.target(into)
        expect("into", into, shape)
        if not np.can_cast(dtype, into.dtype, casting):
            raise TypeError(f"into has dtype {into.dtype}: {dtype} does not cast to it ({casting})")
        return into

    def _unpack(self, arrived, target, dtype) -> None:
        address = _core.address_of(target)
        if target.dtype == dtype:
            self._core.unpack(arrived, address)
            return
        for elements in arrived:
            buffer = np.empty(elements.bytes // dtype.itemsize, dtype)
            if self._core.copy(elements, _core.address_of(buffer)):
                buffer = np.ascontiguousarray(buffer.astype(target.dtype, casting="unsafe"))
                elements.unpack(_core.address_of(buffer), address)

    def _together(self, work: Callable[[], Optional[str]]) -> None:
        """Calls `work`, which may fail on some ranks; then all ranks raise. Its result must be the same on all
        ranks."""
        problem, what = None, None
        _ = self._open
        try:
            what = work()
        except Exception as error:  # all ranks must raise it
            problem = error
        self._agree(problem, what or "")

    def _agree(self, problem: Optional[Exception], what: str = "", numbers: Sequence[int] = (0, 0, 0)) -> list[int]:
        """Raises on all ranks if any rank has a problem: the error of the first such rank. Raises PlanError if `what`
        differs between ranks. Otherwise returns the maximum of each number over all ranks."""
        code = zlib.crc32(what.encode())
        # The minimum is the negated maximum of the negated codes.
        failed, most, least, *greatest = self._ranks.most([problem is not None, code, -code, *numbers])
        if not failed and most == -least:
            return greatest
        if not failed:
            wanted = self._ranks.allgather(what)
            rank = next(rank for rank, each in enumerate(wanted) if each != wanted[0])
            raise PlanError(f"ranks want different things: rank 0 {wanted[0]}; rank {rank} {wanted[rank]}")
        texts = self._ranks.allgather(None if problem is None else text_of(problem))
        rank, text = next((rank, text) for rank, text in enumerate(texts) if text)
        if self._ranks.size > 1:
            text = (text[0], f"rank {rank}: {text[1]}")
        raise error_of(text, self.name)


class Fetching(Awaited[Result]):
    """A fetch in flight, from `Coupling.start_fetch`. `await` it, or call `wait`, which are collective; both return the
    result of `Coupling.fetch`."""

    def __init__(self, coupling: Coupling, name: str, version: int, asked: tuple) -> None:
        self._coupling, self.name, self.version, self._asked = coupling, name, version, asked
        self.what = f"{name}, version {version},"
        self._core: Any = None
        self._target: Optional[np.ndarray] = None
        self._dtype: np.dtype = np.dtype(np.void)
        self._result: Any = None
        self._plan: Any = None
        self.problem: Optional[Exception] = None
        self._wished = self._begun = self._agreed = self._arrived = self._over = False
        layout = asked[1]
        self._is_scattered = not isinstance(layout, Layout)
        ranks = coupling._ranks
        self._met = scattered.blocks(layout.shape, ranks.size) if self._is_scattered else layout

    def begin_together(self, limit: Optional[float]) -> None:
        """Begins the fetch on all ranks or, after an error, on none: a rank never requests a version twice. Raises
        TimeoutError if the other side exports no version of the variable within `limit` seconds. Collective."""
        if self._agreed:
            return
        coupling = self._coupling
        found: list[Any] = []
        coupling._together(lambda: found.append(None if self._begun else self._look(limit)))
        if self._is_scattered:
            dtype = self._dtype if self._begun else found[0][0]
            self._plan = coupling._scattered.plan(self.name, False, self._asked[1], dtype, coupling._ranks)
        try:
            if not self._begun:
                self._ask(*found[0])
        except Exception as error:  # all ranks raise it when they wait
            self.problem = error
        self._agreed = True

    def _look(self, limit: Optional[float]) -> tuple:
        """The dtype of the elements, the array that receives them, and the selection."""
        coupling, met = self._coupling, self._met
        _, layout, select, into, casting = self._asked
        ranks, core = coupling._ranks, coupling._open
        if select is None and met.size <= ranks.size and not self._wished:
            # Most likely both arrays have the same shape. This early wish lets the other side pack the variable for
            # this fetch when it exports it.
            core.wish(self.name, met._core, *picks(None, met.shape, met.shape))
            self._wished = True
        text, _, source = core.variable(self.name, limit)
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(text))
        target = coupling._target(layout, ranks.rank, dtype, into, casting)
        if self._is_scattered:
            shapes = tuple(source.shape()), tuple(layout.shape)
            if shapes[0] != shapes[1]:
                raise ValueError(f"{self.name}: it is exported with shape {shapes[0]}, layout has shape {shapes[1]}")
            target = coupling._target(met, ranks.rank, dtype, None, casting)
        return dtype, target, picks(select, source.shape(), met.shape)

    def _ask(self, dtype: np.dtype, target: Optional[np.ndarray], chosen: tuple) -> None:
        self._begun, self._dtype, self._target = True, dtype, target
        into = self._asked[3]
        self._result = target if into is None else into
        strides, size = [0] * len(self._met.shape), dtype.itemsize
        if target is not None:
            strides, size = list(target.strides), target.itemsize
        core = self._coupling._open
        self._coupling._late.pop(self.name, None)
        self._core = core.fetch(self.name, self.version, self._met._core, *chosen, strides, size)

    def test(self) -> bool:
        """Returns true once all of this rank's elements have arrived, or the fetch has failed. Unpacks the elements
        that have arrived."""
        if not (self._arrived or self._over or self.problem):
            try:
                self._take(0.0)
            except TimeoutError:
                return False
            except Exception as error:  # all ranks raise it when they wait
                self.problem = error
        return True

    def wait(self, timeout: Optional[float] = None) -> Result:
        """Waits until all ranks have their parts, for at most `timeout` seconds. Raises TimeoutError on all ranks if
        any rank would wait longer; `wait` may then be called again."""
        if not self._over:
            try:
                self.begin_together(timeout)
                self._coupling._together(lambda: self._take(timeout))
                if self._is_scattered:
                    self._result = self._plan.run(self._target, into=self._asked[3], casting=self._asked[4])
            except TimeoutError:
                raise
            except BaseException:
                self.end()
                raise
            self.end()
        return self._result

    def _take(self, timeout: Optional[float]) -> None:
        if self.problem is not None:
            raise self.problem
        if not self._begun:
            self._ask(*self._look(timeout))
        while not self._arrived:
            arrived = self._coupling._open.next(self._core, timeout)
            self._arrived = not arrived
            if arrived:
                self._coupling._unpack(arrived, self._target, self._dtype)

    def end(self) -> None:
        """Marks this fetch as over, so that another one may begin."""
        self._over, self._coupling._fetching = True, None

    def put_off(self) -> None:
        """Lets another fetch begin; this one may be repeated later."""
        self.end()
        self._coupling._late[self.name] = self

    def again(self) -> Fetching[Result]:
        self._over = False
        return self

    def is_of(self, asked: tuple, rank: int) -> bool:
        """Returns true if this fetch has the same arguments and the same array to receive into."""
        version, layout, select, into, casting = self._asked
        is_same = (version, select, casting) == (asked[0], asked[2], asked[4]) and into is asked[3]
        return is_same and scattered.is_same(layout, asked[1], rank)


def _local_shape(layout: Union[Layout, Spread], rank: int) -> tuple[int, ...]:
    if isinstance(layout, Layout):
        return layout.local_shape(rank)
    return (int(directory.runs_of(layout, rank)[:, 1].sum()),)


def _what(does: str, name: str, version: int, layout: Any, select: Any = None) -> str:
    text = f"{does} {name!r}, version {version}, {directory.summary(layout)}"
    return text if select is None else f"{text}, {select}"


def _variable(name: str, version: int) -> tuple[str, int]:
    if not isinstance(name, str) or not name:
        raise TypeError(f"name is {name!r}: it must be a text")
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise TypeError(f"version is {version!r}: it must be a whole number")
    if not 0 <= version < 1 << 64:
        raise ValueError(f"version is {version}: it can be 0 to 2^64 - 1")
    return name, version.__index__()


def _command() -> str:
    from . import command

    try:
        return str(command())
    except FileNotFoundError as error:
        found = shutil.which("landbridge")
        if found is None:
            raise FileNotFoundError(f"there is no command landbridge in PATH, and {error}") from None
        return found
