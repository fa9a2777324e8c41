"""The data of `distprof comms --json`; docs/comms.md describes the keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
import polars as pl

from distprof.contract.paths import FORMAT
from distprof.merge.activity.breakdown import mean_steps
from distprof.merge.blame.culprits import Culprit
from distprof.merge.cost.collective_sums import bandwidths, group_coverage
from distprof.merge.cost.matrix import bytes_between, uneven_exchanges
from distprof.merge.text.communication.culprits import at_step_time
from distprof.merge.text.documents.devices_json import devices_data
from distprof.merge.totals.description import problems_of
from distprof.merge.totals.findings import Findings
from distprof.merge.totals.step_time import step_time_data

OF_RANK = ("rank", "enqueue_ns", "start_ns", "arrival_ns", "end_ns", "timed_by", "wait_ns", "transfer_ns",
           "clock_free_wait_ns", "clock_free_transfer_ns", "size_bytes", "module_path", "phase")
"""Columns that a collective has once a rank."""
OF_COLLECTIVE = (
    "collective", "step", "op", "group", "group_description", "group_ranks", "number", "size_bytes", "dtype", "peer",
    "asynchronous", "matched_by", "num_ranks", "complete", "mismatch", "arrival_spread_ns", "late_rank",
    "end_spread_ns", "unsure", "disagrees", "algbw", "busbw", "between_hosts", "module_path", "phase",
)

MOST_KEPT = 5000
"""Calls of a run of many ranks that are listed."""


def comms_data(found: Findings) -> dict[str, Any]:
    """All findings; what is unknown is None."""
    run, analysis, has_rows = found.run, found.analysis, found.run.summaries is None
    return {
        "format": FORMAT, "kind": run.kind, "run_id": run.run_id, "world_size": run.world_size,
        "ranks": [rank.number for rank in run.ranks], "missing_ranks": run.missing,
        "problems": msgspec.to_builtins(problems_of(run, found.clock)),
        "remarks": msgspec.to_builtins([*run.remarks, *(analysis.remarks if analysis is not None else [])]),
        "steps": found.steps, "step_time": step_time_data(found.step_time),
        "clock": found.clock.to_json(), "pair_uncertainty_ns": found.clock.pair_uncertainty_ns(),
        "coverage": {**asdict(found.coverage), "matched_ratio": found.coverage.matched_ratio},
        "coverage_by_group": group_coverage(found.rows).to_dicts() if has_rows else None,
        "kinds": [asdict(one) for one in found.kinds],
        "breakdown": None if analysis is None else mean_steps(analysis.breakdown),
        "breakdown_by_step": None if analysis is None else analysis.breakdown.to_dicts(),
        "devices": devices_data(found.devices),
        "culprits": None if analysis is None else [
            culprit_data(one) for one in at_step_time(analysis.culprits, found.step_time)],
        "blind": None if analysis is None else analysis.blind,
        "crowded": None if analysis is None else [asdict(one) for one in analysis.crowded],
        "shifting": None if analysis is None or analysis.shifting is None else asdict(analysis.shifting),
        "slow_groups": None if analysis is None else [asdict(one) for one in analysis.slow_groups],
        "stuck": None if found.hangs is None else msgspec.to_builtins(
            {"hangs": found.hangs.hangs, "ranks": list(found.hangs.standing.values())}),
        "matrix": bytes_between(found.rows).to_dicts() if has_rows else None,
        "uneven_exchanges": uneven_exchanges(found.counted_rows).to_dicts() if has_rows else None,
        "bandwidths": bandwidths(found.rows).to_dicts() if has_rows else None,
        "collectives": _collectives(found) if has_rows else _longest(found),
    }


def culprit_data(one: Culprit) -> dict[str, Any]:
    """One of `culprits`."""
    causes = [{**asdict(why), "ratio": why.ratio} for why in one.causes]
    return {**asdict(one), "share": one.share, "certain": one.certain, "causes": causes}


def _longest(found: Findings) -> list[dict[str, Any]]:
    """Calls in which a rank was longest."""
    longest = found.collectives.sort("longest_ns", "collective", descending=[True, False], nulls_last=True)
    return longest.head(MOST_KEPT).select(OF_COLLECTIVE).to_dicts()


def _collectives(found: Findings) -> list[dict[str, Any]]:
    of_ranks = found.rows.sort("collective", "rank").group_by("collective", maintain_order=True).agg(
        pl.struct(OF_RANK).alias("of_ranks"))
    return found.collectives.select(OF_COLLECTIVE).join(of_ranks, on="collective", maintain_order="left").to_dicts()
