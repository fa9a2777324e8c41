"""Calls that make a thread wait, added up per step and calling line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from distprof.contract.tables import TableRow
from distprof.model.scopes import Guard, in_backward
from distprof.own import lock, time
from distprof.process.accelerators import CPU, device_type
from distprof.recording.blocking.origins import NOWHERE, NodeOwners, Place, place_of, place_of_thread

DEVICE, COMMUNICATION, DATA, THREAD, PROCESS = "device", "communication", "data", "thread", "process"
MOST_KINDS = 1 << 16
"""Maximum number of rows: a script that generates code could have a new line in every step."""


class Wait(NamedTuple):
    """A call that may wait."""

    op: str
    """The operator or function that waits; '' for the library function that the line calls."""
    waits_for: str
    device: str | None
    """Type of the device whose tensors are involved."""
    blocking: bool
    """False if it would wait for an accelerator, but has nothing to wait for here: the tensors are on the host."""


def is_on_device() -> bool:
    """True if the job uses an accelerator."""
    return device_type() != CPU


def known(wait_of: Callable[..., Wait | None], *args: Any, **kwargs: Any) -> Wait | None:
    """Returns the wait of a call; None if its arguments are wrong, which the function itself reports."""
    try:
        return wait_of(*args, **kwargs)
    except Exception:  # noqa: BLE001 (nothing of ours may reach the script)
        return None


class _Key(NamedTuple):
    step: int
    wait: Wait
    place: Place
    module_path: str | None
    phase: str | None
    thread: str


class _Sum:
    __slots__ = ("calls", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.calls = self.total_ns = self.longest_ns = 0

    def add(self, duration_ns: int) -> None:
        self.calls += 1
        self.total_ns += duration_ns
        self.longest_ns = max(self.longest_ns, duration_ns)


class _Running(threading.local):
    inside = False


class BlockingLog:
    """The waits of a rank. A wait inside another one counts as part of it."""

    def __init__(self, owners: NodeOwners, *, guard: Guard, step: Callable[[], int],
                 phase: Callable[[], str | None]) -> None:
        self.num_left_out = 0
        """Number of calls that were not recorded because there were already `MOST_KINDS` rows."""
        self._owners = owners
        self._step = step
        self._phase = phase
        self.add = guard(self._on_wait)
        """Adds a wait that has ended: the wait, its duration in ns, the frame that called it."""
        self._running = _Running()
        self._lock = lock()
        self._thread = 0
        self._sums: dict[_Key, _Sum] = {}
        self._of_step: dict[_Key, _Sum] = {}

    def start(self) -> None:
        """Begins a pass; the calling thread is the one that runs the steps."""
        self._thread = threading.get_ident()
        self.forget_step()

    def forget_step(self) -> None:
        """Drops waits since the end of the last step: they belong to no step."""
        with self._lock:
            self._of_step = {}

    def next_step(self) -> None:
        """Keeps the waits of the step that has ended."""
        with self._lock:
            kept, self._of_step = self._of_step, {}
        self._sums |= kept

    def rows(self) -> list[TableRow]:
        """Returns the rows of waits.parquet."""
        return [{"step": key.step, **key.wait._asdict(), **key.place._asdict(), "module_path": key.module_path,
                 "phase": key.phase, "thread": key.thread, "calls": one.calls,
                 "blocked_ns": one.total_ns if key.wait.blocking else 0,
                 "longest_ns": one.longest_ns if key.wait.blocking else 0} for key, one in self._sums.items()]

    def call(self, wait: Wait | None, caller: FrameType, own: Callable[..., Any], args: tuple[Any, ...],
             kwargs: dict[str, Any], *, has_waited: Callable[[], bool] | None = None) -> Any:
        """Calls a function that may wait.

        Args:
            wait: The wait; None if the call does not wait.
            caller: The frame that calls it.
            own: The function.
            args: Its arguments.
            kwargs: Its keyword arguments.
            has_waited: Returns whether the call has waited, after it has returned; None: it always has.
        """
        here = self._running
        if wait is None or here.inside:
            return own(*args, **kwargs)
        here.inside, start_ns = True, time.perf_counter_ns()
        try:
            return own(*args, **kwargs)
        finally:
            duration_ns, here.inside = time.perf_counter_ns() - start_ns, False
            if has_waited is None or has_waited():
                self.add(wait, duration_ns, caller)

    def _on_wait(self, wait: Wait, duration_ns: int, caller: FrameType | None) -> None:
        at_home = threading.get_ident() == self._thread
        place = self._place(wait, caller, at_home=at_home)
        if place is None or place.file is None:
            return  # called by distprof, or not by a script
        if not wait.op:
            wait, place = wait._replace(op=place.library_call or "Condition.wait"), place._replace(library_call=None)
        module_path, phase = self._owners.where()
        phase = self._phase() or (DATA if wait.waits_for == DATA else phase)
        key = _Key(self._step(), wait, place, module_path, phase, self._name_of_thread(at_home=at_home))
        self._count(key, duration_ns)

    def _place(self, wait: Wait, caller: FrameType | None, *, at_home: bool) -> Place | None:
        """Returns the calling line; None for a wait that blocks nothing."""
        if not at_home and wait.waits_for in (DATA, THREAD, PROCESS):
            return None  # a worker thread of the script waits for work
        place = place_of(caller)
        if place is NOWHERE and not at_home and in_backward():
            place = place_of_thread(self._thread)  # the steps' thread waits for this autograd thread
        if place is None or place.library_call is None:
            return place
        if not wait.blocking:
            return None  # calls that torch makes on host tensors stay on the host, also in a job with a device
        if place.library_call == wait.op.rpartition(".")[2]:
            return place._replace(library_call=None)  # the wrapper of the same name, such as torch.cuda.synchronize
        return place

    def _name_of_thread(self, *, at_home: bool) -> str:
        return "steps" if at_home else "autograd" if in_backward() else threading.current_thread().name

    def _count(self, key: _Key, duration_ns: int) -> None:
        with self._lock:
            if key not in self._of_step and len(self._of_step) + len(self._sums) >= MOST_KINDS:
                self.num_left_out += 1
                return
            self._of_step.setdefault(key, _Sum()).add(duration_ns)
