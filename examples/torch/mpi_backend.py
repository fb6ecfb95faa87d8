"""A backend of torch.distributed for tensors in main memory, over mpi4py: Landbridge carries the traffic of any MPI.

PyTorch's own `mpi` backend exists only in builds from source, and `gloo` needs every process to reach every other one.
This backend is registered as `mpi4py` when the module is imported. It needs no store that all processes reach:

    import mpi_backend
    mpi_backend.init_process_group()

Collectives of a group run one after the other in a thread of the group, as those of PyTorch's `mpi` backend do, so
`async_op=True` and the overlap of DistributedDataParallel work. MPI must allow calls from several threads.

Sums of float16 and bfloat16, which MPI does not know, are computed in float32 and rounded once.
"""

import queue
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch._C._distributed_c10d import _create_work_from_future

NAME = "mpi4py"
# Types that MPI computes with, by torch's type.
COMPUTED = {
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.complex64,
    torch.complex128,
}
# Types that are computed in float32.
HALF = {torch.float16, torch.bfloat16}
OPERATIONS = {
    "SUM": MPI.SUM,
    "AVG": MPI.SUM,
    "PRODUCT": MPI.PROD,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}
# How long a wait for a message naps at most, in seconds.
NAP = 1e-3


def init_process_group(communicator=MPI.COMM_WORLD):
    """`torch.distributed.init_process_group` for the ranks of a communicator."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError("the MPI library does not allow calls from several threads (MPI_THREAD_MULTIPLE)")
    # Nothing is exchanged by the store: ranks know each other from MPI.
    dist.init_process_group(NAME, rank=communicator.rank, world_size=communicator.size, store=dist.HashStore())


class Group(dist.ProcessGroup):
    """The collectives and messages of one group of ranks. Ranks count within the group."""

    def __init__(self, communicator):
        super().__init__(communicator.rank, communicator.size)
        self._mpi = communicator
        # Messages may pass collectives, so they have a communicator of their own.
        self._messages = communicator.Dup()
        self._tasks = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._tasks,), name="mpi_backend", daemon=True)
        self._thread.start()

    def getBackendName(self):
        return NAME

    def shutdown(self, *_):
        """Ends the thread after the tasks that were started. `destroy_process_group` calls it."""
        self._tasks.put(None)
        self._thread.join()

    def broadcast(self, tensors, opts=None):
        opts = opts or dist.BroadcastOptions()
        [tensor] = tensors
        return self._start(tensors, lambda: self._broadcast(tensor, opts.rootRank))

    def allreduce(self, tensors, opts=None):
        operation = _operation(opts or dist.AllreduceOptions(), tensors)
        return self._start(tensors, lambda: [self._allreduce(tensor, operation) for tensor in tensors])

    def allreduce_coalesced(self, tensors, opts=None):
        return self.allreduce(tensors, opts)

    def reduce(self, tensors, opts=None):
        opts = opts or dist.ReduceOptions()
        operation, [tensor] = _operation(opts, tensors), tensors
        return self._start(tensors, lambda: self._reduce(tensor, operation, opts.rootRank))

    def allgather(self, outputs, inputs, opts=None):
        [received], [sent] = outputs, inputs
        return self._start(outputs, lambda: self._allgather(received, sent))

    def _allgather_base(self, output, given, opts=None):
        parts = list(output.reshape(self.size(), *given.shape).unbind())
        return self._start([output], lambda: self._allgather(parts, given, into=output))

    def gather(self, outputs, inputs, opts=None):
        opts = opts or dist.GatherOptions()
        [sent] = inputs
        return self._start(outputs, lambda: self._gather(outputs, sent, opts.rootRank))

    def scatter(self, outputs, inputs, opts=None):
        opts = opts or dist.ScatterOptions()
        [received] = outputs
        return self._start(outputs, lambda: self._scatter(received, inputs, opts.rootRank))

    def reduce_scatter(self, outputs, inputs, opts=None):
        operation = _operation(opts or dist.ReduceScatterOptions(), outputs)
        [received], [sent] = outputs, inputs
        return self._start(outputs, lambda: self._reduce_scatter(received, torch.stack(sent), operation))

    def _reduce_scatter_base(self, output, given, opts=None):
        operation = _operation(opts or dist.ReduceScatterOptions(), [output])
        return self._start([output], lambda: self._reduce_scatter(output, given, operation))

    def alltoall(self, outputs, inputs, opts=None):
        return self._start(outputs, lambda: self._alltoall(outputs, inputs))

    def alltoall_base(self, output, given, output_sizes, input_sizes, opts=None):
        def parts(tensor, sizes):
            return list(tensor.split(list(sizes)) if sizes else tensor.chunk(self.size()))

        return self._start([output], lambda: self._alltoall(parts(output, output_sizes), parts(given, input_sizes)))

    def barrier(self, opts=None):
        return self._start([], self._mpi.Barrier)

    def send(self, tensors, destination, tag):
        [tensor] = tensors
        data = _bytes(tensor)
        return Message(self._messages.Isend([data, MPI.BYTE], destination, tag), data)

    def recv(self, tensors, source, tag):
        [tensor] = tensors
        data = _bytes(torch.empty_like(tensor, memory_format=torch.contiguous_format))
        return Message(self._messages.Irecv([data, MPI.BYTE], source, tag), data, tensor)

    def recv_anysource(self, tensors, tag):
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def _start(self, result, task):
        """Has the group's thread do a task, and gives the Work that waits for it."""
        future = torch.futures.Future()
        self._tasks.put((future, result, task))
        return _create_work_from_future(future)

    def _broadcast(self, tensor, root):
        data = _bytes(tensor)
        self._mpi.Bcast([data, MPI.BYTE], root)
        _put(tensor, data)

    def _allreduce(self, tensor, operation):
        data = _computable(tensor)
        self._mpi.Allreduce(MPI.IN_PLACE, data, OPERATIONS[operation])
        self._finish(tensor, data, operation)

    def _reduce(self, tensor, operation, root):
        data = _computable(tensor)
        at_root = self.rank() == root
        self._mpi.Reduce(MPI.IN_PLACE if at_root else data, data if at_root else None, OPERATIONS[operation], root)
        if at_root:
            self._finish(tensor, data, operation)

    def _finish(self, tensor, data, operation):
        result = torch.from_numpy(data)
        tensor.copy_((result / self.size() if operation == "AVG" else result).reshape(tensor.shape))

    def _allgather(self, received, sent, into=None):
        data, counts = _bytes(sent), [_size(tensor) for tensor in received]
        together = torch.empty(sum(counts), dtype=torch.uint8).numpy()
        self._mpi.Allgatherv([data, MPI.BYTE], [together, counts, None, MPI.BYTE])
        if into is not None:
            _put(into, together)
        else:
            _put_all(received, together)

    def _gather(self, outputs, sent, root):
        received = outputs[0] if self.rank() == root else []
        counts = [_size(tensor) for tensor in received]
        together = torch.empty(sum(counts), dtype=torch.uint8).numpy()
        into = [together, counts, None, MPI.BYTE] if received else None
        self._mpi.Gatherv([_bytes(sent), MPI.BYTE], into, root)
        _put_all(received, together)

    def _scatter(self, received, inputs, root):
        parts = [_bytes(tensor) for tensor in inputs[0]] if self.rank() == root else []
        together = torch.cat([torch.from_numpy(part) for part in parts]).numpy() if parts else None
        given = [together, [part.size for part in parts], None, MPI.BYTE] if parts else None
        data = torch.empty(_size(received), dtype=torch.uint8).numpy()
        self._mpi.Scatterv(given, [data, MPI.BYTE], root)
        _put(received, data)

    def _reduce_scatter(self, received, sent, operation):
        data = _computable(sent)
        part = torch.empty(received.numel(), dtype=torch.from_numpy(data).dtype).numpy()
        self._mpi.Reduce_scatter_block(data, part, OPERATIONS[operation])
        self._finish(received, part, operation)

    def _alltoall(self, outputs, inputs):
        parts, counts = [_bytes(tensor) for tensor in inputs], [_size(tensor) for tensor in outputs]
        together = torch.empty(sum(counts), dtype=torch.uint8).numpy()
        given = torch.cat([torch.from_numpy(part) for part in parts]).numpy()
        sizes = [part.size for part in parts]
        self._mpi.Alltoallv([given, sizes, None, MPI.BYTE], [together, counts, None, MPI.BYTE])
        _put_all(outputs, together)


class Message(dist._Work):
    """A message in flight."""

    def __init__(self, request, data, into=None):
        super().__init__()
        self._request, self._data, self._into = request, data, into
        self._status, self._done = MPI.Status(), False

    def is_completed(self):
        if not self._done and self._request.Test(self._status):
            self._done = True
            if self._into is not None:
                _put(self._into, self._data)
        return self._done

    def is_success(self):
        return self.is_completed()

    def wait(self, timeout=timedelta(0)):
        """Waits until the message has arrived, or may be changed by its sender; `timeout` 0: forever."""
        limit = time.monotonic() + timeout.total_seconds() if timeout else None
        nap = NAP / 64
        while not self.is_completed():
            if limit is not None and time.monotonic() > limit:
                raise RuntimeError(f"no message within {timeout.total_seconds()} s")
            time.sleep(nap)
            nap = min(2 * nap, NAP)
        return True

    def source_rank(self):
        return self._status.Get_source()

    def _source_rank(self):
        return self.source_rank()


def _work(tasks):
    while (entry := tasks.get()) is not None:
        future, result, task = entry
        try:
            task()
        except Exception as error:  # the caller that waits gets it.
            future.set_exception(error)
        else:
            future.set_result(result)


def _operation(opts, tensors):
    """The name of a reduction that these tensors can have."""
    name = opts.reduceOp.op.name if hasattr(opts.reduceOp, "op") else str(opts.reduceOp).rpartition(".")[2]
    if name not in OPERATIONS:
        raise ValueError(f"reduction {name}: the {NAME} backend has {', '.join(OPERATIONS)}")
    for tensor in tensors:
        if tensor.dtype not in COMPUTED | HALF:
            raise TypeError(f"{tensor.dtype}: MPI has no reduction for it; convert the tensor to another type")
        if name == "AVG" and not (tensor.is_floating_point() or tensor.is_complex()):
            raise TypeError(f"{tensor.dtype}: the average of integers is none; reduce with SUM and divide")
    return name


def _host(tensor):
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device}: the {NAME} backend takes tensors in main memory")
    return tensor.detach().contiguous()


def _bytes(tensor):
    """The tensor's bytes as a flat numpy array: its own memory if that is contiguous."""
    return _host(tensor).reshape(-1).view(torch.uint8).numpy()


def _size(tensor):
    return tensor.numel() * tensor.element_size()


def _computable(tensor):
    """A flat numpy copy of the tensor in a type that MPI computes with."""
    flat = _host(tensor).reshape(-1)
    return (flat.float() if tensor.dtype in HALF else flat.clone()).numpy()


def _put(tensor, data):
    """Fills a tensor with these bytes, unless they are its own memory."""
    with torch.no_grad():
        found = torch.from_numpy(data).view(tensor.dtype).reshape(tensor.shape)
        if found.data_ptr() != tensor.data_ptr():
            tensor.copy_(found)


def _put_all(tensors, together):
    begin = 0
    for tensor in tensors:
        end = begin + _size(tensor)
        _put(tensor, together[begin:end].copy())
        begin = end


def _create(options, _):
    """Called by torch in each rank of a new group."""
    ranks = list(options.global_ranks_in_group)
    world = MPI.COMM_WORLD
    if not ranks or ranks == list(range(world.size)):
        return Group(world.Dup())
    # Only the members are here. The tag keeps groups apart that are made at the same time.
    tag = hash(tuple(ranks)) % 32767
    return Group(world.Create_group(world.group.Incl(ranks), tag))


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
