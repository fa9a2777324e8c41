"""Our sessions of torch.profiler, one after the other, each ended only when nothing of it is open any more.

If a slice or a communication ends after the session in which it began, torch writes its end into memory that has been
freed: the process crashes, or other data changes. Therefore all open slices are closed when a session ends, and
communication is waited for. If that takes long, the session stays, without recording.

A slice opened by `record_function` keeps the address of its event, and torch writes there when it is closed during a
later session. torch itself opens a slice around every optimizer step, where our steps end.
"""

from __future__ import annotations

import mmap
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity

from distprof.own import time
from distprof.process.live_objects import YoungObjects, live_instances
from distprof.recording.communication.c10d import RunningWorks
from distprof.recording.tracing.foreign_profiler import our_session
from distprof.system import all_blocked


def close_open_slices(find: Callable[[type], list[Any]] = live_instances) -> None:
    """Closes open slices; has no effect on those that are closed already, or are closed again later.

    Args:
        find: Finds the instances of a class, at least those that may be open.
    """
    records = [one.record for one in find(record_function)]
    with torch._C.DisableTorchFunctionSubclass():
        for record in records:
            if record is not None:  # created, but not entered
                torch.ops.profiler._record_function_exit._RecordFunction(record)


def end_with_step(trace: Path, step_ns: int, session_ns: int, thread: int) -> None:
    """Moves the end of slices that were open on a thread when its session ended to the end of its last step.

    In between, the thread only did what ends a pass, such as the search for open slices.

    Args:
        trace: The file as Kineto wrote it; it keeps its length and is not loaded into memory.
        step_ns: End of the last step, in ns since the epoch.
        session_ns: When ending the session began.
        thread: Native id of the thread.
    """
    times = re.compile(
        rb'"pid": %d,\s*"tid": %d,\s*"ts": (\d+)\.(\d{3}),\s*"dur": ((\d+)\.(\d{3}))' % (os.getpid(), thread))
    with trace.open("r+b") as file, mmap.mmap(file.fileno(), 0) as text:
        base = _BASE.search(text)
        for found in times.finditer(text) if base is not None else ():
            start_ns = int(base[1]) + int(found[1] + found[2])  # type: ignore[index]
            if start_ns < step_ns <= session_ns < start_ns + int(found[4] + found[5]):
                text[slice(*found.span(3))] = _microseconds(step_ns - start_ns).ljust(len(found[3]))


_BASE = re.compile(rb'"baseTimeNanoseconds": (\d+)')


def _microseconds(ns: int) -> bytes:
    return b"%d.%03d" % divmod(ns, 1000)


PATIENCE_S = 1.0
"""Maximum time in seconds to wait for communication in flight when a session ends."""
CLOCKS_AGREE_NS = 100_000
"""Upper bound of the difference between the profiler's clock and ours."""


class AtEndOfThread:
    """Calls a function when the thread ends in whose `threading.local` it is stored."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


class ProfilerSessions:
    """Our sessions, of which there is at most one at a time."""

    def __init__(self, works: RunningWorks) -> None:
        """Begins without a session; `works` keeps the communication issued during a session."""
        self.works = works
        self._ending: Any = None
        """The session that no longer records but has not ended."""
        self._ended: Callable[[], Any] = lambda: None
        self._last: tuple[weakref.ref[Any], int] | None = None
        """The session that ended last, and when."""
        self._local = threading.local()
        self._thread = 0
        """The thread on which the session began: ending it on another thread makes torch end the process."""
        self._are_closed = False
        self._young = YoungObjects()
        self.ended_ns = 0
        """When the script last ran in the session that ended last, in ns since the epoch; 0 before."""

    def why_none(self) -> str | None:
        """Returns why no session can begin now, as text; None if one can."""
        if self._ending is not None and not self.has_ended(self._ending):
            return f"the previous profiler session has not ended: {self.why_not_ended()}"
        if torch._C._autograd._profiler_enabled():
            return "the script is running another kind of profiler"
        left = self._left_open()
        return f"the previous profiler session ended inside {left}" if left else None

    def prepare(self) -> None:
        """Closes slices of earlier sessions ahead of `begin`, since it takes as long as looking through all objects.

        The caller calls `make_way` if the script begins a session in the meantime.
        """
        close_open_slices()
        self._are_closed = True

    def begin(self, profile: Any) -> None:
        """Begins a session; `why_none` must have returned None."""
        if not self._are_closed:
            close_open_slices()
        self._are_closed = False
        self._young = YoungObjects()
        self._thread = threading.get_ident()
        if self._thread != threading.main_thread().ident:
            self._local.end = AtEndOfThread(lambda: self._thread_ends(profile))
        with our_session(), all_blocked():  # Kineto starts a thread
            profile.start()
        self.works.is_on = True

    def end(self, profile: Any) -> bool:
        """Stops recording; true if the session ended, otherwise call `has_ended` until it has."""
        self.works.is_on, self.ended_ns = False, 0
        self._ending = profile
        if not self._is_of_this_thread():
            return False
        self.ended_ns = time.time_ns()
        close_open_slices(self._young.instances)
        ended = self.has_ended(profile)
        if not ended:
            profile.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
        return ended

    def has_ended(self, profile: object) -> bool:
        """Returns whether the session has ended and its events are available; ends it if that is possible now."""
        if self._ending is profile and self._is_of_this_thread() and self.works.are_over(PATIENCE_S):
            self._end()
        return self._ending is not profile

    def _thread_ends(self, profile: object) -> None:
        """Ends a session when its thread ends, which would otherwise take the process with it."""
        if self._ended() is profile or not self._is_of_this_thread():
            return
        with suppress(Exception):
            self._ending = profile
            self._end()

    def why_not_ended(self) -> str:
        """Returns the reason as text, after `end` or `has_ended` on the same thread."""
        return "communication is still in flight" if self._is_of_this_thread() else "steps end on another thread"

    def _is_of_this_thread(self) -> bool:
        return self._thread == threading.get_ident()

    def have_ended(self) -> bool:
        """Returns whether no session is left that has not ended."""
        return self._ending is None

    def make_way(self) -> None:
        """Ends a session that has not ended: a process can have only one, and the script begins its own."""
        self._are_closed = False
        if self._ending is not None and not self.has_ended(self._ending) and self._is_of_this_thread():
            self._end()

    def forget_events(self) -> None:
        """Frees the events of the last session, once they are written and no session follows.

        torch's object is part of a reference cycle: the events would stay until the garbage collector runs.
        """
        profile = None if self._last is None else self._last[0]()
        if profile is not None and self.have_ended():
            self._last = profile.profiler = None

    def _end(self) -> None:
        profile, self._ending = self._ending, None
        self._ended = weakref.ref(profile)
        _pause()
        self._last = weakref.ref(profile), time.time_ns()
        _pause()
        profile.stop()
        self.works.forget()

    def _left_open(self) -> str | None:
        """Returns an operator or function of torch inside which the last session ended; only torch can end it."""
        if self._last is None or (profile := self._last[0]()) is None:
            return None
        last = {root.start_tid: root for root in profile.profiler.kineto_results.experimental_event_tree()
                if root.tag == _EventType.TorchOp}
        return next((name for root in last.values() for name in _open(root, self._last[1])), None)


def _open(event: Any, now_ns: int) -> Iterator[str]:
    """Yields the names of events that were open, beginning with an outermost event, the last one of its thread.

    torch gives an open event the end of the event around it, or of the session.
    """
    around = None
    while event is not None:
        end_ns = event.end_time_ns
        if end_ns > now_ns or end_ns < event.start_time_ns or (around is not None and end_ns == around.end_time_ns):
            yield event.name
        around = event
        event = next((one for one in reversed(event.children) if one.tag == _EventType.TorchOp), None)


def _pause() -> None:
    """Waits for `CLOCKS_AGREE_NS` without time.sleep, which fails if a program shifts the clocks of the process."""
    until = time.perf_counter_ns() + CLOCKS_AGREE_NS
    while time.perf_counter_ns() < until:
        pass
