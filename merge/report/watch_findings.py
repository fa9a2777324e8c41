"""Findings about the whole job: what the watch noticed in steps that were not recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from distprof.contract.watch_state import WatchFinding
from distprof.merge.report.finding import MORE_LOADERS, Finding, Severity
from distprof.merge.text.watch import SLOW, job_line, sentence, watched_of
from distprof.units import counted

SHOWN = 4
SECTION = "whole_job"
NOTED = ("pauses",)
"""Every job has some."""
ACTIONS = {"data_stall": MORE_LOADERS}


def watch_findings(summary: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """What was noticed, the most expensive first; pauses last.

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
    """What goes on is worse than what is over."""
    if one.kind in NOTED:
        return "note"
    return "bad" if one.kind in SLOW and one.until_step is None else "warn"
