"""Runs real jobs of `tests/scripts/stands_still.py` under `distprof run`, and gets the findings while they hang."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from distprof.contract.rank_json import RankJson
from distprof.contract.watch_state import WatchFinding, read_state
from distprof.errors import DataError
from support import forked
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ

STOP, SEEN_STOP = 30, 220
"""Step in which the job hangs: early, and after its watcher has seen all processes."""
WITHIN_S = 20.0
LISTENS_S = 60.0
"""A hang that is not reported within this many seconds counts as not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The finding about a job that hung or continued."""

    finding: WatchFinding | None
    after_s: float = 0.0
    """Seconds from the last step of any rank until the finding was in `watch/state.json`."""

    def __str__(self) -> str:
        return f"{self.after_s:.1f} s: {self.finding.text}" if self.finding is not None else "nothing"


class HangingJob:
    """A job that hangs, or may seem to."""

    def __init__(self, folder: Path, how: str, size: int, who: int = 1) -> None:
        """Starts the job.

        Args:
            folder: Folder of the job, which is created.
            how: How it hangs, as an argument of the script.
            size: Number of ranks.
            who: The rank that causes it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self._mark, self._size = folder / "run", folder / "mark", size
        self.stop = SEEN_STOP if how == "no folder" else STOP
        with (folder / "said").open("wb") as said:
            self.process = forked.popen(
                [sys.executable, "-m", "distprof", "run", "--no-merge", "--no-progress", "--passes", "off", "--out",
                 self.out, "--nproc-per-node", str(size), SCRIPTS / "stands_still.py", how, str(self.stop), self._mark,
                 str(who)],
                env=clean_environ() | {"OMP_NUM_THREADS": "1"}, stderr=said, stdout=said)
        self._said = folder / "said"

    @property
    def said(self) -> str:
        """What the job has printed so far."""
        return self._said.read_text(errors="replace")

    def listen(self) -> Told:
        """Waits for the finding of a hang; returns none if the job ended, or hung for `LISTENS_S`."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and time.monotonic() < deadline:
            last, found = self._last_step(), self._hang()
            still_s = (time.time_ns() - last[1]) / 1e9
            if found is not None:
                return Told(finding=found, after_s=still_s)
            if last[0] >= self.stop and still_s > LISTENS_S:
                break
            time.sleep(0.25)
        return Told(finding=self._hang())

    def over(self) -> None:
        """Ends the job, if it still runs."""
        pids = [self._pid(path) for path in self.out.glob("rank*/rank.json")]
        if self.process.poll() is None:
            self.process.terminate()
            for pid in filter(None, pids):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=PATIENCE_S)

    def _last_step(self) -> tuple[int, int]:
        """Returns number and time of the last step of any rank."""
        found = [(0, time.time_ns())]
        for rank in range(self._size):
            with suppress(OSError, ValueError):
                step, time_ns = map(int, Path(f"{self._mark}.{rank}.step").read_text().split())
                found.append((step, time_ns))
        return max(found)

    def _hang(self) -> WatchFinding | None:
        with suppress(DataError):
            state = read_state(self.out)
            return next((one for one in state.findings if one.kind == "hang"), None) if state is not None else None
        return None

    def _pid(self, path: Path) -> int:
        try:
            return msgspec.json.decode(path.read_bytes(), type=RankJson).pid
        except (OSError, msgspec.MsgspecError):
            return 0
