"""A job on paper: programs of ranks come in, what a perfect recorder would see of them goes out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from distprof.merge.blame.activities import Activities, Activity
from distprof.merge.blame.activity_lane import ActivityLane
from distprof.merge.blame.analysis import weigh
from distprof.merge.blame.intervals import Intervals
from distprof.merge.blame.rank_activity import RankActivity
from distprof.merge.blame.rank_collectives import collectives_by_rank

SCHEMA = {"rank": pl.Int64, "collective": pl.Int64, "step": pl.Int64, "group": pl.String,
          "group_ranks": pl.List(pl.Int64), "op": pl.String, "num_ranks": pl.Int64, "enqueue_ns": pl.Int64,
          "arrival_ns": pl.Int64, "end_ns": pl.Int64, "wait_ns": pl.Int64}


@dataclass
class Job:
    """Ranks that work and meet; every meeting blocks until all have come, and some time longer."""

    num_ranks: int
    transfer_ns: int = 10
    now: list[int] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)
    work: list[list[tuple[int, int, int]]] = field(default_factory=list)
    activities: Activities = field(default_factory=Activities)
    step: int = 0
    num_meetings: int = 0

    def __post_init__(self) -> None:
        self.now = [1000] * self.num_ranks
        self.work = [[] for _ in range(self.num_ranks)]

    def works(self, rank: int, what: Activity, ns: int) -> None:
        self.work[rank].append((self.now[rank], self.now[rank] + ns, self.activities.number(what)))
        self.now[rank] += ns

    def meet(self, *ranks: int) -> None:
        last = max(self.now[rank] for rank in ranks)
        for rank in ranks:
            end = last + self.transfer_ns
            self.rows.append({
                "rank": rank, "collective": self.num_meetings, "step": self.step, "group": str(ranks),
                "group_ranks": list(ranks), "op": "all_reduce", "num_ranks": len(ranks), "enqueue_ns": self.now[rank],
                "arrival_ns": self.now[rank], "end_ns": end, "wait_ns": last - self.now[rank]})
            self.now[rank] = end
        self.num_meetings += 1

    def send(self, source: int, target: int) -> None:
        """The sender goes on at once; the receiver when the message is there."""
        sent, asked = self.now[source], self.now[target]
        for rank, op, start, end in ((source, "send", sent, sent + 1),
                                     (target, "recv", asked, max(sent, asked) + self.transfer_ns)):
            self.rows.append({
                "rank": rank, "collective": self.num_meetings, "step": self.step, "group": "pipe", "op": op,
                "group_ranks": [source, target], "num_ranks": 2, "enqueue_ns": start, "arrival_ns": start,
                "end_ns": end, "wait_ns": None})
            self.now[rank] = end
        self.num_meetings += 1

    def culprits(self, **chosen):
        rows = pl.DataFrame(self.rows, schema=SCHEMA)
        calls = collectives_by_rank(rows)
        did = {}
        for rank in range(self.num_ranks):
            lane = ActivityLane.of(self.work[rank])
            blocked = calls[rank].in_flight if rank in calls else Intervals.of([], [])
            did[rank] = RankActivity(lane=lane, computing=Intervals.of(lane.starts, lane.ends), blocked=blocked,
                                     on_device=False)
        steps = list(range(1, self.step + 1))  # the first has nothing before it
        found, by_activity = weigh(
            rows, calls, chosen.get("did", did), self.activities, ranks=list(range(self.num_ranks)), steps=steps,
            begins={}, step_ns=dict.fromkeys(range(self.num_ranks), (max(self.now) - 1000) / (self.step + 1)))
        named = {rank: {self.activities.known[number] if number >= 0 else None: cost for number, cost in costs.items()}
                 for rank, costs in by_activity.items()}
        return found, named

    def waited(self) -> dict[int, int]:
        """All that each rank waited from step 1 on."""
        total = np.zeros(self.num_ranks, np.int64)
        for row in self.rows:
            if row["step"] and row["op"] == "all_reduce":
                total[row["rank"]] += row["wait_ns"]
        return dict(enumerate(total.tolist()))
