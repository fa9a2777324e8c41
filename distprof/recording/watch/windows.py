"""Recordings later in a job, each a run directory of its own: all ranks begin one in the step that a request names.

A request is a file that the launcher or `distprof trigger` writes. Between two steps a rank looks whether it changed,
at most every `EVERY_NS`, and until the step has come before every step. Nothing else is there meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec
from torch.optim import Optimizer

from distprof.contract.paths import PARTIAL_SUFFIX
from distprof.contract.watch_state import REQUEST_JSON, WATCH, WindowRequest, window_folder
from distprof.errors import DistprofError
from distprof.files import read_small
from distprof.recording.plan import StepPlan
from distprof.recording.termination import Flush

EVERY_NS = 200_000_000
"""Between two looks."""
SHARE = 1000
"""Where looking takes long, as on a busy file server, it is done so seldom that it takes this part of the time."""
LONGEST_NS = 2_000_000_000
"""But no more seldom than that."""
AT_THE_END_S = 60.0
"""How long the end of the script waits for files that are being written."""


class LaterRecording(Protocol):
    """What runs for a request."""

    recording: bool

    @property
    def num_steps(self) -> int: ...

    def behind_optimizer(self, optimizer: Optimizer, *, replayed: bool) -> None: ...

    def step(self) -> None: ...

    def evaluates(self, more: int) -> None: ...

    def close(self, error: BaseException | None = None) -> None: ...

    def has_written(self, seconds: float = 0.0) -> bool: ...

    def end_by_signal(self, reason: str, on_main_thread: bool) -> Flush: ...  # noqa: FBT001 (a callback)

    def forget(self) -> None: ...


class Windows:
    """The requests of a rank, and the recording that runs for one of them. Nothing here raises."""

    def __init__(self, run: Path, folder: Callable[[], Path | None], *,
                 begin: Callable[[int, int, StepPlan, Path], LaterRecording | None], pause: Callable[[], None],
                 resume: Callable[[int], None], say: Callable[[str], None],
                 note: Callable[[str, str], None] = lambda _kind, _text: None) -> None:
        """Begins without a request.

        Args:
            run: The run directory.
            folder: That of the rank.
            begin: Begins a recording: its number, the step of the job, its plan, and its run directory. None where
                that is not possible now.
            pause: Called before a recording begins: no steps are noted meanwhile.
            resume: Called once it is over, with the number of the step that runs.
            say: Says a line.
            note: Notes something between two steps: its kind, and what.
        """
        self.recorder: LaterRecording | None = None
        """What records now."""
        self._request_json = run / WATCH / REQUEST_JSON
        self._run, self._folder = run, folder
        self._begin, self._pause, self._resume, self._say, self._note = begin, pause, resume, say, note
        self._next_ns, self._seen, self._last = 0, (0, 0, 0), 0
        self._request: WindowRequest | None = None
        self._plan: StepPlan | None = None
        self._first_step = 0
        self._writing: LaterRecording | None = None
        """A recording whose files are being written."""
        self._is_off = False

    @property
    def is_pending(self) -> bool:
        """True while a request waits for its step: `look` is to be called before every step."""
        return self._request is not None

    def look(self, step: int) -> None:
        """Looks for a request, and begins what was requested.

        Called between two steps.

        Args:
            step: The number of the step that begins.
        """
        now_ns = time.monotonic_ns()
        if self._is_off or (self._request is None and now_ns < self._next_ns):
            return
        try:
            if self._request is None:
                self._look(now_ns)
            if self._request is not None and step >= self._request.first_step:
                self._meet(step)
        except Exception as error:  # noqa: BLE001 (the training job always survives us)
            self._say(f"nothing is recorded later in this job: {type(error).__name__}: {error}")
            self._is_off, self._request = True, None

    # --- requests --------------------------------------------------------------------------------------------------

    def _look(self, began_ns: int) -> None:
        if self._writing is not None and self._writing.has_written():
            self._writing = None
        try:
            about = self._request_json.stat()
        except OSError:
            about = None
        took_ns = time.monotonic_ns() - began_ns
        self._next_ns = began_ns + min(max(EVERY_NS, SHARE * took_ns), LONGEST_NS)
        if about is not None and (seen := (about.st_mtime_ns, about.st_ino, about.st_size)) != self._seen:
            self._seen = seen
            self._read(about.st_uid)

    def _read(self, owner: int) -> None:
        """Takes over a request that is new, and from the user who runs this job."""
        try:
            own = self._folder()
            request = msgspec.json.decode(read_small(self._request_json), type=WindowRequest)
            if own is None or request.number <= self._last or own.stat().st_uid != owner:
                return
            self._last = request.number
            if not self._is_done(request.number, own.name.removesuffix(PARTIAL_SUFFIX)):
                self._plan = StepPlan.only(request.steps)
                self._request = request
        except (OSError, msgspec.MsgspecError, DistprofError) as error:
            self._say(f"a request to record later in this job cannot be read: {error}")

    def _is_done(self, number: int, rank: str) -> bool:
        """Whether a request is that of an earlier attempt of the job."""
        folder = window_folder(self._run, number)
        return (folder / rank).exists() or (folder / f"{rank}{PARTIAL_SUFFIX}").exists()

    def _meet(self, step: int) -> None:
        """The step of the request has come, or is over."""
        request, plan, self._request = self._request, self._plan, None
        if request is None or plan is None:
            return
        if step > request.first_step:
            self._miss(request, f"step {request.first_step} was over when the request was read in step {step}")
        elif self._writing is not None and not self._writing.has_written():
            self._miss(request, "the previous recording is still being written")
        else:
            self._writing = None
            self._begin_at(request, plan)

    def _begin_at(self, request: WindowRequest, plan: StepPlan) -> None:
        self._first_step = request.first_step
        self._pause()
        self.recorder = self._begin(request.number, request.first_step, plan,
                                    window_folder(self._run, request.number))
        if self.recorder is None:
            self._miss(request, "the previous profiler session has not ended")
            self._resume(request.first_step)
        else:
            self._note("window_began", str(request.number))

    def _miss(self, request: WindowRequest, why: str) -> None:
        self._note("window_missed", f"{request.number}: {why}")
        self._say(f"recording {request.number} is missed here: {why}")

    # --- while one runs --------------------------------------------------------------------------------------------

    def are_on(self) -> bool:
        """Whether a recording runs; what happens in the script is for it then."""
        if self.recorder is not None and not self.recorder.recording:
            self._over()
        return self.recorder is not None

    def after_optimizer(self, optimizer: Optimizer, *, replayed: bool) -> None:
        """An optimizer stepped, or a graph was replayed that holds its step."""
        if self.recorder is not None:
            self.recorder.behind_optimizer(optimizer, replayed=replayed)
            self.are_on()

    def explicit_step(self) -> None:
        """The script says that a step ended."""
        if self.recorder is not None:
            self.recorder.step()
            self.are_on()

    def _over(self) -> None:
        over, self.recorder = self.recorder, None
        if over is not None:
            self._writing = over
            self._note("window_ended", str(self._last))
            self._resume(self._first_step + over.num_steps)

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self, error: BaseException | None) -> None:
        """The script ends: what was recorded by now is written."""
        self._is_off, self._request = True, None
        if self.recorder is not None:
            self.recorder.close(error)
            self.are_on()
        if self._writing is not None:
            self._writing.has_written(AT_THE_END_S)
            self._writing = None

    def end_by_signal(self, reason: str, *, on_main_thread: bool) -> Flush:
        """The same where a signal ends the process."""
        one = self.recorder or self._writing
        return Flush.DONE if one is None else one.end_by_signal(reason, on_main_thread)

    def forget(self) -> None:
        """In a forked child: the parent records."""
        for one in (self.recorder, self._writing):
            if one is not None:
                one.forget()
        self.recorder, self._writing, self._is_off = None, None, True
