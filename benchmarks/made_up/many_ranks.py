"""Generates a run of up to thousands of ranks: the files of their hosts, and the folders of some ranks.

Folders are written for the first replica of the model and for late ranks, or for all. The summary of a rank with a
folder, in the file of its host, is created from the folder; summaries of other ranks are derived from these, with the
times of each rank.
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
    NO_OFFSET,
    SUMMARIES,
    SUMMARY_SUFFIX,
    TIMES,
    WAIT_COLUMNS,
    Channel,
    PackedTable,
    RankGroup,
    RankSummary,
)
from distprof.summaries.host_file import file_stem, packed_frame
from distprof.summaries.maker import summarise
from distprof.summaries.packing import hash_of
from distprof.summaries.rank_calls import ranges_of
from made_up.pipelined_job import NONE, PipelinedJob
from made_up.recorded import LABELLED, PASSES, Recorded


class StageCalls:
    """Calls of all ranks of a stage, step by step, in the layout of the summary of one of these ranks."""

    def __init__(self, recorded: Recorded, stage: int, template: RankSummary) -> None:
        assert template.arrivals is not None
        self.arrivals, self.program = template.arrivals, recorded.programs[stage]
        self._first, self._recorded = stage * recorded.job.dp * recorded.job.tp, recorded
        names = [self._channel_name(one) for one in self.arrivals.channels]
        self._calls = [np.array([index for index, call in enumerate(self.program) if call.channel == name])
                       for name in names]
        self._channel = of(self.arrivals.sequences, {"channel": "<i4"})["channel"]
        self.cells = of(self.arrivals.cells, CELL_COLUMNS)
        self._times: dict[int, Any] = {}
        self._sums: dict[int, Any] = {}
        self._waits: list[Any] = []

    def _channel_name(self, one: Channel) -> str:
        if one.op is None:
            return self.arrivals.groups[one.group].description.removeprefix("mesh_")
        assert one.peer is not None
        return f"{one.op}{(one.peer - self._first) // (self._recorded.job.dp * self._recorded.job.tp):+d}"

    def add(self, step: int, times: Any, window: Any) -> None:
        """Adds a step: times of the stage, and start and end of its ranks."""
        enqueue, start, end, wait_start, wait_end = times.transpose(1, 0, 2)
        held = end - start
        waited = np.where(wait_start == NONE, 0, wait_end - wait_start)
        for cell in np.flatnonzero(self.cells["step"] == step).tolist():
            mine = self._calls[self._channel[self.cells["sequence"][cell]]]
            base = enqueue[mine].min(axis=0)
            origins = (base, *(3 * (enqueue[mine],)), end[mine])
            since = [np.where(one[mine] == NONE, NO_OFFSET, one[mine] - origin)
                     for one, origin in zip((enqueue, start, end, wait_start, wait_end), origins, strict=True)]
            self._times[cell] = np.stack(since).astype(np.int32)
            self._sums[cell] = np.stack((base, held[mine].sum(axis=0), waited[mine].sum(axis=0)))
        # waits can be summed, because a thread waits for one thing at a time
        self._waits.append((step, waited.sum(axis=0), _covered(start, end, window)))

    def finish(self) -> None:
        """Rearranges the arrays so that ranks are the first axis."""
        order = range(len(self.cells["step"]))
        self.times = np.concatenate([self._times.pop(cell) for cell in order], axis=1).transpose(2, 0, 1).copy()
        self.sums = np.stack([self._sums[cell] for cell in order]).transpose(2, 1, 0).copy()
        self.waits = {name: np.stack([one[index] for one in self._waits])
                      for index, name in enumerate(("blocked_ns", "in_ns"), 1)}

    def tables_of(self, index: int) -> dict[str, Any]:
        """Returns the rank-specific tables of calls, given the index of a rank in the stage."""
        base, held, waited = self.sums[index]
        cells = as_packed({**self.cells, "base_ns": base, "in_ns": held, "waited_ns": waited}, CELL_COLUMNS)
        waits = as_packed({"step": np.array([step for step, *_ in self._waits]),
                           **{name: values[:, index] for name, values in self.waits.items()}}, WAIT_COLUMNS)
        return {"cells": cells, "waits": waits,
                "times": {name: self.times[index, row].tobytes() for row, name in enumerate(TIMES)}}


def _covered(start: Any, end: Any, window: Any) -> Any:
    """Returns the time of the step, per rank, that is covered by calls."""
    order = np.argsort(start, axis=0, kind="stable")
    begin, over = (np.clip(np.take_along_axis(one, order, axis=0), *window) for one in (start, end))
    reach = np.maximum.accumulate(over, axis=0)
    begin[1:] = np.maximum(begin[1:], reach[:-1])
    return np.maximum(over - begin, 0).sum(axis=0)


def of(table: PackedTable, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Returns columns of a packed table as arrays."""
    return {name: np.frombuffer(table.columns[name], kind) for name, kind in kinds.items()}


def as_packed(arrays: Mapping[str, Any], kinds: Mapping[str, str],
              texts: Mapping[str, list[str]] | None = None) -> PackedTable:
    """Returns a packed table with these columns."""
    return PackedTable(rows=len(arrays[next(iter(kinds))]), texts=dict(texts or {}),
                       columns={name: arrays[name].astype(kind).tobytes() for name, kind in kinds.items()})


def summary_of(recorded: Recorded, rank: int, template: RankSummary, sketches: StageCalls) -> RankSummary:
    """Returns the summary of a rank without a folder, derived from that of its peer in the first replica."""
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
    """Writes the folders of the kept ranks; returns the times of each step and stage."""
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


def _sketched(recorded: Recorded, stage: int, template: RankSummary, times: list[list[Any]]) -> StageCalls:
    found, per_stage = StageCalls(recorded, stage, template), recorded.job.dp * recorded.job.tp
    for step, name in enumerate(recorded.passes):
        if name in LABELLED:
            found.add(step, times[step][stage],
                      recorded.windows[step][:2, stage * per_stage:(stage + 1) * per_stage])
        times[step][stage] = None
    found.finish()
    return found


def _file(recorded: Recorded, rank: int) -> str:
    return f"{file_stem(recorded.about(rank))}{SUMMARY_SUFFIX}"
