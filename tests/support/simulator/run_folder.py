"""Writes a simulated job as the run directory that recording it would have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from distprof.contract.collective_ops import text_of
from distprof.contract.mesh import MODEL_PARALLEL
from distprof.contract.parquet import schema_of
from distprof.contract.paths import RANK_JSON, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.tables import COLLECTIVES, EVENTS, STEPS, Table
from support.simulator.engine import Moved, Simulation
from support.simulator.program import Group
from support.simulator.shapes.axis import Axis
from support.simulator.timeline import Timeline, integers

BEGAN_NS = 1_795_000_000_000_000_000
"""When the job began; ns since the epoch."""
POINT_TO_POINT = ("send", "recv")
Columns = Mapping[str, pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """How well a job is recorded."""

    mp_size: int = 1
    mesh: Mapping[str, Axis] = field(default_factory=dict)
    """Axes by name, as in the contract; empty: dp and tp, of which tp has `mp_size` ranks."""
    clock_off_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank, how far its clock is ahead of the truth; each such rank is a host of its own."""
    clock_error_ns: Mapping[int, int] = field(default_factory=dict)
    """The same for ranks that are on the host of the others, as far as anybody knows: nobody corrects it."""
    late_end_ns: int = 0
    """Ends of collectives are noted later than they are, by up to so much."""
    records_waits: bool = True
    """Whether it is noted when a thread waited for a collective, hidden waits too."""
    hides_waits: frozenset[int] = frozenset()
    """Ranks whose waits leave no slice."""
    misses_waits: frozenset[int] = frozenset()
    """Ranks whose waits leave nothing at all."""
    num_traced: int | None = None
    """Steps with a timeline, the first ones; None: all."""
    seed: int = 0

    def write(self, job: Simulation, folder: Path) -> Path:
        """The run directory of a job."""
        for rank in range(len(job.programs)):
            self._write_rank(job, rank, folder / rank_folder(rank))
        return folder

    def axes(self) -> Mapping[str, Axis]:
        """The mesh."""
        return self.mesh or {"dp": Axis(self.mp_size), "tp": Axis(1, self.mp_size)}

    def _write_rank(self, job: Simulation, rank: int, folder: Path) -> None:
        folder.mkdir(parents=True)
        known = self._rank_json(rank, len(job.programs), len(job.step_ends(rank)))
        tables = self._tables(job, rank)
        for table, columns in tables.items():
            known.files[table.file] = write_table(folder, table, columns, {
                "rank": rank, "mp_size": known.mp_size or 1, "dp_size": known.dp_size or 1})
        (folder / RANK_JSON).write_bytes(msgspec.json.encode(known))

    def _tables(self, job: Simulation, rank: int) -> dict[Table, Columns]:
        ends = job.step_ends(rank)
        began_ns = BEGAN_NS + self.clock_off_ns.get(rank, 0) + self.clock_error_ns.get(rank, 0)
        hides_waits = rank in self.hides_waits or rank in self.misses_waits
        traced_ns = ends[-1] if self.num_traced is None else ends[self.num_traced - 1]
        done = [one for one in job.done[rank] if one.end_ns <= traced_ns]
        return {COLLECTIVES: self._collectives(job.moved[rank], rank, ends, began_ns),
                EVENTS: Timeline(done, hides_waits=hides_waits).columns(ends, began_ns),
                STEPS: steps(ends, began_ns, self.num_traced)}

    def _rank_json(self, rank: int, world: int, num_steps: int) -> RankJson:
        host = f"host{rank}" if rank in self.clock_off_ns else "host"
        sizes = {name: axis.size or world // axis.stride for name, axis in self.axes().items()}
        mp_size = prod(size for name, size in sizes.items() if name in MODEL_PARALLEL)
        return RankJson(
            device_type="cuda", run_id="simulated", status="complete", rank=rank, world_size=world, host=host,
            boot_id=host, topology=sizes,
            coordinates={name: axis.position(world, rank) for name, axis in self.axes().items()},
            topology_source="simulated", mp_size=mp_size, dp_size=world // mp_size, num_steps=num_steps,
            passes={"trace": num_steps if self.num_traced is None else self.num_traced}, files={})

    def _collectives(self, moved: Sequence[Moved], rank: int, ends: Sequence[int], began_ns: int) -> Columns:
        """Columns of `COLLECTIVES` that are not null."""
        calls = [one.call for one in moved]
        called, began, ended = (np.array([getattr(one, name) for one in moved], np.int64) for name in (
            "called_ns", "began_ns", "ended_ns"))
        late = np.random.default_rng([self.seed, 77, rank]).integers(max(self.late_end_ns, 1), size=len(moved))
        peers = [_other_side(one) for one in moved]
        names = {
            "op": [call.op for call in calls], "phase": [call.phase for call in calls],
            "module_path": [call.where for call in calls], "dtype": ["float32"] * len(calls),
            "timed_by": ["future" if self.late_end_ns else "timeline"] * len(calls)}
        return {
            "step": integers(np.searchsorted(ends, called, "right")), **_groups(moved),
            **{name: pa.array(texts, pa.string()) for name, texts in names.items()},
            "size_bytes": integers([call.num_bytes for call in calls]),
            "num_elements": integers([call.num_bytes // 4 for call in calls]),
            "peer": integers(peers), "asynchronous": pa.array([True] * len(calls)),
            "enqueue_ns": integers(began_ns + called), "start_ns": integers(began_ns + began),
            "end_ns": integers(began_ns + ended + late), **self._waits(moved, rank, began_ns)}

    def _waits(self, moved: Sequence[Moved], rank: int, began_ns: int) -> Columns:
        if "wait_start_ns" not in COLLECTIVES.names() or not self.records_waits or rank in self.misses_waits:
            return {}
        return {name: integers([began_ns + ns if ns >= 0 else None for ns in (
            getattr(one, name) for one in moved)]) for name in ("wait_start_ns", "wait_end_ns")}


def steps(ends: Sequence[int], began_ns: int, num_traced: int | None = None) -> Columns:
    """Columns of `STEPS` that are not null."""
    until = np.array(ends, np.int64)
    since = np.concatenate([[0], until[:-1]])
    traced = len(ends) if num_traced is None else num_traced
    passes = ["trace"] * traced + ["arrivals"] * (len(ends) - traced)
    return {"step": integers(range(len(ends))), "pass": pa.array(passes),
            "start_ns": integers(began_ns + since), "end_ns": integers(began_ns + until),
            "duration_ns": integers(until - since), "forward_calls": integers([1] * len(ends))}


def _other_side(moved: Moved) -> int | None:
    call = moved.call
    if call.op not in POINT_TO_POINT:
        return call.root
    return call.peer if call.peer is not None else next(rank for rank in call.group if rank != moved.rank)


def _groups(moved: Sequence[Moved]) -> Columns:
    """Columns that describe groups, each of which is written out once, then taken by number; and numbers in a group:
    ours, where messages are apart, and torch's."""
    known: dict[Group, int] = {}
    groups, ours, of_torch = [], [], []
    taken = Counter[tuple[int, bool]]()
    for one in moved:
        group, is_pair = known.setdefault(one.call.group, len(known)), one.call.op in POINT_TO_POINT
        groups.append(group)
        ours.append(taken[group, is_pair])
        of_torch.append(ours[-1] + taken[group, not is_pair])
        taken[group, is_pair] += 1
    distinct = {"group": pa.array([str(group) for group in known], pa.string()),
                "group_description": pa.array([f"group of {len(group)}" for group in known], pa.string()),
                "group_ranks": pa.array([text_of(group) for group in known], pa.string()),
                "group_size": integers([len(group) for group in known])}
    return {"sequence": integers(ours), "group_sequence": integers(of_torch),
            **{name: column.take(integers(groups)) for name, column in distinct.items()}}


@cache
def _schema(table: Table) -> pa.Schema:
    return schema_of(table, {})


def write_table(folder: Path, table: Table, columns: Columns, tags: Mapping[str, int]) -> int:
    """Without a sync to disk, which recording does and which takes longest here; the number of rows."""
    schema, num_rows = _schema(table), len(next(iter(columns.values())))
    arrays = []
    for column in schema:
        values = integers([tags[column.name]] * num_rows) if column.name in tags else columns.get(column.name)
        values = pa.nulls(num_rows, column.type) if values is None else values
        arrays.append(values.dictionary_encode() if pa.types.is_string(values.type) and pa.types.is_dictionary(
            column.type) else values.cast(column.type))
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), folder / table.file, filesystem=LocalFileSystem())
    return num_rows
