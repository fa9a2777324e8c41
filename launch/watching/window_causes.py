"""What a recording of a few steps tells about a finding: module and line of a late rank, or the module that grew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.contract.watch_state import WatchFinding, window_folder
from distprof.launch.final_merge import MERGE

PATIENCE_S = 300.0
"""Longest time for the analysis of a recording: it grows with the ranks, and the processors may be busy with the
job."""
NICE = 10
"""Priority of that process, lower than the job's."""
MOST = 0.5
"""A module explains longer steps if it grew by at least this share of their growth, beyond what the other modules grew
by, and no other module grew by more than this share of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The code that delays a rank, or all ranks, in a recording."""

    rank: int | None = None
    """None for all ranks."""
    module: str | None = None
    line: str | None = None
    """`file.py:33`."""


def explained(run: Path, number: int, finding: WatchFinding) -> list[Explanation]:
    """Analyses the N-th recording of a run in a separate process with low priority.

    Returns:
        For steps of all ranks that became longer, the module that grew. Otherwise, ranks that delay the others, the
        most expensive first. Empty if nothing is certain, or the analysis failed.
    """
    window = window_folder(run, number)
    if finding.kind == "regression":
        answer = _answer("diff", "--json", os.fspath(run), os.fspath(window))
        module = _grown((answer.get("modules") or {}).get("rows", []), finding.per_step_ns or 0.0)
        return [] if module is None else [Explanation(module=module)]
    found = _answer("findings", "--json", os.fspath(window)).get("findings", [])
    return [_explanation(one) for one in found if one.get("severity") == "bad" and one.get("rank") is not None]


def _answer(*words: str) -> dict[str, Any]:
    """Returns what a command of distprof prints as JSON; empty if it fails."""
    command = [sys.executable, "-c", MERGE, "\n".join(sys.path), *words]
    environ = {name: value for name, value in os.environ.items() if name != "DISTPROF_OUT"}
    environ["POLARS_MAX_THREADS"] = "1"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              env=environ, timeout=PATIENCE_S, check=True, preexec_fn=_low_priority)
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return {}


def _low_priority() -> None:
    os.nice(NICE)


def _explanation(one: dict[str, Any]) -> Explanation:
    line = (one.get("cause") or {}).get("line") or {}
    place = f"{Path(line['file']).name}:{line['line']}" if line.get("file") else None
    return Explanation(rank=int(one["rank"]), module=one.get("module"), line=place)


def _grown(rows: list[dict[str, Any]], growth_ns: float) -> str | None:
    """Returns the module whose time grew by most of the growth of steps, if only this one did."""
    known = [(one["module"], one["change"]["base"], one["change"]["new"]) for one in rows
             if one["change"]["base"] is not None and one["change"]["new"] is not None]
    if not known:
        return None
    module, before, after = max(known, key=lambda one: one[2] - one[1])
    others = [one for one in known if one[0] != module]
    usual = sum(new for _, _, new in others) / max(sum(base for _, base, _ in others), 1.0)
    beyond = after - before * max(usual, 1.0)  # a slower machine makes the largest modules grow most
    next_one = max((new - base for _, base, new in others), default=0.0)
    return module if module and beyond >= MOST * growth_ns > 0 and next_one <= MOST * beyond else None
