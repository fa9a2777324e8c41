"""Waits of all ranks of a run in one table, and summed as a user asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import polars as pl

from distprof.contract.passes import SYNC
from distprof.contract.problems import Unreadable
from distprof.contract.tables import COMPILATIONS, STEPS, WAITS
from distprof.errors import DataError, UsageError, one_of
from distprof.merge.activity.device.mean_steps import settled_steps
from distprof.merge.activity.device.rank_device import DeviceSteps
from distprof.merge.operators.timeline.rank_timeline import RankTimeline, read_timeline
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import Loaded, read_table
from distprof.merge.run.timelines import steps_of_timeline, with_timelines
from distprof.merge.waits.queues import device_queue, devices_of_timeline
from distprof.merge.waits.traced_waits import COMPILED, SCHEMA, compiling_waits, empty_compilations, traced_waits
from distprof.threads import thread_pool
from distprof.units import spans

AT_ONCE = 2
"""Number of timelines that are read at a time."""
Source = Literal["sync pass", "timeline"]
TracedWaits = tuple[pl.DataFrame, pl.DataFrame, DeviceSteps]
"""Waits of a rank, the queue of its device, and what its devices did in its steps."""
NOTHING_READ: Mapping[int, TracedWaits] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaits:
    """Waits of a run, and related data."""

    rows: pl.DataFrame
    """`SCHEMA`: a row per rank, step, line, call, module, phase and thread."""
    steps: pl.DataFrame
    """`rank`, `step` and `duration_ns` of the examined steps; no rows if a trace does not tell."""
    ranks: Sequence[int]
    """Ranks that were examined."""
    source: Source | None
    """Where the waits are from; timelines show them without lines. None: neither was recorded."""
    compilations: pl.DataFrame
    """`COMPILED`, of the whole job."""
    queues: pl.DataFrame | None
    """`QUEUE` of the ranks whose timelines were read; None if none were."""
    devices: DeviceSteps
    """What devices of these ranks did."""
    problems: Sequence[Unreadable]

    def chosen(self, ranks: Sequence[int], steps: Sequence[int]) -> RunWaits:
        """Returns only some ranks and steps. Without a choice, all; of devices, those steps that `comms` shows.

        Raises:
            UsageError: There is no such rank or step.
        """
        numbers = (one["step"] for one in (self.steps, self.rows, self.compilations, self.queues) if one is not None)
        known = sorted({step for column in numbers for step in column.drop_nulls().to_list()})
        for option, wanted, there in (("--rank", ranks, sorted(self.ranks)), ("--step", steps, known)):
            for one in wanted:
                if one not in there:
                    raise UsageError(f"{option} {one} is not in this run; "
                                     + (f"choose from {spans(there)}" if there else "it has none"))
        asked = (("rank", ranks), ("step", steps))
        of = [pl.lit(value=True), *(pl.col(name).is_in(some) for name, some in asked if some)]
        devices = self.devices.of_ranks(ranks or self.ranks)
        return replace(
            self, rows=self.rows.filter(*of), ranks=sorted(set(ranks) or self.ranks),
            steps=self.steps.filter(pl.col("rank").is_in(self.ranks), *of),
            compilations=self.compilations.filter(*of), queues=None if self.queues is None else self.queues.filter(*of),
            devices=devices.of_steps(steps or settled_steps(sorted(set(devices.steps["step"].to_list())))))


def run_waits(run: Run, *, queues: bool = False, steps: Loaded | None = None,
              traced: Mapping[int, TracedWaits] = NOTHING_READ) -> RunWaits:
    """Reads the waits of a run.

    Args:
        run: The run.
        queues: Whether timelines are read for device queues even if they are not needed for waits.
        steps: Its `STEPS`, if already read.
        traced: Rank -> `waits_of_timeline`, for timelines that were already read.

    Raises:
        DataError: The sync pass was not recorded, no rank has a timeline, and nothing was compiled.
    """
    run = with_timelines(run)
    if run.kind == "traces":
        return _of_timelines(run, None, empty_compilations(), [], traced)
    steps = steps or read_table(run, STEPS)
    found, compiled = (read_table(run, table) for table in (WAITS, COMPILATIONS))
    compilations = compiled.rows.select(COMPILED.keys())
    problems = [*steps.problems, *found.problems, *compiled.problems]
    if not found.ranks:
        return _of_timelines(run, steps, compilations, problems, traced)
    known = _steps(steps, SYNC)
    each = _read_timelines(run, steps, problems, traced) if queues else {}
    return RunWaits(rows=pl.concat([found.rows.select(SCHEMA.keys()), compiling_waits(compilations, known)]),
                    steps=known, ranks=found.ranks, source="sync pass", compilations=compilations,
                    queues=_queues(each), devices=_devices(each), problems=problems)


def waits_of_timeline(steps: Loaded | None, rank: Rank, timeline: RankTimeline) -> TracedWaits:
    """Returns the waits of a rank, its device queue, and what its devices did.

    Args:
        steps: `STEPS` of the run; None for traces of other programs.
        rank: The rank.
        timeline: Its slices.
    """
    return waits_within(rank.number, windows_of(steps, rank), timeline)


def waits_within(rank: int, windows: Sequence[tuple[int, int, int]] | None, timeline: RankTimeline) -> TracedWaits:
    """Does the same for a rank with known steps, from `windows_of`."""
    return (traced_waits(rank, timeline, windows), device_queue(rank, timeline, windows),
            devices_of_timeline(rank, timeline, windows))


def _of_timelines(run: Run, steps: Loaded | None, compilations: pl.DataFrame, problems: list[Unreadable],
                  traced: Mapping[int, TracedWaits]) -> RunWaits:
    found = _read_timelines(run, steps, problems, traced)
    if not found and compilations.is_empty():
        raise DataError(f"{run.path} has neither waits from the sync pass nor a timeline",
                        hint="record it with --steps sync=2")
    known = pl.DataFrame(schema={"rank": pl.Int64, "step": pl.Int64, "duration_ns": pl.Int64})
    return RunWaits(rows=pl.concat([pl.DataFrame(schema=SCHEMA), *(waits for waits, *_ in found.values())]),
                    steps=known if steps is None else _steps_of_timelines(steps, run),
                    ranks=list(found) or compilations["rank"].unique().sort().to_list(),
                    source="timeline" if found else None, compilations=compilations, queues=_queues(found),
                    devices=_devices(found), problems=problems)


def _read_timelines(run: Run, steps: Loaded | None, problems: list[Unreadable],
                    known: Mapping[int, TracedWaits]) -> dict[int, TracedWaits]:
    """Reads each rank that has a timeline; those that cannot be read are added to the problems."""
    def read(rank: Rank) -> TracedWaits | Unreadable:
        try:
            return known[rank.number] if rank.number in known else waits_of_timeline(steps, rank, read_timeline(rank))
        except DataError as error:
            return Unreadable(rank=rank.number, detail=str(error))

    traced = [rank for rank in run.ranks if rank.trace is not None]
    with thread_pool(AT_ONCE) as executor:
        each = dict(zip((rank.number for rank in traced), executor.map(read, traced), strict=True))
    problems += [one for one in each.values() if isinstance(one, Unreadable)]
    return {number: one for number, one in each.items() if not isinstance(one, Unreadable)}


def _queues(found: Mapping[int, TracedWaits]) -> pl.DataFrame | None:
    return pl.concat([queue for _, queue, _ in found.values()]) if found else None


def _devices(found: Mapping[int, TracedWaits]) -> DeviceSteps:
    return DeviceSteps.joined([devices for *_, devices in found.values()])


def _steps(steps: Loaded, name: str) -> pl.DataFrame:
    return steps.rows.filter(pl.col("pass") == name).select("rank", "step", "duration_ns")


def _steps_of_timelines(steps: Loaded, run: Run) -> pl.DataFrame:
    each = (steps_of_timeline(steps.rows, rank) for rank in run.ranks if rank.trace is not None)
    return pl.concat([steps.rows.clear(), *each]).select("rank", "step", "duration_ns")


def windows_of(steps: Loaded | None, rank: Rank) -> Sequence[tuple[int, int, int]] | None:
    """Returns start, end and number of the steps of a timeline; None if the trace itself marks them."""
    if steps is None:
        return None
    return list(steps_of_timeline(steps.rows, rank).select("start_ns", "end_ns", "step").iter_rows())


BY = {"line": ("file", "line", "function"), "op": ("op", "library_call"), "for": ("waits_for",),
      "module": ("module_path",), "phase": ("phase",), "thread": ("thread",), "rank": ("rank",), "step": ("step",)}
"""Value of `--by` -> columns."""
KEYS = tuple(dict.fromkeys(("op", "library_call", "waits_for", "device", *(name for names in BY.values()
                                                                            for name in names))))
"""Columns of keys in `grouped`."""
SORTS = ("blocked_ns", "calls", "mean_ns", "longest_ns")
"""Values of `--sort`: some of `NUMBERS`."""
NUMBERS = ("calls", "blocking_calls", "blocked_ns", "mean_ns", "longest_ns", "step_ratio", "num_ranks", "slowest_rank",
           "slowest_ns")
"""Columns of numbers. `blocking_calls`: calls that waited for something; the others would on a device. `mean_ns`,
`longest_ns`: per blocking call. `step_ratio`: blocked time on the thread of the steps / time of all chosen steps.
`slowest_ns`: blocked time of `slowest_rank`, the rank that was blocked longest."""


def grouped(rows: pl.DataFrame, by: Sequence[str], *, sort: str, total_ns: int | None) -> pl.DataFrame:
    """Sums rows; sorted by `sort`, then by calls, largest first.

    Args:
        rows: Rows from `run_waits`.
        by: Names in `BY` to group by.
        sort: A name in `SORTS`.
        total_ns: Total time of the chosen steps of all ranks, if known.

    Returns:
        `KEYS`, null unless grouped by or equal in all rows, and `NUMBERS`.

    Raises:
        UsageError: There is no such name.
    """
    keys = [key for one in dict.fromkeys(by) for key in BY[one_of(one, tuple(BY), "--by")]]
    order = one_of(sort, SORTS, "--sort")
    blocking = pl.col("blocking")
    found = rows.group_by(keys, maintain_order=True).agg(
        pl.col("calls").sum(), pl.col("blocked_ns").sum(), pl.col("longest_ns").max(),
        blocking_calls=pl.col("calls").filter(blocking).sum(), num_ranks=pl.col("rank").n_unique(),
        of_steps_ns=pl.col("blocked_ns").filter(pl.col("thread").fill_null("steps") == "steps").sum(),
        **{name: pl.when(pl.col(name).n_unique() == 1).then(pl.col(name).first()) for name in KEYS if name not in keys})
    ratio = pl.col("of_steps_ns") / total_ns if total_ns else pl.lit(None, pl.Float64)
    return found.join(_slowest(rows, keys), on=keys, how="left", nulls_equal=True, maintain_order="left").with_columns(
        mean_ns=pl.when(pl.col("blocking_calls") > 0).then(pl.col("blocked_ns") / pl.col("blocking_calls")),
        step_ratio=ratio).sort(order, "calls", descending=True, nulls_last=True, maintain_order=True).select(
            *KEYS, *NUMBERS)


def _slowest(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Returns the rank that was blocked longest; null if grouped by rank, for a single rank, or if none was blocked."""
    if "rank" in keys:
        return rows.select(*keys, slowest_rank=pl.lit(None, pl.Int64), slowest_ns=pl.lit(None, pl.Int64)).unique()
    each = rows.group_by([*keys, "rank"]).agg(pl.col("blocked_ns").sum()).sort("rank")
    several = (pl.len() > 1) & (pl.col("blocked_ns").max() > 0)
    return each.group_by(keys).agg(
        slowest_rank=pl.when(several).then(pl.col("rank").get(pl.col("blocked_ns").arg_max())),
        slowest_ns=pl.when(several).then(pl.col("blocked_ns").max()))
