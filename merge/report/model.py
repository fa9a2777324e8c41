"""Sections on the model's cost: modules of the mean rank and of some ranks, operators and their bounds, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import polars as pl

from distprof.arrays import Integers
from distprof.contract.merged import MfuBasis
from distprof.errors import DataError
from distprof.merge.memory.run_memory import Peak, RunMemory, grouped
from distprof.merge.operators.grouping import grouped_sums
from distprof.merge.report.section import AbsentError, Columns, Sample, columns_of, columns_of_rows
from distprof.merge.report.sources import OPERATORS_BY, Sources
from distprof.merge.text.ops import ops_data
from distprof.merge.text.rates import mfu, peak_words
from distprof.peaks.published import device_peaks
from distprof.units import counted

MOST_MODULES = 1500
MEANS = ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops", "fwd_time_ns",
         "bwd_time_ns", "recompute_time_ns", "fwd_self_time_ns", "bwd_self_time_ns", "recompute_self_time_ns")
OF_RANK = ("fwd_time_ns", "bwd_time_ns", "recompute_time_ns")
MOST_OPERATORS = 300
COLUMNS = ("op", "class", "type", "phase", "dtypes", "calls", "self_host_ns", "host_ns", "self_device_ns", "device_ns",
           "mean_ns", "min_ns", "max_ns", "share", "flops", "bytes", "flops_per_second", "bytes_per_second",
           "flops_per_byte", "roofline_ratio", "bound", "num_ranks", "slowest_rank", "slowest_ratio", "slowest_p_value")
MOST_POINTS = 500
MOST_TENSORS = 50
OF_TENSOR = ("bytes", "category", "module", "op", "phase", "name", "shape", "dtype", "made_ns", "freed_ns")


def modules(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Returns rows in the order of the model, as means over the ranks that have the module.

    Raises:
        AbsentError: No module was recorded.
    """
    if not sources.is_recorded:
        raise AbsentError("foreign traces do not show what a module costs; record it with distprof run")
    table = sources.modules
    if table.is_empty():
        raise AbsentError("no module was recorded", remedy="record FLOPs and times with --steps count=1,time=3")
    table = _largest(table, sample)
    tree = table.select(path="module_path", class_name="class_name", stage="stage", depth="depth",
                        num_ranks="num_ranks", **{name: pl.col(f"{name}_mean") for name in MEANS},
                        slowest_rank="slowest_rank", model_params="model_params", model_fwd_flops="model_fwd_flops")
    parents = _parents(tree["stage"].to_list(), tree["path"].to_list())
    tree = tree.with_columns(parent=pl.Series(parents, dtype=pl.Int64))
    return {"tree": columns_of(_with_memory(tree, sources)), "of_ranks": _of_ranks(table, sources, sample)}


def _largest(table: pl.DataFrame, sample: Sample) -> pl.DataFrame:
    """Returns the modules with the most time, or else FLOPs, and all modules around them."""
    if len(table) <= MOST_MODULES:
        return table
    cost = (pl.sum_horizontal("fwd_time_ns_mean", "bwd_time_ns_mean"), pl.col("fwd_flops_mean").fill_null(0))
    numbered = table.with_row_index("row")
    parents = _parents(table["stage"].to_list(), table["module_path"].to_list())
    kept = set[int]()
    for row in numbered.sort(cost, descending=True, maintain_order=True)["row"].to_list():
        above = list[int]()
        while row >= 0 and row not in kept:
            above.append(row)
            row = parents[row]
        if len(kept) + len(above) > MOST_MODULES:
            break
        kept.update(above)
    sample.left_out.append(f"{counted(len(kept), 'module')} of {len(table)} are shown: the slowest ones and their "
                           "parents")
    return numbered.filter(pl.col("row").is_in(sorted(kept))).drop("row")


def _parents(stages: Sequence[int], paths: Sequence[str]) -> list[int]:
    """Returns the row of the parent of each module; -1 for a root."""
    place = {key: row for row, key in enumerate(zip(stages, paths, strict=True))}
    return [_parent(stage, path, place) for stage, path in zip(stages, paths, strict=True)]


def _parent(stage: int, path: str, place: dict[tuple[int, str], int]) -> int:
    above = path
    while "." in above:
        above = above.rpartition(".")[0]
        if (stage, above) in place:
            return place[stage, above]
    # a second root model is called `model1:`
    root, colon, rest = path.partition(":")
    above = f"{root}:" if colon and rest and (stage, f"{root}:") in place else ""
    return place.get((stage, above), -1) if path not in ("", above) and not path.endswith(":") else -1


def _with_memory(tree: pl.DataFrame, sources: Sources) -> pl.DataFrame:
    """Adds bytes alive at the peak and kept for backward, over all ranks together; null if no memory was recorded."""
    try:
        found = sources.memory
    except DataError:
        return tree.with_columns(peak_bytes=None, activation_bytes=None)
    bytes_of = grouped(found.rows, found.peaks, ("module",)).select(
        path="module_path", peak_bytes="peak_bytes", activation_bytes="kept_bytes")
    return tree.join(bytes_of, on="path", how="left", maintain_order="left")


def _of_ranks(table: pl.DataFrame, sources: Sources, sample: Sample) -> dict[str, dict[str, list[Any]]]:
    """Returns times of the same rows on some ranks; null if a rank does not have the module."""
    stages = {rank.number: (rank.coordinates or {}).get("pp", 0) for rank in sources.run.ranks}
    keys = table.select("stage", "module_path")
    mine = sources.modules_of(sample.in_detail, ("module_path", *OF_RANK))
    found = dict[str, dict[str, list[Any]]]()
    for (rank,), rows in mine.partition_by("rank", as_dict=True, maintain_order=True).items():
        named = rows.with_columns(stage=pl.lit(stages[rank], pl.Int64))
        found[str(rank)] = columns_of(keys.join(named, on=("stage", "module_path"), how="left",
                                                maintain_order="left").select(OF_RANK))
    return found


def operators(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Returns the operators with the most self time: on devices if anything ran on one, else on hosts.

    Raises:
        AbsentError: No rank has a timeline.
    """
    try:
        found = sources.operators
    except DataError as error:
        raise AbsentError("no timeline was recorded", remedy="record one with --steps trace=6") from error
    table = grouped_sums(found.sums)
    if len(table) > MOST_OPERATORS:
        sample.left_out.append(f"{MOST_OPERATORS} of {len(table)} rows of operators are shown: those with the most "
                               "self time")
    data = ops_data(sources.in_detail, found, table.head(MOST_OPERATORS))
    return {"by": list(OPERATORS_BY), "ranks": data["ranks"], "steps": data["steps"], "columns": list(COLUMNS),
            "rows": [[row[name] for name in COLUMNS] for row in data["ops"]],
            "totals": data["totals"], "coverage": data["coverage"], **_rates(sources, found.sums.groups)}


def _rates(sources: Sources, chosen: pl.DataFrame) -> dict[str, Any]:
    """Returns the peak that MFU is based on, and the memory bandwidth of that device."""
    step = sources.summary["step"]
    unknown: dict[str, Any] = {"peak_flops_per_second": None, "peak_bytes_per_second": None}
    if step["mfu_basis"] is None or chosen["flops"].is_null().all():
        return {**unknown, "peak_basis": "FLOPs of operators are unknown" if step["mfu_basis"] else None}
    basis = msgspec.convert(step["mfu_basis"], MfuBasis)
    if len(basis.peaks) != 1:
        why = mfu(step) if not basis.peaks else "operators ran in several dtypes, each with its own peak"
        return {**unknown, "peak_basis": why}
    one = basis.peaks[0]
    device = None if one.device is None else device_peaks(one.device)
    bandwidth = sources.given.bandwidth or (None if device is None else device.bytes_per_second)
    return {"peak_flops_per_second": one.flops_per_second, "peak_bytes_per_second": bandwidth,
            "peak_basis": peak_words(one)}


def memory(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Returns peaks, categories, curves and the largest tensors.

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
    by_category = grouped(found.rows, found.peaks, ("category",))
    return {
        "ranks": columns_of_rows([{name: getattr(peak, name) for name in names} for peak in peaks], names),
        "groups": columns_of(by_category), "categories": _categories(peaks),
        "timeline": _curves(found, sample), "at_peak": _tensors(peaks)}


def peak_memory(sources: Sources) -> list[dict[str, Any]] | None:
    """Returns the peak memory of each rank until its last recorded step; None if no rank recorded it."""
    known = [(rank.number, rank.recorded.peak_memory) for rank in sources.run.ranks if rank.recorded is not None]
    rows = [{"rank": rank, "host_bytes": peak.host_bytes, "device_bytes": peak.device_bytes} for rank, peak in known]
    return rows if any(row["host_bytes"] or row["device_bytes"] for row in rows) else None


def _categories(peaks: list[Peak]) -> dict[str, Any]:
    """Returns bytes of each category at the peak of each rank and device, in the order of `ranks`."""
    category, size = pl.col("category").fill_null("unknown"), pl.col("size_bytes").sum()
    sums = [dict(peak.alive.group_by(category).agg(size).iter_rows()) for peak in peaks]
    names = sorted({name for one in sums for name in one}, key=lambda name: -sum(one.get(name, 0) for one in sums))
    return {"names": names, "by_rank": {name: [one.get(name, 0) for one in sums] for name in names}}


def _curves(found: RunMemory, sample: Sample) -> dict[str, Any]:
    """Returns allocated bytes over time, on the device with the highest peak, for some ranks."""
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
    """Returns the indices of at most `MOST_POINTS` values: the largest and the last one in each of equal parts."""
    if len(held) <= MOST_POINTS:
        return np.arange(len(held))
    edges = np.linspace(0, len(held), MOST_POINTS // 2 + 1).astype(int)
    pairs = [(first + int(np.argmax(held[first:stop])), stop - 1) for first, stop in pairwise(edges) if stop > first]
    return np.unique(np.array(pairs).ravel())


def _tensors(peaks: list[Peak]) -> Columns:
    """Returns the largest tensors of all ranks at their peaks."""
    alive = [peak.alive.head(MOST_TENSORS).with_columns(rank=pl.lit(peak.rank, pl.Int64)) for peak in peaks]
    table = pl.concat(alive).sort("size_bytes", descending=True, maintain_order=True).head(MOST_TENSORS)
    return columns_of(table.rename({"size_bytes": "bytes", "module_path": "module"}).select(
        "rank", "device", *OF_TENSOR))
