"""Explains findings while a job runs: machine conditions, module and line from a recording, and hangs."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from distprof.contract.paths import RANK_JSON, rank_files
from distprof.contract.watch_state import WatchFinding, WatchState, window_folder
from distprof.errors import DistprofError
from distprof.launch.watching.hangs import HangSearch
from distprof.launch.watching.rank_folders import LocalRanks, latest_step
from distprof.launch.watching.reasons import Reasons
from distprof.launch.watching.requests import EVERY_S, RequestPolicy, ask, finished, usual_steps
from distprof.launch.watching.window_causes import Explanation, explained
from distprof.merge.text.watch import sentence
from distprof.summaries.host_file import file_stem

END_S = 20.0
"""Longest time for which the end of the job waits for a recording that is being analysed."""


class Explanations:
    """All explanations of the findings of a job. A part that fails is left out.

    Args:
        run: The run directory.
            every_s: Shortest time between two recordings that the watch requests, in s; 0 for none, None for the
                default.
            news_s: When ranks last wrote something, by the monotonic clock; None if unknown.
    """

    def __init__(self, run: Path, every_s: float | None, news_s: float | None = None) -> None:
        self._run = run
        self._ranks = LocalRanks(run)
        self._reasons: Reasons | None = None
        self._closer = CloserLooks(run, RequestPolicy(run, EVERY_S if every_s is None else every_s or math.inf))
        self._hangs = HangSearch(run, self._ranks, news_s)
        self._why: dict[str, list[str]] = {}
        self._added: dict[str, list[str]] = {}
        """By finding id: the reasons that it has from here."""
        self._notes: list[str] = []

    def begin(self) -> None:
        """Starts reading this machine once a rank runs on it, even if the launcher of another host watches the job."""
        if self._reasons is not None or self._notes or not self._ranks() or self._ranks.about is None:
            return
        about = self._ranks.about
        try:
            self._reasons = Reasons(self._run, about.host, file_stem(about), self._ranks, lambda: {os.getppid()})
            self._reasons.start()
        except (OSError, RuntimeError) as error:
            self._notes = [f"no readings of this machine: {getattr(error, 'strerror', None) or error}"]

    def add(self, state: WatchState, certain: Collection[str], *, running: bool) -> None:
        """Adds explanations to the findings of a state, and a hang if there is one.

        Args:
            state: The current state of the job.
            certain: Ids of findings that are certain enough for a recording.
            running: Whether the job runs; at its end, ranks can no longer be asked for a recording.
        """
        if running:
            self._closer.look([one for one in state.findings if one.id in certain])
        else:
            self._closer.wait(END_S)
        self._closer.join(state.findings)
        self._add_reasons(state)
        for one in state.findings:
            one.text = sentence(one)
        hang = self._hangs.look(state.ranks) if running else self._hangs.finding
        if hang is not None:
            state.findings.append(hang)
        state.notes += self._notes

    def stop(self) -> None:
        """Stops reading this machine."""
        if self._reasons is not None:
            self._reasons.stop()

    def _add_reasons(self, state: WatchState) -> None:
        if self._reasons is None:
            return
        with suppress(Exception):  # a finding is useful without its reason
            hosts = {one.rank: one.host for one in state.ranks}
            self._reasons.add_links(state)
            self._why |= self._reasons.explain(state.findings, hosts)
        for one in state.findings:
            before, self._added[one.id] = self._added.get(one.id, []), self._why.get(one.id, [])
            kept = [line for line in one.why if line not in before]
            one.why = [*kept, *(line for line in self._added[one.id] if line not in kept)]
        self._notes = self._reasons.notes


KINDS = ("slow_rank", "slow_host", "slow_link", "slow_group", "regression", "intermittent", "data_stall")
"""Kinds of findings that a recording of a few steps may explain."""


class CloserLooks:
    """Requests recordings because of findings, and adds their results to the findings.

    Args:
        run: The run directory.
        policy: Decides when ranks may be asked for a recording.
    """

    def __init__(self, run: Path, policy: RequestPolicy) -> None:
        self._run, self._policy = run, policy
        self._asked: tuple[WatchFinding, int] | None = None
        """The finding and the number of the recording in progress; None if there is none."""
        self._reading: threading.Thread | None = None
        """The thread that analyses this recording."""
        self._told: dict[str, tuple[int, list[Explanation]]] = {}
        """By finding id: the number of its recording, and what that showed."""

    def look(self, findings: Iterable[WatchFinding]) -> None:
        """Continues the recording in progress, or requests one for a finding without explanation. Never raises.

        Args:
            findings: The findings that are certain by now.
        """
        with suppress(OSError, DistprofError):  # a full disk, a job that has ended, another request that was faster
            if self._asked is not None:
                self._go_on(*self._asked)
                return
            for one in findings:
                if one.kind in KINDS and one.until_step is None and self._policy.allows(one.id):
                    self._ask(one)
                    return

    def join(self, findings: Iterable[WatchFinding]) -> None:
        """Sets module, line and window of the findings for which they are known."""
        for one in findings:
            number, every = self._told.get(one.id, (None, []))
            fits = next((each for each in every if not one.ranks or each.rank in one.ranks), None)
            if number is not None and fits is not None:
                one.window, one.module, one.line = number, fits.module, fits.line

    @property
    def num_told(self) -> int:
        """Number of findings with a recording that was analysed."""
        return len(self._told)

    def wait(self, seconds: float) -> None:
        """Waits at the end of the job until the recording in progress is analysed, at most this long."""
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
            self._asked = one, request.number

    def _go_on(self, finding: WatchFinding, number: int) -> None:
        if self._reading is None:
            if finished(self._run, number):
                self._reading = threading.Thread(target=self._read, args=(finding, number), daemon=True)
                self._reading.start()
        elif not self._reading.is_alive():
            self._asked = self._reading = None

    def _read(self, finding: WatchFinding, number: int) -> None:
        with suppress(Exception):  # the finding stays as it is
            if any(rank_files(window_folder(self._run, number), RANK_JSON)):
                self._told[finding.id] = number, explained(self._run, number, finding)
