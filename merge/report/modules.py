"""The tree of modules: of the mean rank, and of some ranks one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from distprof.errors import DataError
from distprof.merge.memory.run_memory import grouped
from distprof.merge.report.absent import AbsentError
from distprof.merge.report.columns import columns_of
from distprof.merge.report.sampling import Sample
from distprof.merge.report.sources import Sources
from distprof.units import counted

MOST_MODULES = 1500
MEANS = ("params", "stored_params", "fwd_macs", "fwd_flops", "bwd_flops", "recompute_flops", "fwd_time_ns",
         "bwd_time_ns", "recompute_time_ns", "fwd_self_time_ns", "bwd_self_time_ns", "recompute_self_time_ns")
OF_RANK = ("fwd_time_ns", "bwd_time_ns", "recompute_time_ns")


def modules(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Rows in the order of the model, means over the ranks that have the module.

    Raises:
        AbsentError: None was recorded.
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
    """The modules with most time, else most FLOPs, and all that they lie in."""
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
    """The row of the module that each one lies in; -1 for a root."""
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
    """Bytes alive at the peak and kept for backward, of all ranks together; null where no memory was recorded."""
    try:
        found = sources.memory
    except DataError:
        return tree.with_columns(peak_bytes=None, activation_bytes=None)
    bytes_of = grouped(found.rows, found.peaks, ("module",)).select(
        path="module_path", peak_bytes="peak_bytes", activation_bytes="kept_bytes")
    return tree.join(bytes_of, on="path", how="left", maintain_order="left")


def _of_ranks(table: pl.DataFrame, sources: Sources, sample: Sample) -> dict[str, dict[str, list[Any]]]:
    """Times of the same rows on some ranks; null where a rank does not have the module."""
    stages = {rank.number: (rank.coordinates or {}).get("pp", 0) for rank in sources.run.ranks}
    keys = table.select("stage", "module_path")
    mine = sources.modules_of(sample.in_detail, ("module_path", *OF_RANK))
    found = dict[str, dict[str, list[Any]]]()
    for (rank,), rows in mine.partition_by("rank", as_dict=True, maintain_order=True).items():
        named = rows.with_columns(stage=pl.lit(stages[rank], pl.Int64))
        found[str(rank)] = columns_of(keys.join(named, on=("stage", "module_path"), how="left",
                                                maintain_order="left").select(OF_RANK))
    return found
