"""Detects that this rank hangs, and writes or removes its `stuck.json`.

While recording, a rank hangs if no step has ended for long; after the last pass, in a job that distprof launched, if no
collective was called for long. Signals and communication errors also cause a report. A thread that mostly sleeps checks
the progress; nothing is hooked. The job's watcher may request the file at any time, by `watch/request.json` of the run.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import msgspec

from distprof.contract.stuck import OpenCall, Stuck
from distprof.contract.watch_state import REQUEST_JSON, WATCH, WindowRequest
from distprof.files import read_small
from distprof.own import Event, time
from distprof.recording.communication.collective_call import CollectiveCall
from distprof.recording.hang.report import HangReport, failure_of, is_communication, last_called, message_of
from distprof.recording.pass_switch import PassSwitch
from distprof.recording.rank_recording import RankRecording
from distprof.recording.steps.current_step import CurrentStep
from distprof.threads import UnseenThread

LOOK_S = 2.0
"""Time in seconds between two looks at `watch/request.json`."""


class StacksAsked:
    """Looks for requests of stacks; those made before this rank looked for the first time do not count."""

    def __init__(self, folder: Callable[[], Path | None]) -> None:
        """Begins without having looked.

        Args:
            folder: Returns the rank's folder in the run directory; None while there is none.
        """
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._count: int | None = None

    def is_new(self) -> bool:
        """True once per request; a file that cannot be read requests nothing."""
        folder = self._folder()
        if folder is None:
            return False
        path = folder.parent / WATCH / REQUEST_JSON
        try:
            stat = path.stat()
            if (stat.st_mtime_ns, stat.st_ino) == self._seen:
                return False
            self._seen = stat.st_mtime_ns, stat.st_ino
            count = msgspec.json.decode(read_small(path), type=WindowRequest).stacks
        except FileNotFoundError:
            self._count = self._count or 0
            return False
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        before, self._count = self._count, count
        return before is not None and count > before


LONGEST_SLEEP_S = 10.0
LEAST_LIMIT_S = 30.0
STEPS = 20
"""A rank hangs after this multiple of its longest step so far, but not before `LEAST_LIMIT_S` seconds."""
AFTERWARDS_S = 300.0
"""Time in seconds without a collective after which a rank hangs, after the last pass."""
INTERRUPTED_FOR_NS = 60_000_000_000
"""An exception that ends the script within this time after a signal counts as a consequence of the signal."""


class HangWatch:
    """Watches one recorder for hangs."""

    def __init__(self, rank: RankRecording, switch: PassSwitch, step: CurrentStep, recording: Callable[[], bool],
                 later_step: Callable[[], int]) -> None:
        self._rank = rank
        self._switch = switch
        self._step = step
        self._recording, self._later_step = recording, later_step
        self._longest_ns = 0
        self._ending = False
        self._interrupted: Stuck | None = None
        self._report = HangReport(lambda: rank.rank_folder, self._about)
        self._over = Event()
        self.stays = "DISTPROF_RUN_ID" in os.environ
        """True if the rank is also watched after the last pass, because distprof launched the job."""

    def start(self) -> None:
        """Starts the watching thread."""
        UnseenThread(self._watch).start()

    def step_ended(self, duration_ns: int) -> None:
        """Raises the limit if the step that has ended is the longest so far."""
        self._longest_ns = max(self._longest_ns, duration_ns)

    def on_signal(self, number: int, ends: bool) -> None:  # noqa: FBT001 (a callback)
        """Takes the state when the process receives a signal; later, other ranks that end may release this one.

        Args:
            number: The signal.
            ends: True if the process ends by it; otherwise the script handles it and may continue.
        """
        reason = f"signal {signal.Signals(number).name}"
        if ends:
            self._end(lambda: self._report.take("signal", reason))
            return
        try:
            self._interrupted = self._report.take("signal", reason)
        except Exception:  # noqa: BLE001 (the thread that calls this must survive for the next signal)
            self._interrupted = None

    def on_hanging(self) -> None:
        """Reports the state at a signal that the script handles, but to which the main thread did not react."""
        self._end(lambda: self._interrupted)

    def on_error(self, error: BaseException) -> None:
        """Reports an exception that ends the script; a communication error means that other ranks may hang."""
        try:
            self._on_error(error)
        except Exception:  # noqa: BLE001 (only the script's exception counts, not what it raises while being examined)
            return

    def _on_error(self, error: BaseException) -> None:
        interrupted = self._interrupted
        if isinstance(error, SystemExit):
            return  # the script ends deliberately
        if interrupted is not None and time.time_ns() - interrupted.time_ns < INTERRUPTED_FOR_NS:
            found: Stuck | None = interrupted
        elif isinstance(error, KeyboardInterrupt):
            found = self._report.take("signal", "signal SIGINT")
        elif is_communication(error):
            first_line = (message_of(error).splitlines() or [""])[0]
            found = self._report.take("error", f"{type(error).__name__}: {first_line}")
        else:
            return
        self._end(lambda: msgspec.structs.replace(found, failure=failure_of(error)) if found is not None else None)

    def _end(self, found: Callable[[], Stuck | None]) -> None:
        """Writes the file that stays; of several reasons to end, the first counts."""
        def first() -> Stuck | None:
            return None if self._ending else found()

        if self._recording() or self.stays:
            self._ending = self._report.write(first) or self._ending

    def complete(self, rename: Callable[[], None]) -> None:
        """Renames the folder while nothing is written into it, and removes the file of a hang that is over."""
        with self._report.lock:
            if not self._ending:
                self._report.remove()
            rename()

    def stop(self) -> None:
        """Ends the watching; the file stays if the process ends because of the hang."""
        self._over.set()
        if not self._ending:
            self._report.remove()

    def _watch(self) -> None:
        seen, since, reported, due = self._look(), time.monotonic(), False, 0.0
        asked, is_asked = StacksAsked(lambda: self._rank.rank_folder), False
        while not self._over.wait(min(LOOK_S, self._limit_s() / 4)):
            try:
                is_asked = asked.is_new() or is_asked  # until it is answered
                if not is_asked and not reported and time.monotonic() < due:
                    continue  # checking for a request costs less than checking the progress
                due = time.monotonic() + min(LONGEST_SLEEP_S, self._limit_s() / 4) - LOOK_S / 2
                now = self._look()
                if now != seen:
                    seen, since = now, time.monotonic()
                    if reported:
                        self._report.remove()
                        reported = False
                if is_asked:
                    reported, is_asked = True, False
                    self._on_asked(time.monotonic() - since)
                elif not reported and time.monotonic() - since >= self._limit_s():
                    reported = True
                    self._on_hang(time.monotonic() - since)
            except Exception:  # noqa: BLE001 (watching is never a reason to fail)
                continue

    def _look(self) -> Hashable:
        """Returns a value that changes if and only if there is progress."""
        if self._recording():
            return self._step.number, self._step.num_turns
        # without process groups, no rank waits for another
        return tuple(sorted(last_called().items())) or time.monotonic()

    def _limit_s(self) -> float:
        """Returns the seconds without progress after which the rank counts as hanging."""
        try:
            given = float(os.environ.get("DISTPROF_HANG_SECONDS", ""))
        except ValueError:
            given = 0.0
        if given > 0:
            return given
        return max(LEAST_LIMIT_S, STEPS * self._longest_ns / 1e9) if self._recording() else AFTERWARDS_S

    def _on_hang(self, seconds: float) -> None:
        recording = self._recording()
        if recording or self.stays:
            what = "step has ended" if recording else "collective has been called"
            why = f"no {what} for {seconds:.1f} s"
            written = self._report.write(lambda: None if self._ending else self._report.take("watchdog", why))
            if written and recording and self._rank.identity.world_size > 1:
                self._rank.say(f"no step has ended for {seconds:.0f} s; see stuck.json in {self._rank.rank_folder} for "
                               "where this rank is")

    def _on_asked(self, seconds: float) -> None:
        """Writes the state that the job's watcher requested. This is no hang; the next progress removes the file."""
        if self._recording() or self.stays:
            why = f"requested {seconds:.1f} s after the last sign of progress"
            self._report.write(lambda: None if self._ending else self._report.take("asked", why))

    def _about(self) -> dict[str, Any]:
        recording = self._recording()
        thread = threading.main_thread().ident or 0
        frame = self._switch.scopes.current_on(thread)
        phase = frame.phase if frame is not None else None
        return {
            "rank": self._rank.identity.rank, "world_size": self._rank.identity.world_size,
            "recording": recording, "step": max(self._step.number, self._later_step()),
            "pass_name": self._switch.running,
            "phase": self._switch.phases.on(thread) or phase,
            "module_path": frame.site.path if frame is not None else None,
            "since_ns": self._step.began_ns or None if recording else None,
            "open_calls": [_open_call(call) for call in self._switch.open_calls()],
        }


def _open_call(call: CollectiveCall) -> OpenCall:
    return OpenCall(**{name: getattr(call, name) for name in OpenCall.__struct_fields__})
