"""Decides that this rank hangs, and writes or removes its `stuck.json`.

While recording, a rank hangs if no step has ended for long; after the last pass, in a job that distprof launched, if no
collective was called for long. Signals and errors of communication count as well. A thread that sleeps most of the time
looks at the progress; nothing is hooked. The watcher of the job may ask for the file at any time, by
`watch/request.json` of the run.
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
"""Between two looks at that file."""


class StacksAsked:
    """Looks at the request; what was asked before this rank looked for the first time does not count."""

    def __init__(self, folder: Callable[[], Path | None]) -> None:
        """Remembers nothing yet.

        Args:
            folder: Of the rank, in the run directory; None while there is none.
        """
        self._folder = folder
        self._seen: tuple[int, int] | None = None
        self._count: int | None = None

    def is_new(self) -> bool:
        """True once for each time that they are asked for; a file that cannot be read asks for nothing."""
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
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return False
        before, self._count = self._count, count
        return before is not None and count > before


LONGEST_SLEEP_S = 10.0
LEAST_LIMIT_S = 30.0
STEPS = 20
"""Times the longest step so far."""
AFTERWARDS_S = 300.0
"""Without a collective, after the last pass."""
INTERRUPTED_FOR_NS = 60_000_000_000
"""An exception that ends the script this soon after a signal is taken for its consequence."""


class HangWatch:
    """Watches one recorder."""

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
        """True where the job is watched after the last pass, too: it was launched by distprof."""

    def start(self) -> None:
        """Begins to watch."""
        UnseenThread(self._watch).start()

    def step_ended(self, duration_ns: int) -> None:
        """A step ended: the limit follows the longest one."""
        self._longest_ns = max(self._longest_ns, duration_ns)

    def on_signal(self, number: int, ends: bool) -> None:  # noqa: FBT001 (a callback)
        """The process gets a signal. The state is taken now: other ranks that end may release this one.

        Args:
            number: Of the signal.
            ends: The process ends by it; else the script handles it, and may go on.
        """
        reason = f"signal {signal.Signals(number).name}"
        if ends:
            self._end(lambda: self._report.take("signal", reason))
            return
        try:
            self._interrupted = self._report.take("signal", reason)
        except Exception:  # noqa: BLE001 (the next signal must find the thread that calls this)
            self._interrupted = None

    def on_hanging(self) -> None:
        """The main thread did not react to a signal that the script handles."""
        self._end(lambda: self._interrupted)

    def on_error(self, error: BaseException) -> None:
        """The script ends with an exception; one of communication means that other ranks may hang."""
        try:
            self._on_error(error)
        except Exception:  # noqa: BLE001 (the exception of the script counts, not what it does when it is looked at)
            return

    def _on_error(self, error: BaseException) -> None:
        interrupted = self._interrupted
        if isinstance(error, SystemExit):
            return  # the script ends because it wants to
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
        """Writes the file that stays; of several reasons to end the first counts."""
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
        asked = StacksAsked(lambda: self._rank.rank_folder)
        while not self._over.wait(min(LOOK_S, self._limit_s() / 4)):
            try:
                is_asked = asked.is_new()
                if not is_asked and not reported and time.monotonic() < due:
                    continue  # to look costs more than to see whether anyone asks
                due = time.monotonic() + min(LONGEST_SLEEP_S, self._limit_s() / 4) - LOOK_S / 2
                now = self._look()
                if now != seen:
                    seen, since = now, time.monotonic()
                    if reported:
                        self._report.remove()
                        reported = False
                if is_asked:
                    reported = True
                    self._on_asked(time.monotonic() - since)
                elif not reported and time.monotonic() - since >= self._limit_s():
                    reported = True
                    self._on_hang(time.monotonic() - since)
            except Exception:  # noqa: BLE001 (to look is never a reason to fail)
                continue

    def _look(self) -> Hashable:
        """A value that changes if and only if there is progress."""
        if self._recording():
            return self._step.number, self._step.num_turns
        # without process groups no rank waits for another
        return tuple(sorted(last_called().items())) or time.monotonic()

    def _limit_s(self) -> float:
        """Seconds without progress after which the rank is taken to hang."""
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
        """The watcher of the job wants to know where all ranks are. That is no hang; the file goes when they go on."""
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
