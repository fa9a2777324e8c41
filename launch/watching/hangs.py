"""Finds hangs while they last: if no step has ended for long, all ranks are asked for their stacks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from distprof.contract.paths import STUCK_JSON
from distprof.contract.stuck import Stuck
from distprof.contract.watch_state import REQUEST_JSON, WATCH, RankState, WatchFinding, WindowRequest
from distprof.files import json_text, read_small, write_whole
from distprof.launch.watching.readings.activity import Activity, activities, native_calls, network_bytes
from distprof.launch.watching.readings.processes import RankPids
from distprof.launch.watching.requests import NEWS_S, latest_request
from distprof.merge.blame.hang import Doing, Standstill, standstill
from distprof.merge.text.communication.hang import standstill_lines
from distprof.merge.text.phrases import file_name
from distprof.merge.text.watch import sentence

LEAST_LIMIT_S, STEPS = 15.0, 20
"""The job may hang if no step has ended for this time, and for this many usual steps."""
ASK_RATIO = 0.7
"""Ranks are asked for their stacks after this share of that time, so that they have answered when it is over."""
ANSWER_S, COMPARE_S = 2.5, 2.0
"""Time in which ranks answer (they look for a request every 2 s), and time after that over which their activity is
measured."""
DELAYS = 8
"""Last steps of a rank from which the shortest delay is taken."""
AGAIN_S = (0.0, 3.0, 6.0, 12.0, 24.0)
"""Pauses after successive checks that found no hang; the last one is repeated."""
UNSEEN_S = 60.0
"""If it is unknown whether a rank is busy, or data moves, a hang is reported only after this time without a step."""
MOST_NATIVE = 2
"""Most ranks whose native stacks are read."""
MOST_BYTES = 64 << 10
"""Bytes per second below which a host counts as moving no data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What was seen once ranks had time to answer. Their activity is measured from then on."""

    at_s: float
    doing: dict[int, Activity]
    moved_bytes: int
    """Bytes that this host had sent and received."""
    told: set[int]
    """Ranks that had written their stacks."""


class _News:
    """How long no step has ended, by the clock of this process; the clock of a rank is compared only with itself.

    Ranks write a step some time after its end. How much later than usual is seen where a step comes later than the
    earliest of the last ones, as in the clock filter of NTP (RFC 5905, section 10).
    """

    def __init__(self, ended_s: float | None) -> None:
        """Starts without steps, or with those that had been written at a time."""
        self._is_first = ended_s is not None
        self._ended_s = ended_s
        """When the last step ended, at the latest."""
        self._times: dict[int, int] = {}
        """When the last step of each rank ended, by its clock."""
        self._delays: dict[int, deque[float]] = {}
        """By rank: times at which its last steps were seen, minus those at which they ended by its clock."""

    def still_s(self, ranks: list[RankState], now_s: float) -> float:
        """Takes the states of the ranks; returns for how long no step of any of them has ended."""
        ended_s = now_s if self._ended_s is None else self._ended_s
        for one in ranks:
            if one.time_ns != self._times.get(one.rank):
                self._times[one.rank] = one.time_ns
                delays = self._delays.setdefault(one.rank, deque(maxlen=DELAYS))
                delays.append(now_s - one.time_ns / 1e9)
                if not self._is_first:
                    ended_s = max(ended_s, now_s - min(delays[-1] - min(delays), NEWS_S))
        self._is_first = False
        self._ended_s = ended_s
        return now_s - ended_s

    def most_since(self, times: Mapping[int, int]) -> int:
        """Returns the longest time of a rank, in ns, from these to the end of its last step."""
        return max((time_ns - times[rank] for rank, time_ns in self._times.items() if rank in times), default=0)


class HangSearch:
    """Searches for a hang of a job."""

    def __init__(self, run: Path, pids: RankPids, news_s: float | None = None) -> None:
        """Starts without a hang.

        Args:
            run: The run directory.
            pids: Returns the process id of each rank on this host.
            news_s: When ranks last wrote something, by the monotonic clock; None if unknown.
        """
        self._run, self._pids = run, pids
        self._news = _News(news_s)
        self._stood: dict[int, int] = {}
        """When the last step before the hang ended, by rank and its clock, in ns since the epoch."""
        self._asked_s: float | None = None
        self._first: _Look | None = None
        self._due_s, self._num_busy = 0.0, 0
        self._number = 0
        self.finding: WatchFinding | None = None
        """The last hang; `until_step` is set once the job continued. None if there was none."""

    def look(self, ranks: list[RankState]) -> WatchFinding | None:
        """Continues the search; to be called every second or two.

        Args:
            ranks: States of the ranks from their last rows.

        Returns:
            The last hang; None if there was none.
        """
        pids = self._pids().values()
        if pids and not any(psutil.pid_exists(pid) for pid in pids):  # before a restart; their stacks are still there
            self._asked_s = self._first = None
            return self.finding
        limit_s, now_s = _limit_s(ranks), time.monotonic()
        still_s = self._news.still_s(ranks, now_s)
        if still_s < ASK_RATIO * limit_s:
            self._goes_on()
        elif self.finding is not None and self.finding.until_step is None:
            self.finding.cost_ns = still_s * 1e9
        elif self._asked_s is None:
            if now_s >= self._due_s:
                self._asked_s = now_s
                with suppress(OSError):  # a full disk: the activity of processes is still known
                    ask_for_stacks(self._run)
        elif self._first is None:
            if now_s - self._asked_s >= ANSWER_S:
                self._first = self._seen(ranks, now_s)
        elif still_s >= limit_s and now_s - self._first.at_s >= COMPARE_S:
            self._judge(ranks, still_s, self._first)
        return self.finding

    def _goes_on(self) -> None:
        self._asked_s, self._first, self._num_busy, self._due_s = None, None, 0, 0.0
        if self.finding is not None and self.finding.until_step is None:
            self.finding.until_step = self.finding.onset_step
            self.finding.cost_ns = float(self._news.most_since(self._stood))
            self.finding.text, self.finding.why = sentence(self.finding), []  # the stacks no longer apply

    def _seen(self, ranks: list[RankState], now_s: float) -> _Look:
        return _Look(at_s=now_s, doing=activities(self._pids()), moved_bytes=network_bytes(),
                     told=set(_told(self._run, ranks)))

    def _judge(self, ranks: list[RankState], still_s: float, first: _Look) -> None:
        """Decides whether the job hangs, and if so makes the finding."""
        self._asked_s = self._first = None  # if it does not hang, the next check starts over
        self._due_s = time.monotonic() + AGAIN_S[min(self._num_busy, len(AGAIN_S) - 1)]
        self._num_busy += 1
        told, now = _told(self._run, ranks), self._seen(ranks, time.monotonic())
        if not told or not first.told <= now.told:
            return  # a rank that continues removes its stacks: steps end, but their rows are not written yet
        # a rank may have stopped before it wrote a row
        world = range(max(one.world_size for one in told.values()))
        every = sorted({*world, *now.doing, *(one.rank for one in ranks)})
        doing = {rank: _doing(first.doing.get(rank), now.doing.get(rank)) for rank in every}
        moved = (now.moved_bytes - first.moved_bytes) / (now.at_s - first.at_s)
        found = standstill(told, doing, moving=moved > MOST_BYTES and still_s < UNSEEN_S)
        if found is not None and (found.sure or still_s >= UNSEEN_S):
            self._number += 1
            self.finding = self._finding(found, told, doing, ranks, still_s)
            self._stood = {one.rank: one.time_ns for one in ranks}

    def _finding(self, found: Standstill, told: dict[int, Stuck], doing: dict[int, Doing], ranks: list[RankState],
                 still_s: float) -> WatchFinding:
        lines = standstill_lines(found, told, doing, int(still_s * 1e9))
        for rank, pid in self._pids().items():
            if rank in found.culprits[:MOST_NATIVE] and doing[rank] == "idle" and (calls := native_calls(pid)):
                lines.append(f"rank {rank}, native: {' > '.join(calls)}")
        places = [found.hangs.standing[rank].frame for rank in found.culprits if rank in found.hangs.standing]
        return WatchFinding(
            id=f"hang-{self._number}", kind="hang", ranks=found.culprits, text=lines[0], why=lines[1:],
            onset_ns=max((one.time_ns for one in ranks), default=time.time_ns() - int(still_s * 1e9)),
            cost_ns=still_s * 1e9,
            hosts=sorted({one.host for one in ranks if one.rank in found.culprits}),
            # the last row may be unwritten, because a row is written only when another step follows
            onset_step=max(min(one.step for one in told.values()), min((one.step for one in ranks), default=-1) + 1),
            line=next((f"{file_name(frame.file)}:{frame.line}" for frame in places if frame is not None), None))


def _limit_s(ranks: list[RankState]) -> float:
    usual = max((one.step_ns for one in ranks if one.step_ns is not None), default=0.0)
    return max(LEAST_LIMIT_S, STEPS * usual / 1e9)


def _doing(before: Activity | None, now: Activity | None) -> Doing:
    if before is None or now is None:
        return "unknown"
    if not now.alive:
        return "gone"
    if now.stopped:
        return "stopped"
    return "busy" if now.is_busy_since(before) else "idle"


def ask_for_stacks(run: Path) -> None:
    """Asks every rank to write its stacks; a request for a recording is left unchanged.

    Raises:
        OSError: The request cannot be written.
    """
    path = run / WATCH / REQUEST_JSON
    asked = latest_request(run) or WindowRequest(number=0, first_step=0, steps="")
    path.parent.mkdir(exist_ok=True)
    asked.stacks += 1
    text = json_text(asked)
    write_whole(path, lambda temporary: temporary.write_bytes(text))


def _told(run: Path, ranks: list[RankState]) -> dict[int, Stuck]:
    """Returns the stacks of the ranks that wrote them since their last step: a rank removes them when it goes on."""
    found: dict[int, Stuck] = {}
    last_ns = {one.rank: one.time_ns for one in ranks}
    for path in run.glob(f"rank*/{STUCK_JSON}"):
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            told = msgspec.json.decode(read_small(path), type=Stuck)
            if told.time_ns > last_ns.get(told.rank, 0):
                found[told.rank] = told
    return found
