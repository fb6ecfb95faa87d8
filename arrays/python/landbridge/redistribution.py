"""Moves arrays from one layout to another, inside one MPI job.

>>> import landbridge as lb
>>> source = lb.Layout((4096, 4096), [lb.Block(2), lb.Block(2)])
>>> target = lb.Layout((4096, 4096), [lb.Block(4), lb.Whole()])
>>> b = lb.redistribute(a, source, target, comm)        # a: this rank's part, or None where it has none
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Optional, Union, overload

import numpy as np

from . import _core, arrays, directory
from .arrays import Into, Labelled
from .last_run import LastRun, key_of
from .layout import Layout, Spread, natural, whole
from .messages import MessageList, free
from .private import TAG, private
from .running import PlanError, Running, described, in_pieces, is_own, joined
from .selection import Index, Select, picks

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Plan", "PlanError", "Select", "plan", "redistribute"]

# Maximum number of pairs of arrays for which a plan keeps requests.
MOST_READY = 4
# More bytes than any machine has.
MOST_BUDGET = 1 << 62


@overload
def redistribute(
    a: Labelled,
    src: Union[Layout, Spread],
    dst: Union[Layout, Spread],
    comm: Intracomm,
    src_ranks: Optional[Sequence[int]] = None,
    dst_ranks: Optional[Sequence[int]] = None,
    select: Union[Select, Sequence[Index], None] = None,
    into: None = None,
    *,
    casting: str = "same_kind",
    budget: Optional[int] = None,
) -> Any: ...


@overload
def redistribute(
    a: Any,
    src: Union[Layout, Spread],
    dst: Union[Layout, Spread],
    comm: Intracomm,
    src_ranks: Optional[Sequence[int]] = None,
    dst_ranks: Optional[Sequence[int]] = None,
    select: Union[Select, Sequence[Index], None] = None,
    into: None = None,
    *,
    casting: str = "same_kind",
    budget: Optional[int] = None,
) -> Optional[np.ndarray]: ...


@overload
def redistribute(
    a: Any,
    src: Union[Layout, Spread],
    dst: Union[Layout, Spread],
    comm: Intracomm,
    src_ranks: Optional[Sequence[int]] = None,
    dst_ranks: Optional[Sequence[int]] = None,
    select: Union[Select, Sequence[Index], None] = None,
    *,
    into: Into,
    casting: str = "same_kind",
    budget: Optional[int] = None,
) -> Into: ...


def redistribute(
    a: Any,
    src: Union[Layout, Spread],
    dst: Union[Layout, Spread],
    comm: Intracomm,
    src_ranks: Optional[Sequence[int]] = None,
    dst_ranks: Optional[Sequence[int]] = None,
    select: Union[Select, Sequence[Index], None] = None,
    into: Any = None,
    *,
    casting: str = "same_kind",
    budget: Optional[int] = None,
) -> Any:
    """Moves an array from layout `src` to layout `dst`; collective over `comm`. `a`: this rank's part in `src`. Returns
    its part in `dst`. Either is None if the rank has no part.

    `src_ranks`, `dst_ranks`: the ranks of `comm` that are the processes of each layout; by default the first ones.
    `select`: the elements to move and their places: `Select`, or indices and slices of the source alone.
    `into`: the array that receives this rank's part. It may have another dtype (`casting` as in NumPy) and may share
    memory with `a`. Places that receive no element keep their values; in a new array they are 0.
    `a`, `into`: arrays of NumPy, of xarray, of any library that exports DLPack (torch, JAX, CuPy), or buffers. A new
    array is of NumPy; if parts are DataArrays of xarray it is one too, with the coordinates of its own part.
    `budget`: bytes of packed elements that this rank has in memory at a time, besides the arrays; by default 16 MiB.

    If any rank cannot take part, all ranks raise the same error before anything is sent."""
    plan = Plan(src, dst, None, comm, src_ranks, dst_ranks, select, budget=budget, _part=a)
    problem: Optional[str] = None
    failed: Optional[BaseException] = None
    try:
        plan._check(*plan._arrays(a, into), casting)
    except BaseException as error:  # all ranks must raise it
        problem, failed = described(error), error
    problems = [(rank, text) for rank, text in enumerate(plan.comm.allgather(problem)) if text]
    if is_own(failed):
        raise failed
    if problems:
        raise PlanError(joined(problems))
    got = plan.run(a, into=into, casting=casting)
    if into is None and plan.labels is not None:
        from . import labels

        return labels.labelled(got, a, plan, comm)
    return got


class Plan:
    """A redistribution that all ranks of a communicator have agreed on, to be run many times. Making it is collective
    over `comm`. Its arguments are those of `redistribute`. `dtype` may be None on ranks that have no part of the
    source."""

    def __init__(
        self,
        src: Union[Layout, Spread],
        dst: Union[Layout, Spread],
        dtype: Any,
        comm: Intracomm,
        src_ranks: Optional[Sequence[int]] = None,
        dst_ranks: Optional[Sequence[int]] = None,
        select: Union[Select, Sequence[Index], None] = None,
        *,
        budget: Optional[int] = None,
        _part: Any = None,
    ) -> None:
        from mpi4py import MPI

        self.src, self.dst, self._mpi, self._private = src, dst, MPI, private(comm)
        self.comm = self._private.comm
        # Other ranks come here only after an interrupted run.
        self._private.settle()
        problem, labels = None, None
        failed: Optional[BaseException] = None
        # The same on all ranks. Only ranks with a part know the dtype and the labels.
        common: Optional[str] = None
        try:
            if _part is not None:
                dtype = arrays.taken(_part).dtype
            self._prepare(dtype, src_ranks, dst_ranks, select)
            self._budget = _core.BUDGET if budget is None else min(natural(budget, "budget"), MOST_BUDGET)
            if self._budget == 0:
                raise ValueError(f"budget is {budget}: it must be positive")
            if arrays.is_labelled(_part):
                from .labels import Labels

                labels = Labels.of(_part, select)
            layouts = f"{directory.summary(src)} to {directory.summary(dst)}"
            common = f"{layouts}, {(self._picks, self.src_ranks, self.dst_ranks)}"
        except BaseException as error:  # all ranks must raise it
            problem, failed = described(error), error
        told = self.comm.allgather((problem, common, None if problem else self._dtype, labels, _place()))
        if is_own(failed):
            raise failed
        self.dtype = self._agree([each[:4] for each in told])
        self.labels = next((labels for _, _, _, labels, _ in told if labels is not None), None)
        self._where = [place for *_, place in told]
        if self._core is None:
            self._core = self._found()
        self._sends, self._receives = self._messages(True), self._messages(False)
        own = self.comm.Get_rank()
        self._buffers = _core.Buffers(self._private.beside.core)
        self._private.beside.agree(self._sends.beside(own, self._where), self._receives.beside(own, self._where))
        self._straight_receives = [(at, rank) for at, (rank, _) in enumerate(self._receives)]
        self._last: Optional[LastRun] = None
        self._ready: dict[tuple, tuple[list, list]] = {}
        weakref.finalize(self, _free_all, self._ready)

    def _prepare(self, dtype, src_ranks, dst_ranks, select) -> None:
        directory.check("src", self.src)
        directory.check("dst", self.dst)
        self.src_ranks = _ranks("src_ranks", src_ranks, self.src, self.comm)
        self.dst_ranks = _ranks("dst_ranks", dst_ranks, self.dst, self.comm)
        rank = self.comm.Get_rank()
        self._source = self.src_ranks.index(rank) if rank in self.src_ranks else None
        self._target = self.dst_ranks.index(rank) if rank in self.dst_ranks else None
        self._dtype = None if dtype is None else np.dtype(dtype)
        if self._dtype is not None:
            arrays.check_dtype(self._dtype)
        self._picks, self._core = None, None
        if isinstance(self.src, Layout) and isinstance(self.dst, Layout):
            self._picks = picks(select, self.src.shape, self.dst.shape)
            self._core = _core.Transfer(self.src._core, self.dst._core, *self._picks)
        elif select is not None:
            raise ValueError("select: both must be a Layout to select from")
        elif tuple(self.src.shape) != tuple(self.dst.shape):
            raise ValueError(f"src has shape {tuple(self.src.shape)}, dst has {tuple(self.dst.shape)}")
        else:
            sides = directory.Side(self.src, self._source, True), directory.Side(self.dst, self._target, False)
            self._sides = sides

    def _found(self) -> directory.Directory:
        """Finds the messages if a layout is not known to all ranks; collective."""
        found = directory.Directory(*self._sides, (self.src_ranks, self.dst_ranks), self.comm)
        problems = [problem for problem in self.comm.allgather(found.problem) if problem]
        if problems:
            raise PlanError(problems[0])
        return found

    def _messages(self, sends: bool) -> MessageList:
        layout, process = (self.src, self._source) if sends else (self.dst, self._target)
        shape: tuple[int, ...] = ()
        if process is not None:
            is_known = isinstance(layout, Layout)
            shape = layout.local_shape(process) if is_known else self._sides[not sends].local_shape
        ranks, library = self.dst_ranks if sends else self.src_ranks, self._mpi.Get_library_version()
        return MessageList(self._core, sends, process, ranks, shape, self.dtype.itemsize, library)

    def _agree(self, told) -> np.dtype:
        problems = [(rank, problem) for rank, (problem, *_) in enumerate(told) if problem]
        if problems:
            raise PlanError(joined(problems))
        for rank, (_, common, *_) in enumerate(told):
            if common != told[0][1]:
                raise PlanError(f"ranks want different redistributions: rank 0 {told[0][1]}; rank {rank} {common}")
        dtypes = [(rank, dtype) for rank, (_, _, dtype, _) in enumerate(told) if dtype is not None]
        if not dtypes:
            raise PlanError("no rank gives a dtype: those with a part of the source must")
        first, wanted = dtypes[0]
        for rank, dtype in dtypes:
            if dtype != wanted:
                raise PlanError(f"parts have different dtypes: rank {first} {wanted}, rank {rank} {dtype}")
        labelled = [(rank, labels.summary()) for rank, (*_, labels) in enumerate(told) if labels is not None]
        for rank, (_, _, dtype, labels) in enumerate(told):
            if labelled and dtype is not None and (labels is None or labels.summary() != labelled[0][1]):
                first, text = labelled[0]
                other = "no DataArray" if labels is None else labels.summary()
                raise PlanError(f"parts have different labels: rank {first} {text}; rank {rank} {other}")
        return wanted

    def explain(self) -> dict:
        """Describes this rank's part of a run, for display or logs.

        `sends`, `receives`: bytes to and from each other rank. `keeps`: bytes that stay on this rank. `steps`: number
        of steps in which all ranks send, if no rank sends or receives two messages at a time. `degree`: the number of
        messages that this rank sends or that it receives, whichever is greater; no schedule has fewer steps. `bound`:
        the bytes that it sends or that it receives, whichever is greater; no run takes less time than these bytes need
        on the rank's own connection. `routes`: bytes that it sends inside its node, to other nodes of its site, and to
        other sites."""
        size, own = self.dtype.itemsize, self.comm.Get_rank()
        out = {rank: count * size for rank, count in self._sends}
        come = {rank: count * size for rank, count in self._receives}
        keeps, _ = out.pop(own, 0), come.pop(own, 0)
        routes = dict.fromkeys(("node", "site", "sites"), 0)
        (site, node), where = self._where[own], self._where
        for peer, length in out.items():
            routes["sites" if where[peer][0] != site else "site" if where[peer][1] != node else "node"] += length
        return {
            "sends": out,
            "receives": come,
            "keeps": keeps,
            "steps": self._sends.steps if self._sends.peers else 0,
            "degree": max(len(out), len(come)),
            "bound": max(sum(out.values()), sum(come.values())),
            "routes": routes,
        }

    def problem_with(self, a: Any, into: Any, casting: str = "same_kind") -> Optional[str]:
        """The reason why this rank cannot take part with these arrays; None: it can."""
        problem = self._problem(a, into, casting)
        return None if problem is None else joined([(self.comm.Get_rank(), problem)])

    def _problem(self, a: Any, into: Any, casting: str) -> Optional[str]:
        try:
            self._check(*self._arrays(a, into), casting)
        except Exception as error:  # all ranks must raise it
            return described(error)
        return None

    @overload
    def run(self, a: Any, *, into: None = None, casting: str = "same_kind") -> Optional[np.ndarray]: ...

    @overload
    def run(self, a: Any, *, into: Into, casting: str = "same_kind") -> Into: ...

    def run(self, a: Any, *, into: Any = None, casting: str = "same_kind") -> Any:
        """Carries out the redistribution; collective. `a`, `into`: this rank's parts, which may differ from run to run.

        A rank whose arrays do not fit raises PlanError. So does each rank that should have received elements from it,
        and the `into` of that rank lacks them. Ranks that only send to it raise the same error in this run, or in a
        later one of any plan of this communicator; the text of a later error contains "(in an earlier run)".
        To find problems on all ranks before anything is sent, use `problem_with` and a collective of your own."""
        last = self._last
        quiet = self.comm and not self._private.opened and not in_pieces
        known = last is not None and quiet and last.is_of(a, into, casting)
        if last is None or not known or self._ready.get(last.key) is not last.ready:
            return self._start(a, into, casting, self._budget).wait()
        # A fast path for the arrays of the last run: for a small array, all other checks would take longer than the
        # transfer.
        requests, statuses = last.ready
        calls = self._mpi.Prequest.Startall, self._mpi.Request.Waitall
        number = _core.again(self._private.runs, *calls, requests, statuses)
        absent = [rank for at, rank in self._straight_receives if statuses[at].count == 0]
        if absent or self._private.is_due():
            error = self._problem_in(number, absent)
            self._private.forget(number)
            if error is not None:
                raise error
        return into

    @overload
    def start(self, a: Any, *, into: None = None, casting: str = "same_kind") -> Running[Optional[np.ndarray]]: ...

    @overload
    def start(self, a: Any, *, into: Into, casting: str = "same_kind") -> Running[Into]: ...

    def start(self, a: Any, *, into: Any = None, casting: str = "same_kind") -> Running[Any]:
        """Starts a run and returns it; collective. Until the run is over, `a` must not be changed and `into` must not
        be used. Several runs may be in flight, of this plan and of others, and all ranks must start them in the same
        order. Packs all elements at once, regardless of the budget, so that MPI can send them even while this rank
        waits for something else. The plan keeps the memory for its next runs."""
        return self._start(a, into, casting, None).given()

    def _start(self, a: Any, into: Any, casting: str, budget: Optional[int]) -> Running[Any]:
        if not self.comm:
            raise RuntimeError("the communicator of this plan has been freed: make a plan for another communicator")
        number = self._private.runs[0] + 1
        try:
            self._private.settle()
            running = self._prepared(number, a, into, casting, budget)
            running.begin()
            return running
        except BaseException as error:  # the peers must hear of it
            return self._excused(number, error, budget)

    def _prepared(self, number: int, a: Any, into: Any, casting: str, budget: Optional[int]) -> Running[Any]:
        """The run, before its first message begins. It holds all memory of its messages."""
        MPI, ready, packed, arriving = self._mpi, None, [], []
        # For each receiving request: its index among all requests, and the sending rank.
        receives: Sequence[tuple[int, int]] = self._straight_receives
        moving: Any = None
        given, result = (a, into), into
        a, into = self._arrays(a, into)
        key = (key_of(a, self._source), key_of(into, self._target), casting)
        # Arrays of an earlier run need neither checks nor new requests.
        ready = self._ready.pop(key, None)
        if ready is None:
            a, into = self._check(a, into, casting)
            result = into if result is None else result
            ready = self._keep(key, a, into)
        if ready is None:
            shared = a is not None and into is not None and np.may_share_memory(a, into)
            begins, receives = self._begins(a, into, shared, packed, arriving)
            moving = self._moving(a, into, shared, budget)
            requests, statuses = [], [MPI.Status() for _ in begins]
        else:
            begins, requests, statuses = [partial(MPI.Prequest.Startall, ready[0])], list(ready[0]), ready[1]

        # Emptied when the requests are kept, so that a repeated finish does not keep those of a later run once more.
        unkept = [] if ready is None else [ready]

        def finish() -> tuple[Any, Optional[BaseException]]:
            # The messages of a rank that cannot take part are empty.
            absent = {rank for at, rank in receives if statuses[at].count == 0}
            if moving is not None:
                absent.update(moving.absent)
            if unkept:
                self._keep_ready(key, unkept)
                self._last = LastRun.of(given, casting, key, ready)
            failure = self._unpack(arriving, into, absent)
            if moving is not None and moving.failure is not None:
                failure = moving.failure
            if failure is None and (absent or self._private.is_due()):
                failure = self._problem_in(number, absent)
            return result, failure

        held = (a, into, packed, arriving)
        return Running(self._private, begins, requests, statuses, moving, finish, held)

    def _excused(self, number: int, error: BaseException, budget: Optional[int]) -> Running[Any]:
        """The run of a rank that cannot take part because of this error: its messages are empty. If the error has come
        between messages that begin, begins the others and raises it. If earlier runs are not settled, the messages
        begin after theirs."""
        if self._private.runs[0] == number:
            for run in self._private.opened:
                run.begin()
            raise error
        problem, packed = described(error), []
        begins = self._excuse(number, problem, packed)
        statuses = [self._mpi.Status() for _ in begins]
        moving = self._moving(None, None, False, budget)

        def finish() -> tuple[Any, Optional[BaseException]]:
            if is_own(error):
                return None, error
            own = self._problem_in(number, (), [(self.comm.Get_rank(), problem)])
            if own is not None:
                own.__cause__ = error
            return None, own

        running: Running[Any] = Running(self._private, begins, [], statuses, moving, finish, packed)
        if self._private.opened[0] is not running:
            raise error
        running.begin()
        return running

    def _problem_in(
        self, number: int, absent: Iterable[int], own: Sequence[tuple[int, str]] = ()
    ) -> Optional[PlanError]:
        """The error of this run here: the reasons of the ranks in `absent`, of others that have told theirs, and this
        rank's `own`. None: all have taken part, as far as is known here."""
        reasons = [*self._private.reasons(number, absent), *own]
        if not reasons:
            return None
        self._private.has_raised(number)
        return PlanError(joined(reasons))

    def _arrays(self, a, into) -> tuple[Optional[np.ndarray], Optional[np.ndarray]]:
        return None if a is None else arrays.taken(a), None if into is None else arrays.target(into)

    def _keep(self, key, a, into) -> Optional[tuple[list, list]]:
        """Persistent requests for these arrays, and their statuses. None if a new array is made for each run, or if
        elements have to be packed. Only the addresses of the arrays matter: other arrays at the same addresses may use
        the requests too."""
        from mpi4py import MPI

        aliased = a is not None and into is not None and np.may_share_memory(a, into)
        if None in key[:2] or aliased or (into is not None and into.dtype != self.dtype):
            return None
        if not self._sends.all_straight or not self._receives.all_straight:
            return None
        receives, sends = self._receives.places(into), self._sends.places(a)
        if None in receives or None in sends:
            return None
        ready = []
        for (rank, _), place in zip(self._receives, receives):
            ready.append(self.comm.Recv_init(place.at(_core.address_of(into)), rank, TAG))
        for at in self._sends.order:
            ready.append(self.comm.Send_init(sends[at].at(_core.address_of(a)), self._sends.peers[at][0], TAG))
        return ready, [MPI.Status() for _ in ready]

    def _keep_ready(self, key, unkept: list) -> None:
        """Takes requests off `unkept`, and keeps them for the next run with these arrays. Frees those of the least
        recently used pair of arrays if there are too many. If an exception comes between, requests stay in memory."""
        free(self._ready.pop(key, ([],))[0])
        if len(self._ready) >= MOST_READY:
            free(self._ready.pop(next(iter(self._ready)))[0])
        self._ready[key] = unkept.pop()

    def _check(self, a, into, casting):
        # An unknown rule is an error without `into` too.
        np.can_cast(self.dtype, self.dtype, casting)
        if self._source is None:
            if a is not None:
                raise ValueError("a is an array, but this rank is no process of src: it must be None")
        else:
            shape = self._sends.shape
            if a is None and 0 not in shape:
                raise ValueError(f"a is None, but this rank is process {self._source} of src: its part is {shape}")
            a = np.empty(shape, self.dtype) if a is None else a
            expect("a", a, shape)
            if a.dtype != self.dtype:
                raise TypeError(f"a has dtype {a.dtype}: the plan is for {self.dtype}")
        if self._target is None:
            if into is not None:
                raise ValueError("into is an array, but this rank is no process of dst: it must be None")
            return a, into
        shape = self._receives.shape
        if into is None:
            return a, np.zeros(shape, self.dtype, getattr(self.dst, "order", "C"))
        expect("into", into, shape)
        if not np.can_cast(self.dtype, into.dtype, casting):
            raise TypeError(f"into has dtype {into.dtype}: {self.dtype} does not cast to it ({casting})")
        return a, into

    def _begins(self, a, into, shared: bool, packed: list, arriving: list) -> tuple[list, list]:
        """Prepares the messages that both ends can leave to MPI, which moves the elements from array to array by
        datatypes and may then copy only once. If this end cannot, as with an array of many gaps, it packs the message
        itself. Returns the calls that begin them, and for each receiving one its index and the sending rank."""
        MPI, begins = self._mpi, []
        come: list = []
        if into is not None and any(self._receives.straight):
            as_is = not shared and into.dtype == self.dtype
            places = self._receives.places(into) if as_is else [None] * len(self._receives.peers)
            for at, ((peer, count), place) in enumerate(zip(self._receives, places)):
                if not self._receives.straight[at]:
                    continue
                come.append((len(begins), peer))
                if place is not None:
                    begins.append(partial(self.comm.Irecv, place.at(_core.address_of(into)), peer, TAG))
                    continue
                buffer = np.empty(count * self.dtype.itemsize, np.uint8)
                arriving.append((at, buffer))
                begins.append(partial(self.comm.Irecv, [buffer, MPI.BYTE], peer, TAG))
        if a is not None and any(self._sends.straight):
            places = [None] * len(self._sends.peers) if shared else self._sends.places(a)
            for at in self._sends.order:
                if not self._sends.straight[at]:
                    continue
                peer, place = self._sends.peers[at][0], places[at]
                if place is not None:
                    begins.append(partial(self.comm.Isend, place.at(_core.address_of(a)), peer, TAG))
                    continue
                packing = self._sends.packings(a)[at]
                buffer = np.empty(packing.bytes, np.uint8)
                packing.pack(_core.address_of(a), _core.address_of(buffer))
                packed.append(buffer)
                begins.append(partial(self.comm.Isend, [buffer, MPI.BYTE], peer, TAG))
        return begins, come

    def _moving(self, a, into, shared: bool, budget: Optional[int]) -> Any:
        """The messages that are packed at both ends, in pieces. Without arrays, sent messages are empty and received
        elements are discarded."""
        if self._sends.all_straight and self._receives.all_straight:
            return None
        own, converts = self.comm.Get_rank(), into is not None and into.dtype != self.dtype
        sends, receives = self._sends.flows(a), self._receives.flows(into)
        kept = None
        if not shared and not converts:
            mine = [[at for at, (rank, _) in enumerate(flows) if rank == own] for flows in (sends, receives)]
            if all(mine):
                kept = tuple(flows.pop(at)[1] for flows, (at,) in zip((sends, receives), mine))
        size = self.dtype.itemsize
        elements = (size, size if into is None else into.dtype.itemsize)
        arrays = (None if a is None else _core.address_of(a), None if into is None else _core.address_of(into))
        pieces = _core.Pieces(arrays, sends, receives, kept, elements, converts, shared, budget, self._buffers)

        def convert(at: int, length: int) -> tuple[np.ndarray, int]:
            piece = np.frombuffer(self._mpi.buffer.fromaddress(at, length), self.dtype)
            converted = np.ascontiguousarray(piece.astype(into.dtype, casting="unsafe"))
            return converted, _core.address_of(converted)

        return _core.Moving(pieces, self.comm, self._mpi, TAG, convert if converts else None)

    def _excuse(self, number: int, problem: str, packed: list) -> list:
        """Begins the messages of a rank that cannot take part: sends empty ones, receives and discards those of other
        ranks, and notifies its peers of the reason. Returns the calls that begin them."""
        from mpi4py import MPI

        begins: list[Callable[[], Any]] = []
        size, own = self.dtype.itemsize, self.comm.Get_rank()
        for (peer, count), straight in zip(self._receives, self._receives.straight):
            if straight:
                buffer = np.empty(count * size, np.uint8)
                packed.append(buffer)
                begins.append(partial(self.comm.Irecv, [buffer, MPI.BYTE], peer, TAG))
        for at in self._sends.order:
            if self._sends.straight[at]:
                begins.append(partial(self.comm.Isend, [None, 0, MPI.BYTE], self._sends.peers[at][0], TAG))
        peers = {rank for messages in (self._receives, self._sends) for rank, _ in messages}
        begins.append(partial(self._private.refuse, number, peers - {own}, problem))
        return begins

    def _unpack(self, arriving: list, into, absent: set[int]) -> Optional[Exception]:
        """Unpacks messages that arrived whole. Returns the first error of a conversion."""
        failure = None
        for at, buffer in arriving:
            if self._receives.peers[at][0] in absent:
                continue
            if into.dtype != self.dtype:
                try:
                    buffer = np.ascontiguousarray(buffer.view(self.dtype).astype(into.dtype, casting="unsafe"))
                except Exception as error:  # the run's own, which each wait raises
                    failure = failure or error
                    continue
            self._receives.packings(into)[at].unpack(_core.address_of(buffer), _core.address_of(into))
        return failure


plan = Plan


def _place() -> tuple[str, str]:
    """This process's site and node, as set by `landbridge run`; otherwise an empty site and the host name."""
    return os.environ.get("LANDBRIDGE_SITE_NAME", ""), os.environ.get("LANDBRIDGE_NODE_NAME") or socket.gethostname()


def _free_all(kept: dict) -> None:
    for requests, _ in kept.values():
        free(requests)


def expect(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    # Some libraries make every axis of an empty part 0 long.
    if array.shape != shape and not (0 in shape and array.shape == (0,) * len(shape)):
        raise ValueError(f"{name} has shape {array.shape}: this rank's part has {shape}")


def _ranks(name: str, ranks: Optional[Sequence[int]], layout: Union[Layout, Spread], comm: Intracomm) -> list[int]:
    size = comm.Get_size()
    if ranks is None:
        if layout.size > size:
            raise ValueError(
                f"{name}: the layout is for {layout.size} processes, but the communicator has {size} ranks"
            )
        return list(range(layout.size))
    if not isinstance(ranks, Iterable):
        raise TypeError(f"{name} is {ranks!r}: it must list the ranks")
    ranks = [whole(rank, f"{name}[{at}]") for at, rank in enumerate(ranks)]
    if len(ranks) != layout.size:
        raise ValueError(f"{name} names {len(ranks)} ranks, but the layout is for {layout.size} processes")
    for at, rank in enumerate(ranks):
        if not 0 <= rank < size:
            raise ValueError(f"{name}[{at}] is {rank}, but the communicator has {size} ranks")
        if rank in ranks[:at]:
            raise ValueError(f"{name}[{at}] is {rank}, which is named twice")
    return ranks
