"""What else is known of findings while a job runs: what the machine says, the module and the line, and hangs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.contract.watch_state import WatchFinding, WatchState, window_folder
from distprof.errors import DistprofError
from distprof.launch.final_merge import MERGE
from distprof.launch.watching.hangs import HangSearch
from distprof.launch.watching.rank_folders import LocalRanks, latest_step
from distprof.launch.watching.reasons import Reasons
from distprof.launch.watching.requests import EVERY_S, RequestPolicy, ask, finished, usual_steps
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
            self._notes = [f"no readings of this machine: {getattr(error, 'strerror', None) or error}"]

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


PATIENCE_S = 300.0
"""How long it may take: many ranks take longer, and processors may be busy with the job."""
NICE = 10
"""The job comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The rank that delays the others in a recording, and with what."""

    rank: int
    text: str
    """The finding as a sentence."""
    module: str | None
    line: str | None
    """`file.py:33`."""
    gain_ns: float | None
    """By which a step would be shorter without it."""


def explained(run: Path, number: int) -> list[Explanation]:
    """Reads the N-th recording of a run in a process of its own, which has a low priority.

    Returns:
        Ranks that delay the others, the most expensive first; none where no rank does, or that cannot be told.
    """
    found = _findings(window_folder(run, number))
    return [_explanation(one) for one in found if one.get("severity") == "bad" and one.get("rank") is not None]


def _findings(folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-c", MERGE, "\n".join(sys.path), "findings", "--json", os.fspath(folder)]
    environ = {name: value for name, value in os.environ.items() if name != "DISTPROF_OUT"}
    environ["POLARS_MAX_THREADS"] = "1"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              env=environ, timeout=PATIENCE_S, check=True, preexec_fn=_low_priority)
        return list(json.loads(done.stdout)["findings"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return []


def _low_priority() -> None:
    os.nice(NICE)


def _explanation(one: dict[str, Any]) -> Explanation:
    line = (one.get("cause") or {}).get("line") or {}
    place = f"{Path(line['file']).name}:{line['line']}" if line.get("file") else None
    return Explanation(rank=int(one["rank"]), text=str(one["text"]), module=one.get("module"), line=place,
                       gain_ns=one.get("gain_ns"))
