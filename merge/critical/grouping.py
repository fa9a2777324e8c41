"""Sums of the critical paths by module, operator, collective and rank; times are means per step, in ns."""

from __future__ import annotations

import polars as pl

from distprof.merge.cost.choice import group_key, group_label
from distprof.merge.critical.critical_path import KINDS, CriticalPath
from distprof.merge.replay.chain import WORK
from distprof.merge.run.group_ranks import with_lists

_NS = (pl.col("end_ns") - pl.col("start_ns")).alias("ns")


def by_kind(path: CriticalPath) -> dict[str, float]:
    """Returns the time of each kind of link."""
    sums = dict(path.links.group_by("kind").agg(_NS.sum()).iter_rows())
    return {kind: sums.get(kind, 0) / max(len(path.steps), 1) for kind in KINDS}


def by_rank(path: CriticalPath) -> pl.DataFrame:
    """Returns `rank`, `time_ns`, `ratio` of the path, `steps` in which the rank is on the path, and times by kind."""
    sums = [_NS.filter(pl.col("kind") == kind).sum().alias(f"{kind}_ns") for kind in KINDS]
    return _of_step(path, path.links.group_by("rank").agg(
        _NS.sum().alias("time_ns"), pl.col("step").n_unique().alias("steps"), *sums))


def by_module(path: CriticalPath) -> pl.DataFrame:
    """Returns work by `phase` and `module_path`, with the `rank` that has most of it, its `rank_ratio`, and the slack.

    `slack_ns` is the smallest of any call on any rank, found on `slack_rank`. `most_slack_ns` is that of
    `most_slack_rank`, the rank on which the smallest slack is largest.
    """
    found = _with_main_rank(path, path.links.filter(pl.col("kind") == WORK), ["phase", "module_path"])
    each = path.slack.group_by("rank", "phase", "module_path").agg(pl.col("slack_ns").min()).sort("slack_ns", "rank")
    slack = each.group_by("phase", "module_path", maintain_order=True).agg(
        pl.col("slack_ns").first(), slack_rank=pl.col("rank").first(), most_slack_ns=pl.col("slack_ns").last(),
        most_slack_rank=pl.col("rank").last())
    return found.join(slack, on=["phase", "module_path"], how="left", nulls_equal=True, maintain_order="left")


def by_op(path: CriticalPath) -> pl.DataFrame:
    """Returns work by `op`, the innermost operator that ran; null if none did."""
    return _with_main_rank(path, path.links.filter(pl.col("kind") == WORK), ["op"])


def by_collective(path: CriticalPath, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the other links by `collective_op` and `group`, with times by kind and the `calls` on the path per step.

    Args:
        path: The critical paths.
        rows: `MERGED_COLLECTIVES`.
    """
    linked = path.links.filter(pl.col("collective").is_not_null())
    first = rows.filter(pl.col("collective").is_in(linked["collective"].unique().implode())).unique(
        "collective", keep="first", maintain_order=True).select(
        "collective", "group", "group_description", "group_ranks", pl.col("op").cast(pl.String).alias("collective_op"),
        group_key().alias("key"))
    groups = with_lists(first.unique("key", keep="first", maintain_order=True))
    labels = groups.select("key", label=pl.Series([group_label(*one) for one in groups.select(
        "group", "group_description", "group_ranks").iter_rows()], dtype=pl.String))
    named = linked.join(first.join(labels, on="key", how="left").select("collective", "collective_op", group="label"),
                        on="collective", how="left")
    sums = [_NS.filter(pl.col("kind") == kind).sum().alias(f"{kind}_ns") for kind in KINDS[1:-1]]
    calls = pl.struct("step", "collective").n_unique() / max(len(path.steps), 1)
    return _of_step(path, named.group_by("collective_op", "group").agg(
        calls.alias("calls"), _NS.sum().alias("time_ns"), pl.col("step").n_unique().alias("steps"), *sums))


def slack_by_rank(path: CriticalPath) -> pl.DataFrame:
    """Returns slack by `rank`, `phase` and `module_path`: the smallest of all calls, and the median over steps of the
    smallest of each step."""
    return path.slack.group_by("phase", "module_path", "rank").agg(
        pl.col("slack_ns").min(), median_slack_ns=pl.col("slack_ns").median(), work_ns=pl.col("work_ns").mean(),
        steps=pl.len()).sort("slack_ns", "work_ns", "rank", "phase", "module_path",
                             descending=[False, True, False, False, False], nulls_last=True)


def _with_main_rank(path: CriticalPath, links: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    each = links.group_by(*keys, "rank").agg(ns=_NS.sum()).sort("ns", "rank", descending=[True, False])
    main = each.group_by(*keys, maintain_order=True).agg(
        pl.col("rank").first(), rank_ratio=pl.col("ns").first() / pl.col("ns").sum())
    sums = links.group_by(*keys).agg(time_ns=_NS.sum(), steps=pl.col("step").n_unique())
    return _of_step(path, sums.join(main, on=keys, nulls_equal=True))


def _of_step(path: CriticalPath, sums: pl.DataFrame) -> pl.DataFrame:
    """Replaces sums by times per step, and adds their share of the paths; the longest first."""
    number = max(len(path.steps), 1)
    whole = int((path.durations["end_ns"] - path.durations["start_ns"]).sum())
    keys = [name for name in sums.columns if not name.endswith("_ns") and sums[name].dtype in (pl.String, pl.Int64)]
    return sums.with_columns(pl.selectors.ends_with("_ns") / number,
                             ratio=pl.col("time_ns") / max(whole, 1)).sort(
        "time_ns", *keys, descending=[True, *[False] * len(keys)], nulls_last=True)
