"""Section on the whole job: step time of all ranks at a few points in time, findings of the watch, later recordings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from distprof.arrays import Floats
from distprof.contract.watch_state import WatchFinding, WatchState
from distprof.merge.report.resource_findings import MORE_LOADERS, Finding, Severity
from distprof.merge.report.section import MOST_RANKS, AbsentError, Sample
from distprof.merge.report.sources import Sources
from distprof.merge.run.run_model import Rank
from distprof.merge.text.watch import SLOW, job_line, sentence, watched_of
from distprof.merge.watch.job_watch import num_bytes
from distprof.merge.watch.points import PHASES, SERIES, Points, RankLine, points, rank_line, rows_of
from distprof.merge.workers.pool import Pool, ProcessPool
from distprof.units import counted, spans

IN_PROCESSES = 8 << 20
"""If watch files have more bytes together, several processes read them."""
DIGITS = 1000
"""A usual step is at least this many units long: a chart needs no more digits, and shorter numbers save space."""
MOST_PAUSES = 200
UNSEEN = "these steps have not been searched for slow ranks: `distprof watch --once` does that"
PAUSES = ("evaluation", "checkpoint")
SHOWN = 4
SECTION = "whole_job"
NOTED = ("pauses",)
"""Kinds of findings that are only notes, because every job has some."""
ACTIONS = {"data_stall": MORE_LOADERS}


def whole_job(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Returns points, ranks and findings; docs/report.md describes the keys.

    Raises:
        AbsentError: No rank logged steps after the recorded ones.
    """
    if not sources.is_recorded:
        raise AbsentError("the whole job is unknown: distprof did not run it")
    state = watched_of(sources.summary)
    ranks = _chosen(sources.opened.ranks, state, sample)
    sizes = {rank.number: num_bytes(rank) for rank in ranks}
    lead = max(ranks, key=lambda rank: sizes[rank.number])
    columns, _ = rows_of(lead.folder)
    if not len(columns["first_step"]):
        raise AbsentError("no step was logged after the recorded ones",
                          remedy="run without --watch off, and for longer than the recorded steps")
    at = points(columns)
    lines = list(_lines(ranks, at, sum(sizes.values())))
    return _document(at, lines, state)


def _chosen(ranks: Sequence[Rank], state: WatchState | None, sample: Sample) -> list[Rank]:
    """Returns all ranks, or those with findings and an even selection of the others."""
    if len(ranks) <= MOST_RANKS:
        return list(ranks)
    noticed = {rank for one in (state.findings if state is not None else ()) for rank in one.ranks}
    first = [rank for rank in ranks if rank.number in noticed][:MOST_RANKS // 2]
    rest = [rank for rank in ranks if rank not in first]
    room = MOST_RANKS - len(first)
    shown = sorted([*first, *(rest[index * len(rest) // room] for index in range(room))], key=lambda one: one.number)
    sample.left_out.append(f"the whole job is shown for {len(shown)} of {len(ranks)} ranks "
                           f"({spans(rank.number for rank in shown)}): those with findings, and an even selection of "
                           "the others")
    return shown


def _lines(ranks: Sequence[Rank], at: Points, size_bytes: int) -> Iterator[RankLine]:
    """Reads the lines of all ranks, concurrently if there is much to read."""
    size = min(len(ranks), os.cpu_count() or 1)
    pool = ProcessPool(size) if size_bytes > IN_PROCESSES and size > 1 else Pool(1)
    try:
        yield from pool.in_order(rank_line, (
            (f"read the watch of rank {rank.number}", (rank.number, rank.folder.absolute(), at)) for rank in ranks))
    finally:
        pool.close()


def _document(at: Points, lines: Sequence[RankLine], state: WatchState | None) -> dict[str, Any]:
    step = np.array([line.of["step_ns"] for line in lines])
    longest = np.array([line.of["longest_ns"] for line in lines])
    low = np.array([line.low_ns for line in lines])
    known = step[np.isfinite(step)]
    unit = _unit(float(np.median(known))) if len(known) else 1
    findings = state.findings if state is not None else []
    return {
        "sentence": UNSEEN if state is None else job_line(state),
        "unit_ns": unit, "origin_ns": at.origin_ns, "rows_per_point": at.rows,
        "points": {
            "first_step": at.first_step.tolist(), "last_step": at.last_step.tolist(),
            "begin_ns": at.begin_ns.tolist(), "end_ns": at.end_ns.tolist(),
            "low": _units(_over(np.nanmin, low), unit), "from": _units(_over(np.nanmin, step), unit),
            "median": _units(_over(np.nanmedian, step), unit), "to": _units(_over(np.nanmax, step), unit),
            "longest": _units(_over(np.nanmax, longest), unit)},
        "ranks": [line.rank for line in lines],
        "late_ranks": sorted({rank for one in findings if one.kind in SLOW for rank in one.ranks}),
        "of_rank": {str(line.rank): {name.removesuffix("_ns"): _units(line.of[name], unit) for name in SERIES
                                     if name not in PHASES or np.isfinite(line.of[name]).any()} for line in lines},
        "findings": [{"id": one.id, "kind": one.kind, "ranks": one.ranks, "step": one.onset_step,
                      "until_step": one.until_step, "phase": one.phase, "text": sentence(one)} for one in findings],
        "windows": list(_windows(lines)), "pauses": _pauses(lines)}


def _over(reduce: Callable[..., Floats], values: Floats) -> Floats:
    """Reduces over ranks; NaN if no rank's value is known."""
    unknown = np.isnan(values).all(axis=0)
    return np.where(unknown, np.nan, reduce(np.where(unknown, 0.0, values), axis=0))


def _unit(usual_ns: float) -> int:
    """Returns the unit in ns, a power of ten."""
    return int(10 ** max(0, np.floor(np.log10(max(usual_ns, 1.0) / DIGITS))))


def _units(values: Floats, unit: int) -> list[int | None]:
    """Returns values as whole numbers of units; None for unknown ones."""
    whole = np.rint(values / unit)
    return [None if unknown else int(value) for value, unknown in zip(whole.tolist(), np.isnan(whole), strict=True)]


def _windows(lines: Sequence[RankLine]) -> Iterator[dict[str, Any]]:
    """Yields recordings that were made later in the job, as logged by the first rank that took part."""
    seen = dict[str, dict[str, Any]]()
    for line in lines:
        for note in line.notes:
            if note.kind == "window_began" and note.text not in seen:
                seen[note.text] = {"number": note.text, "rank": line.rank, "step": note.step, "until_step": None}
            elif note.kind == "window_ended" and seen.get(note.text, {}).get("rank") == line.rank:
                seen[note.text]["until_step"] = note.step
    for one in seen.values():
        yield {"number": int(one["number"]) if one["number"].isdecimal() else None, "step": one["step"],
               "until_step": one["until_step"]}


def _pauses(lines: Sequence[RankLine]) -> list[dict[str, Any]]:
    """Returns evaluations and checkpoints, each once, evenly thinned to at most `MOST_PAUSES`."""
    found = sorted({(note.step, note.kind) for line in lines for note in line.notes if note.kind in PAUSES})
    each = -(-len(found) // MOST_PAUSES) or 1
    return [{"step": step, "kind": kind} for step, kind in found[::each]]


def watch_findings(summary: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Yields findings of the watch, the most expensive first; pauses last.

    Args:
        summary: `summary.json` of the run.
        where: The run as an argument of a command.
    """
    state = watched_of(summary)
    if state is None:
        return
    order = sorted(state.findings, key=lambda one: (one.kind in NOTED, one.until_step is not None,
                                                    -(one.cost_ns or 0.0)))
    for one in order[:SHOWN]:
        yield Finding(
            severity=_severity(one), text=sentence(one), section=SECTION, id=one.id,
            rank=one.ranks[0] if len(one.ranks) == 1 else None, step=one.onset_step, module=one.module,
            detail=f"Whole job: {job_line(state)}", action=ACTIONS.get(one.kind), next=f"distprof watch --once {where}")
    if len(order) > SHOWN:
        yield Finding(severity="note", text=f"{counted(len(order) - SHOWN, 'more finding')} about the whole job",
                      section=SECTION, next=f"distprof watch --once {where}")


def _severity(one: WatchFinding) -> Severity:
    """Returns the severity: a condition that continues is worse than one that is over."""
    if one.kind in NOTED:
        return "note"
    return "bad" if one.kind in SLOW and one.until_step is None else "warn"
