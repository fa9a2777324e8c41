"""Calls that make a thread wait, added up by the line they come from, step by step."""

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
"""Rows kept: a script that makes up its code could have a new line in every step."""


class Wait(NamedTuple):
    """A call that may wait."""

    op: str
    """What waits; '' for the function of the library that the line calls."""
    waits_for: str
    device: str | None
    """Type of the device whose tensors it is about."""
    blocking: bool
    """False where it would wait on an accelerator, and waits for nothing here."""


def is_on_device() -> bool:
    """True in a job that works on a GPU."""
    return device_type() != CPU


def known(wait_of: Callable[..., Wait | None], *args: Any, **kwargs: Any) -> Wait | None:
    """What a call is; of one with wrong arguments nothing, as the function itself says what is wrong."""
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
    """The waits of a rank. A wait inside of another one is part of it."""

    def __init__(self, owners: NodeOwners, *, guard: Guard, step: Callable[[], int],
                 phase: Callable[[], str | None]) -> None:
        self.num_left_out = 0
        """Calls beyond `MOST_KINDS` different ones."""
        self._owners = owners
        self._step = step
        self._phase = phase
        self.add = guard(self._on_wait)
        """Adds a wait that is over: what it is, its time in ns, the frame that called it."""
        self._running = _Running()
        self._lock = lock()
        self._thread = 0
        self._sums: dict[_Key, _Sum] = {}
        self._of_step: dict[_Key, _Sum] = {}

    def start(self) -> None:
        """The calling thread runs the steps."""
        self._thread = threading.get_ident()
        self.forget_step()

    def forget_step(self) -> None:
        """What came since the last step that ended belongs to none."""
        with self._lock:
            self._of_step = {}

    def next_step(self) -> None:
        """Keeps what the step that ended had."""
        with self._lock:
            kept, self._of_step = self._of_step, {}
        self._sums |= kept

    def rows(self) -> list[TableRow]:
        """Rows of waits.parquet."""
        return [{"step": key.step, **key.wait._asdict(), **key.place._asdict(), "module_path": key.module_path,
                 "phase": key.phase, "thread": key.thread, "calls": one.calls,
                 "blocked_ns": one.total_ns if key.wait.blocking else 0,
                 "longest_ns": one.longest_ns if key.wait.blocking else 0} for key, one in self._sums.items()]

    def call(self, wait: Wait | None, caller: FrameType, own: Callable[..., Any], args: tuple[Any, ...],
             kwargs: dict[str, Any], *, has_waited: Callable[[], bool] | None = None) -> Any:
        """Calls a function that may wait.

        Args:
            wait: What it is; None: no wait.
            caller: The frame that calls it.
            own: The function.
            args: Its arguments.
            kwargs: Likewise.
            has_waited: Tells when it has returned; None: it has.
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
            return  # ours, or of no script
        if not wait.op:
            wait, place = wait._replace(op=place.library_call or "Condition.wait"), place._replace(library_call=None)
        module_path, phase = self._owners.where()
        phase = self._phase() or (DATA if wait.waits_for == DATA else phase)
        key = _Key(self._step(), wait, place, module_path, phase, self._name_of_thread(at_home=at_home))
        self._count(key, duration_ns)

    def _place(self, wait: Wait, caller: FrameType | None, *, at_home: bool) -> Place | None:
        """The line; None for what holds up nobody."""
        if not at_home and wait.waits_for in (DATA, THREAD, PROCESS):
            return None  # helpers of the script wait for work
        place = place_of(caller)
        if place is NOWHERE and not at_home and in_backward():
            place = place_of_thread(self._thread)  # which waits for this thread of autograd's
        if place is None or place.library_call is None:
            return place
        if not wait.blocking:
            return None  # what torch does with tensors of the host stays so on a device
        if place.library_call == wait.op.rpartition(".")[2]:
            return place._replace(library_call=None)  # torch.cuda.synchronize around what it calls
        return place

    def _name_of_thread(self, *, at_home: bool) -> str:
        return "steps" if at_home else "autograd" if in_backward() else threading.current_thread().name

    def _count(self, key: _Key, duration_ns: int) -> None:
        with self._lock:
            if key not in self._of_step and len(self._of_step) + len(self._sums) >= MOST_KINDS:
                self.num_left_out += 1
                return
            self._of_step.setdefault(key, _Sum()).add(duration_ns)
