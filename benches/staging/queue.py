"""A queue of jobs on nodes, in virtual time: first come, first served with EASY backfill, where each job needs input
on its nodes before it computes and leaves output behind. Nothing is measured here; equal arguments give equal
schedules.

Two policies. *Serial*: a job holds its nodes while its input arrives and its output leaves. *Overlapped*: input moves
to the nodes on which a queued job is expected to start, while others compute there; output leaves while the next job
runs; a job that computes on a node where something moves is slowed down. Where a job starts on other nodes than
expected, its input is repaired from node to node."""

import random
from dataclasses import dataclass, field

NOTHING = 1e-9


@dataclass(frozen=True)
class Job:
    """A job, with times in seconds. `stage_in` and `stage_out` are the times of one node's share at the full rate."""

    number: int
    arrival: float
    nodes: int
    compute: float
    estimate: float
    stage_in: float
    stage_out: float


@dataclass(frozen=True)
class Policy:
    overlapped: bool
    # Slowdown of a job while data moves on one of its nodes, and the part of the full rate that the move has there.
    harm: float = 0.0
    busy_rate: float = 1.0
    # Maximum number of queued jobs whose input may move; speed of repairs from node to node, relative to moves from the
    # source.
    ahead: int = 4
    repair: float = 4.0


SERIAL = Policy(overlapped=False)


@dataclass
class Task:
    """A move of a job's data to or from one node."""

    kind: str
    job: Job
    remaining: float


@dataclass
class Run:
    """A job that holds nodes, from its start to its end."""

    job: Job
    nodes: list
    start: float
    computes: float = None
    computed: float = None
    end: float = None
    # Time at which its output has arrived.
    done: float = None
    remaining: float = 0.0
    phase: str = "in"
    wrong: int = 0


@dataclass
class Outcome:
    runs: list
    # Seconds of moves of each kind; `cancelled` is the part of `in` that was in vain.
    moved: dict = field(default_factory=dict)

    @property
    def makespan(self):
        return max(run.done for run in self.runs) - min(run.job.arrival for run in self.runs)

    @property
    def wait(self):
        """Mean seconds from a job's arrival until it computes."""
        return sum(run.computes - run.job.arrival for run in self.runs) / len(self.runs)

    @property
    def wrong(self):
        """Share of nodes on which a job started although its input had gone elsewhere."""
        return sum(run.wrong for run in self.runs) / sum(run.job.nodes for run in self.runs)


class Simulation:
    def __init__(self, jobs, nodes, policy):
        if too_large := [job.number for job in jobs if job.nodes > nodes]:
            raise ValueError(f"jobs {too_large} need more than {nodes} nodes")
        self.policy, self.now = policy, 0.0
        self.coming = sorted(jobs, key=lambda job: (job.arrival, job.number))
        self.queue, self.running, self.finished = [], [], []
        self.holder, self.tasks = [None] * nodes, [[] for _ in range(nodes)]
        # Nodes to which a queued job's input goes, and those that have all of it.
        self.expected, self.staged = {}, {}
        self.moved = {"in": 0.0, "out": 0.0, "repair": 0.0, "cancelled": 0.0}

    def run(self):
        while self.coming or self.queue or self.running or any(self.tasks):
            self._arrive()
            self._schedule()
            if self.policy.overlapped:
                self._expect()
            self._advance()
            self._complete()
        runs = sorted(self.finished, key=lambda run: run.job.number)
        return Outcome(runs, self.moved)

    def _arrive(self):
        while self.coming and self.coming[0].arrival <= self.now + NOTHING:
            self.queue.append(self.coming.pop(0))

    # Choice of the jobs that start.

    def _length(self, job):
        """The time for which the scheduler expects a job to hold its nodes."""
        if not self.policy.overlapped:
            return job.stage_in + job.estimate + job.stage_out
        missing = job.stage_in if len(self.staged.get(job.number, ())) < job.nodes else 0.0
        return missing + job.estimate * (1 + self.policy.harm)

    def _believed_end(self, run):
        return max(run.start + self._length(run.job), self.now)

    def _schedule(self):
        while self.queue and self._free() >= self.queue[0].nodes:
            self._start(self.queue.pop(0))
        if not self.queue:
            return
        # The first job of the queue gets a reservation: the time at which enough nodes will be free, and the number of
        # spare ones then.
        free, head = self._free(), self.queue[0]
        shadow, spare = float("inf"), 0
        for end, nodes in sorted((self._believed_end(run), run.job.nodes) for run in self.running):
            free += nodes
            if free >= head.nodes:
                shadow, spare = end, free - head.nodes
                break
        for job in self.queue[1:]:
            ends_before = self.now + self._length(job) <= shadow + NOTHING
            if job.nodes <= self._free() and (ends_before or job.nodes <= spare):
                spare -= 0 if ends_before else job.nodes
                self.queue.remove(job)
                self._start(job)

    def _free(self):
        return self.holder.count(None)

    def _start(self, job):
        expected, staged = self.expected.pop(job.number, set()), self.staged.pop(job.number, set())
        free = [node for node, holder in enumerate(self.holder) if holder is None]
        free.sort(key=lambda node: (node not in staged, node not in expected, len(self.tasks[node]), node))
        run = Run(job, free[: job.nodes], self.now, remaining=job.compute)
        self.running.append(run)
        for node in run.nodes:
            self.holder[node] = run
        for node in expected - set(run.nodes):
            for task in [task for task in self.tasks[node] if task.job is job and task.kind == "in"]:
                self.moved["cancelled"] += job.stage_in - task.remaining
                self.tasks[node].remove(task)
        misplaced = len(staged - set(run.nodes))
        self.moved["cancelled"] += misplaced * job.stage_in
        for node in run.nodes:
            waiting = [task for task in self.tasks[node] if task.job is job and task.kind == "in"]
            for task in waiting:
                self.tasks[node].remove(task)
            if not waiting and node not in staged and job.stage_in > 0:
                run.wrong += bool(expected)
                kind, faster = ("repair", self.policy.repair) if misplaced else ("in", 1.0)
                waiting = [Task(kind, job, job.stage_in / faster)]
            # A waiting job comes before those that are still queued, and before output.
            self.tasks[node][:0] = waiting

    # Nodes on which queued jobs are expected to start.

    def _expect(self):
        free_at = [self._believed_end(run) if run else self.now for run in self.holder]
        for job in self.queue[: self.policy.ahead]:
            if job.number in self.expected:
                nodes = self.expected[job.number]
            else:
                nodes = set(sorted(range(len(free_at)), key=lambda node: (free_at[node], node))[: job.nodes])
                self.expected[job.number], self.staged[job.number] = nodes, set()
                if job.stage_in > 0:
                    for node in sorted(nodes):
                        self.tasks[node].append(Task("in", job, job.stage_in))
            end = max(free_at[node] for node in nodes) + job.estimate
            for node in nodes:
                free_at[node] = end

    # Time.

    def _task_rate(self, node):
        run = self.holder[node]
        return self.policy.busy_rate if run and run.phase == "compute" else 1.0

    def _pace(self, run):
        """Seconds of its computation that a job does in a second."""
        disturbed = any(self.tasks[node] for node in run.nodes)
        return 1 / (1 + self.policy.harm) if disturbed else 1.0

    def _advance(self):
        for run in self.running:
            if run.phase == "in" and not self._waits_for(run, ("in", "repair")):
                run.phase, run.computes = "compute", self.now
        steps = [self.coming[0].arrival - self.now] if self.coming else []
        steps += [run.remaining / self._pace(run) for run in self.running if run.phase == "compute"]
        active = [(tasks[0], node, self._task_rate(node)) for node, tasks in enumerate(self.tasks) if tasks]
        steps += [task.remaining / rate for task, _, rate in active if rate > 0]
        if not steps:
            raise RuntimeError(f"at {self.now}: nothing goes on")
        step = max(min(steps), 0.0)
        for run in self.running:
            if run.phase == "compute":
                run.remaining -= step * self._pace(run)
        for task, _, rate in active:
            task.remaining -= step * rate
            self.moved[task.kind] += step * rate
        self.now += step

    def _waits_for(self, run, kinds):
        return any(task.job is run.job and task.kind in kinds for node in run.nodes for task in self.tasks[node])

    def _complete(self):
        for node, tasks in enumerate(self.tasks):
            if tasks and tasks[0].remaining <= NOTHING:
                task = tasks.pop(0)
                if task.kind == "in" and task.job.number in self.staged:
                    self.staged[task.job.number].add(node)
        for run in list(self.running):
            if run.phase == "compute" and run.remaining <= NOTHING:
                run.phase, run.computed = "out", self.now
                if run.job.stage_out > 0:
                    for node in run.nodes:
                        self.tasks[node].append(Task("out", run.job, run.job.stage_out))
            if run.phase != "out" or run.end is not None:
                continue
            if self.policy.overlapped or not self._waits_for(run, ("out",)):
                run.end = self.now
                self.running.remove(run)
                self.finished.append(run)
                for node in run.nodes:
                    self.holder[node] = None
        for run in self.finished:
            if run.done is None and not self._waits_for(run, ("out",)):
                run.done = self.now


def simulate(jobs, nodes, policy):
    return Simulation(jobs, nodes, policy).run()


def workload(seed, count, nodes, load, io_share):
    """Jobs with exponential times between arrivals, sizes of powers of two up to half of the nodes, lognormal computing
    times (mean one hour, estimated 1 to 3 times as long), and the same share of input and output for all. `load` is the
    share of the nodes that computing alone would keep busy; infinite: all are there at once."""
    numbers = random.Random(seed)
    largest = max(nodes.bit_length() - 2, 0)
    sizes = [2 ** numbers.randint(0, largest) for _ in range(count)]
    # A lognormal's mean is exp(mu + sigma²/2).
    computes = [3600 * numbers.lognormvariate(-0.5, 1.0) for _ in range(count)]
    work = sum(size * compute for size, compute in zip(sizes, computes)) / count
    jobs, at = [], 0.0
    for number, (size, compute) in enumerate(zip(sizes, computes)):
        io = compute * io_share / (1 - io_share)
        jobs.append(Job(number, at, size, compute, compute * numbers.uniform(1, 3), io * 0.5, io * 0.5))
        at += numbers.expovariate(load * nodes / work) if load != float("inf") else 0.0
    return jobs
