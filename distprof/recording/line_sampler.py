"""Samples which line of the script runs, from a separate thread, while collectives are labelled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import NamedTuple

from distprof.contract.tables import TableRow
from distprof.own import _thread, time
from distprof.recording.blocking.origins import ENGINE, Place, line_of_script, phase_of
from distprof.threads import UnseenThread, is_scarce

PERIOD_S = 0.025
"""Time between two samples. One takes about 100 us, during which the script cannot run Python code, because of the
GIL."""
MOST = 20_000
"""Maximum number of samples kept; at this number, every second one is dropped and the period is doubled."""


class Sample(NamedTuple):
    """The line at which the thread of the steps was."""

    at_ns: int
    step: int
    place: Place
    phase: str
    """One of `LINE_PHASES`."""


class LineSampler:
    """Takes samples between each `start` and `stop`.

    Args:
        step: Returns the running step.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self.samples: list[Sample] = []
        self.was_on = False
        """Whether samples may exist."""
        self._step, self._period_s = step, PERIOD_S
        self._thread: UnseenThread | None = None
        self._ended = _thread.allocate_lock()
        self._watched = 0

    def start(self) -> None:
        """Begins to sample the calling thread; if no more threads can be started, no samples are taken."""
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
        """Samples the calling thread from now on: the steps have moved to it."""
        self._watched = _thread.get_ident()

    def stop(self) -> None:
        """Ends the sampling thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.release()
            thread.join()

    def forget(self) -> None:
        """Drops all samples."""
        self.samples, self.was_on = [], False

    def rows(self, num_steps: int) -> list[TableRow]:
        """Returns rows of `LINES`: samples in lines of the script, of the first `num_steps` steps."""
        return list(self._rows(num_steps))

    def _rows(self, num_steps: int) -> Iterator[TableRow]:
        for one in self.samples:
            if one.step < num_steps and one.place.file is not None and one.place.line:
                yield {"step": one.step, "at_ns": one.at_ns, **one.place._asdict(), "phase": one.phase}

    def _run(self) -> None:
        while not self._ended.acquire(timeout=self._period_s):
            frames = sys._current_frames()
            place, phase = _line_of_steps(frames, self._watched), phase_of(frames.get(self._watched))
            if place is not None:
                self.samples.append(Sample(time.time_ns(), self._step(), place, phase))
            if len(self.samples) >= MOST:
                self.samples, self._period_s = self.samples[::2], 2 * self._period_s
        self._ended.release()


def _line_of_steps(frames: Mapping[int, FrameType], watched: int) -> Place | None:
    """Returns where the steps are: with a GPU, backward runs on an autograd thread, for which their thread waits."""
    frame = frames.get(watched)
    if frame is not None and frame.f_code is ENGINE:
        for thread, other in frames.items():
            place = line_of_script(other) if thread != watched and _is_of_torch(other) else None
            if place is not None and place.file is not None:
                return place
    return line_of_script(frame)


def _is_of_torch(frame: FrameType) -> bool:
    """True on a thread started by C++: its outermost frame is not that of a Python thread."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name not in ("_bootstrap", "<module>")
