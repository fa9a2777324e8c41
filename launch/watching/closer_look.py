"""Looks closer at what was noticed: all ranks record some steps, which tell the module and the line."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from distprof.contract.watch_state import WatchFinding, window_folder
from distprof.errors import DistprofError
from distprof.launch.watching.explained import Explanation, explained
from distprof.launch.watching.latest_step import latest_step
from distprof.launch.watching.requests import RequestPolicy, ask, finished, usual_steps

KINDS = ("slow_rank", "slow_host", "slow_link", "slow_group", "regression", "intermittent", "data_stall")
"""What a recording of a few steps may explain."""


class CloserLooks:
    """Asks the ranks to record because of a finding, and joins what that told to it.

    Args:
        run: The run directory.
        policy: When ranks may be asked.
    """

    def __init__(self, run: Path, policy: RequestPolicy) -> None:
        self._run, self._policy = run, policy
        self._asked: tuple[str, int] | None = None
        """The finding and number of the recording that is under way."""
        self._reading: threading.Thread | None = None
        self._told: dict[str, tuple[int, list[Explanation]]] = {}

    def look(self, findings: Iterable[WatchFinding]) -> None:
        """Goes on with what is under way, else looks whether something is to be explained. Never fails.

        Args:
            findings: Those that are certain by now.
        """
        with suppress(OSError, DistprofError):  # a full disk, a job that has ended, another one that was faster
            if self._asked is not None:
                self._go_on(*self._asked)
                return
            for one in findings:
                if one.kind in KINDS and one.until_step is None and self._policy.allows(one.id):
                    self._ask(one)
                    return

    def join(self, findings: Iterable[WatchFinding]) -> None:
        """Adds module, line and window to the findings that they are known of."""
        for one in findings:
            number, every = self._told.get(one.id, (None, []))
            fits = next((each for each in every if not one.ranks or each.rank in one.ranks), None)
            if number is not None and fits is not None:
                one.window, one.module, one.line = number, fits.module, fits.line

    @property
    def num_told(self) -> int:
        """Recordings that were read."""
        return len(self._told)

    def wait(self, seconds: float) -> None:
        """Lets a recording that is being read be read to its end, at the end of the job."""
        if self._asked is not None and self._reading is None:
            self.look(())
        if self._reading is not None:
            self._reading.join(seconds)

    def _ask(self, one: WatchFinding) -> None:
        self._policy.asked(one.id)
        latest = latest_step(self._run)
        if latest is not None:
            request = ask(self._run, usual_steps(latest.step_s), one.id, latest_step=latest.step, step_s=latest.step_s,
                          age_s=latest.age_s)
            self._asked = one.id, request.number

    def _go_on(self, finding: str, number: int) -> None:
        if self._reading is None:
            if finished(self._run, number):
                self._reading = threading.Thread(target=self._read, args=(finding, number), daemon=True)
                self._reading.start()
        elif not self._reading.is_alive():
            self._asked = self._reading = None

    def _read(self, finding: str, number: int) -> None:
        with suppress(Exception):  # the finding stays as it is
            if any(window_folder(self._run, number).glob("rank?????")):
                self._told[finding] = number, explained(self._run, number)
