"""Sections on communication: collectives by call and by kind, ranks that delay the job, where it hangs, the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import polars as pl

from distprof.contract.problems import RankFailed
from distprof.merge.cost.choice import group_label
from distprof.merge.cost.collective_sums import bandwidths as by_size
from distprof.merge.report.section import AbsentError, Sample, columns_of, columns_of_rows, numbered
from distprof.merge.report.sources import Sources
from distprof.merge.run.group_ranks import with_lists
from distprof.merge.text.communication.comms_tables import culprit_data
from distprof.merge.text.communication.culprits import at_step_time, culprit_lines, lines_of, unseen
from distprof.merge.text.communication.hang import hang_lines
from distprof.merge.text.phrases import clock_line
from distprof.merge.text.watch import is_slow_later, watched_of
from distprof.units import counted

NO_COLLECTIVE = "no collective was recorded"
RECORD_THEM = "record those of a job with several ranks using --steps trace=6"
MOST_PARTS = 20_000
"""Limit on parts, one for each rank in each call, of all shown steps together."""
OF_CALL = ("collective", "size_bytes", "late_rank", "unsure", "complete", "mismatch", "dtype", "phase", "busbw",
           "arrival_spread_ns", "wait_ns", "transfer_ns")


def collectives(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Returns steps with their calls.

    Raises:
        AbsentError: No collective has known times.
    """
    found = sources.comms
    rows = sources.calls_of(sample.ranks)
    if rows.is_empty():
        what = NO_COLLECTIVE if found.collectives.is_empty() else "no collective has known times"
        raise AbsentError(what, remedy="record those of a job with several ranks using --steps trace=6,arrivals=20")
    starts = _windows(sources)
    parts = _chosen(rows, _in_order(rows, found.steps, starts), sample)
    calls = found.collectives.filter(pl.col("collective").is_in(parts["collective"].unique().implode()))
    ops, op = numbered(calls["op"].cast(pl.String))
    modules, module = numbered(calls["module_path"].cast(pl.String))
    groups, group = _groups(calls)
    named = calls.select("step", *OF_CALL, op=pl.Series(op, dtype=pl.Int64), group=pl.Series(group, dtype=pl.Int64),
                         module=pl.Series(module, dtype=pl.Int64)).with_columns(
        pl.col(pl.Categorical).cast(pl.String))
    by_step = named.partition_by("step", as_dict=True, include_key=False)
    steps = [_step(step, by_step[step,], some, starts)
             for (step,), some in parts.partition_by("step", as_dict=True, maintain_order=True).items()]
    return {"steps": steps, "ops": ops, "groups": groups, "modules": modules}


def _windows(sources: Sources) -> dict[int | None, tuple[int, int]]:
    """Returns step -> its start on the first rank and its end on the last one."""
    found = sources.windows.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return {step: (start, end) for step, start, end in found.iter_rows()}


def _in_order(rows: pl.DataFrame, counted_steps: Sequence[int],
              windows: dict[int | None, tuple[int, int]]) -> list[int | None]:
    """Returns steps in the order in which they are shown as space allows: the median one, the slowest, the others."""
    there = rows["step"].unique().sort().to_list()
    by_time = sorted((step for step in counted_steps or there if step in windows and step in there),
                     key=lambda step: windows[step][1] - windows[step][0])
    first = (by_time[len(by_time) // 2], by_time[-1]) if by_time else ()
    return list(dict.fromkeys((*first, *by_time, *there)))


def _chosen(rows: pl.DataFrame, steps: Sequence[int | None], sample: Sample) -> pl.DataFrame:
    """Takes whole steps as long as they fit; of the first two, only the calls with the longest waits if they do not."""
    left, taken = MOST_PARTS, list[pl.DataFrame]()
    for place, step in enumerate(steps):
        part = rows.filter(pl.col("step").eq_missing(pl.lit(step, pl.Int64)))
        most = left if place else left // 2 if len(steps) > 1 else left
        if len(part) > most and place < 2:
            part = _longest_waits(part, most, step, sample)
        if len(part) <= left:
            taken.append(part)
            left -= len(part)
    if len(taken) < len(steps):
        sample.left_out.append(f"collectives are shown for {counted(len(taken), 'step')} of {len(steps)}: the median "
                               "step, the slowest, and others as space allows")
    return pl.concat(taken).sort("step", "collective", "rank", nulls_last=True)


def _longest_waits(part: pl.DataFrame, most: int, step: int | None, sample: Sample) -> pl.DataFrame:
    calls = part.group_by("collective").agg(pl.len(), pl.col("wait_ns").sum()).sort(
        "wait_ns", "collective", descending=[True, False])
    kept = calls.filter(pl.col("len").cum_sum() <= most)
    where = "" if step is None else f" of step {step}"
    sample.left_out.append(f"{len(kept)} of {len(calls)} collectives{where} are shown: those with the longest waits")
    return part.filter(pl.col("collective").is_in(kept["collective"].implode()))


def _groups(calls: pl.DataFrame) -> tuple[list[dict[str, Any]], list[int | None]]:
    """Returns process groups by label, and the number of the group of each call."""
    keys, place = numbered(calls["group_key"])
    first = {row["group_key"]: row for row in with_lists(calls.unique("group_key", keep="first").select(
        "group_key", "group", "group_description", "group_ranks")).iter_rows(named=True)}
    named = [first[key] for key in keys]
    return [{"description": group_label(one["group"], one["group_description"], one["group_ranks"]),
             "ranks": one["group_ranks"]} for one in named], place


def _step(step: int | None, mine: pl.DataFrame, rows: pl.DataFrame,
          windows: dict[int | None, tuple[int, int]]) -> dict[str, Any]:
    """Returns a step with its calls and their parts."""
    start, end = windows.get(step) or rows.select(
        start=pl.col("arrival_ns").min(), end=pl.max_horizontal("arrival_ns", "end_ns").max()).row(0)
    place = dict(zip(mine["collective"].to_list(), range(len(mine)), strict=True))
    # a rank's device may still work on the collectives of a step when its host is in the next one
    over = max(end, rows["end_ns"].max() or end)
    return {
        "step": step, "start_ns": start, "duration_ns": end - start, "shown_ns": over - start,
        "calls": columns_of(mine),
        "parts": columns_of(rows.select(
            call=pl.col("collective").replace_strict(place, return_dtype=pl.Int64), rank="rank",
            arrival_ns=pl.col("arrival_ns") - start, full_ns=pl.col("arrival_ns") + pl.col("wait_ns") - start,
            end_ns=pl.col("end_ns") - start))}


def collective_kinds(sources: Sources) -> list[dict[str, Any]]:
    """Returns a row for each op of each process group.

    Raises:
        AbsentError: There was no collective.
    """
    if not sources.comms.kinds:
        raise AbsentError(NO_COLLECTIVE, remedy=RECORD_THEM)
    return [asdict(one) for one in sources.comms.kinds]


def bandwidths(sources: Sources) -> list[dict[str, Any]]:
    """Returns a row for each op and size.

    Raises:
        AbsentError: There was no collective.
    """
    if sources.comms.collectives.is_empty():
        raise AbsentError(NO_COLLECTIVE, remedy=RECORD_THEM)
    return by_size(sources.comms.collectives).to_dicts()


def blame(sources: Sources) -> dict[str, Any]:
    """Returns culprits, with a sentence about each that is certain.

    Raises:
        AbsentError: Late ranks were not analysed.
    """
    found = sources.comms
    if found.analysis is None:
        raise AbsentError("no collective was recorded, so nothing shows whether a rank delays others",
                          remedy="record those of a job with several ranks using --steps trace=6,arrivals=20")
    analysis, ranks = found.analysis, [rank.number for rank in found.run.ranks]
    culprits = at_step_time(analysis.culprits, found.step_time)
    certain = [one for one in culprits if one.certain]
    lines = {one.rank: [*lines_of(one, certain, ranks)] for one in certain}
    known = bool(found.steps)
    return {
        "culprits": [{**culprit_data(one), "sentence": lines[one.rank][0] if one.certain else None,
                      "more": lines.get(one.rank, [])[1:]} for one in culprits],
        "blind": None if analysis.blind is None else unseen(analysis.blind),
        "crowded": [asdict(one) for one in analysis.crowded],
        "shifting": None if analysis.shifting is None else asdict(analysis.shifting),
        "lines": [line.strip() for line in culprit_lines(
            analysis.culprits, ranks, analysis.blind, crowded=analysis.crowded, shifting=analysis.shifting,
            missing=found.run.missing, usual=found.step_time,
            slow_groups=analysis.slow_groups,
            slow_later=is_slow_later(watched_of(sources.summary)))] if known else [
            "late ranks are not judged: the collectives have no steps"]}


def hang(sources: Sources) -> dict[str, Any]:
    """Returns where the job got stuck.

    Raises:
        AbsentError: It did not, as far as is known.
    """
    found = sources.comms
    if found.hangs is None:
        raise AbsentError("no rank reported being stuck")
    is_known = any(isinstance(one, RankFailed) and one.why is not None for one in found.run.problems)
    lines = list(hang_lines(found.hangs, but_victims=is_known))
    return {"sentence": lines[0] if lines else None, "lines": lines,
            "hangs": [asdict(one) for one in found.hangs.hangs],
            "ranks": msgspec.to_builtins(list(found.hangs.standing.values()))}


def clock(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Returns the clock as in `comms`, with a row for each shown rank."""
    known = sources.comms.clock.to_json()
    hosts = {rank.number: rank.host or None for rank in sources.run.ranks}
    rows = [{**one, "host": hosts.get(one["rank"])} for one in known["ranks"] if one["rank"] in set(sample.ranks)]
    names = ("rank", "host", "clock", "offset_ns", "drift_ppm", "drift_uncertainty_ppm", "uncertainty_ns",
             "device_ns")
    return {**known, "sentence": clock_line(known), "ranks": columns_of_rows(rows, names),
            "pair_uncertainty_ns": sources.comms.clock.pair_uncertainty_ns()}
