"""What else is known of findings while a job runs: what the machine says, the module and the line, and hangs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from distprof.contract.watch_state import WatchState
from distprof.launch.watching.closer_look import CloserLooks
from distprof.launch.watching.hangs import HangSearch
from distprof.launch.watching.rank_folders import LocalRanks
from distprof.launch.watching.reasons import Reasons
from distprof.launch.watching.requests import EVERY_S, RequestPolicy
from distprof.merge.text.watch import sentence
from distprof.summaries.host_file import file_stem

END_S = 20.0
"""How long the end of the job waits for a recording that is being read."""


class Explanations:
    """All of it. A part that fails is left out, and says so in the notes of the state.

    Args:
        run: The run directory.
        every_s: Seconds between two recordings that the watch asks for; 0 for none, None for as many as usual.
    """

    def __init__(self, run: Path, every_s: float | None) -> None:
        self._run = run
        self._ranks = LocalRanks(run)
        self._reasons: Reasons | None = None
        self._closer = CloserLooks(run, RequestPolicy(run, EVERY_S if every_s is None else every_s or math.inf))
        self._hangs = HangSearch(run, self._ranks)
        self._why: dict[str, list[str]] = {}
        self._notes: list[str] = []

    def begin(self) -> None:
        """Begins to read what this machine says, once a rank is here; also where another host watches the job."""
        if self._reasons is not None or self._notes or not self._ranks() or self._ranks.about is None:
            return
        about = self._ranks.about
        try:
            self._reasons = Reasons(self._run, about.host, file_stem(about), self._ranks, lambda: {os.getppid()})
            self._reasons.start()
        except (OSError, RuntimeError) as error:
            self._notes = [f"what the machine says is not known: {getattr(error, 'strerror', None) or error}"]

    def add(self, state: WatchState, certain: Collection[str], *, running: bool) -> None:
        """Adds what is known to the state.

        Args:
            state: As of now.
            certain: Ids of findings that are worth a closer look.
            running: False at the end of the job, where nobody can be asked any more.
        """
        if running:
            self._closer.look([one for one in state.findings if one.id in certain])
        else:
            self._closer.wait(END_S)
        self._closer.join(state.findings)
        self._add_reasons(state)
        for one in state.findings:
            one.text = sentence(one)
        hang = self._hangs.look(state.ranks, time.time_ns()) if running else self._hangs.finding
        if hang is not None:
            state.findings.append(hang)
        state.notes += self._notes

    def stop(self) -> None:
        """Ends the reading."""
        if self._reasons is not None:
            self._reasons.stop()

    def _add_reasons(self, state: WatchState) -> None:
        if self._reasons is None:
            return
        with suppress(Exception):  # a finding without its reason is worth having
            hosts = {one.rank: one.host for one in state.ranks}
            self._reasons.add_links(state)
            self._why |= {key: why for key, why in self._reasons.explain(state.findings, hosts).items() if why}
        for one in state.findings:
            one.why += [line for line in self._why.get(one.id, []) if line not in one.why]
        self._notes = self._reasons.notes
