"""Simulates jobs: ranks work and communicate as a test specifies, and a perfect recorder sees everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from distprof.contract.collective_ops import text_of
from distprof.merge.activity.activities import Activities, Activity, ActivityLane
from distprof.merge.activity.breakdown import step_breakdown
from distprof.merge.activity.intervals import Intervals
from distprof.merge.activity.rank_activity import RankActivity, RankCollectives, collectives_by_rank
from distprof.merge.blame.analysis import judged
from distprof.merge.blame.culprits import Culprit
from distprof.merge.blame.processors import Processors
from distprof.merge.program.job import job_of

SCHEMA = {"rank": pl.Int64, "collective": pl.Int64, "step": pl.Int64, "group": pl.String,
          "group_ranks": pl.String, "op": pl.String, "num_ranks": pl.Int64, "enqueue_ns": pl.Int64,
          "arrival_ns": pl.Int64, "end_ns": pl.Int64, "wait_ns": pl.Int64, "peer": pl.Int64, "timed_by": pl.String,
          "wait_start_ns": pl.Int64, "wait_end_ns": pl.Int64}


@dataclass
class Job:
    """Ranks that work and meet in collectives; each blocks until all ranks have arrived, plus the transfer time."""

    num_ranks: int
    transfer_ns: int = 10
    samples: Mapping[int, int] = field(default_factory=dict)
    elements: Mapping[int, int] = field(default_factory=dict)
    """Rank -> elements in a step; `samples`: rank -> samples in a step."""
    now: list[int] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)
    work: list[list[tuple[int, int, int]]] = field(default_factory=list)
    activities: Activities = field(default_factory=Activities)
    step: int = 0
    num_meetings: int = 0
    windows: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """(rank, step) -> start and end."""
    ran: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """(rank, step) -> time on a processor, and time in the run queue, in ns; empty: the kernel does not report it."""
    hosts: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = [1000] * self.num_ranks
        self.work = [[] for _ in range(self.num_ranks)]

    def works(self, rank: int, what: Activity, ns: int) -> None:
        self.work[rank].append((self.now[rank], self.now[rank] + ns, self.activities.number(what)))
        self._until(rank, self.now[rank] + ns)

    def runs(self, rank: int, what: Activity, ran_ns: int, queued_ns: int) -> None:
        """Works, including time in the run queue, which the kernel reports."""
        ran, queued = self.ran.get((rank, self.step), (0, 0))
        self.ran[rank, self.step] = ran + ran_ns, queued + queued_ns
        self.works(rank, what, ran_ns + queued_ns)

    def meet(self, *ranks: int) -> None:
        last = max(self.now[rank] for rank in ranks)
        for rank in ranks:
            end = last + self.transfer_ns
            self.rows.append({
                "rank": rank, "collective": self.num_meetings, "step": self.step, "group": str(ranks),
                "group_ranks": text_of(ranks), "op": "all_reduce", "num_ranks": len(ranks),
                "enqueue_ns": self.now[rank], "arrival_ns": self.now[rank], "end_ns": end,
                "wait_ns": last - self.now[rank], "wait_start_ns": self.now[rank], "wait_end_ns": end})
            self._until(rank, end)
        self.num_meetings += 1

    def send(self, source: int, target: int) -> None:
        """Sends a message: the sender continues at once, the receiver when the message has arrived."""
        sent, asked = self.now[source], self.now[target]
        for rank, op, start, end in ((source, "send", sent, sent + 1),
                                     (target, "recv", asked, max(sent, asked) + self.transfer_ns)):
            self.rows.append({
                "rank": rank, "collective": self.num_meetings, "step": self.step, "group": "pipe", "op": op,
                "group_ranks": text_of([source, target]), "num_ranks": 2, "enqueue_ns": start, "arrival_ns": start,
                "end_ns": end, "wait_ns": None, "wait_start_ns": start, "wait_end_ns": end})
            self._until(rank, end)
        self.num_meetings += 1

    def _until(self, rank: int, end: int) -> None:
        start, _ = self.windows.get((rank, self.step), (self.now[rank], 0))
        self.windows[rank, self.step] = (start, end)
        self.now[rank] = end

    def culprits(self, *, timelines: bool = True) -> list[Culprit]:
        """Returns the culprits that the analysis of a run finds."""
        _, did = self._seen()
        found, *_ = judged(job_of(self._table(), did if timelines else {}, self._windows(first=0), self.activities),
                          self._windows(first=0), self.activities, steps=range(1, self.step + 1),
                          traced=range(1, self.step + 1), coordinates={}, clock_ns=0,
                          processors=self.processors())
        return found

    def processors(self) -> Processors:
        """Returns the processor times of ranks."""
        return Processors.of(self._windows(), self.hosts)

    def breakdown(self) -> pl.DataFrame:
        """Returns what each rank spent each step on."""
        return step_breakdown(self._windows(), *self._seen(), self.activities)

    def waited(self) -> dict[int, int]:
        """Returns rank -> total waiting time from step 1 on."""
        total = np.zeros(self.num_ranks, np.int64)
        for row in self.rows:
            if row["step"] and row["op"] == "all_reduce":
                total[row["rank"]] += row["wait_ns"]
        return dict(enumerate(total.tolist()))

    def _seen(self) -> tuple[dict[int, RankCollectives], dict[int, RankActivity]]:
        calls, did = collectives_by_rank(self._table()), {}
        for rank in range(self.num_ranks):
            lane = ActivityLane.of(self.work[rank])
            blocked = calls[rank].in_flight if rank in calls else Intervals.of([], [])
            none = np.empty(0, np.int64)
            did[rank] = RankActivity(lane=lane, computing=Intervals.of(lane.starts, lane.ends), blocked=blocked,
                                     wait_starts=none, wait_ends=none, pauses=blocked)
        return calls, did

    def _table(self) -> pl.DataFrame:
        return pl.DataFrame(self.rows, schema=SCHEMA)

    def _windows(self, first: int = 1) -> pl.DataFrame:
        rows = [(rank, step, start, end, end - start, self.samples.get(rank), self.elements.get(rank),
                 *self.ran.get((rank, step), (None, None)))
                for (rank, step), (start, end) in sorted(self.windows.items()) if step >= first]
        names = ("rank", "step", "start_ns", "end_ns", "duration_ns", "samples", "elements", "cpu_ns", "run_queue_ns")
        return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")
