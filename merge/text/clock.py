"""The line on the clock of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distprof.units import duration


def clock_line(clock: Mapping[str, Any]) -> str:
    """How the ranks were brought to one clock, within which uncertainty, and how the collectives agree with it.

    Args:
        clock: `clock` of `summary.json`.
    """
    if not clock["aligned"]:
        return "clock: each rank's own, not aligned"
    parts = [_basis(clock)]
    if clock["method"] != "shared":
        hosts = "1 host" if clock["num_hosts"] == 1 else f"{clock['num_hosts']} hosts"
        parts = [f"{clock['num_clocks']} clocks on {hosts} aligned within {duration(clock['uncertainty_ns'])}", *parts]
        if clock["excess_ns"]:
            parts.append(f"drift uneven by {duration(clock['excess_ns'])}")
    residual, causality = clock["residual_ns"], clock["causality"]
    if residual is not None and causality is not None:
        parts.append(f"{causality['num_collectives']} collectives end within {duration(residual['p95'])} (95 %), "
                     f"{causality['violations'] or 'none'} before all ranks are in")
    return f"clock: {'; '.join(parts)}"


def _basis(clock: Mapping[str, Any]) -> str:
    samples = clock["num_samples"]
    if clock["method"] == "collectives":
        return f"estimated from {clock['num_collectives']} collectives"
    if clock["method"] == "samples":
        return f"{samples} samples of clocks, taken while recording"
    if len(clock["ranks"]) == 1:
        return "one rank: nothing to align"
    return "one host: all ranks read the same clock" + (f"; {samples} samples agree" if samples else "")
