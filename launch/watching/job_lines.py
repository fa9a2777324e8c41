"""The whole job in a few lines, for its end."""

from __future__ import annotations

from collections.abc import Iterator

from distprof.contract.watch_state import WatchFinding, WatchState
from distprof.units import duration

SHOWN = 4
"""Findings; `distprof watch` has all."""


def job_lines(state: WatchState) -> list[str]:
    """How many steps in which time, and what was noticed, what cost most first.

    `10,000 steps in 3 min 20 s; rank 1 slow from step 6,204 on: +18 ms per step, 68 s lost`

    Returns:
        Nothing where no step was watched.
    """
    if not state.num_steps or state.elapsed_ns is None:
        return []
    ordered = sorted(state.findings, key=lambda one: -(one.cost_ns or 0))
    return list(_lines(_steps(state), ordered))


def _lines(steps: str, findings: list[WatchFinding]) -> Iterator[str]:
    if len(findings) <= 1:
        yield f"{steps}; {findings[0].text if findings else 'nothing stood out'}"
    else:
        yield f"{steps}; {len(findings)} findings:"
        yield from (f"  {one.text}" for one in findings[:SHOWN])
    if len(findings) > SHOWN:
        yield f"  and {len(findings) - SHOWN} more, which distprof watch --once shows"


def _steps(state: WatchState) -> str:
    first, took = state.first_watched or 0, elapsed(state.elapsed_ns or 0)
    total = f"{state.num_steps:,} step{'s' if state.num_steps != 1 else ''}"
    watched = state.num_steps - first
    return f"{total} in {took}" if first <= 0 else f"{total}, the last {watched:,} of them in {took}"


def elapsed(ns: float) -> str:
    """200e9 -> "3 min 20 s"."""
    seconds = round(ns / 1e9)
    if seconds < 60:
        return duration(ns) if ns < 10e9 else f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
