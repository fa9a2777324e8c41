"""What one rank was doing: its activity lane, when it computed and waited, and when communication was exposed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Array, Integers
from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.merge.activity.activities import Activities, Activity, ActivityLane
from distprof.merge.activity.intervals import Intervals
from distprof.merge.activity.markers import COMMUNICATION, GLOO, STEP, WAITS, markers, scopes_to_intervals
from distprof.merge.match.backend_names import RUNTIME_CATEGORIES, communicates

WAITED = ("collective", "rank", "op", "step", "num_ranks", "enqueue_ns", "arrival_ns", "end_ns", "wait_ns")
"""Columns from which waiting is computed; lists and texts of a million rows are large."""
RESUMED_NS = 10_000_000
"""A thread that waited may go on this much (at most as long as it waited) before gloo's own thread records the end,
because that thread may have to wait for a processor."""
CALLED = ("forward", "evaluation", "recompute", "data", "optimizer")
"""Activities in which C++ does not wait for collectives, and in which waits of Python have their own slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """The collectives of one rank, by arrival. Times are on the common clock."""

    collective: Integers
    step: Integers
    enqueue_ns: Integers
    arrival_ns: Integers
    end_ns: Integers
    last_arrival_ns: Integers
    """When the last rank of the collective arrived; this rank's own arrival if that is not known."""
    together: Array
    """False for sends and receives."""

    @property
    def in_flight(self) -> Intervals:
        """From the calls of collectives until they had ended."""
        return Intervals.of(np.minimum(self.enqueue_ns, self.arrival_ns), self.end_ns)

    @property
    def running(self) -> Intervals:
        """From when collectives began on this rank until they had ended."""
        return Intervals.of(self.arrival_ns, self.end_ns)

    @property
    def messages(self) -> RankCollectives:
        """Only sends and receives."""
        return RankCollectives(**{one.name: getattr(self, one.name)[~self.together] for one in fields(self)})

    def waits(self) -> ActivityLane:
        """Returns when the rank was in a collective and another was not; of several collectives, the one it came to
        first counts."""
        ends = np.minimum(self.last_arrival_ns, self.end_ns)
        waited = np.flatnonzero(ends > self.arrival_ns)
        order = waited[np.argsort(self.arrival_ns[waited], kind="stable")]
        return ActivityLane.first_counts(self.arrival_ns[order], ends[order],
                                         Activities.waiting_for(self.collective[order]))

    @property
    def waiting(self) -> Intervals:
        """When the rank was in a collective and another rank was not."""
        waits = self.waits()
        return Intervals.of(waits.starts, waits.ends)


def collectives_by_rank(rows: pl.DataFrame) -> dict[int, RankCollectives]:
    """Returns the collectives of every rank with known arrival and end.

    Args:
        rows: `MERGED_COLLECTIVES` of the steps that count.
    """
    known = with_receivers(rows.select(WAITED)).drop_nulls(("arrival_ns", "end_ns"))
    table = known.select(
        "rank", "collective", pl.col("step").fill_null(-1), pl.col("enqueue_ns").fill_null(pl.col("arrival_ns")),
        "arrival_ns", "end_ns", last_arrival_ns=pl.col("arrival_ns") + pl.col("wait_ns").fill_null(0),
        together=~pl.col("op").is_in(POINT_TO_POINT),
    ).sort("rank", "arrival_ns")
    return {int(key[0]): RankCollectives(**{name: part[name].to_numpy() for name in part.columns if name != "rank"})
            for key, part in table.partition_by("rank", as_dict=True, maintain_order=True).items()}


def with_receivers(rows: pl.DataFrame) -> pl.DataFrame:
    """Sets `wait_ns` of receives: the time until the sender was there."""
    is_pair = pl.col("op").is_in(POINT_TO_POINT) & (pl.col("num_ranks") == 2)
    sent = rows.filter(is_pair, pl.col("op") == "send").select("collective", sent_ns="arrival_ns").unique("collective")
    if sent.is_empty():
        return rows
    joined = rows.join(sent, on="collective", how="left", maintain_order="left")
    waited = (pl.col("sent_ns") - pl.col("arrival_ns")).clip(0)
    waited = pl.min_horizontal(waited, (pl.col("end_ns") - pl.col("arrival_ns")).clip(0))
    return joined.with_columns(
        pl.when(is_pair & (pl.col("op") == "recv")).then(waited).otherwise("wait_ns").alias("wait_ns")).drop("sent_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankActivity:
    """One rank in the traced steps, on the common clock."""

    lane: ActivityLane
    """Modules, data loading, optimizer and the host between them; empty while the activity is not known."""
    computing: Intervals
    """When an operator ran that is not communication; on a GPU, a kernel."""
    blocked: Intervals
    """Exposed communication: nothing was computed meanwhile."""
    wait_starts: Integers
    """Slices in which a thread waits, by start."""
    wait_ends: Integers
    pauses: Intervals
    """The part of `blocked` that no such slice shows."""
    on_device: bool = False
    """True if all of this is about a GPU."""
    host_lane: ActivityLane | None = None
    """For a GPU: what its host was doing."""
    collectives: Any = None
    """For a GPU: numbers of the rank's collectives; `ready_ns` tells when the rank was ready for each, which is when
    what was launched before the call had run. The kernel may begin later, after that of another collective."""
    ready_ns: Any = None


def rank_activity(events: pl.DataFrame, calls: RankCollectives, activities: Activities, *,
                  waits_drawn: bool, recorded: Intervals | None = None) -> RankActivity:
    """Determines what a rank was doing.

    With a GPU, communication is exposed while no other kernel runs. Without one, it is exposed while a thread waits for
    it: in slices of waits, and in a pause between operators that ends with a collective, as in DDP at the end of
    backward. Other pauses, such as those of a slow interpreter, do not count.

    Args:
        events: The rank's timeline, with times on the common clock.
        calls: Its collectives.
        activities: Numbers of activities; new ones are added.
        waits_drawn: Whether slices show all waits of Python.
        recorded: Recorded waits, which are then all waits; None if waits were not recorded.
    """
    lane = host_lane(events, activities)
    events = _without_steps(events)
    is_kernel = pl.col("category").str.to_lowercase() == "kernel"
    kernels = events.filter(is_kernel)
    kernels = kernels.filter(~pl.col("name").is_in(list(filter(communicates, kernels["name"].unique().to_list()))))
    if len(kernels):
        computing = _intervals(kernels)
        blocked, none, launched = calls.running - computing, np.empty(0, np.int64), _launched(kernels, events)
        return RankActivity(lane=lane.under(_on_device(launched, lane)), computing=computing, blocked=blocked,
                            wait_starts=none, wait_ends=none, pauses=blocked, on_device=True, host_lane=lane,
                            collectives=calls.collective, ready_ns=_ready(launched, calls))
    ours = events.filter((pl.col("category") == "cpu_op") & ~pl.any_horizontal(
        pl.col("name").str.starts_with(prefix) for prefix in COMMUNICATION))
    computing = _intervals(ours)
    slices = events.filter(pl.col("name").is_in(WAITS)).sort("start_ns")
    drawn = _intervals(slices)
    pauses = _pauses(computing, calls.in_flight, calls.end_ns) if recorded is None else recorded
    if waits_drawn and recorded is None:
        kinds = [number for number, one in enumerate(activities.known)
                 if one.kind in CALLED or (one.kind == "backward" and one.where is not None)]
        pauses = pauses - lane.intervals(kinds)
    pauses = pauses - drawn
    starts = slices["start_ns"].to_numpy()
    return RankActivity(lane=lane, computing=computing - drawn - pauses, blocked=drawn | pauses, pauses=pauses,
                        wait_starts=starts, wait_ends=starts + slices["duration_ns"].to_numpy())


def host_lane(events: pl.DataFrame, activities: Activities) -> ActivityLane:
    """Determines what the host of a rank was doing, whatever its device did meanwhile.

    Args:
        events: The rank's timeline.
        activities: Numbers of activities; new ones are added.
    """
    step_starts = events.filter(pl.col("name").str.starts_with(STEP))["start_ns"].unique().sort().to_list()
    scopes = scopes_to_intervals(markers(_without_steps(events), step_starts))
    return _between(ActivityLane.of((start, end, activities.number(what)) for start, end, what in scopes), activities)


def _without_steps(events: pl.DataFrame) -> pl.DataFrame:
    """Returns slices with a duration, without those of steps and of gloo."""
    return events.filter(pl.col("duration_ns") > 0, ~pl.col("name").str.starts_with(STEP),
                         ~pl.col("name").str.starts_with(GLOO))


def _intervals(events: pl.DataFrame) -> Intervals:
    starts = events["start_ns"].to_numpy()
    return Intervals.of(starts, starts + events["duration_ns"].to_numpy())


def _pauses(computing: Intervals, in_flight: Intervals, ends: Integers) -> Intervals:
    """Returns the parts of pauses between operators that end with a collective."""
    if not len(computing.starts) or not len(in_flight.starts):  # collectives may take no time at all
        return in_flight
    ends = np.sort(np.asarray(ends, np.int64))
    begins = np.concatenate((in_flight.starts[:1], computing.ends))
    resumed = np.append(computing.starts, max(int(computing.ends[-1]), int(ends[-1])))
    late = np.minimum(in_flight.within(begins, resumed), RESUMED_NS)
    last = np.searchsorted(ends, resumed + late, "right") - 1
    ended = np.where(last >= 0, ends[np.maximum(last, 0)], 0)
    return Intervals.of(begins, np.where(ended > begins, np.minimum(ended, resumed), begins)) & in_flight


def _between(lane: ActivityLane, activities: Activities) -> ActivityLane:
    """Fills the time between activities with the host. zero_grad can be anywhere, so it does not name a place."""
    if len(lane.starts) < 2:
        return lane
    gaps = np.flatnonzero(lane.starts[1:] > lane.ends[:-1])
    known = [activities.known[label] for label in lane.labels.tolist()]
    kinds = pl.Series([_neighbour(one) for one in known], dtype=pl.String)
    before, behind = kinds.fill_null(strategy="forward"), kinds.fill_null(strategy="backward")
    has_forward = any(one.kind == "forward" for one in activities.known)
    fill = [(int(lane.ends[gap]), int(lane.starts[gap + 1]),
             activities.number(Activity("host", _place(before[gap], behind[gap + 1], has_forward=has_forward))))
            for gap in gaps.tolist()]
    return lane.under(ActivityLane.of(fill))


def _neighbour(one: Activity) -> str | None:
    """Returns the name of an activity for a gap next to it."""
    if one == ("optimizer", "zero_grad"):
        return None
    return f"`{one.where}`" if one.kind == "annotation" and one.where is not None else one.kind


def _place(before: str | None, behind: str | None, *, has_forward: bool) -> str:
    """Returns `between forward and backward`; if no slice shows forward, it says that forward is included."""
    place = f"between {before or 'optimizer'} and {behind or 'optimizer'}"
    return f"{place} (forward included)" if behind == "backward" and before != behind and not has_forward else place


def _launched(kernels: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Returns kernels by start, with `launched_ns`; null if not known."""
    launches = events.filter(pl.col("category").str.to_lowercase().is_in(RUNTIME_CATEGORIES),
                             pl.col("correlation") > 0).select("correlation", launched_ns="start_ns")
    return kernels.join(launches.unique("correlation"), on="correlation", how="left").sort("start_ns")


def _on_device(launched: pl.DataFrame, lane: ActivityLane) -> ActivityLane:
    """Returns the kernels with the activities in which they were launched."""
    known, labels = lane.at(launched["launched_ns"].fill_null(0).to_numpy())
    starts = launched["start_ns"].to_numpy()
    return ActivityLane.first_counts(starts, starts + launched["duration_ns"].to_numpy(), labels, held=known)


def _ready(launched: pl.DataFrame, calls: RankCollectives) -> Integers:
    """Returns when the rank was ready for its collectives: torch's NCCL waits for what was launched before the call.

    A collective that begins first is ready first, even if both wait for the same, because all ranks have to call in one
    order. In steps without a timeline, whose kernels are not known, it is when the collective began.
    """
    before = launched.drop_nulls("launched_ns").sort("launched_ns")
    launches = before["launched_ns"].to_numpy()
    ends = np.maximum.accumulate(np.append(0, (before["start_ns"] + before["duration_ns"]).to_numpy()))
    behind = np.searchsorted(launches, calls.enqueue_ns)
    done, place = np.maximum(ends[behind], calls.enqueue_ns), np.arange(len(behind))
    in_order = np.maximum.accumulate(done - place) + place
    has_kernels = (behind > 0) & (behind < len(launches))
    return np.where(has_kernels, np.minimum(in_order, calls.arrival_ns), calls.arrival_ns)
