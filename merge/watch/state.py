"""What the watcher reports: findings with stable ids, and the state of each rank from its last rows."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from distprof.contract.watch import UNKNOWN, Note
from distprof.contract.watch_state import RankState, WatchFinding
from distprof.merge.watch.pieces import Columns
from distprof.merge.watch.sampled_steps import SampledSteps

SETTLED_NS = 60e9
"""An onset is not moved once it is 60 s in the past: the rows around it are joined later, which blurs it."""
UNSAMPLED = "which ranks work longer is unknown: no step was sampled"
"""A reason that no longer holds once steps were sampled."""
GONE_NS = 30e9
"""A finding that was not found again for 30 s has ended."""
LATE_KINDS = frozenset({"slow_rank", "slow_host", "intermittent"})
"""Kinds about late ranks. A finding may change from one of them to another."""
MINUTE_NS = 60_000_000_000
"""Rows that end within the last minute are kept for the sparkline."""
LAST_NS = 10_000_000_000
"""Step times and phases of a rank are means over this time."""
POINTS = 60
"""Points of the sparkline: one per second."""
MEANS = ("data_ns", "forward_ns", "backward_ns", "optimizer_ns", "device_ns")


class Register:
    """All findings so far, in the order in which they were first made."""

    def __init__(self) -> None:
        """Starts without findings."""
        self.findings: list[WatchFinding] = []
        self._numbers: Counter[str] = Counter()
        self._seen: dict[str, tuple[float, int]] = {}
        """By id: when it was found last, and the last step by then."""

    def update(self, found: Sequence[WatchFinding], now_ns: float, last_step: int, near_steps: float, *,
               stopped: bool = False) -> None:
        """Adds new findings, updates those that were found again, and ends those that have not been found for long.

        Args:
            found: The findings of this search, with empty ids.
            now_ns: Current time, in ns since the epoch, by the clock of this kind of search: of the job, or of the
                watching process for ranks that stopped.
            last_step: The last step that all ranks ended. A finding that is not found again for long ended with what
                this was when it was found last; ranks that stopped are back by now.
            near_steps: Findings of the same kind and rank are the same if their onsets are no more steps apart.
            stopped: Whether this was the search for ranks that stopped; it ends no other findings, nor do other
                searches end these.
        """
        late = [one for one in found if one.kind == "slow_rank"]
        found = [one for one in found if not self._is_known_stall(one, late)]
        taken: set[str] = set()
        for one in sorted(found, key=lambda one: self._nearest(one, near_steps)):  # a known one stays what it was
            known = min((old for old in self.findings if old.id not in taken and _same(old, one, near_steps)),
                        key=lambda old: abs(old.onset_step - one.onset_step), default=None)
            if known is None:
                self._numbers[one.kind] += 1
                one.id = f"{one.kind}-{self._numbers[one.kind]}"
                self.findings.append(one)
            else:
                self._replace(known, one, now_ns)
            taken.add(one.id)
            self._seen[one.id] = now_ns, last_step
        for old in [old for old in self.findings if old.id not in taken and old.kind in (*LATE_KINDS, "data_stall")]:
            whole = next((one for one in found if one.ranks == old.ranks and (
                _holds_stall(one, old) if old.kind == "data_stall" else
                one.kind == "intermittent" and _same(old, one, near_steps))), None)
            if whole is not None:  # with fewer steps, it had looked like two problems
                whole.module, whole.line, whole.window = (
                    whole.module or old.module, whole.line or old.line, whole.window or old.window)
                self.findings.remove(old)
        for place, old in enumerate(self.findings):
            mine = old.id not in taken and old.until_step is None and (old.kind == "stopped") is stopped
            seen_ns, seen_step = self._seen[old.id]
            if mine and now_ns - seen_ns > GONE_NS:
                until = last_step if stopped else seen_step
                self.findings[place] = msgspec.structs.replace(old, until_step=max(until, old.onset_step))

    def _nearest(self, one: WatchFinding, near_steps: float) -> float:
        """Returns the number of steps between the onsets of this finding and the nearest known one that may be it."""
        return min((abs(old.onset_step - one.onset_step) for old in self.findings if _same(old, one, near_steps)),
                   default=np.inf)

    def _is_known_stall(self, one: WatchFinding, late: Sequence[WatchFinding]) -> bool:
        """Returns whether this is a stall of ranks that are known to be slow now and then, or late with their data. It
        is reported once it has cost more than that."""
        return one.kind == "data_stall" and any(
            old.ranks == one.ranks and _holds_stall(old, one) and (old.cost_ns or 0) >= (one.cost_ns or 0)
            for old in (*self.findings, *late))

    def _replace(self, old: WatchFinding, new: WatchFinding, now_ns: float) -> None:
        new.id = old.id
        from_start = old.before_ns is not None and new.before_ns is None and new.kind in ("slow_rank", "slow_host")
        if (now_ns - old.onset_ns > SETTLED_NS and new.kind == old.kind) or from_start:
            new.onset_step, new.onset_ns = old.onset_step, old.onset_ns
        new.module, new.line, new.window = old.module, old.line, old.window
        if not new.why:
            new.why = [one for one in old.why if one != UNSAMPLED]
        self.findings[self.findings.index(old)] = new


def _same(old: WatchFinding, new: WatchFinding, near: float) -> bool:
    late = old.kind in LATE_KINDS and new.kind in LATE_KINDS
    if old.kind != new.kind and not late:
        return False
    overlap = not old.ranks or not new.ranks or bool(set(old.ranks) & set(new.ranks))
    if old.kind in ("memory_growth", "pauses", "data_stall", "stopped"):
        return old.phase == new.phase and overlap and (old.kind in ("data_stall", "stopped") or old.why == new.why)
    close = abs(old.onset_step - new.onset_step) <= near
    return overlap and (close or at_once(old, new))


def _holds_stall(one: WatchFinding, stall: WatchFinding) -> bool:
    """Returns whether a finding includes stalls of the same ranks: these are slow now and then, or always late with
    their data, at a higher cost."""
    late = one.kind == "slow_rank" and one.phase == "data" and (one.cost_ns or 0) >= (stall.cost_ns or 0)
    return (one.kind == "intermittent" or late) and at_once(one, stall)


def at_once(one: WatchFinding, other: WatchFinding) -> bool:
    """Returns whether two findings overlap in time."""
    return _goes_on(one, other) and _goes_on(other, one)


def _goes_on(one: WatchFinding, other: WatchFinding) -> bool:
    """Returns whether `one` has not ended when `other` begins."""
    return one.until_step is None or one.until_step >= other.onset_step


class LastRows:
    """The rows of one rank of the last minute, and totals over all of its rows."""

    def __init__(self, rank: int, host: str) -> None:
        """Starts without rows."""
        self.rank, self.host = rank, host
        self.ended = False
        """Whether the rank noted that it ended."""
        self.steps = 0
        self.first: int | None = None
        self.elapsed_ns = 0
        """Total duration of its steps; by their spans, because the rank's clock may be set during the job."""
        self.end_ns = 0
        self.last_step = -1
        self.came_ns = 0
        """When its last row was first seen, by the clock of the watching process."""
        self.longest_ns = 0.0
        self._seen_step = -1
        self._rows: deque[dict[str, int]] = deque(maxlen=512)

    def add(self, columns: Columns, notes: list[Note]) -> None:
        """Takes new rows and notes."""
        self.ended |= any(note.kind == "ended" for note in notes)
        size = len(columns["first_step"])
        if not size:
            return
        if self.first is None:
            self.first = int(columns["first_step"][0])
            self.last_step = self.first - 1
        self.steps += int(columns["num_steps"].sum())
        self.elapsed_ns += self._covered(columns)
        self.end_ns = int(columns["end_ns"][-1])
        self.last_step = int(columns["first_step"][-1] + columns["num_steps"][-1]) - 1
        for row in range(max(size - 512, 0), size):
            self._rows.append({name: int(values[row]) for name, values in columns.items()})
        while self._rows and self._rows[0]["end_ns"] < self.end_ns - MINUTE_NS:
            self._rows.popleft()
        self.longest_ns = max(row["longest_ns"] for row in self._rows)

    def _covered(self, columns: Columns) -> int:
        """Returns the duration of new rows, plus that of steps between them that passes recorded instead."""
        first, end, span = (columns[name] for name in ("first_step", "end_ns", "span_ns"))
        after = np.append(self.last_step + 1, (first + columns["num_steps"])[:-1])
        since = np.diff(end, prepend=self.end_ns)
        return int(np.where(first == after, span, np.maximum(span, since)).sum())

    def look(self, now_ns: int, *, anew: bool) -> None:
        """Updates when the last row was first seen; with `anew`, as if it had come now."""
        if anew or self.last_step != self._seen_step:
            self.came_ns, self._seen_step = now_ns, self.last_step

    def state(self, waiting_ratio: float | None) -> RankState | None:
        """Returns the state of the rank; None before its first row."""
        if not self._rows:
            return None
        last = [row for row in self._rows if row["end_ns"] > self.end_ns - LAST_NS]
        mean = {name: _mean(last, name) for name in ("span_ns", *MEANS)}
        row = self._rows[-1]
        return RankState(
            rank=self.rank, host=self.host, step=self.last_step, time_ns=self.end_ns, step_ns=mean["span_ns"],
            waiting_ratio=waiting_ratio, host_bytes=_known(row["host_bytes"]), device_bytes=_known(row["device_bytes"]),
            recent_ns=self._recent(), **{name: mean[name] for name in MEANS})

    def _recent(self) -> list[float]:
        """Returns mean step times of equal intervals of the last minute, in ns; intervals without rows are left out."""
        end = np.array([row["end_ns"] for row in self._rows], float)
        span, count = (np.array([row[name] for row in self._rows], float) for name in ("span_ns", "num_steps"))
        place = np.minimum((end - end[-1] + MINUTE_NS) // (MINUTE_NS // POINTS), POINTS - 1).astype(int)
        found = [float(span[place == one].sum() / count[place == one].sum()) for one in np.unique(place)]
        return [round(value) for value in found]


def _mean(rows: list[dict[str, int]], name: str) -> float | None:
    known = [row for row in rows if row[name] != UNKNOWN]
    return sum(row[name] for row in known) / max(sum(row["num_steps"] for row in known), 1) if known else None


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def waiting(sampled: SampledSteps, last: int = 16) -> Any:
    """Returns the share of the time of the last sampled steps that each rank spent in collectives, where it waits for
    others or data moves; nan without sampled steps. Shape (ranks,)."""
    own, span = sampled.own[-last:], sampled.span[-last:]
    if not len(own):
        return np.full(own.shape[1], np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip(1 - own.sum(axis=0) / span.sum(axis=0), 0, 1)
