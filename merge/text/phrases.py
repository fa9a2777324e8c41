"""Phrases that several screens share: lists of ranks, times within their uncertainty, the line on the clock."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distprof.merge.activity.activities import OF_MODULES
from distprof.units import UNKNOWN, counted, duration, spans

if TYPE_CHECKING:
    from distprof.merge.totals.step_time import StepTime

LISTED = 6
"""Ranks that are listed one by one."""
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_WORD = re.compile("[a-z]+(?:: |[^a-z0-9_.:(/]|$)")
NEVER_COMPARED = "?"
"""Stands behind what rests on clocks that were never compared."""


def known_to(ns: float | None, uncertainty_ns: int | None) -> str:
    """A time that compares two ranks: no digit beyond what the clocks allow.

    `1.234 ms` known to 0.1 ms is `1.2 ms`; what is smaller than the uncertainty is `< 0.5 ms`.
    """
    if ns is None:
        return UNKNOWN
    if uncertainty_ns is None:
        return f"{duration(ns)} {NEVER_COMPARED}"
    if abs(ns) <= uncertainty_ns and uncertainty_ns:
        return f"< {brief(uncertainty_ns, digits=2)}"
    size, unit = _unit(ns)
    if unit == "ns" or not uncertainty_ns:
        return duration(ns)
    return f"{ns / size:.{min(max(math.ceil(-math.log10(uncertainty_ns / size)), 0), 2)}f} {unit}"


def brief(ns: float, digits: int = 3) -> str:
    """A duration in words: 20812345 -> `20.8 ms`."""
    size, unit = _unit(ns)
    value = ns / size
    places = max(digits - len(f"{abs(value):.0f}"), 0) if unit != "ns" else 0
    return f"{value:.{places}f} {unit}"


def _unit(ns: float) -> tuple[float, str]:
    return next((one for one in UNITS if abs(ns) >= one[0]), UNITS[-1])


def in_one_unit(ns: float, *others: float) -> tuple[str, ...]:
    """Times in the unit and with the places of the first: `14.8 ms`, `3.1 ms`."""
    mine = brief(ns)
    number, unit = mine.split()
    size, places = next(size for size, name in UNITS if name == unit), len(number.partition(".")[2])
    return mine, *(f"{other / size:.{places}f} {unit}" for other in others)


def capitalized(text: str) -> str:
    """With a capital in front, unless a name or a number is there."""
    return text[:1].upper() + text[1:] if _WORD.match(text) else text


def full_sentence(text: str) -> str:
    """With a capital in front and a full stop behind."""
    return capitalized(text) + ("" if text.endswith((".", "!", "?")) else ".")


def step_time_words(found: StepTime) -> str:
    """`50.0 ms (48.1 to 55.0)`, and where no step without the profiler was recorded, that."""
    middle, low, high = in_one_unit(found.time_ns, found.low_ns, found.high_ns)
    spread = "" if found.num_steps < 2 else f" ({low.split()[0]} to {high.split()[0]})"
    return f"{middle}{spread}{'' if found.is_light else ' with the profiler on'}"


def work_name(kind: str, where: str | None) -> str:
    """What a rank does, in words: `` `layers.0` forward``, `the host between data and forward`, `loading data`.

    Args:
        kind: Of an `Activity` or a `Cause`.
        where: Of it.
    """
    if kind in OF_MODULES:
        return kind if where is None else f"`{where or 'model'}` {kind}"
    if kind in ("annotation", "optimizer") and where is not None:
        return f"`{where}`"
    if kind == "host":
        return f"the host {where or 'outside all modules'}"
    return {"optimizer": "the optimizer", "data": "loading data", "whole": "all its work"}.get(kind, kind)


def some(number: int) -> str:
    """`1 collective`, `2 collectives`."""
    return counted(number, "collective")


def rank_list(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 1 and 3`, `ranks 0-2, 8-63`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= LISTED:
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"ranks {spans(sorted(ranks))}"


def clock_line(clock: Mapping[str, Any]) -> str:
    """How the ranks were brought to one clock, within which uncertainty, and how the collectives agree with it.

    Args:
        clock: `clock` of `summary.json`.
    """
    if not clock["aligned"]:
        return "clock: each rank's own, not aligned"
    parts = [_basis(clock)]
    if clock["method"] != "shared":
        hosts = f" on {counted(clock['num_hosts'], 'host')}" if clock["num_hosts"] else ""
        clocks = f"{counted(clock['num_clocks'], 'clock')}{hosts}"
        parts = [f"{clocks} aligned within {duration(clock['uncertainty_ns'])}", *parts]
        if clock["excess_ns"]:
            parts.append(f"drift uneven by {duration(clock['excess_ns'])}")
    residual, causality = clock["residual_ns"], clock["causality"]
    if residual is not None and causality is not None:
        verb = "ends" if causality["num_collectives"] == 1 else "end"
        parts.append(f"{some(causality['num_collectives'])} {verb} within {duration(residual['p95'])} (95 %), "
                     f"{causality['violations'] or 'none'} before every rank has entered")
    return f"clock: {'; '.join(parts)}"


def left_together(ends_apart_ns: int) -> str:
    """What lateness rests on where clocks were estimated from the ends of collectives."""
    return ("lateness is judged as if all ranks left a collective at the same time; on the clocks estimated from "
            f"that, they leave within {duration(ends_apart_ns)}")


def _basis(clock: Mapping[str, Any]) -> str:
    samples = clock["num_samples"]
    if clock["method"] == "collectives":
        return f"estimated from {some(clock['num_collectives'])}"
    if clock["method"] == "samples":
        return f"{counted(samples, 'sample of clocks')}, taken while recording"
    if len(clock["ranks"]) == 1:
        return "one rank: nothing to align"
    return "one host: all ranks use the same clock" + (
        f"; {counted(samples, 'sample')} {'agrees' if samples == 1 else 'agree'}" if samples else "")
