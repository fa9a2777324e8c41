"""Phrases shared by several screens: lists of ranks, times, lines of the script, and lines on the clock and steps."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PureWindowsPath
from typing import TYPE_CHECKING, Any

import msgspec

from distprof.contract.rank_json import StepsFound
from distprof.merge.activity.activities import OF_MODULES
from distprof.units import UNKNOWN, counted, duration, si, spans

if TYPE_CHECKING:
    from distprof.merge.totals.step_time import StepTime

LISTED = 6
"""Up to this many ranks are listed one by one."""
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
_WORD = re.compile("[a-z]+(?:: |[^a-z0-9_.:(/]|$)")
NEVER_COMPARED = "?"
"""Follows values that depend on clocks that were never compared."""
SETTLED = 10
"""Number of steps after a change that a suggested recording skips."""
LONGEST = 60
"""Maximum length of a name in characters."""


def known_to(ns: float | None, uncertainty_ns: int | None) -> str:
    """Formats a time that compares two ranks, without digits that the clocks cannot support.

    `1.234 ms` known to 0.1 ms is `1.2 ms`; a time below the uncertainty is `< 0.5 ms`.
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
    """Formats a duration: 20812345 -> `20.8 ms`."""
    size, unit = _unit(ns)
    value = ns / size
    places = max(digits - len(f"{abs(value):.0f}"), 0) if unit != "ns" else 0
    return f"{value:.{places}f} {unit}"


def _unit(ns: float) -> tuple[float, str]:
    return next((one for one in UNITS if abs(ns) >= one[0]), UNITS[-1])


def in_one_unit(ns: float, *others: float) -> tuple[str, ...]:
    """Formats times in the unit and with the decimal places of the first: `14.8 ms`, `3.1 ms`."""
    mine = brief(ns)
    number, unit = mine.split()
    size, places = next(size for size, name in UNITS if name == unit), len(number.partition(".")[2])
    return mine, *(f"{other / size:.{places}f} {unit}" for other in others)


def capitalized(text: str) -> str:
    """Capitalizes the first letter, unless the text begins with a name or a number."""
    return text[:1].upper() + text[1:] if _WORD.match(text) else text


def full_sentence(text: str) -> str:
    """Capitalizes the first letter and adds a full stop."""
    return capitalized(text) + ("" if text.endswith((".", "!", "?")) else ".")


def step_time_words(found: StepTime) -> str:
    """Returns `50.0 ms (48.1 to 55.0)`, and a remark if no step without the profiler was recorded."""
    middle, low, high = in_one_unit(found.time_ns, found.low_ns, found.high_ns)
    spread = "" if found.num_steps < 2 else f" ({low.split()[0]} to {high.split()[0]})"
    return f"{middle}{spread}{'' if found.is_light else ' with the profiler on'}"


def work_name(kind: str, where: str | None) -> str:
    """Returns what a rank does, in words: `` `layers.0` forward``, `the host between data and forward`, `loading data`.

    Args:
        kind: Kind of an `Activity` or a `Cause`.
        where: Where it takes place.
    """
    if kind in OF_MODULES:
        return kind if where is None else f"`{where or '(root)'}` {kind}"
    if kind in ("annotation", "optimizer") and where is not None:
        return f"`{where}`"
    if kind == "host":
        return f"the host {where or 'outside all modules'}"
    return {"optimizer": "the optimizer", "data": "loading data", "whole": "all its work"}.get(kind, kind)


def some(number: int) -> str:
    """Returns `1 collective`, `2 collectives`."""
    return counted(number, "collective")


def rank_list(ranks: Sequence[int]) -> str:
    """Returns `rank 1`, `ranks 0, 1 and 3`, `ranks 0-2, 8-63`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) <= LISTED:
        return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f"ranks {spans(sorted(ranks))}"


def clock_line(clock: Mapping[str, Any]) -> str:
    """Returns how the clocks of ranks were aligned, with what uncertainty, and how well the collectives agree with
    that.

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
    """Returns what lateness is based on if clocks were estimated from the ends of collectives."""
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


def step_line(found: Mapping[str, Any] | None) -> str | None:
    """Returns `step = 1 iteration: 5 x Critic's Adam, 1 x Generator's Adam`; None if that was not recorded."""
    if found is None:
        return None
    known = msgspec.convert(found, StepsFound)
    skipped = f"; {counted(known.skipped, 'optimizer step')} left out by a gradient scaler" if known.skipped else ""
    return f"step = {_what(known)}{skipped}"


def _what(found: StepsFound) -> str:
    each = ", ".join(f"{one.steps} x {one.name}" for one in found.optimizers)
    match found.rule:
        case "explicit":
            return "from one rec.step() to the next"
        case "forward":
            return f"1 forward call of {found.module or 'the first root module'}: no optimizer was alive"
        case "given":
            given = found.given or ""
            every = counted(int(given), "optimizer step") if given.isdecimal() else f"step of {given}"
            return f"every {every}, as given"
        case "backward":
            return f"1 iteration: {each}, which step while backward runs"
        case "irregular":
            return f"{each}: optimizers step in no pattern"
    return f"1 iteration: {each}"


def evaluation_line(found: Mapping[str, Any] | None) -> str | None:
    """Returns what ran without gradients; None if nothing did."""
    if found is None:
        return None
    calls = "forward call" if found["calls"] == 1 else "forward calls"
    parts = [f"{found['calls']:.3g} {calls} per step"] if found["calls"] is not None else []
    parts += [f"{si(found['flops'])} FLOPs in the counted step"] if found["flops"] is not None else []
    parts += [f"{duration(found['time_ns'])} per step"] if found["time_ns"] is not None else []
    return f"evaluation (in no total), per GPU: {', '.join(parts)}"


def steps_words(summary: Mapping[str, Any]) -> str | None:
    """Returns `steps 0-43 of 320 recorded`; None if nothing was recorded."""
    found = summary.get("steps") or {}  # a summary of an earlier version has none
    if not found.get("num_recorded"):
        return None
    last = found["num_recorded"] - 1
    which = f"steps 0-{last}" if last else "step 0"
    of_all = "" if found["num_run"] is None else f" of {found['num_run']}"
    return f"{which}{of_all} recorded"


def change_line(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yields from which step of the whole job on steps take longer or shorter."""
    found = (summary.get("steps") or {}).get("change")
    if found is not None:
        yield (f"From step {found['step']} on, steps take {brief(found['after_ns'])} instead of "
               f"{brief(found['before_ns'])}: record them with `--steps wait={found['step'] + SETTLED}`")


def cut(text: str, longest: int = LONGEST) -> str:
    """Returns the text, cut to a maximum length."""
    return text if len(text) <= longest else f"{text[:longest - 3]}..."


def module_name(path: str | None) -> str:
    """Returns the path of a module as shown in tables."""
    return "-" if path is None else "(root)" if path == "" else cut(path)


def file_name(path: str) -> str:
    """Returns the name of a file, whatever system its path is from."""
    return _parts(path)[-1]


def _parts(path: str) -> tuple[str, ...]:
    """Returns folders and name; Windows paths contain both kinds of slashes."""
    return PureWindowsPath(path).parts or (path,)


def short_names(files: Sequence[str]) -> dict[str, str]:
    """Returns the name of each file, with as many folders as needed to distinguish it from the others."""
    found = {file: file_name(file) for file in files}
    for parts in range(2, 8):
        same: dict[str, list[str]] = defaultdict(list)
        for file, name in found.items():
            same[name].append(file)
        for alike in same.values():
            if len(alike) > 1:
                found |= {file: "/".join(_parts(file)[-parts:]) for file in alike}
    return found


def ordinal(number: int) -> str:
    """Returns `1st`, `2nd`, `11th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def chance_words(p_value: float) -> str:
    """Returns `p = 0.003`, `p < 0.0001`."""
    return "p < 0.0001" if p_value < 1e-4 else f"p = {p_value:.1g}" if p_value < 0.1 else f"p = {p_value:.2f}"
