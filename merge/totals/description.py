"""What is known of a run without its tables: a run comes in, parts of `summary.json` go out."""

from __future__ import annotations

import json
from typing import Any

from distprof.contract.paths import FORMAT
from distprof.contract.summary import QUANTITIES, SUMMARY_KEYS, TIMES
from distprof.merge.run.run_model import Run, clock_of
from distprof.units import duration

SPREAD = ("mean", "min", "max", "min_rank", "max_rank")
"""Of a quantity over ranks."""
STEP = ("time_ns", "before_forward_ns", "fwd_ns", "bwd_ns", "optimizer_ns", "samples_per_second", "flops_per_second",
        "mfu", "mfu_basis")
"""Of the mean step."""


def described(run: Run) -> dict[str, Any]:
    """The keys that no table has a part in."""
    return {
        "format": FORMAT,
        "kind": run.kind,
        "run_id": run.run_id,
        "world_size": run.world_size,
        "mp_size": run.mp_size if run.topology_known else None,
        "dp_size": run.dp_size if run.topology_known else None,
        "topology": run.topology if run.topology_known else None,
        "topology_source": run.topology_source,
        "ranks": [rank.number for rank in run.ranks],
        "missing_ranks": run.missing,
        "problems": problems_of(run),
        "remarks": run.remarks,
        "clock": clock_of(run),
    }


def table_metadata(run: Run) -> dict[str, str]:
    """What the schema of every merged table carries."""
    return {"distprof.format": str(FORMAT), "distprof.run_id": run.run_id, "distprof.world_size": str(run.world_size),
            "distprof.mp_size": str(run.mp_size), "distprof.dp_size": str(run.dp_size),
            "distprof.topology": json.dumps(run.topology)}


def without_tables(run: Run) -> dict[str, Any]:
    """The whole summary of traces of other programs, which have no tables: what these would tell is null."""
    found = {
        **described(run),
        "per_gpu": {name: dict.fromkeys(SPREAD) for name in (*QUANTITIES, *TIMES)},
        "model": dict.fromkeys((*QUANTITIES, "unique_params")),
        "step": dict.fromkeys(STEP),
        "slowest_rank": None,
        "communication": None,
        "modules": [],
        "coverage_ratio": None,
        "uncounted_ops": [],
    }
    return {key: found[key] for key in SUMMARY_KEYS}


def problems_of(run: Run) -> list[str]:
    """Everything that is incomplete or cannot be relied on, in words."""
    notes = [f"rank {rank.number}: {note}" for rank in run.ranks for note in rank.info.notes]
    return run.problems + _clock_problems(run) + notes


def _clock_problems(run: Run) -> list[str]:
    clock, set_by_ns = run.clock, clock_of(run)["set_by_ns"]
    found = []
    if not clock.aligned:
        notes = [f" (rank {rank.number}: {rank.info.clock_note})" for rank in run.ranks
                 if rank.info.clock_note and clock.ranks[rank.number].uncertainty_ns is None]
        found.append(f"clocks are not aligned: {clock.description}{notes[0] if notes else ''}")
    if clock.check is not None and clock.check.contradicts:
        found.append(
            f"clocks are wrong: {clock.check.violations} of {clock.check.num_collectives} collectives end on a rank "
            f"before all are in, by up to {duration(clock.check.largest_violation_ns)}, and the clocks explain "
            f"{duration(clock.check.allowed_violation_ns)}")
    if set_by_ns > 1_000_000:
        found.append(f"the wall clock was set by up to {set_by_ns / 1e6:.1f} ms while recording")
    return found
