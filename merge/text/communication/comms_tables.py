"""Prints tables of `distprof comms` (--slowest, --matrix), and makes its data for --json; keys: docs/comms.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import polars as pl

from distprof.contract.collective_ops import POINT_TO_POINT
from distprof.contract.paths import FORMAT
from distprof.merge.activity.breakdown import mean_steps
from distprof.merge.blame.culprits import Culprit
from distprof.merge.clock.model import Clock
from distprof.merge.cost.choice import group_label
from distprof.merge.cost.collective_sums import bandwidths, group_coverage
from distprof.merge.cost.matrix import EXACT, bytes_between, matrix_of, uneven_exchanges
from distprof.merge.run.group_ranks import with_lists
from distprof.merge.text.communication.culprits import at_step_time
from distprof.merge.text.communication.device_steps import devices_data
from distprof.merge.text.communication.timeline import gigabytes, issued_in
from distprof.merge.text.phrases import known_to
from distprof.merge.totals.description import problems_of
from distprof.merge.totals.findings import Findings
from distprof.merge.totals.step_time import step_time_data
from distprof.reporters.page import Page
from distprof.units import UNKNOWN, duration, numbered, size

MOST_RANKS = 16
"""Up to this many ranks, the matrix shows all pairs."""
SHOWN_PAIRS = 20
OF_RANK = ("rank", "enqueue_ns", "start_ns", "arrival_ns", "end_ns", "timed_by", "wait_ns", "transfer_ns",
           "clock_free_wait_ns", "clock_free_transfer_ns", "size_bytes", "module_path", "phase")
"""Columns that a collective has once per rank."""
OF_COLLECTIVE = (
    "collective", "step", "op", "group", "group_description", "group_ranks", "number", "size_bytes", "dtype", "peer",
    "asynchronous", "matched_by", "num_ranks", "complete", "mismatch", "arrival_spread_ns", "late_rank",
    "end_spread_ns", "unsure", "disagrees", "algbw", "busbw", "between_hosts", "module_path", "phase",
)

MOST_KEPT = 5000
"""Maximum number of calls that are listed for a run of many ranks."""


def list_slowest(collectives: pl.DataFrame, number: int, clock: Clock, page: Page) -> None:
    """Prints the collectives in which a rank spent most time, including waiting; the longest first.

    Args:
        collectives: As returned by `per_collective`.
        number: How many.
        clock: Clock of the run.
        page: Where to print.
    """
    if collectives.is_empty():
        page.line("no collective was recorded")
        return
    slowest = _longest(collectives, number)
    page.table(
        ("step", "op", "group", "#", "ranks", "bytes", "dtype", "spread", "wait", "transfer", "shortest", "longest",
         "busbw GB/s", "late rank", "issued in"),
        [_row(one, clock) for one in with_lists(slowest, "group_ranks", "ranks").iter_rows(named=True)], left=3)
    if len(collectives) > number:
        page.line(f"... {len(collectives) - number} more of {len(collectives)}: --slowest {len(collectives)}")
    page.line("wait and transfer: mean over ranks; shortest and longest: time of a rank from arrival to end, "
              "including waiting")


def _row(one: dict[str, Any], clock: Clock) -> tuple[str, ...]:
    unsure_ns = clock.pair_uncertainty_ns(one["ranks"])
    is_pair = one["op"] in POINT_TO_POINT
    members = len(one["group_ranks"]) if one["group_ranks"] is not None else "?"
    sides = [str(rank) for rank in one["ranks"]] if len(one["ranks"]) > 1 else [str(one["ranks"][0]), str(one["peer"])]
    late = UNKNOWN if one["late_rank"] is None else f"{one['late_rank']}{' ?' if one['unsure'] else ''}"
    return (
        UNKNOWN if one["step"] is None else str(one["step"]), one["op"],
        group_label(one["group"], one["group_description"], one["group_ranks"]),
        UNKNOWN if one["number"] is None else str(one["number"]),
        " - ".join(sides) if is_pair else f"{one['num_ranks']}/{members}",
        size(one["size_bytes"]), one["dtype"] or UNKNOWN, known_to(one["arrival_spread_ns"], unsure_ns),
        *(known_to(None if one[name] is None else one[name] / len(one["ranks"]), unsure_ns)
          for name in ("wait_ns", "transfer_ns")),
        duration(one["shortest_ns"]), duration(one["longest_ns"]), gigabytes(one["busbw"]), late, issued_in(one),
    )


def show_matrix(between: pl.DataFrame, num_ranks: int, steps: Sequence[int], page: Page) -> None:
    """Prints the matrix of bytes between ranks.

    Args:
        between: As returned by `bytes_between`.
        num_ranks: Number of ranks of the job.
        steps: The included steps; empty if everything recorded is included.
        page: Where to print.
    """
    if between.is_empty():
        page.line("bytes between ranks are unknown: no collective has sizes, groups and peers")
        return
    what = f"{numbered('step', steps)} in total" if steps else "over the whole recording"
    page.line(f"bytes that ranks send to each other, {what}; row: sender, column: receiver"
              if num_ranks <= MOST_RANKS else
              f"the {SHOWN_PAIRS} largest of the bytes that ranks send to each other, {what}")
    page.line()
    if num_ranks <= MOST_RANKS:
        matrix = matrix_of(between, num_ranks)
        page.table(("from \\ to", *map(str, range(num_ranks)), "all"), [
            (f"rank {rank}", *(size(value) if value else UNKNOWN for value in row.tolist()), size(float(row.sum())))
            for rank, row in enumerate(matrix)])
    else:
        pairs = between.group_by("source", "target").agg(
            pl.col("num_bytes").sum(), pl.col("num_ops").sum(), pl.col("op").unique(maintain_order=True)).sort(
            "num_bytes", "source", "target", descending=[True, False, False])
        page.table(("from", "to", "bytes", "ops", "of"), [
            (f"rank {source}", f"rank {target}", size(num_bytes), str(num_ops), ", ".join(ops))
            for source, target, num_bytes, num_ops, ops in pairs.head(SHOWN_PAIRS).iter_rows()], left=2)
        page.line(f"... {max(len(pairs) - SHOWN_PAIRS, 0)} more of {len(pairs)} pairs: --json lists all")
    # some numbers are exact, others assume the usual algorithms of libraries
    for basis, ops, num_bytes in between.group_by("basis", maintain_order=True).agg(
            pl.col("op").unique(maintain_order=True), pl.col("num_bytes").sum()).sort("basis").iter_rows():
        page.line(f"{', '.join(ops)}: {'known' if basis == EXACT else basis}, {size(num_bytes)} in total")


def comms_data(found: Findings) -> dict[str, Any]:
    """Returns all findings; unknown values are None."""
    run, analysis, has_rows = found.run, found.analysis, found.has_rows
    return {
        "format": FORMAT, "kind": run.kind, "run_id": run.run_id, "world_size": run.world_size,
        "ranks": [rank.number for rank in run.ranks], "missing_ranks": run.missing,
        "problems": msgspec.to_builtins(problems_of(run, found.clock)),
        "remarks": msgspec.to_builtins([*run.remarks, *(analysis.remarks if analysis is not None else [])]),
        "steps": found.steps, "step_time": step_time_data(found.step_time),
        "clock": found.clock.to_json(), "pair_uncertainty_ns": found.clock.pair_uncertainty_ns(),
        "coverage": {**asdict(found.coverage), "matched_ratio": found.coverage.matched_ratio},
        "coverage_by_group": group_coverage(found.collectives).to_dicts(),
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
        "bandwidths": bandwidths(found.collectives).to_dicts(),
        "collectives": _collectives(found) if has_rows else with_lists(
            _longest(found.collectives, MOST_KEPT).select(OF_COLLECTIVE)).to_dicts(),
    }


def culprit_data(one: Culprit) -> dict[str, Any]:
    """Returns an entry of `culprits`."""
    causes = [{**asdict(why), "ratio": why.ratio} for why in one.causes]
    return {**asdict(one), "share": one.share, "certain": one.certain, "causes": causes}


def _longest(collectives: pl.DataFrame, number: int) -> pl.DataFrame:
    """Returns the calls in which a rank spent most time, without copying a million rows."""
    order = pl.arg_sort_by("longest_ns", "collective", descending=[True, False], nulls_last=True)
    return collectives[collectives.select(order).to_series().head(number)]


def _collectives(found: Findings) -> list[dict[str, Any]]:
    of_ranks = found.rows.sort("collective", "rank").group_by("collective", maintain_order=True).agg(
        pl.struct(OF_RANK).alias("of_ranks"))
    each = with_lists(found.collectives.select(OF_COLLECTIVE))
    return each.join(of_ranks, on="collective", maintain_order="left").to_dicts()
