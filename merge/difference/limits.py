"""Implements limits of `--fail-if`: what may change by how much, and whether it did."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from distprof.contract.passes import TIME
from distprof.errors import DataError, UsageError
from distprof.merge.difference.change import Change, between_runs, exact
from distprof.merge.difference.difference import RATES, Difference
from distprof.merge.difference.observed import Observed
from distprof.merge.difference.split import PARTS

Outcome = Literal["within", "beyond", "unsure", "missing"]
TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
SIZES = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2.0 ** 10, "MiB": 2.0 ** 20, "GiB": 2.0 ** 30}
NUMBERS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
UNITS = {**TIMES, **SIZES, **NUMBERS}
"""Units of differences -> their size in ns, bytes or ones."""
LIMIT = re.compile(r"\s*(?P<what>[^<>]+?)\s*(?P<sign>[<>])\s*(?P<number>[-+]?[0-9.]+(?:e[-+]?\d+)?)"
                   r"\s*(?P<unit>%|\w*)\s*")
OF_STEP = {"step.time_ns": "duration_ns", "step.before_forward_ns": "before_forward_ns", "step.fwd_ns": "fwd_ns",
           "step.bwd_ns": "bwd_ns", "step.optimizer_ns": "optimizer_ns", "per_gpu.step_ns.mean": "duration_ns",
           "per_gpu.before_forward_ns.mean": "before_forward_ns", "per_gpu.fwd_ns.mean": "fwd_ns",
           "per_gpu.bwd_ns.mean": "bwd_ns", "per_gpu.optimizer_ns.mean": "optimizer_ns"}
"""Paths in `stats --json` -> the column of the time pass, or the duration, whose steps show how much they vary."""
MEASURED = re.compile(r"_ns\b|ratio|per_second|mfu|algbw|busbw|share|p_value|bandwidth|spread|uncertainty|residual")
"""Matches paths of measured values, which differ between two runs of one program; all others are counted."""
OF_TIME = re.compile(rf"_ns\b|^modules\.(?!\d)|^(step_time|cpu_time|{'|'.join(PARTS)})$")
"""Matches quantities that are times."""
NAMES = ("step_time", "cpu_time", *PARTS, "memory", "params", "flops", *RATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much a quantity may change."""

    text: str
    """As the user wrote it."""
    what: str
    above: bool
    """True if changes above the value are too large; False if those below are."""
    value: float
    """A share of the base if `is_ratio`, else a difference in ns, bytes or a number."""
    is_ratio: bool
    unit: str = ""
    """Unit of the difference, as the user wrote it."""

    @property
    def unit_size(self) -> float:
        """Size of the unit in ns, bytes or ones."""
        return UNITS[self.unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A limit and its outcome."""

    limit: Limit
    change: Change | None
    """None if there is no such quantity on a side."""
    outcome: Outcome


def limit_of(text: str) -> Limit:
    """Parses `step_time > 5 %`, `memory > 100 MB` or `mfu < -2 %`.

    Raises:
        UsageError: The text has another form.
    """
    found = LIMIT.fullmatch(text)
    try:
        number = float(found["number"]) if found is not None else None
    except ValueError:
        number = None
    if found is None or number is None or (found["unit"] != "%" and found["unit"] not in UNITS):
        raise UsageError(f"--fail-if takes a limit like 'step_time > 5 %', not {text!r}",
                         hint="write QUANTITY > or < a change in %, ns, us, ms, s, B, KB, MB, GB or a plain number")
    is_ratio = found["unit"] == "%"
    _check_unit(found["what"], found["unit"])
    value = number / 100 if is_ratio else number * UNITS[found["unit"]]
    return Limit(text=" ".join(text.split()), what=found["what"], above=found["sign"] == ">", value=value,
                 is_ratio=is_ratio, unit="" if is_ratio else found["unit"])


def _check_unit(what: str, unit: str) -> None:
    is_time, is_size = bool(OF_TIME.search(what)), what == "memory" or "bytes" in what
    if (unit in TIMES and not is_time) or (unit in SIZES and not is_size) or (unit in NUMBERS and is_time):
        usual = "ns, us, ms or s" if is_time else "B, KB, MB or GB" if is_size else "plain numbers, K, M or G"
        raise UsageError(f"--fail-if takes a change of {what} in % or in {usual}, not {unit!r}")


def judged(limits: Sequence[Limit], found: Difference, communication: Callable[[Observed], Mapping[str, Any]],
           ) -> list[Judged]:
    """Judges whether changes are within limits.

    A change is beyond a limit, or within it, if its whole interval is. If the interval contains the limit, the change
    itself decides, provided that half of the interval is at most as wide as the limit is from 0; otherwise the outcome
    is unsure.

    Args:
        limits: The limits.
        found: What changed.
        communication: Returns what `comms --json` prints for a run.

    Raises:
        UsageError: No run has a quantity of such a name.
    """
    return [_judged(limit, _change(limit.what, found, communication)) for limit in limits]


def _judged(limit: Limit, change: Change | None) -> Judged:
    outcome: Outcome = "missing"
    if change is not None and change.difference is not None and not (limit.is_ratio and not change.base):
        outcome = _outcome(limit, change)
    elif change is not None and change.difference == 0:
        outcome = "within"  # both are 0
    return Judged(limit=limit, change=change, outcome=outcome)


def _outcome(limit: Limit, change: Change) -> Outcome:
    at, low, high = ((change.ratio, change.low_ratio, change.high_ratio) if limit.is_ratio
                     else (change.difference, change.low, change.high))
    assert at is not None
    if low is None or high is None:
        return "unsure"
    value = limit.value
    if not limit.above:
        at, low, high, value = -at, -high, -low, -value
    if low > value:
        return "beyond"
    if high <= value:
        return "within"
    if (high - low) / 2 > abs(value):
        return "unsure"
    return "beyond" if at > value else "within"


def _change(what: str, found: Difference, communication: Callable[[Observed], Mapping[str, Any]]) -> Change | None:
    if what in NAMES:
        return _named(what, found)
    if what.startswith("modules.") and found.modules is not None:
        for row in found.modules.rows:
            if what.removeprefix("modules.") in (row.item, found.pairing.pairs.get(str(row.item))):
                return row.change
    if what in OF_STEP:
        return found.step if OF_STEP[what] == "duration_ns" else found.of_steps(OF_STEP[what], passes=(TIME,))
    return _by_path(what, found, communication)


def _named(what: str, found: Difference) -> Change | None:
    if what == "step_time":
        return found.step
    if what == "cpu_time":
        return found.cpu
    if what in RATES:
        return found.rates[what]
    if what in ("memory", "params", "flops"):
        return found.counts["peak_bytes" if what == "memory" else what]
    return next((row.change for row in found.parts.rows if row.item == what), None) if found.parts else None


def _by_path(what: str, found: Difference, communication: Callable[[Observed], Mapping[str, Any]]) -> Change | None:
    """Returns the change of a number in `stats --json`, else in `comms --json`."""
    values = [_number(what, run, communication) for run in found.runs]
    if all(isinstance(value, KeyError) for value in values):
        raise UsageError(f"unknown quantity {what!r} for --fail-if",
                         hint=f"one of {', '.join(NAMES)}, modules.PATH, or a path like step.mfu in what stats --json "
                              "or comms --json prints")
    known = [value for value in values if isinstance(value, float)]
    if len(known) < len(values):
        return None
    base, new = known[:len(found.base)], known[len(found.base):]
    if MEASURED.search(what):
        return between_runs(base, new)
    return exact(float(np.mean(base)), float(np.mean(new)))


def _number(what: str, run: Observed,
            communication: Callable[[Observed], Mapping[str, Any]]) -> float | KeyError | None:
    keys = what.split(".")
    value = _at(run.summary, keys)
    if isinstance(value, KeyError) or value is None:
        try:
            other = _at(communication(run), keys)
        except DataError:
            return None
        value = value if isinstance(other, KeyError) else other
    if value is None or isinstance(value, KeyError):
        return value
    return float(value) if isinstance(value, (int, float)) else KeyError(what)


def _at(value: object, keys: Iterable[str]) -> Any:
    """Returns the value at a path; a KeyError if there is none, None if a value on the path is null."""
    for key in keys:
        if value is None:
            return None
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return KeyError(key)
    return value
