"""Assigns numbers of processes and threads that are unique among all ranks, and names that start with the rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.made_events import meta
from distprof.merge.scan.scanned_columns import Text, thread_of

NUMBERS_PER_RANK = 1 << 14
"""Size of a rank's range of numbers, unless a rank needs more. Its pids and tids come from this one range, so that no
two things in a merged trace share a number."""
PSEUDO = ("Spans", "Traces", "", "-1")
"""Processes that Kineto invents; their threads are moved to the rank's CPU process."""
KERNELS = (b"kernel", b"gpu_memcpy", b"gpu_memset")
"""Categories of what runs on a device."""
DEVICE = re.compile(rb'"device"\s*:\s*"?(\d{1,4})')


@dataclass(slots=True)
class NumberedProcess:
    """One process of the merged trace."""

    pid: int
    name: str
    """`cpu (pid 77)`, `gpu 0`, or its name in the trace."""


@dataclass(slots=True)
class NumberedThread:
    """One thread of the merged trace."""

    pid: int
    tid: int
    name: str
    sort_index: int | None = None


@dataclass(slots=True)
class Lanes:
    """Numbers what one rank's trace names. Perfetto keeps 32 bits and no strings, and 0 has a special meaning."""

    rank: int
    title: str
    """Like `rank 3 | tp1 dp1 | host7`."""
    main: str = ""
    """Raw pid of the process that takes in the processes that Kineto invents."""
    numbers: int = NUMBERS_PER_RANK
    """Size of each rank's range of numbers."""
    labels: dict[str, str] = field(default_factory=dict)
    """Raw pid -> process label in the trace ("CPU", "GPU 0")."""
    programs: dict[str, str] = field(default_factory=dict)
    """Raw pid -> process name in the trace."""
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    sort_indices: dict[tuple[str, str], int] = field(default_factory=dict)
    _processes: dict[str, NumberedProcess] = field(default_factory=dict)
    _threads: dict[tuple[str, str], NumberedThread] = field(default_factory=dict)
    _with_main: set[int] = field(default_factory=set)
    """Numbers of processes that have a main thread."""
    _labelled: dict[str, list[str]] = field(default_factory=dict)
    """Label -> raw pids that have it, once `settle` was called."""
    _used: int = 0

    def thread(self, raw_pid: int | str, raw_tid: int | str) -> NumberedThread:
        """Returns the thread for a raw (pid, tid)."""
        key = str(raw_pid), str(raw_tid)
        thread = self._threads.get(key)
        if thread is None:
            pid = self._process(key[0]).pid
            # Perfetto takes the thread with the number of its process for the main thread
            is_main = key[0] == key[1] and pid not in self._with_main
            if is_main:
                self._with_main.add(pid)
            thread = self._threads[key] = NumberedThread(
                pid=pid, tid=pid if is_main else self._number(),
                name=self.thread_names.get(key) or _title(*key), sort_index=self.sort_indices.get(key))
        return thread

    def side(self, raw_pid: str, raw_tid: str, lane: int) -> NumberedThread:
        """Returns the extra thread for slices that overlap on a thread."""
        key = raw_pid, f"{raw_tid} {lane}\0"  # no raw name has this
        thread, main = self._threads.get(key), self.thread(raw_pid, raw_tid)
        if thread is None:
            thread = self._threads[key] = NumberedThread(
                pid=main.pid, tid=self._number(), name=f"{main.name} (overlapping{f' {lane}' if lane > 1 else ''})",
                sort_index=main.sort_index)
        return thread

    @property
    def first_pid(self) -> int:
        """Number of the rank's first process."""
        return self._process(self.main).pid

    def extra(self, name: str) -> NumberedThread:
        """Returns a thread of the rank's first process for what the merge draws."""
        key = "", f"{name}\0"
        if key not in self._threads:
            self._threads[key] = NumberedThread(
                pid=self._process(self.main).pid, tid=self._number(), name=name, sort_index=-1)
        return self._threads[key]

    def name_thread(self, raw_pid: str, raw_tid: str, name: str) -> None:
        """Notes a thread's name. Kineto names some twice, once after the program: the other name is kept."""
        known = self.thread_names.get((raw_pid, raw_tid), "")
        if not known or known.endswith(f"({self.programs.get(raw_pid)})"):
            self.thread_names[raw_pid, raw_tid] = name

    def settle(self, raw_pids: Iterable[str]) -> None:
        """Chooses the process that takes in those that Kineto invents: the first one of the CPU.

        All labels must be known by then.
        """
        for raw, label in self.labels.items():
            self._labelled.setdefault(label, []).append(raw)
        real = [pid for pid in raw_pids if pid not in PSEUDO and not pid.endswith(" Counters")]
        of_cpu = (pid for pid in real if self.labels.get(pid, "CPU") == "CPU")
        self.main = next(of_cpu, next(iter(real), ""))  # a trace may have nothing but kernels

    def _process(self, raw_pid: str) -> NumberedProcess:
        raw_pid = self._home(raw_pid)
        process = self._processes.get(raw_pid)
        if process is None:
            process = self._processes[raw_pid] = NumberedProcess(pid=self._number(), name=self._name(raw_pid))
        return process

    def _home(self, raw_pid: str) -> str:
        """Returns the process that takes in one that Kineto invents, else the process itself."""
        if raw_pid.startswith("GPU ") and raw_pid.endswith(" Counters"):
            label = raw_pid.removesuffix(" Counters")
            return next(iter(self._labelled.get(label, ())), raw_pid)
        return self.main if raw_pid in PSEUDO else raw_pid

    def _number(self) -> int:
        self._used += 1  # 0 has a special meaning for Perfetto
        if self._used >= self.numbers:
            raise ValueError(f"rank {self.rank} has more than {self.numbers - 1} processes and threads")
        return self.rank * self.numbers + self._used

    def _name(self, raw_pid: str) -> str:
        label = self.labels.get(raw_pid)
        is_number = raw_pid.lstrip("-").isdigit()
        name = label.lower() if label else self.programs.get(raw_pid) or ("cpu" if is_number else raw_pid) or "cpu"
        is_one = label is not None and label != "CPU" and len(self._labelled[label]) == 1
        return name if is_one or not is_number else f"{name} (pid {raw_pid})"

    def describe(self) -> Iterator[dict[str, object]]:
        """Yields metadata events that name every process and thread; to be called after all events have been seen."""
        for index, process in enumerate(self._processes.values()):
            yield meta(process.pid, "process_name", {"name": _ascii(f"{self.title} | {process.name}")})
            yield meta(process.pid, "process_labels", {"labels": _ascii(self.title)})
            yield meta(process.pid, "process_sort_index", {"sort_index": self.rank * 64 + min(index, 63)})
        for thread in self._threads.values():
            yield meta(thread.pid, "thread_name", {"name": _ascii(thread.name)}, thread.tid)
            if thread.sort_index is not None:
                yield meta(thread.pid, "thread_sort_index", {"sort_index": thread.sort_index}, thread.tid)


def _title(raw_pid: str, raw_tid: str) -> str:
    if raw_pid in PSEUDO:
        return " ".join(filter(None, (raw_pid.replace("-1", "overhead"), raw_tid))) or "marks"
    return f"thread {raw_tid}"


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()


class DeviceProcesses:
    """Finds the processes that stand for devices while a trace is scanned.

    Args:
        scanner: The scanner of the trace.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._categories: list[int] = []
        self._known = 0
        self._seen: set[int] = set()
        self._devices: dict[str, str] = {}
        """Raw pid -> number of the device."""

    def look(self, text: Text) -> None:
        """Examines the rows of the last scan of this text."""
        names = self._scanner.categories
        self._categories += [number for number, name in enumerate(names.texts(self._known), self._known)
                             if name in KERNELS]
        self._known = len(names)
        if not self._categories:
            return
        rows = np.flatnonzero(np.isin(self._scanner.column("category"), self._categories))
        threads, first = np.unique(self._scanner.column("thread")[rows], return_index=True)
        for thread, row in zip(threads.tolist(), rows[first].tolist(), strict=True):
            if thread not in self._seen:
                self._seen.add(thread)
                start, end = (self._scanner.arrays[name][row] for name in ("start", "end"))
                self._note(thread, bytes(text[start:end]))

    def _note(self, thread: int, event: bytes) -> None:
        pid, _ = thread_of(self._scanner.threads.texts(thread)[0])
        device = DEVICE.search(event)
        if device is not None:
            self._devices.setdefault(pid, device[1].decode())

    def labels(self, labelled: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yields pid and label of each such process without a label, `GPU 3` as Kineto writes it.

        Args:
            labelled: Pids that have a label in the trace.
        """
        known = {*labelled}
        yield from ((pid, f"GPU {device}") for pid, device in self._devices.items() if pid not in known)
