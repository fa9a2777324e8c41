"""Writes a simulated job as the run directory that recording it would have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distprof.contract import rank_json
from distprof.contract.parquet import write_table
from distprof.contract.paths import RANK_JSON, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.tables import COLLECTIVES, EVENTS, STEPS, WAIT_SLICE, Table
from support.simulator.engine import Done, Moved, Simulation
from support.simulator.program import Group, StepEnd, Wait, Work

BEGAN_NS = 1_795_000_000_000_000_000
"""When the job began; ns since the epoch."""
Row = dict[str, Any]
POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """How well a job is recorded."""

    mp_size: int = 1
    clock_off_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank, how far its clock is ahead of the truth; each such rank is a host of its own."""
    late_end_ns: int = 0
    """Ends of collectives are noted later than they are, by up to so much."""
    seed: int = 0

    def write(self, job: Simulation, folder: Path) -> Path:
        """The run directory of a job; every step is traced."""
        for rank in range(len(job.programs)):
            self._write_rank(job, rank, folder / rank_folder(rank))
        return folder

    def _write_rank(self, job: Simulation, rank: int, folder: Path) -> None:
        folder.mkdir(parents=True)
        world, ends = len(job.programs), job.step_ends(rank)
        tags = {"rank": rank, "mp_size": self.mp_size, "dp_size": world // self.mp_size}
        began_ns = BEGAN_NS + self.clock_off_ns.get(rank, 0)
        tables: dict[Table, list[Row]] = {
            COLLECTIVES: self._collectives(job.moved[rank], ends, began_ns),
            EVENTS: events(job.done[rank], ends, began_ns), STEPS: steps(ends, began_ns)}
        for table, rows in tables.items():
            whole = [dict.fromkeys(table.names()) | row for row in rows]
            write_table(folder, table, whole, tags=tags, metadata={})
        host = f"host{rank}" if rank in self.clock_off_ns else "host"
        rank_json.write(folder / RANK_JSON, RankJson(
            run_id="simulated", status="complete", rank=rank, world_size=world, host=host, boot_id=host,
            topology={"dp": world // self.mp_size, "tp": self.mp_size},
            coordinates={"dp": rank // self.mp_size, "tp": rank % self.mp_size}, topology_source="simulated",
            mp_size=self.mp_size, dp_size=world // self.mp_size, num_steps=len(ends), passes={"trace": len(ends)},
            files={table.file: len(rows) for table, rows in tables.items()}))

    def _collectives(self, moved: Sequence[Moved], ends: Sequence[int], began_ns: int) -> list[Row]:
        random, taken = np.random.default_rng([self.seed, 77]), Counter[tuple[Group, bool]]()
        rows = []
        for one in moved:
            call, is_pair = one.call, one.call.op in POINT_TO_POINT
            sequence, of_torch = taken[call.group, is_pair], taken.total()
            taken[call.group, is_pair] += 1
            late = int(random.integers(self.late_end_ns)) if self.late_end_ns else 0
            peer = next((rank for rank in call.group if rank != one.rank), None) if is_pair else call.root
            rows.append({
                "step": step_of(one.called_ns, ends), "op": call.op, "group": str(call.group),
                "group_description": f"group of {len(call.group)}", "group_ranks": list(call.group),
                "sequence": sequence, "group_sequence": of_torch, "num_elements": call.num_bytes // 4,
                "size_bytes": call.num_bytes, "dtype": "float32", "peer": peer, "asynchronous": True,
                "enqueue_ns": began_ns + one.called_ns, "start_ns": began_ns + one.began_ns,
                "end_ns": began_ns + one.ended_ns + late, "timed_by": "timeline", "module_path": call.where,
                "phase": call.phase})
        return rows


def step_of(ns: int, ends: Sequence[int]) -> int:
    """The step that was under way."""
    return int(np.searchsorted(ends, ns, "right"))


def steps(ends: Sequence[int], began_ns: int) -> list[Row]:
    """Rows of `STEPS`."""
    return [{"step": number, "pass": "trace", "start_ns": began_ns + start, "end_ns": began_ns + end,
             "duration_ns": end - start, "forward_calls": 1}
            for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]


def events(done: Sequence[Done], ends: Sequence[int], began_ns: int) -> list[Row]:
    """Rows of `EVENTS`, as torch's profiler names what a thread does."""
    rows: list[Row] = []
    nodes: dict[str | None, int] = {}
    for one in done:
        what, place = one.instruction, {"start_ns": began_ns + one.start_ns, "duration_ns": one.end_ns - one.start_ns,
                                        "step": step_of(one.start_ns, ends), "process": "1", "thread": "1"}
        if isinstance(what, StepEnd):
            nodes.clear()
        elif isinstance(what, Wait) and what.shown:
            rows.append({"name": WAIT_SLICE, "category": "user_annotation", **place})
        elif isinstance(what, Work):
            nodes.setdefault(what.where, len(rows))
            rows += [{**slice_, **place} for slice_ in _slices(what, nodes[what.where])]
    return rows


def _slices(work: Work, node: int) -> list[Row]:
    operator = {"category": "cpu_op", "forward_thread": 0}
    match work.kind:
        case "forward":
            return [{"name": f"{work.where} [Layer]", "category": "user_annotation"},
                    {"name": "aten::addmm", "sequence_number": node, **operator}]
        case "backward":
            return [{"name": "autograd::engine::evaluate_function: AddmmBackward0", "category": "cpu_op",
                     "sequence_number": node, "forward_thread": 1}]
        case "data":
            return [{"name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                     "category": "user_annotation"}, {"name": "aten::stack", **operator}]
        case "optimizer":
            return [{"name": "Optimizer.step#SGD.step", "category": "user_annotation"},
                    {"name": "aten::_foreach_add_", **operator}]
    return []
