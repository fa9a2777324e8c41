"""Makes the text of `distprof findings`, and the table of `run.findings()`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from distprof.merge.report.document import document
from distprof.merge.report.sources import MEASURED, Given
from distprof.merge.text.findings import findings_data

MARKS = {"bad": "!!", "warn": "! ", "note": "- ", "good": "ok"}
COLUMNS = {"severity": pl.String(), "text": pl.String(), "detail": pl.String(), "rank": pl.Int64(), "step": pl.Int64(),
           "module": pl.String(), "cause": pl.String(), "file": pl.String(), "line": pl.Int64(),
           "gain_ns": pl.Float64(), "gain_error_ns": pl.Float64(), "step_ns": pl.Float64(), "p_value": pl.Float64(),
           "next": pl.String()}


def findings(path: Path, *more: Path, as_json: bool = False, given: Given = MEASURED) -> str:
    """What is wrong with a run, the worst first.

    Args:
        path: A run directory or traces of other programs; the merge of one.
        *more: Further run directories of the same job.
        as_json: Give `findings_data` as JSON.
        given: What the user knows better.

    Raises:
        DataError: The run cannot be read.
        UsageError: The sizes given do not make up the world.
    """
    found = findings_data(document(path, *more, given=given))
    return json.dumps(found, indent=1) if as_json else "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    for one in found["findings"]:
        yield f"{MARKS[one['severity']]} {one['text']}"
        yield from (f"     {line}" for line in (one["detail"] or "").splitlines())
        if one["next"] is not None:
            yield f"     {one['next']}"
    if found["num_more"]:
        yield f"   {found['num_more']} more: distprof report shows all"


def findings_frame(paths: Sequence[Path]) -> pl.DataFrame:
    """The same as a table: `COLUMNS`; null where a finding is about no rank, module or line."""
    first, *more = paths
    rows = [_row(one) for one in findings_data(document(first, *more))["findings"]]
    return pl.DataFrame(rows, COLUMNS)


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    cause = one.get("cause") or {}
    line = cause.get("line") or {}
    return {name: one.get(name) for name in COLUMNS} | {
        "cause": cause.get("kind"), "file": line.get("file"), "line": line.get("line")}
