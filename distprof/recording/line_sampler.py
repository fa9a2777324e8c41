"""Which line of the script runs, asked again and again by a thread of its own while collectives are labelled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import NamedTuple

from torch.autograd.graph import _engine_run_backward

from distprof.contract.tables import TableRow
from distprof.own import _thread, time
from distprof.recording.blocking.origins import Place, line_of_script
from distprof.threads import UnseenThread, is_scarce

ENGINE = _engine_run_backward.__code__
"""What waits in C++ for the threads that autograd has for each GPU."""
PERIOD_S = 0.025
"""A sample takes some 100 us, in which the script does not run if it runs Python: threads take turns."""
MOST = 20_000
"""Samples that are kept; at so many every second one is dropped, and they are taken half as often."""


class Sample(NamedTuple):
    """Where the thread of the steps was."""

    at_ns: int
    step: int
    place: Place


class LineSampler:
    """Takes samples between `start` and `stop`, as often as that happens.

    Args:
        step: The running step.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self.samples: list[Sample] = []
        self.was_on = False
        """Whether there may be any."""
        self._step, self._period_s = step, PERIOD_S
        self._thread: UnseenThread | None = None
        self._ended = _thread.allocate_lock()
        self._watched = 0

    def start(self) -> None:
        """Begins to look at the calling thread; where there can be no more threads, nothing is looked at."""
        self.look_at_this_thread()
        self.was_on = True
        if self._thread is not None or is_scarce():
            return
        self._ended.acquire()
        self._thread = UnseenThread(self._run)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self._ended.release()

    def look_at_this_thread(self) -> None:
        """The steps are on this thread now."""
        self._watched = _thread.get_ident()

    def stop(self) -> None:
        """Ends the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.release()
            thread.join()

    def forget(self) -> None:
        """Drops what was seen."""
        self.samples, self.was_on = [], False

    def rows(self, num_steps: int) -> list[TableRow]:
        """Rows of `LINES`: samples in lines of the script, of steps below this one."""
        return list(self._rows(num_steps))

    def _rows(self, num_steps: int) -> Iterator[TableRow]:
        for one in self.samples:
            if one.step < num_steps and one.place.file is not None and one.place.line:
                yield {"step": one.step, "at_ns": one.at_ns, **one.place._asdict()}

    def _run(self) -> None:
        while not self._ended.acquire(timeout=self._period_s):
            place = _line_of_steps(sys._current_frames(), self._watched)
            if place is not None:
                self.samples.append(Sample(time.time_ns(), self._step(), place))
            if len(self.samples) >= MOST:
                self.samples, self._period_s = self.samples[::2], 2 * self._period_s
        self._ended.release()


def _line_of_steps(frames: Mapping[int, FrameType], watched: int) -> Place | None:
    """Where the steps are: with a GPU, backward runs on a thread of autograd's, for which theirs waits."""
    frame = frames.get(watched)
    if frame is not None and frame.f_code is ENGINE:
        for thread, other in frames.items():
            place = line_of_script(other) if thread != watched and _is_of_torch(other) else None
            if place is not None and place.file is not None:
                return place
    return line_of_script(frame)


def _is_of_torch(frame: FrameType) -> bool:
    """True on a thread that C++ began: no thread of Python's is below."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in ("_bootstrap", "<module>")
