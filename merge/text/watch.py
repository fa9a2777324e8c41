"""Describes the watch of a whole job in sentences: what was noticed, and the job in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from distprof.contract.watch_state import LongerSteps, WatchFinding, WatchState, state_of
from distprof.merge.text.phrases import brief, rank_list
from distprof.units import percent, size

_PHASES = {"data": "before forward calls"}
MOST_AT_END = 4
"""Number of findings that are listed below an answer."""
SLOW = ("slow_rank", "slow_host", "slow_link", "slow_group", "intermittent", "data_stall", "stopped", "hang")
"""Findings about ranks that hold up the others."""
RARELY = 0.05
"""A smaller share of steps is not printed as a number."""


def with_texts(findings: Iterable[WatchFinding]) -> list[WatchFinding]:
    """Returns the same findings, each with its sentence."""
    return [msgspec.structs.replace(one, text=sentence(one)) for one in findings]


def job_line(state: WatchState) -> str:
    """Returns `10,000 steps watched in 3 min 20 s, 20.1 ms per step`."""
    if not state.num_steps:
        return "no step has ended yet"
    watched = state.num_steps - (state.first_watched or 0)
    time = "" if state.elapsed_ns is None else f" in {long_time(state.elapsed_ns)}"
    usual = "" if state.step_ns is None else f", {brief(state.step_ns)} per step"
    return f"{watched:,} {'step' if watched == 1 else 'steps'} watched{time}{usual}"


def job_lines(state: WatchState) -> list[str]:
    """Returns the job, then a line for each finding: the most expensive first, pauses last."""
    order = sorted(state.findings, key=lambda one: (one.kind == "pauses", one.until_step is not None,
                                                    -(one.cost_ns or 0.0)))
    lines = [f"  {sentence(one)}" for one in order]
    if not any(one.kind != "pauses" for one in order) and state.num_steps:
        lines.insert(0, f"  no rank was found to slow the job down, {_unexplained(state.unexplained)}"
                     if not state.is_short else "  too little was watched to find who or what slows the job down")
    return [job_line(state), *lines, *(f"  {note}" for note in state.notes)]


def _unexplained(longer: LongerSteps | None) -> str:
    if longer is None:
        return "nor any lasting growth of step times"
    until = "on" if longer.until_step is None else f"to about step {longer.until_step:,}"
    return (f"and it is not certain why steps took longer from about step {longer.from_step:,} {until} "
            f"({brief(longer.before_ns)} before, {brief(longer.after_ns)} then)")


def end_lines(state: WatchState | None, most: int = MOST_AT_END) -> list[str]:
    """Returns the whole job in a few lines; none if no step was watched."""
    if state is None or not state.num_steps:
        return []
    first, *findings = job_lines(state)
    if not state.findings and state.is_short:
        return [first, *findings[1:]]
    if len(findings) == 1:
        return [f"{first}; {findings[0].strip()}"]
    more = len(findings) - most
    return [first, *findings[:most], *([f"  and {more} more; see distprof watch"] if more > 0 else [])]


def watched_of(summary: Mapping[str, Any]) -> WatchState | None:
    """Returns the watch of the whole job, without its ranks, from `summary.json`; None if it was not analysed."""
    return state_of((summary.get("steps") or {}).get("watched"))


def is_slow_later(state: WatchState | None) -> bool:
    """Returns whether some ranks held up others in the whole job, whatever the recorded steps show."""
    return state is not None and any(one.kind in SLOW for one in state.findings)


def sentence(one: WatchFinding) -> str:
    """Returns `rank 1 slow from step 6,204 on: +18.0 ms per step, 68 s lost; `encoder.1` forward, train.py:33`."""
    what = _SENTENCES[one.kind](one)
    over = one.kind == "hang" and one.until_step is not None  # for a hang that is over, this is of no more use
    why = [*_where(one), *(one.why if one.kind not in ("pauses", "memory_growth") and not over else [])]
    return what + "".join(f"; {word}" for word in why)


def long_time(ns: float) -> str:
    """Returns `3 min 20 s`, `2 h 5 min`, `68 s`, `4.2 s`."""
    seconds = ns / 1e9
    if seconds < 9.95:
        return brief(ns, 2)
    if round(seconds) < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h" + (f" {minutes} min" if minutes else "")


def _who(one: WatchFinding) -> str:
    return rank_list(one.ranks) if one.ranks else "all ranks"


def _when(one: WatchFinding) -> str:
    if one.until_step is None:
        return f"from step {one.onset_step:,} on"
    return f"from step {one.onset_step:,} to {one.until_step:,}"


def _cost(one: WatchFinding, how: str = "") -> str:
    """Returns `+18.0 ms per step, 68 s lost`, with `how` after the step."""
    parts = []
    if one.per_step_ns is not None:
        parts.append(f"+{brief(one.per_step_ns)} per step{how}")
    if one.cost_ns is not None:
        parts.append(f"{long_time(one.cost_ns)} lost")
    return ", ".join(parts) or "cost unknown"


def _where(one: WatchFinding) -> list[str]:
    """Returns `encoder.1` forward, train.py:33."""
    phase = "" if one.kind in ("slow_link", "slow_group") else _PHASES.get(one.phase or "", one.phase or "")
    module = " ".join(word for word in (f"`{one.module}`" if one.module else "", phase) if word)
    place = ", ".join(word for word in (module, one.line or "") if word)
    return [place] if place and one.kind not in ("pauses", "memory_growth", "stopped", "data_stall", "hang") else (
        [one.line] if one.line else [])


def _slow_rank(one: WatchFinding) -> str:
    host = f" on {', '.join(one.hosts)}" if len(one.ranks) > 1 and one.hosts and one.hosts != [""] else ""
    return f"{_who(one)}{host} slow {_when(one)}: {_cost(one)}"


def _slow_host(one: WatchFinding) -> str:
    return f"host {', '.join(one.hosts)} ({_who(one)}) slow {_when(one)}: {_cost(one)}"


def _slow_link(one: WatchFinding) -> str:
    return f"communication between {' and '.join(one.hosts)} slow {_when(one)}: {_cost(one)}"


def _slow_group(one: WatchFinding) -> str:
    return f"communication of {_who(one)} slow {_when(one)}: {_cost(one)}"


def _regression(one: WatchFinding) -> str:
    grown = ""
    if one.before_ns is not None and one.after_ns is not None:
        grown = f" ({brief(one.before_ns)} before, {brief(one.after_ns)} since)"
    return f"steps of all ranks longer {_when(one)}: {_cost(one)}{grown}"


def _rhythm(one: WatchFinding) -> str:
    """Returns `every 500 steps`, `in 12.5 % of the steps`."""
    if one.period_steps is not None:
        return f"every {one.period_steps:,.0f} steps"
    if one.share is None:
        return "now and then"
    return f"in {percent(one.share)} of the steps" if one.share >= RARELY else "now and then"


def _intermittent(one: WatchFinding) -> str:
    share = f", {percent(one.share)} of the steps" if one.period_steps is not None and one.share is not None else ""
    return f"{_who(one)} slow {_rhythm(one)}{share}, {_when(one)}: {_cost(one, ' on average')}"


def _data_stall(one: WatchFinding) -> str:
    return f"{_who(one)} delayed before forward calls {_rhythm(one)}, {_when(one)}: {_cost(one, ' on average')}"


def _memory_growth(one: WatchFinding) -> str:
    of = " of the device" if one.why == ["memory of the device"] else ""
    each = " each" if len(one.ranks) > 1 else ""
    return f"memory{of} of {_who(one)} grows {_when(one)}: {size(one.bytes_per_hour)} per hour{each}"


def _pauses(one: WatchFinding) -> str:
    named = {"gc": "garbage collection"}.get(one.why[0], one.why[0]) if one.why else "pauses"
    cost = "" if one.cost_ns is None else f": {long_time(one.cost_ns)} in all"
    who = f" of {_who(one)}" if one.ranks else ""
    first = f"first in step {one.onset_step:,}"
    return f"{named}{who} {_rhythm(one)}, {first}{cost}"


def _stopped(one: WatchFinding) -> str:
    if one.until_step is not None:
        return f"{_who(one)} reported nothing for a while, from step {one.onset_step:,} on, while others continued"
    has = "has" if len(one.ranks) == 1 else "have"
    return f"{_who(one)} {has} reported nothing since step {one.onset_step:,}, while others continue"


def _hang(one: WatchFinding) -> str:
    who = _who(one)
    if one.until_step is not None:
        time = "a while" if one.cost_ns is None else long_time(one.cost_ns)
        return f"{who} hung in step {one.onset_step:,} for {time}, then the job continued"
    return f"no rank has ended a step since step {one.onset_step:,}" if not one.ranks else (
        f"{who} {'has' if len(one.ranks) == 1 else 'have'} hung since step {one.onset_step:,}")


_SENTENCES: dict[str, Callable[[WatchFinding], str]] = {
    "slow_rank": _slow_rank, "slow_host": _slow_host, "slow_link": _slow_link, "slow_group": _slow_group,
    "regression": _regression, "intermittent": _intermittent, "data_stall": _data_stall,
    "memory_growth": _memory_growth, "pauses": _pauses, "stopped": _stopped, "hang": _hang,
}
