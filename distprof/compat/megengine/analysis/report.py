"""Summary and tables of a profile, or the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from distprof.compat.megengine.analysis.choosing import Choice, filtered, missing_types, of_ranks, records
from distprof.compat.megengine.analysis.profile import Profile
from distprof.compat.megengine.analysis.tables import UNKNOWN, boxed_operators, info, plain, wiki, wiki_operators
from distprof.contract.paths import FORMAT
from distprof.terminal import Shown, visible
from distprof.units import counted

SIDES = ("device", "host")
PARTS = ("summary", *SIDES)
EMPTY = "no operator matches all filters"
JSON_TEXTS = ("in_shapes", "in_layouts", "out_shapes")
FIELDS = ("rank", "name", "type", "id", "count", "time", "computation", "memory", "flops", "bandwidth", *JSON_TEXTS)
"""Fields of an operator in JSON; null if unknown or aggregated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The flags for the output."""

    top: int = 3
    """Number of rows; 0 for all."""
    copy_time: bool = False
    show_host: bool = False
    only_operators: bool = False
    """Whether to print plain lines of name, type and id."""
    wiki: bool = False
    print_only: str | None = None
    as_json: bool = False


def report(profile: Profile, choice: Choice, view: View) -> str:
    """Returns what `profile_analyze` prints.

    Raises:
        UsageError: A rank or column does not exist, or a regular expression is invalid.
    """
    everything = of_ranks(profile.rows, choice.ranks)
    chosen = filtered(everything, choice)
    if view.as_json:
        return _json(profile, everything, chosen, choice, view)
    parts = list[str]()
    for part in _parts(view):
        if part == "summary":
            parts.append(_summary(everything, chosen, view))
        else:
            parts.append(_details(everything, chosen, choice, view, part))
    if not view.only_operators and view.print_only is None:
        parts += ["\n".join(map(visible, profile.notes))] if profile.notes else []
    return Shown.drawn("\n\n".join(parts))


def _parts(view: View) -> Iterator[str]:
    if view.print_only is not None:
        yield view.print_only
        return
    yield from PARTS if view.show_host else PARTS[:2]


def _total(rows: pl.DataFrame, side: str) -> float | None:
    times = rows[f"{side}_end"].drop_nulls()
    return float(times.sum()) if len(times) else None


def _summary(everything: pl.DataFrame, chosen: pl.DataFrame, view: View) -> str:
    rows = [[f"total {side} time", _seconds(_total(everything, side))] for side in SIDES]
    ranks = everything["rank"].unique().sort().to_list()
    if len(ranks) > 1:
        rows += [[f"{side} time of rank {rank}", _seconds(_total(everything.filter(pl.col("rank") == rank), side))]
                 for rank in ranks for side in SIDES]
    if view.copy_time:
        copies = chosen.filter(pl.col("type") == "Copy")
        rows += [[title, _copied(copies[f"device_{end}"])] for title, end in (("copy time", "end"),
                                                                             ("copy wait time", "kern"))]
    return wiki(["name", "value"], rows) if view.wiki else plain(rows)


def _copied(times: pl.Series) -> str:
    known = times.drop_nulls().to_list()
    return f"tot={sum(known):.4f} avg={sum(known) / len(known):.4f}" if known else UNKNOWN


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:g}"


def _details(everything: pl.DataFrame, chosen: pl.DataFrame, choice: Choice, view: View, side: str) -> str:
    found = records(chosen, choice, side)
    shown = found.head(view.top) if view.top else found
    if shown.is_empty():
        return "\n".join([_nothing(everything, side), *map(visible, missing_types(everything, choice))])
    if view.only_operators:
        return "\n".join(visible(" ".join(info(row))) for row in shown.iter_rows(named=True))
    total, several = _total(everything, side) or 0.0, everything["rank"].n_unique() > 1
    table = (wiki_operators(shown, total, ranks=several) if view.wiki
             else boxed_operators(shown, side, total, ranks=several))
    return "\n".join([table, *_remarks(everything, chosen, choice, side, len(found) - len(shown))])


def _nothing(everything: pl.DataFrame, side: str) -> str:
    return EMPTY if _total(everything, side) is not None else f"no operator has a {side} time"


def _remarks(everything: pl.DataFrame, chosen: pl.DataFrame, choice: Choice, side: str, hidden: int) -> Iterator[str]:
    """Yields to what percentages refer, what numbers do not cover, and how many rows are not shown."""
    total, timed = _total(everything, side) or 0.0, everything[f"{side}_end"].count()
    picked = records(chosen, Choice(end=choice.end, min_time=choice.min_time, max_time=choice.max_time), side)
    yield f"shares are of the {side} time of all {counted(timed, 'operator')}, {total:.3g} s" + (
        f"; the {len(picked)} chosen take {float(picked['time'].sum()) / total * 100:.1f}% of it"
        if total and len(picked) < timed else "")
    if choice.end == "kern":
        yield "times show only the wait before the kernel"
    if choice.aggregate in ("max", "min", "mean"):
        yield f"time, computation and memory are the {choice.aggregate} over the combined operators"
    unknown = picked["computation"].null_count()
    if choice.aggregate and 0 < unknown < len(picked):
        yield f"computation is unknown for {unknown} of {counted(len(picked), 'operator')}, which count as 0"
    if hidden:
        yield f"{counted(hidden, 'more row')}: -t 0 shows all"


def _json(profile: Profile, everything: pl.DataFrame, chosen: pl.DataFrame, choice: Choice, view: View) -> str:
    found: dict[str, Any] = {
        "format": FORMAT, "kind": "profile_analyze", "ranks": everything["rank"].unique().sort().to_list(),
        "notes": list(profile.notes),
        "total": {side: _total(everything, side) for side in SIDES}, "unit": "s"}
    for side in SIDES:
        if view.print_only in (None, side):
            rows = records(chosen, choice, side)
            found[side] = [_fields(row) for row in (rows.head(view.top) if view.top else rows).iter_rows(named=True)]
    return json.dumps(found, indent=1)


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    texts = {name: None if row[name] is None else json.loads(row[name]) for name in JSON_TEXTS}
    return {name: texts.get(name, row[name]) for name in FIELDS}
