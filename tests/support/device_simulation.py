"""Simulates a host and a device: launches, streams, events, a limited queue, copies, graphs, synchronisations.

The simulation decides what each command waits for, so the truth is known; its trace shows only what a profiler would
show. It shares no code with distprof, nor with `simulator/`. Times are integer nanoseconds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

KINDS = {"kernel": "gemm_kernel", "communication": "ncclDevKernel_AllReduce_Sum_bf16", "copy": "Memcpy HtoD (Pinned)"}
COPIED_BACK = "Memcpy DtoH (Device -> Pageable)"
US = 1000
HELD_NS = 200 * US
"""Minimum duration of commands that the profiler does not record."""


@dataclass
class Command:
    """A command of a device, and what it waited for last."""

    stream: int
    kind: str
    correlation: int
    asked_ns: int
    start_ns: int
    end_ns: int
    bound: str
    """What it waited for last. asked: its launch; previous: the command before it; event: one of another stream."""
    awaited: Command | None = None
    noted: bool = True
    issued_ns: int | None = None
    """When it was put on the queue, if its call returned later than that; else None."""


@dataclass
class Simulation:
    """Simulates a random job, determined by a seed."""

    seed: int
    num_steps: int = 4
    num_streams: int = 3
    limit: int = 24
    """Maximum number of commands in the queue."""
    loses: bool = False
    """Whether the profiler misses some commands."""
    now_ns: int = 1_000_000_000
    commands: list[Command] = field(default_factory=list)
    calls: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Name, start, end and correlation."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    blocked: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of waits of the host for the device."""

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.last: dict[int, Command] = {}
        self.events: dict[int, list[Command]] = {}
        self.correlation = 100
        weights = [self.random.random() for _ in range(7)]
        for _ in range(self.num_steps):
            begun = self.now_ns
            for _ in range(self.random.randint(8, 25)):
                self.random.choices((self.work, self.launch, self.launch, self.order, self.graph, self.synchronise,
                                     self.copy_back), weights)[0]()
            self.launch()
            self.marks.append((begun, self.now_ns))

    def took(self, least_us, most_us):
        self.now_ns += self.random.randint(least_us * US, most_us * US)

    def call(self, name, *, until=None, least_us=3, most_us=9):
        """Adds a call of the runtime; returns its start and correlation id."""
        begun, self.correlation = self.now_ns, self.correlation + 1
        self.took(least_us, most_us)
        self.now_ns = max(self.now_ns, until or 0)
        self.calls.append((name, begun, self.now_ns, self.correlation))
        return begun, self.correlation

    def work(self):
        """The host computes something itself."""
        self.took(*self.random.choice([(1, 20), (20, 300), (500, 3000)]))

    def launch(self):
        stream = self.random.choice([0, 0, 0, *range(self.num_streams)])
        kind = "communication" if stream == 1 else "copy" if stream == 2 else "kernel"
        waiting = sorted(one.start_ns for one in self.commands if one.start_ns > self.now_ns)
        full_until = waiting[-self.limit] if len(waiting) >= self.limit else 0
        _, correlation = self.call("cudaMemcpyAsync" if kind == "copy" else "cudaLaunchKernel", until=full_until)
        lost = self.loses and stream == 0 and self.random.random() < 0.1
        duration = self.random.randint(HELD_NS, 5 * HELD_NS) if lost else self.random.randint(
            2 * US, self.random.choice([10, 100, 2000]) * US)
        self.run(stream, kind, correlation, duration, noted=not lost)

    def run(self, stream, kind, correlation, duration_ns, *, noted=True):
        """Runs a command after the previous ones of its stream, and after what the stream waits for."""
        terms = [(self.now_ns + self.random.randint(2 * US, 6 * US), "asked", None)]
        if stream in self.last:
            terms.append((self.last[stream].end_ns + self.random.randint(US, 2 * US), "previous", self.last[stream]))
        terms += [(one.end_ns + self.random.randint(3 * US, 9 * US), "event", one)
                  for one in self.events.pop(stream, [])]
        start, bound, awaited = max(terms, key=lambda one: one[0])
        one = Command(stream, kind, correlation, self.now_ns, start, start + duration_ns, bound, awaited, noted)
        self.commands.append(one)
        self.last[stream] = one
        return one

    def order(self):
        """Makes a stream wait for all commands launched so far on another one."""
        waits, on = self.random.sample(range(self.num_streams), 2)
        if on in self.last:
            self.call("cudaEventRecordWithFlags", least_us=1, most_us=2)
            self.call("cudaStreamWaitEvent", least_us=1, most_us=2)
            self.events.setdefault(waits, []).append(self.last[on])

    def graph(self):
        _, correlation = self.call("cudaGraphLaunch", most_us=20)
        for _ in range(self.random.randint(2, 12)):
            self.run(0, "kernel", correlation, self.random.randint(2 * US, 50 * US))

    def synchronise(self):
        if self.random.random() < 0.4:
            stream = self.random.choice([None, *range(self.num_streams)])
            done = [one.end_ns for one in self.commands if stream in (None, one.stream)]
            self.wait("cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize", max(done, default=0))

    def wait(self, name, done_ns):
        begun, _ = self.call(name, until=done_ns + self.random.randint(2 * US, 4 * US) if done_ns else 0, least_us=2)
        self.blocked.append((begun, self.now_ns))

    def copy_back(self):
        """Copies to the host with a call that returns when the copy is done, as for pageable memory."""
        if self.random.random() < 0.3:
            begun, self.correlation = self.now_ns, self.correlation + 1
            self.took(3, 6)
            copy = self.run(0, "copy", self.correlation, self.random.randint(2 * US, 30 * US))
            self.now_ns = copy.end_ns + self.random.randint(2 * US, 4 * US)
            copy.asked_ns, copy.issued_ns = self.now_ns, copy.asked_ns  # only the return of the call is visible
            self.calls.append(("cudaMemcpyAsync", begun, self.now_ns, self.correlation))
            self.blocked.append((copy.start_ns, self.now_ns))

    def slices(self):
        """Yields the slices of a profiler: name, category, start, duration, correlation, process, thread."""
        yield from ((f"ProfilerStep#{number}", "user_annotation", start, end - start, None, "host", "main")
                    for number, (start, end) in enumerate(self.marks))
        yield from ((name, "cuda_runtime", start, end - start, correlation, "host", "main")
                    for name, start, end, correlation in self.calls)
        yield from ((KINDS[one.kind] if one.issued_ns is None else COPIED_BACK,
                     "gpu_memcpy" if one.kind == "copy" else "kernel", one.start_ns, one.end_ns - one.start_ns,
                     one.correlation, "0", str(one.stream)) for one in self.commands if one.noted)

    def spans(self):
        """Returns start and end of each step on the device, except the last one."""
        firsts = {}
        sent = {correlation: start for _, start, _, correlation in self.calls}
        for one in filter(lambda one: one.noted, self.commands):
            number = next(number for number, (start, end) in enumerate(self.marks)
                          if start <= sent[one.correlation] < end)
            firsts[number] = min(firsts.get(number, one.start_ns), one.start_ns)
        reach, found = 0, {}
        for number in sorted(firsts):
            reach = max(reach, firsts[number])
            found[number] = reach
        return {number: (found[number], found[number + 1]) for number in found if number + 1 in found}

    def idle(self):
        """Yields pieces of pauses of the device: start, end, cause."""
        reach = None
        for one in sorted((one for one in self.commands if one.noted), key=lambda one: (one.start_ns, one.asked_ns)):
            if reach is not None and one.start_ns > reach:
                yield from self.piece(reach, one)
            reach = max(reach or 0, one.end_ns)

    def piece(self, begun, one):
        asked = min(max(one.asked_ns, begun), one.start_ns)
        inside = sorted((max(start, begun), min(end, asked)) for start, end in self.blocked
                        if start < asked and end > begun)
        at = begun
        for start, end in inside:
            yield at, start, "host"
            yield start, end, "sync"
            at = end
        yield at, asked, "host"
        lost = one.bound != "asked" and not one.awaited.noted
        yield asked, one.start_ns, "unshown" if lost else "short"

    def stream_waits(self):
        """Yields waits of streams for running commands of other streams: start, end, stream, kind of the command."""
        before = {}
        for one in self.commands:
            since = max(one.issued_ns or one.asked_ns, before.get(one.stream, 0))
            if one.noted:
                if one.bound == "event" and one.awaited.noted and one.awaited.end_ns > since and one.stream in before:
                    yield since, one.awaited.end_ns, one.stream, one.awaited.kind
                before[one.stream] = one.end_ns
