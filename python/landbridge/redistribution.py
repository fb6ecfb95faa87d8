"""Arrays from one layout to another, inside one MPI job.

>>> import landbridge as lb
>>> source = lb.Layout((4096, 4096), [lb.Block(2), lb.Block(2)])
>>> target = lb.Layout((4096, 4096), [lb.Block(4), lb.Whole()])
>>> b = lb.redistribute(a, source, target, comm)        # a: this rank's part, or None where it has none
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from . import _core
from .layout import Layout

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Plan", "PlanError", "Select", "plan", "redistribute"]

# Longer messages are sent in parts: not every MPI library counts more bytes in one.
PART = 1 << 30
TAG = 7
# With more runs along an axis, a datatype takes longer than packing.
MOST_RUNS = 4096
# Shorter runs are packed faster here than by most MPI libraries, in bytes.
SHORT_RUN = 1024
# Pairs of arrays for which a plan keeps requests.
MOST_READY = 4
# Of the attribute under which a communicator keeps its duplicate.
_key: Optional[int] = None

Index = Union[int, slice]


@dataclass(frozen=True)
class Select:
    """Which elements of the source go to which of the target: parts of both, of the same shape.

    `source`, `target`: for each axis an index or a slice, as NumPy takes them; `None`: all of the array.
    `axes`: for each axis of the target's part, which axis of the source's part it is: `(1, 0)` transposes.
    `shift`: for each axis of the source's part, which position comes first; those before it come last."""

    source: Optional[Sequence[Index]] = None
    target: Optional[Sequence[Index]] = None
    axes: Optional[Sequence[int]] = None
    shift: Optional[Sequence[int]] = None


def redistribute(
    a: Optional[np.ndarray],
    src: Layout,
    dst: Layout,
    comm: Intracomm,
    src_ranks: Optional[Sequence[int]] = None,
    dst_ranks: Optional[Sequence[int]] = None,
    select: Union[Select, Sequence[Index], None] = None,
    into: Optional[np.ndarray] = None,
    *,
    casting: str = "same_kind",
) -> Optional[np.ndarray]:
    """Collective over `comm`: `a`, this rank's part of an array in layout `src`, becomes its part in layout `dst`,
    which is returned. Either is None where a rank has no part.

    `src_ranks`, `dst_ranks`: the ranks of `comm` that are the processes of each layout; by default the first ones.
    `select`: which elements go where: `Select`, or indices and slices of the source alone.
    `into`: the array that receives this rank's part, which may be of another dtype (`casting` as in NumPy) and may
    share memory with `a`. What no element is selected for stays as it is; in a new array it is 0.

    All ranks raise the same error if any of them cannot take part, before anything is sent."""
    dtype = None if a is None else np.asarray(a).dtype
    return Plan(src, dst, dtype, comm, src_ranks, dst_ranks, select).run(a, into=into, casting=casting)


class PlanError(ValueError):
    """Some rank cannot take part: the same error on all ranks."""


class Plan:
    """A redistribution that all ranks of a communicator have agreed on, to be run many times. Making it is collective
    over `comm`; arguments as for `redistribute`. `dtype` may be None on ranks that have no part of the source."""

    def __init__(
        self,
        src: Layout,
        dst: Layout,
        dtype: Any,
        comm: Intracomm,
        src_ranks: Optional[Sequence[int]] = None,
        dst_ranks: Optional[Sequence[int]] = None,
        select: Union[Select, Sequence[Index], None] = None,
    ) -> None:
        self.src, self.dst, self.comm = src, dst, private(comm)
        problem = None
        try:
            self._prepare(dtype, src_ranks, dst_ranks, select)
        except (ValueError, TypeError, IndexError) as error:
            problem = f"{type(error).__name__}: {error}"
        # What all must have in common, and what only those with a part know.
        common = None if problem else repr((src, dst, self._picks, self.src_ranks, self.dst_ranks))
        told = self.comm.allgather((problem, common, None if problem else self._dtype))
        self.dtype = self._agree(told)
        # Peers and elements of this rank's messages, and the steps in which it sends: the same in every run.
        self._sends = [] if self._source is None else self._core.sends(self._source)
        steps, self._step_count = ([], 0) if self._source is None else self._core.steps(self._source)
        self._order = sorted(range(len(steps)), key=steps.__getitem__)
        self._receives = [] if self._target is None else self._core.receives(self._target)
        self._bound: dict[tuple, list] = {}
        self._ready: dict[tuple, list] = {}
        self._failed = np.zeros(1, np.int32)
        weakref.finalize(self, _free_all, self._ready)

    def _prepare(self, dtype, src_ranks, dst_ranks, select) -> None:
        for name, layout in (("src", self.src), ("dst", self.dst)):
            if not isinstance(layout, Layout):
                raise TypeError(f"{name} is {layout!r}: it must be a Layout")
        self.src_ranks = _ranks("src_ranks", src_ranks, self.src, self.comm)
        self.dst_ranks = _ranks("dst_ranks", dst_ranks, self.dst, self.comm)
        rank = self.comm.Get_rank()
        self._source = self.src_ranks.index(rank) if rank in self.src_ranks else None
        self._target = self.dst_ranks.index(rank) if rank in self.dst_ranks else None
        self._dtype = None if dtype is None else np.dtype(dtype)
        if self._dtype is not None and self._dtype.hasobject:
            raise TypeError(f"dtype {self._dtype}: Python objects cannot be sent")
        self._picks = picks(select, self.src.shape, self.dst.shape)
        self._core = _core.Transfer(self.src._core, self.dst._core, *self._picks)

    def _agree(self, told) -> np.dtype:
        problems = [f"rank {rank}: {problem}" for rank, (problem, _, _) in enumerate(told) if problem]
        if problems:
            raise PlanError("; ".join(problems))
        for rank, (_, common, _) in enumerate(told):
            if common != told[0][1]:
                raise PlanError(f"ranks want different redistributions: rank 0 {told[0][1]}; rank {rank} {common}")
        dtypes = [(rank, dtype) for rank, (_, _, dtype) in enumerate(told) if dtype is not None]
        if not dtypes:
            raise PlanError("no rank gives a dtype: those with a part of the source must")
        first, wanted = dtypes[0]
        for rank, dtype in dtypes:
            if dtype != wanted:
                raise PlanError(f"parts have different dtypes: rank {first} {wanted}, rank {rank} {dtype}")
        return wanted

    def explain(self) -> dict:
        """What this rank sends and receives: messages, bytes, the most and the steps; to be shown or logged."""
        size = self.dtype.itemsize
        own = self.comm.Get_rank()
        out = [(self.dst_ranks[peer], count * size) for peer, count in self._sends]
        come = [(self.src_ranks[peer], count * size) for peer, count in self._receives]
        return {
            "sends": {peer: length for peer, length in out if peer != own},
            "receives": {peer: length for peer, length in come if peer != own},
            "keeps": sum(length for peer, length in out if peer == own),
            "steps": self._step_count if self._sends else 0,
        }

    def run(
        self, a: Optional[np.ndarray], *, into: Optional[np.ndarray] = None, casting: str = "same_kind"
    ) -> Optional[np.ndarray]:
        """Carries it out; collective. `a`, `into`: this rank's parts, which may differ from run to run."""
        from mpi4py import MPI

        # Arrays that were here before need neither checks nor new requests.
        key = (_key_of(a, self._source), _key_of(into, self._target), casting)
        ready, problem = self._ready.get(key), None
        if ready is None:
            try:
                a, into = self._check(a, into, casting)
            except (ValueError, TypeError) as error:
                problem = f"rank {self.comm.Get_rank()}: {type(error).__name__}: {error}"
        self._failed[0] = problem is not None
        self.comm.Allreduce(MPI.IN_PLACE, self._failed)
        if self._failed[0]:
            raise PlanError("; ".join(each for each in self.comm.allgather(problem) if each))
        if ready is None:
            ready = self._keep(key, a, into)
        if ready is None:
            self._exchange(a, into)
        else:
            MPI.Prequest.Startall(ready)
            MPI.Request.Waitall(ready)
        return into

    def _keep(self, key, a, into) -> Optional[list]:
        """Requests to be started again and again, if these arrays may come again and nothing has to be packed for them;
        else None. Where arrays are is all that matters: others at the same place may use them too."""
        aliased = a is not None and into is not None and np.may_share_memory(a, into)
        if None in key[:2] or aliased or (into is not None and into.dtype != self.dtype):
            return None
        receives = [] if self._target is None else self._types(into, False)
        sends = [] if self._source is None else self._types(a, True)
        if None in receives or None in sends:
            return None
        ready = []
        for (peer, _), datatype in zip(self._receives, receives):
            ready.append(self.comm.Recv_init([_place(into), 1, datatype], self.src_ranks[peer], TAG))
        for at in self._order:
            place, peer = _place(a), self.dst_ranks[self._sends[at][0]]
            ready.append(self.comm.Send_init([place, 1, sends[at]], peer, TAG))
        if len(self._ready) >= MOST_READY:
            _free(self._ready.pop(next(iter(self._ready))))
        self._ready[key] = ready
        return ready

    def _check(self, a, into, casting):
        if self._source is None:
            if a is not None:
                raise ValueError("a is an array, but this rank is no process of src: it must be None")
        else:
            shape = self.src.local_shape(self._source)
            if a is None and 0 not in shape:
                raise ValueError(f"a is None, but this rank is process {self._source} of src: its part is {shape}")
            a = np.empty(shape, self.dtype) if a is None else np.asarray(a)
            expect("a", a, shape)
            if a.dtype != self.dtype:
                raise TypeError(f"a has dtype {a.dtype}: the plan is for {self.dtype}")
        if self._target is None:
            if into is not None:
                raise ValueError("into is an array, but this rank is no process of dst: it must be None")
            return a, into
        shape = self.dst.local_shape(self._target)
        if into is None:
            return a, np.zeros(shape, self.dtype, self.dst.order)
        if not isinstance(into, np.ndarray):
            raise TypeError(f"into is {type(into).__name__}: it must be a NumPy array")
        expect("into", into, shape)
        if not into.flags.writeable:
            raise ValueError("into is read-only")
        if not np.can_cast(self.dtype, into.dtype, casting):
            raise TypeError(f"into has dtype {into.dtype}: {self.dtype} does not cast to it ({casting})")
        return a, into

    def _exchange(self, a, into) -> None:
        """Lets MPI move elements from one array to the other where it can, by datatypes that say where they are: it may
        then do with one copy. Others are packed, or unpacked, here."""
        from mpi4py import MPI

        shared = a is not None and into is not None and np.may_share_memory(a, into)
        requests, arriving, packed = [], [], []
        if into is not None:
            straight = not shared and into.dtype == self.dtype
            types = self._types(into, False) if straight else [None] * len(self._receives)
            place = _place(into)
            for at, ((peer, count), datatype) in enumerate(zip(self._receives, types)):
                peer = self.src_ranks[peer]
                if datatype is not None:
                    requests.append(self.comm.Irecv([place, 1, datatype], peer, TAG))
                    continue
                buffer = np.empty(count * self.dtype.itemsize, np.uint8)
                arriving.append((at, buffer))
                requests += [self.comm.Irecv([part, MPI.BYTE], peer, TAG) for part in _parts(buffer)]
        if a is not None and self._source is not None:
            types = [None] * len(self._sends) if shared else self._types(a, True)
            place = _place(a)
            for at in self._order:
                peer = self.dst_ranks[self._sends[at][0]]
                if types[at] is not None:
                    requests.append(self.comm.Isend([place, 1, types[at]], peer, TAG))
                    continue
                packing = self._packings(a, True)[at]
                buffer = np.empty(packing.bytes, np.uint8)
                packing.pack(_address(a), _address(buffer))
                packed.append(buffer)
                requests += [self.comm.Isend([part, MPI.BYTE], peer, TAG) for part in _parts(buffer)]
        MPI.Request.Waitall(requests)
        for at, buffer in arriving:
            if into.dtype != self.dtype:
                buffer = np.ascontiguousarray(buffer.view(self.dtype).astype(into.dtype, casting="unsafe"))
            self._packings(into, False)[at].unpack(_address(buffer), _address(into))

    def _types(self, array, sends: bool) -> list:
        """For each message the datatype that says where its elements are in arrays of these strides. None: it is
        packed, because it has too many runs or is too long to be sent at once."""
        key = ("types", sends, array.strides)
        if key not in self._bound:
            process, messages = (self._source, self._sends) if sends else (self._target, self._receives)
            size, made = self.dtype.itemsize, []
            places = self._core.places(process, sends, list(array.strides), MOST_RUNS)
            for (_, count), levels in zip(messages, places):
                straight = 0 < count * size <= PART and levels is not None and _is_for_mpi(levels, count * size)
                made.append(_datatype(levels, size) if straight else None)
            self._bound[key] = made
            weakref.finalize(self, _free, [datatype for datatype in made if datatype is not None])
        return self._bound[key]

    def _packings(self, array, sends: bool) -> list:
        """How messages are copied, kept for arrays of the same strides."""
        key = (sends, array.strides, array.dtype.itemsize)
        if key not in self._bound:
            process = self._source if sends else self._target
            self._bound[key] = self._core.packings(process, sends, list(array.strides), array.dtype.itemsize)
        return self._bound[key]


plan = Plan


def _datatype(levels: list, size: int) -> Any:
    """The datatype of elements of `size` bytes at these runs, from the slowest axis to the fastest."""
    from mpi4py import MPI

    steps = [MPI.BYTE.Create_contiguous(size)]
    for runs in reversed(levels):
        inner = steps[-1]
        starts, counts, strides = (list(each) for each in zip(*runs))
        if len(steps) == 1 and all(stride == size for stride in strides):
            steps.append(inner.Create_hindexed(counts, starts))
        elif len(runs) == 1 and starts == [0]:
            steps.append(inner.Create_hvector(counts[0], 1, strides[0]))
        else:
            places = [start + at * stride for start, count, stride in runs for at in range(count)]
            steps.append(inner.Create_hindexed_block(1, places))
    datatype = steps.pop().Commit() if len(steps) > 1 else steps.pop().Dup().Commit()
    for step in steps:
        step.Free()
    return datatype


def _is_for_mpi(levels: list, length: int) -> bool:
    """Whether an MPI library copies elements at these runs at least as fast as we do."""
    from mpi4py import MPI

    if MPI.get_vendor()[0] == "Open MPI":
        return True
    runs = 1
    for level in levels:
        runs *= len(level) if level is levels[-1] else sum(count for _, count, _ in level)
    return length >= SHORT_RUN * runs


def _free(objects: list) -> None:
    """Frees datatypes or requests of MPI."""
    from mpi4py import MPI

    if not MPI.Is_finalized():
        for each in objects:
            each.Free()


def _free_all(lists: dict) -> None:
    for objects in lists.values():
        _free(objects)


def _key_of(array: Any, process: Optional[int]) -> Any:
    """Where an array's elements are, and of what type; None: it is not given, or not an array of NumPy's."""
    if array is None and process is None:
        return ()
    if type(array) is not np.ndarray:
        return None
    return array.ctypes.data, array.shape, array.strides, array.dtype, array.flags.writeable


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _place(array: np.ndarray) -> Any:
    """The memory in which datatypes find an array's elements: they count from its first one."""
    from mpi4py import MPI

    return MPI.buffer.fromaddress(_address(array), 1)


def private(comm: Intracomm) -> Intracomm:
    """A communicator of the same ranks for our messages alone, made once for each; collective then."""
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm):
        raise TypeError(f"comm is {comm!r}: it must be an intracommunicator of mpi4py")
    global _key
    if _key is None:
        # Freed with the communicator that it belongs to.
        _key = MPI.Comm.Create_keyval(delete_fn=lambda _comm, _key, private: private.Free())
    private = comm.Get_attr(_key)
    if private is None:
        private = comm.Dup()
        comm.Set_attr(_key, private)
    return private


def _parts(buffer: np.ndarray) -> list[np.ndarray]:
    return [buffer[at : at + PART] for at in range(0, max(buffer.size, 1), PART)]


def expect(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: this rank's part has {shape}")


def _ranks(name: str, ranks: Optional[Sequence[int]], layout: Layout, comm: Intracomm) -> list[int]:
    size = comm.Get_size()
    if ranks is None:
        if layout.size > size:
            raise ValueError(f"{name}: the layout is for {layout.size} processes, but the communicator has {size} ranks")
        return list(range(layout.size))
    ranks = [int(rank) for rank in ranks]
    if len(ranks) != layout.size:
        raise ValueError(f"{name} names {len(ranks)} ranks, but the layout is for {layout.size} processes")
    for at, rank in enumerate(ranks):
        if not 0 <= rank < size:
            raise ValueError(f"{name}[{at}] is {rank}, but the communicator has {size} ranks")
        if rank in ranks[:at]:
            raise ValueError(f"{name}[{at}] is {rank}, which is named twice")
    return ranks


def picks(select, src: Sequence[int], dst: Sequence[int]) -> tuple[list, list, list[int], list[int]]:
    """What is selected, as the compiled part takes it."""
    if not isinstance(select, Select):
        select = Select(source=select)
    source = _side("source", select.source, src)
    target = _side("target", select.target, dst)
    axes = sum(isinstance(pick, tuple) for pick in source)
    order = list(range(axes)) if select.axes is None else [int(axis) for axis in select.axes]
    if any(axis < 0 for axis in order):
        raise ValueError(f"axes are {order}: they cannot be negative")
    counts = [pick[2] for pick in source if isinstance(pick, tuple)]
    shift = [0] * axes if select.shift is None else list(select.shift)
    if len(shift) != axes:
        raise ValueError(f"shift names {len(shift)} axes, but {axes} are selected")
    return source, target, order, [int(by) % max(count, 1) for by, count in zip(shift, counts)]


def _side(name: str, picks: Optional[Sequence[Index]], shape: tuple[int, ...]) -> list:
    if picks is None:
        picks = [slice(None)] * len(shape)
    elif isinstance(picks, (int, slice)):
        picks = [picks]
    if len(picks) != len(shape):
        raise ValueError(f"{name}: {len(picks)} axes are selected from, but the array has {len(shape)}")
    found: list = []
    for axis, (pick, extent) in enumerate(zip(picks, shape)):
        if isinstance(pick, slice):
            start, stop, step = pick.indices(extent)
            count = len(range(start, stop, step))
            found.append((start if count else 0, step, count))
            continue
        at = int(pick)
        if not -extent <= at < extent:
            raise IndexError(f"{name}, axis {axis}: index {at} is selected, but the axis has {extent} indices")
        found.append(at % extent)
    return found
