"""Writes operators.parquet: the summed operators of each rank, so that `distprof ops` need not read the timelines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from distprof.contract.merged import MERGED_OPERATORS
from distprof.contract.parquet import schema_of
from distprof.contract.tables import OPS
from distprof.merge.chrome.rank_events import DecidedEvents, RankEvents
from distprof.merge.chrome.rank_plan import Plans, RankPlan
from distprof.merge.chrome.rank_tables import RankTables, keep_table
from distprof.merge.chrome.work_folder import Attempt
from distprof.merge.clock.model import Clock
from distprof.merge.operators.shapes import UNKNOWN, WANTED
from distprof.merge.operators.source import ABOUT, STEPS_BY_LAUNCH, Source
from distprof.merge.operators.timeline.captured_graphs import KERNEL_NAME
from distprof.merge.operators.timeline.grouped_calls import GroupedCalls, grouped_calls
from distprof.merge.operators.timeline.memory_changes import ChangesRead
from distprof.merge.operators.timeline.rank_timeline import INTEGERS, TEXTS, TimelineParts, Wanted
from distprof.merge.run.run_model import Run

if TYPE_CHECKING:
    from distprof.storage.writing.by_workers import Place, WholeObjects


class OperatorTables(RankTables):
    """Writes a folder with a table per rank, from the whole timeline, whatever is selected for the merged trace."""

    def __init__(self, folder: Path, run: Run, clock: Clock, plans: Plans,
                 objects: WholeObjects | None = None) -> None:
        """Writes to the folder; if `objects` is given, workers store the tables there."""
        super().__init__(folder, MERGED_OPERATORS.file, objects)
        self._by_shapes = not any(rank.has(OPS) for rank in run.ranks)
        self._runs = [str(path.resolve()) for path in run.paths]

    def rank_writer(self, plan: RankPlan) -> OperatorTable:
        return OperatorTable(*self.where(plan), runs=self._runs, by_shapes=self._by_shapes)


class OperatorTable:
    """Writes the table of a rank."""

    integers = (*ChangesRead.keys, INTEGERS["copied"])
    texts = (*(key for name, key in TEXTS.items() if name != "shapes"), *WANTED, KERNEL_NAME)
    """Texts that are not already columns of the table of events."""

    def __init__(self, path: Path, work: Path, place: Place | None = None, *, runs: Sequence[str],
                 by_shapes: bool) -> None:
        self._path, self._work, self._place = path, work, place
        self._runs, self._by_shapes = runs, by_shapes

    def begin(self, events: RankEvents) -> None:
        self._plan, self._changes, self._counts = events.plan, ChangesRead(), events.counts
        self._parts = TimelineParts(events.scanner, Wanted(modules=True, texts=(*WANTED, KERNEL_NAME)))

    def add(self, events: DecidedEvents) -> None:
        """Adds everything that the trace has, kept or not."""
        self._parts.take()
        self._changes.take(events.scanner)

    def end(self) -> None:
        import pyarrow.parquet as pq  # takes a while

        base_ns = self._plan.survey.base_ns
        timeline = self._parts.timeline(base_ns, {})
        calls = grouped_calls(timeline, self._plan.traced_steps, changes=self._changes.changes(base_ns),
                              by_shapes=self._by_shapes)
        about = {"replays": asdict(calls.replays), "source": asdict(Source.of(self._plan.trace)),
                 "num_bad": timeline.num_bad, "asked_shapes": self._by_shapes, STEPS_BY_LAUNCH: True,
                 "runs": self._runs, "by_shapes": None if calls.by_shapes is None else asdict(calls.by_shapes)}
        schema = schema_of(MERGED_OPERATORS, {**self._plan.table_metadata, ABOUT: json.dumps(about)})
        table = pa.Table.from_arrays([_array(field, calls, self._plan.tags) for field in schema], schema=schema)
        with closing(Attempt(self._path, self._work)) as attempt:  # arrow cannot open paths that are not UTF-8
            pq.write_table(table, attempt.file, compression="lz4",
                           write_statistics=False,  # a rank's table is read as a whole
                           use_dictionary=[field.name for field in schema if pa.types.is_dictionary(field.type)])
            keep_table(attempt, self._place, self._counts)

    def close(self) -> None:
        """Releases the timeline; the file is already closed."""
        del self._parts


def _array(field: pa.Field, calls: GroupedCalls, tags: dict[str, int]) -> Any:
    if field.name in tags:
        return pa.array(np.full(calls.num_rows, tags[field.name]), pa.int64())
    numbers = calls.columns[field.name]
    if field.name not in calls.words:
        return pa.array(numbers, field.type, mask=numbers == UNKNOWN if field.nullable else None)
    words = calls.words[field.name]
    used, places = np.unique(numbers, return_inverse=True)
    texts = [None if number < 0 else words[number] for number in used.tolist()]
    known = {text: place for place, text in enumerate(text for text in dict.fromkeys(texts) if text is not None)}
    indices = np.array([known.get(text, UNKNOWN) if text is not None else UNKNOWN for text in texts])[places]
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, pa.int32(), mask=indices == UNKNOWN), pa.array(list(known), pa.string()))
