"""Chooses how the ranks of a run are brought to one clock, and checks the result against its collectives.

What ranks recorded about their clocks is used first, before any collective.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from distprof.contract.rank_json import ClockPair
from distprof.merge.clock.by_samples import SampledRank, clock_by_samples
from distprof.merge.clock.model import Align, Alignment, Clock
from distprof.merge.run.run_model import Rank, Run
from distprof.merge.run.traces.trace_head import told_unit
from distprof.terminal import quoted_all

if TYPE_CHECKING:
    import polars as pl

_TOLD: list[bool] = [False]
"""Whether `on_one_host` applies; the last value counts. Not per thread: commands ask for hosts in several threads."""


def needs_collectives(run: Run, recorded: Clock, align: Align) -> bool:
    """Returns True if the clock is estimated from collectives or checked against them.

    Traces of other programs would have to be read once more for that. So this is done only if nothing else helps, or if
    a user states that their clocks are one.
    """
    return run.kind == "distprof" or align == "collectives" or (
        align != "none" and (recorded.method != "shared" or is_told()))


def choose_clock(run: Run, recorded: Clock, align: Align, matched: pl.DataFrame | None) -> Clock:
    """Returns the clock of a run.

    Args:
        run: The run with its ranks.
        recorded: See `recorded_clock`.
        align: `auto` uses samples, or collectives if samples do not join all ranks; `none` shifts nothing.
        matched: Rows as returned by `match`; used only if `needs_collectives`.
    """
    if matched is None or not needs_collectives(run, recorded, align):
        clock = _with_devices(run, recorded if recorded.method == "shared" else unaligned(recorded))
        return replace(clock, check=clock.unchecked)
    from distprof.merge.clock.by_collectives import (  # polars takes a while to import
        check_clock,
        clock_by_collectives,
        precision_of,
        synchronising,
    )

    table, clock = synchronising(matched), recorded
    precision_ns = precision_of(table)
    if align == "none" and recorded.method != "shared":
        clock = unaligned(recorded)
    elif align == "collectives" or (align == "auto" and not recorded.aligned):
        estimated = replace(clock_by_collectives(table, hosts_of(run), precision_ns=precision_ns),
                            set_by_ns=recorded.set_by_ns)
        clock = estimated if estimated.aligned or align == "collectives" else recorded
    clock = _with_devices(run, clock)
    return replace(clock, check=check_clock(table, clock, precision_ns=precision_ns))


def _with_devices(run: Run, clock: Clock) -> Clock:
    """Adds how exactly each rank knows the times of its device."""
    known = {rank.number: rank.recorded.device_clock_ns for rank in run.ranks if rank.recorded is not None}
    if not any(known.values()):
        return clock
    return replace(clock, ranks={rank: replace(one, device_ns=known.get(rank, 0))
                                 for rank, one in clock.ranks.items()})


def unaligned(clock: Clock) -> Clock:
    """Returns the clock that leaves all times unchanged."""
    return replace(clock, method="none", reason="asked", excess_ns=0, ranks={
        rank: Alignment(clock=known.clock) for rank, known in clock.ranks.items()})


@contextmanager
def on_one_host() -> Iterator[None]:
    """Within this context, ranks whose kernels are unknown count as ranks of one host, in the whole process."""
    _TOLD.append(True)
    try:
        yield
    finally:
        _TOLD.pop()


def recorded_clock(run: Run) -> Clock:
    """Returns the clock from what ranks recorded: ranks of one host share a clock, samples join the others, if any."""
    set_by_ns = max((_set_by_ns(_pairs(rank)) for rank in run.ranks), default=0)
    if len(run.ranks) == 1:
        return Clock(method="shared", num_hosts=1, set_by_ns=set_by_ns,
                     ranks={run.ranks[0].number: Alignment(uncertainty_ns=0, drift_uncertainty_ppm=0.0)})
    return _with_devices(run, replace(clock_by_samples([_sampled(rank) for rank in run.ranks]), set_by_ns=set_by_ns))


def is_told() -> bool:
    """Returns whether `on_one_host` applies."""
    return _TOLD[-1]


def runs_as_told(paths: Iterable[str | os.PathLike[str]]) -> str:
    """Formats paths of runs as arguments of a command that reads them and compares their times as is done here."""
    unit = told_unit()
    return f"{'--same-host ' if is_told() else ''}{f'--time-unit {unit} ' if unit else ''}{quoted_all(paths)}"


def hosts_of(run: Run) -> dict[int, Hashable]:
    """Returns rank -> a value that is equal for ranks that share a kernel; None if not known."""
    return {rank.number: _host(rank) for rank in run.ranks}


def _host(rank: Rank) -> Hashable:
    """Returns the host. Traces of other programs only have its name; names of containers may differ on one host."""
    boot_id = rank.recorded.boot_id if rank.recorded is not None else ""
    is_name = bool(rank.host) and not rank.host.startswith("localhost")
    if not boot_id and _TOLD[-1]:
        return "told"
    return (rank.host, boot_id) if boot_id or (rank.recorded is None and is_name) else None


def _sampled(rank: Rank) -> SampledRank:
    return SampledRank(rank=rank.number, host=_host(rank), set_by_ns=stepped_by_ns(_pairs(rank)),
                       samples=rank.recorded.clock_sync if rank.recorded is not None else [])


def _pairs(rank: Rank) -> Sequence[ClockPair]:
    return rank.recorded.clock if rank.recorded is not None else []


def _set_by_ns(pairs: Sequence[ClockPair]) -> int:
    """Returns how far the wall clock moved relative to the monotonic clock."""
    gaps = [pair.realtime_ns - pair.monotonic_ns for pair in pairs]
    return max(gaps) - min(gaps) if gaps else 0


def stepped_by_ns(pairs: Sequence[ClockPair]) -> int:
    """Returns how far the wall clock was set at once. A steady drift does not count, because samples show it.

    Relative to the line from the first reading to the last, a step is visible except for the fraction of the time in
    which it occurred.
    """
    most = _set_by_ns(pairs)
    if len(pairs) < 3:
        return most
    times = np.array([pair.monotonic_ns for pair in pairs], np.int64)
    gaps = np.array([pair.realtime_ns for pair in pairs], np.int64) - times
    since, gaps = times - times[0], gaps - gaps[0]
    share = float(np.diff(since).max() / since[-1]) if since[-1] > 0 else 1.0
    return min(most, round(float(np.ptp(gaps - gaps[-1] * (since / since[-1]))) / (1 - share))) if share < 1 else most
