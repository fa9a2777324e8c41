"""Memory: the peak of each rank, what was alive then, and how it came there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.errors import DataError
from distprof.merge.memory.run_memory import Peak, RunMemory, grouped
from distprof.merge.report.absent import AbsentError
from distprof.merge.report.columns import Columns, columns_of, columns_of_rows
from distprof.merge.report.sampling import Sample
from distprof.merge.report.sources import Sources

MOST_POINTS = 500
MOST_TENSORS = 50
OF_TENSOR = ("bytes", "category", "module", "op", "phase", "name", "shape", "dtype", "made_ns", "freed_ns")


def memory(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Peaks, categories, curves and the largest tensors.

    Raises:
        AbsentError: No allocations were recorded.
    """
    try:
        found = sources.memory
    except DataError as error:
        what = "no allocations were recorded"
        foreign = f"{what}; torch.profiler records them with profile_memory=True"
        raise AbsentError(what if sources.is_recorded else foreign,
                          remedy="record them with --steps memory=1") from error
    peaks = [peak for peak in found.peaks if peak.rank in set(sample.ranks)]
    names = ("rank", "device", "peak_bytes", "time_ns", "before_bytes", "unknown_bytes", "unused_bytes",
             "reserved_bytes")
    by_rank = grouped(found.rows, found.peaks, ("category",))
    return {
        "ranks": columns_of_rows([{name: getattr(peak, name) for name in names} for peak in peaks], names),
        "groups": columns_of(by_rank), "categories": _categories(peaks),
        "timeline": _curves(found, sample), "at_peak": _tensors(peaks)}


def peak_memory(sources: Sources) -> list[dict[str, Any]] | None:
    """The most that each rank held until its last recorded step; None where no rank says."""
    known = [(rank.number, rank.recorded.peak_memory) for rank in sources.run.ranks if rank.recorded is not None]
    rows = [{"rank": rank, "host_bytes": peak.host_bytes, "device_bytes": peak.device_bytes} for rank, peak in known]
    return rows if any(row["host_bytes"] or row["device_bytes"] for row in rows) else None


def _categories(peaks: list[Peak]) -> dict[str, Any]:
    """Bytes of each category at the peak of each rank and device, in the order of `ranks`."""
    category, size = pl.col("category").fill_null("unknown"), pl.col("size_bytes").sum()
    sums = [dict(peak.alive.group_by(category).agg(size).iter_rows()) for peak in peaks]
    names = sorted({name for one in sums for name in one}, key=lambda name: -sum(one.get(name, 0) for one in sums))
    return {"names": names, "by_rank": {name: [one.get(name, 0) for one in sums] for name in names}}


def _curves(found: RunMemory, sample: Sample) -> dict[str, Any]:
    """What was allocated over time on the device with the highest peak of some ranks."""
    curves = dict[str, Any]()
    for rank in sample.in_detail:
        mine = [peak for peak in found.peaks if peak.rank == rank]
        if mine:
            peak = max(mine, key=lambda one: one.peak_bytes)
            curves[str(rank)] = _curve(found.rows.filter(pl.col("rank") == rank, pl.col("device") == peak.device), peak)
    return curves


def _curve(rows: pl.DataFrame, peak: Peak) -> dict[str, Any]:
    made, freed = rows.select("made_ns", "size_bytes"), rows.filter(pl.col("freed_ns").is_not_null()).select(
        made_ns="freed_ns", size_bytes=-pl.col("size_bytes"))
    changes = pl.concat([made, freed]).sort("made_ns", maintain_order=True)
    times = changes["made_ns"].to_numpy()
    held = changes["size_bytes"].cum_sum().to_numpy() + (peak.before_bytes or 0)
    kept = _with_maxima(held)
    begin = int(times[0]) if len(times) else 0
    return {"device": peak.device, "start_ns": begin, "time_ns": (times[kept] - begin).tolist(),
            "bytes": held[kept].tolist(), "at_peak_ns": peak.time_ns - begin}


def _with_maxima(held: Integers) -> Integers:
    """Places of at most `MOST_POINTS` values: the largest and the last of each of equal parts."""
    if len(held) <= MOST_POINTS:
        return np.arange(len(held))
    edges = np.linspace(0, len(held), MOST_POINTS // 2 + 1).astype(int)
    pairs = [(first + int(np.argmax(held[first:stop])), stop - 1) for first, stop in pairwise(edges) if stop > first]
    return np.unique(np.array(pairs).ravel())


def _tensors(peaks: list[Peak]) -> Columns:
    """The largest of all ranks at their peaks."""
    alive = [peak.alive.head(MOST_TENSORS).with_columns(rank=pl.lit(peak.rank, pl.Int64)) for peak in peaks]
    table = pl.concat(alive).sort("size_bytes", descending=True, maintain_order=True).head(MOST_TENSORS)
    return columns_of(table.rename({"size_bytes": "bytes", "module_path": "module"}).select(
        "rank", "device", *OF_TENSOR))
