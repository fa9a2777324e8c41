"""A made-up run of up to thousands of ranks: the summaries of all, and the folders of some.

Folders are written of the first replica of the model and of late ranks, or of all. The summary of a rank with a folder
is made of it; those of the others are made from these, with the times of each rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from distprof.contract.paths import rank_folder
from distprof.contract.rank_summary import (
    CELL_COLUMNS,
    KIND_COLUMNS,
    NO_OFFSET,
    SPENT_COLUMNS,
    SUMMARIES,
    SUMMARY_SUFFIX,
    TIMES,
    Activity,
    Channel,
    PackedTable,
    RankGroup,
    RankSummary,
)
from distprof.summaries.host_file import file_stem, packed_frame
from distprof.summaries.maker import summarise
from distprof.summaries.packing import hash_of
from distprof.summaries.rank_calls import ranges_of
from made_up.pipelined_job import NONE, Call, PipelinedJob
from made_up.recorded import LABELLED, PASSES, Recorded

END, WAITING = Activity(kind="end"), Activity(kind="communication")


class StageSketches:
    """Sketches of all ranks of a stage, step by step, laid out as the summary of one of them."""

    def __init__(self, recorded: Recorded, stage: int, template: RankSummary) -> None:
        assert template.arrivals is not None
        self.arrivals, self.program = template.arrivals, recorded.programs[stage]
        self._first, self._recorded = stage * recorded.job.dp * recorded.job.tp, recorded
        names = [self._channel_name(one) for one in self.arrivals.channels]
        self._calls = [np.array([index for index, call in enumerate(self.program) if call.channel == name])
                       for name in names]
        self.kinds = of(self.arrivals.kinds, KIND_COLUMNS)
        sequences, cells = (of(table, kinds) for table, kinds in (
            (self.arrivals.sequences, {"channel": "<i4", "kept": "<i4"}), (self.arrivals.cells, CELL_COLUMNS)))
        places = np.split(of(self.arrivals.calls, {"place": "<i4"})["place"], np.cumsum(sequences["kept"])[:-1])
        self._kept = [self._calls[channel][place] for channel, place in zip(sequences["channel"], places, strict=True)]
        self._channel = sequences["channel"]
        self.cells = cells
        self._activities = self._labels()
        self._times: dict[int, Any] = {}
        self._sums: dict[int, Any] = {}
        self.spent: list[Any] = []

    def _channel_name(self, one: Channel) -> str:
        if one.op is None:
            return self.arrivals.groups[one.group].description.removeprefix("mesh_")
        assert one.peer is not None
        return f"{one.op}{(one.peer - self._first) // (self._recorded.job.dp * self._recorded.job.tp):+d}"

    def _labels(self) -> Any:
        known = {one: number for number, one in enumerate(self.arrivals.activities)}

        def label(call: Call) -> int:
            """That of the innermost module around it which has one."""
            names = call.module.split(".")
            every = (Activity(kind=call.phase, module_path=".".join(names[:depth]))
                     for depth in range(len(names), -1, -1))
            return next(known[one] for one in every if one in known)

        return np.array([label(call) for call in self.program])

    def add(self, step: int, times: Any, window: Any) -> None:
        """A step: times of the stage, and start and end of it."""
        enqueue, start, end, wait_start, wait_end = times.transpose(1, 0, 2)
        held = end - start
        waited = np.where(wait_start == NONE, 0, wait_end - wait_start)
        before = _before(times, waited)
        for cell in np.flatnonzero(self.cells["step"] == step).tolist():
            sequence = self.cells["sequence"][cell]
            kept, every = self._kept[sequence], self._calls[self._channel[sequence]]
            base = enqueue[kept].min(axis=0)
            since = [np.where(one[kept] == NONE, NO_OFFSET, one[kept] - base)
                     for one in (enqueue, start, end, wait_start, wait_end)] + [before[kept]]
            self._times[cell] = np.stack(since).astype(np.int32)
            self._sums[cell] = np.stack((base, held[every].sum(axis=0), waited[every].sum(axis=0)))
        self._spend(step, enqueue, before, waited, window)

    def _spend(self, step: int, enqueue: Any, before: Any, waited: Any, window: Any) -> None:
        edges = np.concatenate((window[:1], enqueue, window[1:2]))
        blocked = np.concatenate((np.zeros_like(window[:1]), before, waited.sum(axis=0, keepdims=True)))
        own = np.maximum(np.diff(edges, axis=0) - np.diff(blocked, axis=0), 0)
        ns = np.zeros((len(self.arrivals.activities), own.shape[1]), np.int64)
        np.add.at(ns, self._activities, own[:-1])
        ns[self.arrivals.activities.index(END)] = own[-1]
        ns[self.arrivals.activities.index(WAITING)] = blocked[-1]
        self.spent.append((step, ns))

    def finish(self) -> None:
        """Puts ranks first."""
        order = range(len(self.cells["step"]))
        self.times = np.concatenate([self._times.pop(cell) for cell in order], axis=1).transpose(2, 0, 1).copy()
        self.sums = np.stack([self._sums[cell] for cell in order]).transpose(2, 1, 0).copy()
        self.activity_ns = np.stack([ns for _, ns in self.spent]).transpose(2, 0, 1).copy()
        channel = self._channel[self.cells["sequence"]]
        # all calls of a channel are of one kind
        self.kind_ns = np.stack([self.sums[:, 1:, channel == one].sum(axis=2) for one in self.kinds["channel"]], axis=2)

    def tables_of(self, index: int) -> dict[str, Any]:
        """Of the arrivals of a rank, by its number in the stage: what is its own."""
        base, held, waited = self.sums[index]
        cells = as_packed({**self.cells, "base_ns": base, "in_ns": held, "waited_ns": waited}, CELL_COLUMNS)
        kinds = as_packed({**self.kinds, "in_ns": self.kind_ns[index, 0], "waited_ns": self.kind_ns[index, 1]},
                          KIND_COLUMNS, self.arrivals.kinds.texts)
        ns = self.activity_ns[index]
        step, activity = np.nonzero(ns)
        steps = np.array([step for step, _ in self.spent])
        spent = as_packed({"step": steps[step], "activity": activity, "ns": ns[step, activity]}, SPENT_COLUMNS)
        return {"cells": cells, "kinds": kinds, "spent": spent,
                "times": {name: self.times[index, row].tobytes() for row, name in enumerate(TIMES)}}


def _before(times: Any, waited: Any) -> Any:
    """How long each rank had waited in the step before each call. Waits of gradients follow all calls."""
    late = times[:, 3] > times[-1:, 0]
    blocking = np.where(late, 0, waited)
    return np.cumsum(blocking, axis=0) - blocking


def of(table: PackedTable, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Columns as arrays."""
    return {name: np.frombuffer(table.columns[name], kind) for name, kind in kinds.items()}


def as_packed(arrays: Mapping[str, Any], kinds: Mapping[str, str],
              texts: Mapping[str, list[str]] | None = None) -> PackedTable:
    """The other way round."""
    return PackedTable(rows=len(arrays[next(iter(kinds))]), texts=dict(texts or {}),
                       columns={name: arrays[name].astype(kind).tobytes() for name, kind in kinds.items()})


def summary_of(recorded: Recorded, rank: int, template: RankSummary, sketches: StageSketches) -> RankSummary:
    """The summary of a rank without a folder, by that of its peer in the first replica."""
    groups = recorded.groups(rank)
    ranges = [_group(groups[one.description.removeprefix("mesh_")]) for one in sketches.arrivals.groups]
    first = rank // (recorded.job.dp * recorded.job.tp) * recorded.job.dp * recorded.job.tp
    channels = [one if one.peer is None else replace(one, peer=one.peer - template.about.rank + rank)
                for one in (template.arrivals.channels if template.arrivals else ())]
    arrivals = replace(sketches.arrivals, groups=ranges, channels=channels, **sketches.tables_of(rank - first))
    return replace(template, about=recorded.about(rank), folder="", arrivals=arrivals,
                   steps=_steps(recorded, rank, template.steps), modules=_modules(recorded, rank, template.modules))


def _group(known: tuple[str, str, list[int]]) -> RankGroup:
    name, description, ranks = known
    return RankGroup(name=name, description=description, ranges=ranges_of(ranks), num_ranks=len(ranks),
                     digest=hash_of(np.array(ranks, "<i8").tobytes()))


def _steps(recorded: Recorded, rank: int, table: PackedTable) -> PackedTable:
    windows = np.stack([window[:, rank] for window in recorded.windows]).T
    is_timed = np.array([name == "time" for name in recorded.passes])
    columns = {"start_ns": windows[0], "end_ns": windows[1], "duration_ns": windows[1] - windows[0]}
    columns |= {name: np.where(is_timed, values, NONE) for name, values in zip(
        ("before_forward_ns", "fwd_ns", "bwd_ns", "optimizer_ns"), windows[2:], strict=True)}
    return replace(table, columns={**table.columns, **{name: values.tobytes() for name, values in columns.items()}})


def _modules(recorded: Recorded, rank: int, table: PackedTable) -> PackedTable:
    rows = recorded.modules(rank)
    columns = {name: np.array([row[name] for row in rows]).tobytes() for name in ("fwd_time_ns", "bwd_time_ns")}
    return replace(table, columns={**table.columns, **columns})


def write_tables(out: Path, recorded: Recorded) -> list[list[Any]]:
    """Writes the folders of the kept ranks; gives the times of each step and stage."""
    recorded.write_run_json(out)
    times = [recorded.add(stages) for stages in recorded.job.steps(len(recorded.passes))]
    for rank in recorded.kept:
        recorded.write_rank(out, rank)
    return times


def write(out: Path, job: PipelinedJob, *, passes: Sequence[str] = PASSES, full: bool = False,
          clocks_ns: int = 2_000_000, is_known: bool = True) -> None:
    """Writes the run."""
    first = {rank for rank in range(job.num_ranks) if full or job.place(rank)[1] == 0}
    recorded = Recorded(job=job, passes=passes, kept=sorted(first | {plant.rank for plant in job.plants}),
                        clocks_ns=clocks_ns, is_known=is_known)
    times = write_tables(out, recorded)
    made = {rank: summarise(out / rank_folder(rank)) for rank in recorded.kept}
    frames = defaultdict[str, list[bytes]](list)
    per_stage = job.dp * job.tp
    for stage in range(job.pp):
        here = range(stage * per_stage, (stage + 1) * per_stage)
        sketches = None if full else _sketched(recorded, stage, made[here[0]], times)
        for rank in here:
            one = made.get(rank)
            if one is None:
                assert sketches is not None
                one = summary_of(recorded, rank, made[here[0] + rank % job.tp], sketches)
            frames[_file(recorded, rank)].append(packed_frame(one))
    (out / SUMMARIES).mkdir()
    for name, parts in frames.items():
        (out / SUMMARIES / name).write_bytes(b"".join(parts))


def _sketched(recorded: Recorded, stage: int, template: RankSummary, times: list[list[Any]]) -> StageSketches:
    found, per_stage = StageSketches(recorded, stage, template), recorded.job.dp * recorded.job.tp
    for step, name in enumerate(recorded.passes):
        if name in LABELLED:
            found.add(step, times[step][stage],
                      recorded.windows[step][:2, stage * per_stage:(stage + 1) * per_stage])
        times[step][stage] = None
    found.finish()
    return found


def _file(recorded: Recorded, rank: int) -> str:
    return f"{file_stem(recorded.about(rank))}{SUMMARY_SUFFIX}"
