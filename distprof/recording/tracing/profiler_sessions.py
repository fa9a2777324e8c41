"""Our sessions of torch.profiler, one after the other, each ended where nothing of it is open any more.

What ends after its session, a slice or communication, is written to memory that is free by then:
slices end with the session, communication is waited for. Where that takes long the session stays, and records no more.

Slices that `record_function` opened and that are not closed where a session of the profiler begins or ends. A slice
keeps the address of its event. When it closes while a later session is on, torch writes the end there, and the memory
of the earlier session is free by then: the process crashes, or data of others change. So slices end with the session in
which they began. torch opens one around every step of an optimizer, where our steps end.
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
    """Ends the slices that are open; for those that are over, or end later, that does nothing.

    Args:
        find: Finds the instances of a class, at least those that may be open.
    """
    records = [one.record for one in find(record_function)]
    with torch._C.DisableTorchFunctionSubclass():
        for record in records:
            if record is not None:  # made, and not entered
                torch.ops.profiler._record_function_exit._RecordFunction(record)


def end_with_step(trace: Path, step_ns: int, session_ns: int, thread: int) -> None:
    """Ends what was still open on a thread when its session ended where its last step ended.

    In between the thread did only what ends a pass, like the search for the slices that are open.

    Args:
        trace: The file as Kineto writes it; it keeps its length, so that memory holds none of it.
        step_ns: When the last step ended, since the epoch.
        session_ns: When the session began to end.
        thread: Number of the thread in the system.
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
"""For communication that is on its way when a session ends."""
CLOCKS_AGREE_NS = 100_000
"""By less than that the profiler's clock differs from ours."""


class AtEndOfThread:
    """Calls a function when the thread ends whose `threading.local` has it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __del__(self) -> None:
        self._call()


class ProfilerSessions:
    """At most one at a time."""

    def __init__(self, works: RunningWorks) -> None:
        """Begins with none; `works` are told of what is communicated while a session is on."""
        self.works = works
        self._ending: Any = None
        """The session that records no more and has not ended."""
        self._ended: Callable[[], Any] = lambda: None
        self._last: tuple[weakref.ref[Any], int] | None = None
        """The session that ended last, and when."""
        self._local = threading.local()
        self._thread = 0
        """On which the session began: torch ends the process that ends it on another one."""
        self._are_closed = False
        self._young = YoungObjects()
        self.ended_ns = 0
        """When the script had the processor last in the session that ended last, since the epoch; 0 before."""

    def why_none(self) -> str | None:
        """Why no session can begin now, in words."""
        if self._ending is not None and not self.has_ended(self._ending):
            return f"the previous profiler session has not ended: {self.why_not_ended()}"
        if torch._C._autograd._profiler_enabled():
            return "the script is running another kind of profiler"
        left = self._left_open()
        return f"the previous profiler session ended inside {left}" if left else None

    def prepare(self) -> None:
        """Closes slices of earlier sessions ahead of `begin`: it takes as long as looking through all objects.

        Whoever calls this calls `make_way` where a session of the script begins meanwhile.
        """
        close_open_slices()
        self._are_closed = True

    def begin(self, profile: Any) -> None:
        """Begins a session, where there is no reason against it."""
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
        """Has it record no more; true if it ended, else `has_ended` does that."""
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
        """Whether the session is over and its events are there."""
        if self._ending is profile and self._is_of_this_thread() and self.works.are_over(PATIENCE_S):
            self._end()
        return self._ending is not profile

    def _thread_ends(self, profile: object) -> None:
        """A thread that ends in a session would take the process with it."""
        if self._ended() is profile or not self._is_of_this_thread():
            return
        with suppress(Exception):
            self._ending = profile
            self._end()

    def why_not_ended(self) -> str:
        """In words, behind `end` or `has_ended` on the same thread."""
        return "communication is still in flight" if self._is_of_this_thread() else "steps end on another thread"

    def _is_of_this_thread(self) -> bool:
        return self._thread == threading.get_ident()

    def have_ended(self) -> bool:
        """Whether none is left."""
        return self._ending is None

    def make_way(self) -> None:
        """Ends a session that has not ended: a process can have one, and the script begins its own."""
        self._are_closed = False
        if self._ending is not None and not self.has_ended(self._ending) and self._is_of_this_thread():
            self._end()

    def forget_events(self) -> None:
        """Frees the events of the last session, once they are written and no session follows.

        torch's object is in a cycle with itself: they would stay until the garbage collector comes by.
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
        """An operator or function of torch in which the last session ended; nobody but torch can end that."""
        if self._last is None or (profile := self._last[0]()) is None:
            return None
        last = {root.start_tid: root for root in profile.profiler.kineto_results.experimental_event_tree()
                if root.tag == _EventType.TorchOp}
        return next((name for root in last.values() for name in _open(root, self._last[1])), None)


def _open(event: Any, now_ns: int) -> Iterator[str]:
    """Names of what was open, from an outermost event that was the last of its thread on.

    torch gives to what is open the end of what it is in, or of the session.
    """
    around = None
    while event is not None:
        end_ns = event.end_time_ns
        if end_ns > now_ns or end_ns < event.start_time_ns or (around is not None and end_ns == around.end_time_ns):
            yield event.name
        around = event
        event = next((one for one in reversed(event.children) if one.tag == _EventType.TorchOp), None)


def _pause() -> None:
    """Waits without time.sleep, which fails where a program shifts the clocks of the process."""
    until = time.perf_counter_ns() + CLOCKS_AGREE_NS
    while time.perf_counter_ns() < until:
        pass
