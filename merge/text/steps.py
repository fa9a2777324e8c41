"""What a step of the job is and the evaluation in it, in a line each, from the summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from distprof.contract.rank_json import StepsFound
from distprof.merge.text.phrases import brief
from distprof.units import counted, duration, si

SETTLED = 10
"""Steps behind a change that are left out when it is recorded."""


def step_line(found: Mapping[str, Any] | None) -> str | None:
    """`step = 1 iteration: 5 x Critic's Adam, 1 x Generator's Adam`; None where that was not recorded."""
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
    """What ran without gradient; None where nothing did."""
    if found is None:
        return None
    calls = "forward call" if found["calls"] == 1 else "forward calls"
    parts = [f"{found['calls']:.3g} {calls} per step"] if found["calls"] is not None else []
    parts += [f"{si(found['flops'])} FLOPs in the counted step"] if found["flops"] is not None else []
    parts += [f"{duration(found['time_ns'])} per step"] if found["time_ns"] is not None else []
    return f"evaluation (in no total), per GPU: {', '.join(parts)}"


def steps_words(summary: Mapping[str, Any]) -> str | None:
    """`steps 0-43 of 320 recorded`; None where nothing was recorded."""
    found = summary.get("steps") or {}  # that of an earlier version has none
    if not found.get("num_recorded"):
        return None
    last = found["num_recorded"] - 1
    which = f"steps 0-{last}" if last else "step 0"
    of_all = "" if found["num_run"] is None else f" of {found['num_run']}"
    return f"{which}{of_all} recorded"


def change_line(summary: Mapping[str, Any]) -> Iterator[str]:
    """Where steps take longer or shorter from one on, in the whole job."""
    found = (summary.get("steps") or {}).get("change")
    if found is not None:
        yield (f"From step {found['step']} on, steps take {brief(found['after_ns'])} instead of "
               f"{brief(found['before_ns'])}: record them with `--steps wait={found['step'] + SETTLED}`")
