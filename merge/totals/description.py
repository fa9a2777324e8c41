"""Makes the parts of `summary.json` that need no tables: identity, topology, problems, clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from distprof.contract.merged import MODEL_PARAMS, QUANTITIES, STEP_KEYS, SUMMARY_KEYS, TIMES
from distprof.contract.paths import FORMAT
from distprof.contract.problems import (
    ClocksNotAligned,
    ClocksWrong,
    NoteOfRank,
    Problem,
    WallClockSet,
)
from distprof.merge.clock.model import Clock
from distprof.merge.run.run_model import Run
from distprof.storage.places import real

SPREAD = ("mean", "min", "max", "min_rank", "max_rank")
"""Statistics of a quantity over ranks."""


def described(run: Run, clock: Clock) -> dict[str, Any]:
    """Returns the keys of `summary.json` that need no table."""
    return {
        "format": FORMAT,
        "kind": run.kind,
        "run_id": run.run_id,
        "world_size": run.world_size,
        "mp_size": run.mp_size if run.topology_known else None,
        "dp_size": run.dp_size if run.topology_known else None,
        "topology": run.topology if run.topology_known else None,
        "topology_source": run.topology_source,
        "topology_certain": run.topology_certain and run.topology_known,
        "ranks": [rank.number for rank in run.ranks],
        "missing_ranks": run.missing,
        "joined_with": [real(path) for path in run.more],
        "problems": msgspec.to_builtins(problems_of(run, clock)),
        "remarks": msgspec.to_builtins(run.remarks),
        "clock": clock.to_json(),
    }


def table_metadata(run: Run) -> dict[str, str]:
    """Returns the metadata that the schema of every merged table carries."""
    return {"distprof.format": str(FORMAT), "distprof.run_id": run.run_id, "distprof.world_size": str(run.world_size),
            "distprof.mp_size": str(run.mp_size), "distprof.dp_size": str(run.dp_size),
            "distprof.topology": json.dumps(run.topology)}


def without_tables(run: Run, clock: Clock) -> dict[str, Any]:
    """Returns the summary of traces of other programs, which have no tables: values that need tables are null."""
    return {
        **dict.fromkeys(SUMMARY_KEYS),
        **described(run, clock),
        "per_gpu": {name: dict.fromkeys(SPREAD) for name in (*QUANTITIES, *TIMES)},
        "model": dict.fromkeys((*QUANTITIES, *MODEL_PARAMS)),
        "step": dict.fromkeys(STEP_KEYS),
        "modules": [],
        "uncounted_ops": [],
    }


def problems_of(run: Run, clock: Clock) -> list[Problem]:
    """Returns everything that is incomplete or unreliable, each problem once."""
    found = list(run.problems)
    notes = [NoteOfRank(rank=rank.number, detail=note) for rank in run.ranks if rank.recorded is not None
             for note in rank.recorded.notes]
    # a merge that stands alone already has the problems of its clock
    return found + [one for one in (*_clock_problems(run, clock), *notes) if one not in found]


def _clock_problems(run: Run, clock: Clock) -> Iterator[Problem]:
    if not clock.aligned:
        lost = tuple(sorted(rank for rank, known in clock.ranks.items() if known.uncertainty_ns is None))
        notes = (f"rank {rank.number}: {rank.recorded.clock_note}" for rank in run.ranks
                 if rank.recorded is not None and rank.recorded.clock_note and rank.number in lost)
        yield ClocksNotAligned(ranks=lost, reason=clock.reason, note=next(notes, None))
    if clock.check is not None and clock.check.contradicts:
        yield ClocksWrong(violations=clock.check.violations, num_collectives=clock.check.num_collectives,
                          largest_ns=clock.check.largest_violation_ns or 0, allowed_ns=clock.check.allowed_violation_ns)
    if clock.set_by_ns > 1_000_000:
        yield WallClockSet(set_by_ns=clock.set_by_ns)
