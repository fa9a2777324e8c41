"""Recordings later in a job, each in its own run directory: all ranks begin one in the step that a request names.

The launcher or `distprof trigger` writes a request to a file. A rank checks this file between two steps, about
once per second. While a request waits for its step, the rank checks before every step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from torch.optim import Optimizer

from distprof.contract.paths import PARTIAL_SUFFIX
from distprof.contract.watch_state import REQUEST_JSON, WATCH, WINDOWS, WindowRequest, window_folder
from distprof.errors import DistprofError
from distprof.files import read_small
from distprof.own import time
from distprof.recording.plan import StepPlan
from distprof.recording.steps.optimizer_hooks import Later, OptimizerHooks
from distprof.recording.termination import Flush

SHARE = 1000
"""On a slow file server, checks are so rare that they take at most 1/`SHARE` of the time."""
LONGEST_NS = 2_000_000_000
"""Maximum time in ns between two checks."""
AT_THE_END_S = 60.0
"""Time in seconds that the end of the script waits for files that are being written."""


class LaterRecording(Protocol):
    """The recording of a request."""

    recording: bool

    @property
    def num_steps(self) -> int: ...

    def is_ready(self) -> bool: ...

    def start(self) -> None: ...

    def give_up(self, why: str) -> None: ...

    @property
    def optimizers(self) -> OptimizerHooks: ...

    def step(self) -> None: ...

    def evaluates(self, more: int) -> None: ...

    def close(self, error: BaseException | None = None) -> None: ...

    def has_written(self, seconds: float = 0.0) -> bool: ...

    def lets_go(self) -> bool: ...

    def end_by_signal(self, reason: str, on_main_thread: bool) -> Flush: ...  # noqa: FBT001 (a callback)

    def forget(self) -> None: ...


class Watch(Later, Protocol):
    """Logs steps while no request is recorded."""

    def explicit_step(self) -> None:
        """Called when the script explicitly ends a step."""

    def pause(self) -> None:
        """Stops logging, because the next steps are recorded."""

    def resume(self, first_step: int) -> None:
        """Logs again, beginning with this step, after the recorded steps."""

    def note(self, kind: str, text: str = "") -> None:
        """Logs an event between two steps."""


class Windows:
    """The requests of a rank, and the recording that runs for one of them. Nothing here raises."""

    def __init__(self, run: Path, folder: Callable[[], Path | None], watch: Watch, *,
                 prepare: Callable[[int, int, StepPlan, Path], LaterRecording | None],
                 say: Callable[[str], None]) -> None:
        """Begins without a request.

        Args:
            run: The run directory.
            folder: Returns the rank's folder; None while there is none.
            watch: Receives what happens in the script while nothing is recorded.
            prepare: Returns a recording, from its number, its first step, its plan, and its run directory. None if that
                is not possible now.
            say: Prints a line.
        """
        self._request_json = run / WATCH / REQUEST_JSON
        self._run, self._folder, self._watch = run, folder, watch
        self._prepare, self._say, self._note = prepare, say, watch.note
        self._next_ns, self._seen, self._last = 0, (0, 0, 0), 0
        self._first_step: int | None = None
        """First step of the request that waits for its step; None if there is none."""
        self._began_at = 0
        self._waiting: LaterRecording | None = None
        """The recording prepared for that request."""
        self._running: LaterRecording | None = None
        self._writing: list[LaterRecording] = []
        """Recordings whose files are being written."""
        self._is_off = False

    @property
    def is_pending(self) -> bool:
        """True while a request waits for its step: `look` is to be called before every step."""
        return self._first_step is not None

    def look(self, step: int) -> None:
        """Looks for a request, and begins what was requested; called between two steps.

        Args:
            step: The step that has ended.
        """
        if self._first_step is None and (self._is_off or time.monotonic_ns() < self._next_ns):
            return
        try:
            if self._first_step is None:
                self._look(step + 1)
            if self._first_step is not None and step + 1 >= self._first_step:
                self._meet(step + 1, self._first_step)
        except Exception as error:  # noqa: BLE001 (the training job always survives us)
            self._is_off, self._first_step = True, None
            self._say(f"no more recordings later in this job: {type(error).__name__}: {error}")

    # --- requests --------------------------------------------------------------------------------------------------

    def _look(self, step: int) -> None:
        self._writing = [one for one in self._writing if not (one.lets_go() and one.has_written())]
        began_ns = time.monotonic_ns()
        try:
            about = os.stat(self._request_json)  # noqa: PTH116 (quicker than Path.stat)
        except OSError:
            about = None
        took_ns = time.monotonic_ns() - began_ns
        self._next_ns = began_ns + min(SHARE * took_ns, LONGEST_NS)
        if about is not None and (seen := (about.st_mtime_ns, about.st_ino, about.st_size)) != self._seen:
            self._seen = seen
            self._read(about.st_uid, step)

    def _read(self, owner: int, step: int) -> None:
        """Accepts a request if it is new, and from the user who runs this job."""
        try:
            own = self._folder()
            request = msgspec.json.decode(read_small(self._request_json), type=WindowRequest)
            if own is None or request.number <= self._last or own.stat().st_uid != owner:
                return
            self._last = request.number
            if not self._is_done(request.number, own.name.removesuffix(PARTIAL_SUFFIX)):
                self._take(request, StepPlan.only(request.steps), step)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, DistprofError) as error:
            self._say(f"a request to record some steps cannot be read: {error}")

    def _is_done(self, number: int, rank: str) -> bool:
        """Returns whether a request was already handled in an earlier attempt of the job."""
        folder = window_folder(self._run, number)
        return (folder / rank).exists() or (folder / f"{rank}{PARTIAL_SUFFIX}").exists()

    def _take(self, request: WindowRequest, plan: StepPlan, step: int) -> None:
        self._note("window_asked", str(request.number))
        found = self._prepare(request.number, request.first_step, plan, window_folder(self._run, request.number))
        if found is None:
            self._note("window_missed", f"{request.number}: the previous profiler session has not ended")
        elif step > request.first_step:
            self._miss(found, f"it was to start in step {request.first_step}, but this rank was in step {step} already")
        else:
            self._waiting, self._first_step = found, request.first_step

    def _meet(self, step: int, first_step: int) -> None:
        """Begins the waiting request in its step, or reports that it cannot begin."""
        found, self._waiting, self._first_step = self._waiting, None, None
        if found is None:
            return
        if step > first_step:
            self._miss(found, f"this rank has no step {first_step}")
        elif not all(one.lets_go() for one in self._writing):
            self._miss(found, "the files of the previous one were still being written")
        elif not found.is_ready():
            self._miss(found, "its folder could not be made in time")
        else:
            self._running, self._began_at = found, first_step
            self._note("window_began", str(self._last))
            self._watch.pause()
            found.start()

    def _miss(self, recording: LaterRecording, why: str) -> None:
        self._note("window_missed", f"{self._last}: {why}")
        self._say(f"nothing is recorded in {WINDOWS}/{self._last:04d}: {why}")
        recording.give_up(why)
        self._writing.append(recording)

    # --- while one runs --------------------------------------------------------------------------------------------

    def evaluates(self, more: int) -> None:
        """Notes that the script has entered (1) or left (-1) an evaluation."""
        for one in (self._waiting, self._running):
            if one is not None:
                one.evaluates(more)

    def before_optimizer(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called before an optimizer steps, as in `Later`."""
        running = self._running
        if running is None or not running.recording:
            return self._watch.before_optimizer(optimizer, args, kwargs)
        return running.optimizers.before(optimizer, args, kwargs)

    def after_optimizer(self, optimizer: Optimizer, *, called: bool = True, skipped: bool = False) -> None:
        """Called after an optimizer stepped, as in `Later`."""
        if self._running is not None:
            self._look_whether_over()  # it may have failed meanwhile
        if self._running is None:
            if called:
                self._watch.after_optimizer(optimizer)
            else:
                self._watch.after_optimizer(optimizer, called=False, skipped=skipped)
            return
        self._running.optimizers.behind(optimizer, called=called, skipped=skipped)
        self._look_whether_over()

    def explicit_step(self) -> None:
        """Called when the script explicitly ends a step."""
        self._look_whether_over()
        if self._running is None:
            self._watch.explicit_step()
            return
        self._running.step()
        self._look_whether_over()

    def _look_whether_over(self) -> None:
        over = self._running
        if over is not None and not over.recording:
            self._writing.append(over)
            self._running = None
            self._note("window_ended", str(self._last))
            self._watch.resume(self._began_at + over.num_steps)

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self, error: BaseException | None) -> None:
        """Writes what was recorded so far when the script ends."""
        self._is_off, self._first_step = True, None
        if self._waiting is not None:
            self._waiting.give_up("the script ended before its first step")
            self._writing.append(self._waiting)
            self._waiting = None
        if self._running is not None:
            self._running.close(error)
            self._look_whether_over()
        for one in self._writing:
            one.has_written(AT_THE_END_S)
        self._writing = []

    def end_by_signal(self, reason: str, *, on_main_thread: bool) -> Flush:
        """Writes what was recorded so far when a signal ends the process."""
        for one in (*filter(None, [self._running]), *self._writing):
            found = one.end_by_signal(reason, on_main_thread)
            if found is not Flush.DONE:
                return found
        return Flush.DONE

    def forget(self) -> None:
        """Leaves everything to the parent; called in a forked child."""
        for one in (self._waiting, self._running, *self._writing):
            if one is not None:
                one.forget()
        self._waiting, self._running, self._writing = None, None, []
        self._is_off, self._first_step = True, None
