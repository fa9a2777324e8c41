"""Processes and threads of a merged trace: a rank's pids and tids come in, dense unique numbers and names go out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

NUMBERS_PER_RANK = 1 << 14
"""pids and tids of a rank come out of one row of numbers: no two things of a merged trace share one."""
MAX_PROCESSES = 64
IDS_PER_RANK = 1 << 32
"""Flow and async ids of a rank: with fewer than 2^21 ranks every id is exact in a double."""
PSEUDO = ("Spans", "Traces", "", "-1")
"""Processes that Kineto invents; their threads go to the rank's CPU process."""


@dataclass(slots=True)
class Process:
    """One process of the merged trace."""

    pid: int
    device: str
    """`cpu` or `gpu 0`."""
    raw: str


@dataclass(slots=True)
class Thread:
    """One thread of the merged trace."""

    pid: int
    tid: int
    name: str
    sort_index: int | None = None


@dataclass(slots=True)
class Lanes:
    """Gives numbers to what one rank's trace names; Perfetto keeps 32 bits and no strings, 0 means something else."""

    rank: int
    title: str
    """`rank 3 | tp1 dp1 | host7`."""
    labels: dict[str, str] = field(default_factory=dict)
    """Raw pid -> process label of the trace ("CPU", "GPU 0")."""
    programs: dict[str, str] = field(default_factory=dict)
    """Raw pid -> process name of the trace."""
    thread_names: dict[tuple[str, str], str] = field(default_factory=dict)
    sort_indices: dict[tuple[str, str], int] = field(default_factory=dict)
    _processes: dict[str, Process] = field(default_factory=dict)
    _threads: dict[tuple[str, str], Thread] = field(default_factory=dict)
    _ids: dict[str, int] = field(default_factory=dict)

    def thread(self, raw_pid: int | str, raw_tid: int | str) -> Thread:
        """The thread for a raw (pid, tid)."""
        key = str(raw_pid), str(raw_tid)
        thread = self._threads.get(key)
        if thread is None:
            pid = self._process(key[0]).pid
            # Perfetto takes the thread with the number of its process for the main thread
            is_main = key[0] == key[1] and not any(other.tid == pid for other in self._threads.values())
            thread = self._threads[key] = Thread(
                pid=pid, tid=pid if is_main else self._number(MAX_PROCESSES + len(self._threads)),
                name=self.thread_names.get(key) or _title(*key), sort_index=self.sort_indices.get(key))
        return thread

    def name_thread(self, raw_pid: str, raw_tid: str, name: str) -> None:
        """Learns a thread's name; Kineto names some twice, once after the program: the other name says more."""
        known = self.thread_names.get((raw_pid, raw_tid), "")
        if not known or known.endswith(f"({self.programs.get(raw_pid)})"):
            self.thread_names[raw_pid, raw_tid] = name

    def link(self, raw: str) -> int:
        """The id for a raw flow or async id, equal for equal ones of the rank and of no other rank."""
        number = int(raw) if raw.isdecimal() and int(raw) < IDS_PER_RANK // 2 else None
        if number is None:  # a string, hexadecimal, or too large to keep beside the rank
            number = IDS_PER_RANK // 2 + self._ids.setdefault(raw, len(self._ids))
        return self.rank * IDS_PER_RANK + number

    def _process(self, raw_pid: str) -> Process:
        device = self._device(raw_pid)
        process = self._processes.get(device)
        if process is None:
            if len(self._processes) >= MAX_PROCESSES - 1:
                raise ValueError(f"rank {self.rank} has more than {MAX_PROCESSES - 1} processes")
            process = self._processes[device] = Process(
                pid=self._number(len(self._processes) + 1), device=device, raw=raw_pid)
        if process.raw in PSEUDO:
            process.raw = raw_pid
        return process

    def _number(self, index: int) -> int:
        if index >= NUMBERS_PER_RANK:
            raise ValueError(f"rank {self.rank} has more than {NUMBERS_PER_RANK - MAX_PROCESSES} threads")
        return self.rank * NUMBERS_PER_RANK + index

    def _device(self, raw_pid: str) -> str:
        if raw_pid in PSEUDO:
            return "cpu"
        label = self.labels.get(raw_pid, "CPU")
        if raw_pid.startswith("GPU ") and raw_pid.endswith(" Counters"):
            label = raw_pid.removesuffix(" Counters")
        others = [raw for raw in self.labels if self.labels[raw] == label and raw not in PSEUDO]
        # two processes of one label, a forked child's for instance, stay two
        return label.lower() if len(others) < 2 else f"{label.lower()} (pid {raw_pid})"

    def describe(self) -> Iterator[dict[str, object]]:
        """Metadata events that name every process and thread, call it after all events have been through."""
        for index, process in enumerate(self._processes.values()):
            suffix = f" (pid {process.raw})" if process.device == "cpu" and process.raw not in PSEUDO else ""
            name = f"{self.title} | {process.device}{suffix}"
            yield _meta(process.pid, "process_name", {"name": _ascii(name)})
            yield _meta(process.pid, "process_labels", {"labels": _ascii(self.title)})
            yield _meta(process.pid, "process_sort_index", {"sort_index": self.rank * MAX_PROCESSES + index})
        for thread in self._threads.values():
            yield _meta(thread.pid, "thread_name", {"name": _ascii(thread.name)}, thread.tid)
            if thread.sort_index is not None:
                yield _meta(thread.pid, "thread_sort_index", {"sort_index": thread.sort_index}, thread.tid)


def _title(raw_pid: str, raw_tid: str) -> str:
    if raw_pid in PSEUDO:
        return " ".join(filter(None, (raw_pid.replace("-1", "overhead"), raw_tid))) or "marks"
    return f"thread {raw_tid}"


def _meta(pid: int, name: str, args: dict[str, object], tid: int | None = None) -> dict[str, object]:
    return {"ph": "M", "name": name, "pid": pid, **({} if tid is None else {"tid": tid}), "args": args}


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()
