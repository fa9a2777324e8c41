"""`distprof findings`: what is wrong with a run, worst first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from distprof.launch.options import ATTEMPT, JSON, RUNS, SAME_HOST, TIME_UNIT, given_runs, given_sizes, mesh_sizes
from distprof.terminal import show

MARKS = {"bad": "!!", "warn": "! ", "note": "- ", "good": "ok"}


@click.command()
@RUNS
@JSON
@mesh_sizes
@SAME_HOST
@TIME_UNIT
@ATTEMPT
def findings(runs: tuple[Path, ...], *, as_json: bool, attempt: int | None, **sizes: int | None) -> None:
    """List what is wrong with RUN, worst first.

    These are the findings of `distprof report`: at most 10, each with its evidence and a command that shows more.
    RUN is a run directory, or traces written by torch.profiler. The output of --json is short enough for a script or a
    coding agent to read all of it.
    """
    show(findings_text(*given_runs(runs, attempt), as_json=as_json, sizes=given_sizes(sizes)))


def findings_text(*runs: Path, as_json: bool = False, sizes: Mapping[str, int] | None = None) -> str:
    """Returns what `distprof findings` prints about a run, worst first.

    Args:
        *runs: A run directory, or several of one job; traces of other programs; or a merge.
        as_json: Returns `findings_data` as JSON.
        sizes: Axis of the device mesh -> size, instead of those recorded in the run.

    Raises:
        DataError: The run cannot be read.
        UsageError: The product of the sizes does not match the number of ranks.
    """
    from distprof.merge.report.document import document
    from distprof.merge.report.sources import Given
    from distprof.merge.text.findings import findings_data

    found = findings_data(document(*runs, given=Given(sizes=sizes or {})))
    return json.dumps(found, indent=1) if as_json else "\n".join(_lines(found))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    for one in found["findings"]:
        yield f"{MARKS[one['severity']]} {one['text']}"
        yield from (f"     {line}" for line in (one["detail"] or "").splitlines())
        if one["next"] is not None:
            yield f"     {one['next']}"
    if found["num_more"]:
        yield f"   {found['num_more']} more: distprof report shows all"
