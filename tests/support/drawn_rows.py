"""Generates measured collectives from arrivals and ends of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from distprof.contract.collective_ops import text_of
from distprof.contract.merged import MERGED_COLLECTIVES
from distprof.contract.rank_json import RankJson
from distprof.merge.clock.model import Alignment, Clock
from distprof.merge.run.group_ranks import coded
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.tables import TYPES

MS = 1_000_000
FIXED: Mapping[str, Any] = {
    "mp_size": 1, "dp_size": 4, "step": 7, "op": "all_reduce", "group": "0", "group_description": "default_pg",
    "num_elements": 256, "size_bytes": 1024, "dtype": "float32", "asynchronous": True, "phase": "backward",
    "matched_by": "sequence", "complete": True, "unsure": False, "disagrees": False, "timed_by": "timeline",
    "between_hosts": False,
}


def collective(number: int, times_ms: Mapping[int, tuple[float, float]], **columns: Any) -> list[dict[str, Any]]:
    """Returns the rows of a collective that waits for all ranks, from rank -> (arrival, end) in ms."""
    arrivals = {rank: round(came * MS) for rank, (came, _) in times_ms.items()}
    ends = {rank: round(left * MS) for rank, (_, left) in times_ms.items()}
    last = max(arrivals.values())
    late = max(arrivals, key=lambda rank: (arrivals[rank], rank))
    found = []
    for rank, came in arrivals.items():
        row = {**FIXED, "collective": number, "sequence": number, "group_sequence": number, "rank": rank,
               "group_ranks": text_of(sorted(times_ms)), "group_size": len(times_ms),
               "num_ranks": len(times_ms), "enqueue_ns": came, "start_ns": came,
               "arrival_ns": came, "end_ns": ends[rank], "arrival_spread_ns": last - min(arrivals.values()),
               "late_rank": late, "wait_ns": last - came, "transfer_ns": ends[rank] - last}
        size = {**row, **columns}["size_bytes"]
        time = max(ends.values()) - last
        rate = size / time * 1e9 if size and time else None
        found.append({**row, "algbw": rate, "busbw": rate and rate * 1.5, **columns})
    return found


def frame(*collectives: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Returns the table of rows; missing columns are null."""
    schema = {column.name: TYPES[column.type] for column in MERGED_COLLECTIVES.columns}
    return coded(pl.DataFrame([{name: row.get(name) for name in schema} for rows in collectives for row in rows],
                              schema=schema))


def clock_of(num_ranks: int, *, uncertainty_ns: int | None = 0, clocks: int = 1) -> Clock:
    """Returns an alignment of ranks with this number of clocks."""
    known = {rank: Alignment(uncertainty_ns=uncertainty_ns, clock=rank % clocks) for rank in range(num_ranks)}
    return Clock(method="shared" if clocks == 1 else "samples", ranks=known, num_hosts=clocks)


def run_of(num_ranks: int, *, folder: Path = Path("run")) -> Run:
    """Returns a run as recorded by distprof."""
    return Run(path=folder, run_id="x", world_size=num_ranks, mp_size=1, dp_size=num_ranks,
               topology={"dp": num_ranks}, topology_source="given", missing=[],
               ranks=[rank_of(rank, num_ranks, folder) for rank in range(num_ranks)])


def rank_of(rank: int, num_ranks: int, folder: Path) -> Rank:
    recorded = RankJson(run_id="x", status="complete", rank=rank, world_size=num_ranks, host="host", boot_id="boot",
                        coordinates={"dp": rank}, mp_size=1, dp_size=num_ranks)
    return Rank(number=rank, folder=folder / f"rank{rank:05d}", host="host", coordinates={"dp": rank},
                recorded=recorded)
