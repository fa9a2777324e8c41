"""Sums of what is on the critical paths of devices, and what is not; in ns, means over the steps of all devices."""

from __future__ import annotations

import polars as pl

from distprof.merge.critical.device.path import DevicePath
from distprof.merge.critical.device.walk import HOST, KINDS, RUNNING

_NS = (pl.col("end_ns") - pl.col("start_ns")).alias("ns")
OF_DEVICE = ("rank", "device")


def by_kind(path: DevicePath) -> dict[str, float]:
    """Returns the time of each kind of link."""
    sums = dict(path.links.group_by("kind").agg(_NS.sum()).iter_rows())
    return {kind: sums.get(kind, 0) / max(len(path.steps), 1) for kind in KINDS}


def by_device(path: DevicePath) -> pl.DataFrame:
    """Returns `rank`, `device`, `steps`, `time_ns` of the path and times by kind. Off the path: `off_ns`, `off_calls`
    and the median slack `off_slack_ns` of commands, and `hidden_host_ns`, the work of the host. `working_ns`,
    `handovers` and `host_slack_ns` are as in `STEPS`."""
    links = path.links.group_by(OF_DEVICE).agg(
        *(_NS.filter(pl.col("kind") == kind).sum().alias(f"{kind}_ns") for kind in KINDS))
    steps = path.steps.group_by(OF_DEVICE).agg(
        time_ns=(pl.col("end_ns") - pl.col("start_ns")).mean(), steps=pl.len(), working_ns=pl.col("working_ns").mean(),
        handovers=pl.col("handovers").mean(), host_slack_ns=pl.col("host_slack_ns").median())
    off = path.off.group_by(OF_DEVICE).agg(off_ns=pl.col("ns").sum(), off_calls=pl.col("calls").sum(),
                                           off_slack_ns=pl.col("median_slack_ns").median())
    joined = steps.join(links, on=OF_DEVICE, how="left").join(off, on=OF_DEVICE, how="left")
    sums = [*(f"{kind}_ns" for kind in KINDS), "off_ns", "off_calls"]
    return joined.with_columns(pl.col(sums).fill_null(0) / pl.col("steps")).with_columns(
        hidden_host_ns=(pl.col("working_ns") - pl.col(f"{HOST}_ns")).clip(0)).sort(OF_DEVICE)


def by_module(path: DevicePath) -> pl.DataFrame:
    """Returns the path by `phase` and `module_path` that did or launched it: `time_ns`, `ratio`, `steps`, `host_ns`,
    `device_ns` of commands, `rest_ns` between them, the `rank` that has most of it, and its `rank_ratio`."""
    kinds = {"host_ns": pl.col("kind") == HOST, "device_ns": pl.col("kind").is_in(RUNNING),
             "rest_ns": ~pl.col("kind").is_in([HOST, *RUNNING])}
    return _of_step(path, path.links, ["phase", "module_path"], kinds)


def by_op(path: DevicePath) -> pl.DataFrame:
    """Returns commands and operators of the host by `op` and `kind`; `op` is null if the host ran no operator."""
    return _of_step(path, path.links.filter(pl.col("kind").is_in([HOST, *RUNNING])), ["op", "kind"], {})


def off_path(path: DevicePath) -> pl.DataFrame:
    """Returns commands off the path by `op`: `calls` and `time_ns` per step, `slack_ns` and `median_slack_ns`."""
    number = max(len(path.steps), 1)
    return path.off.group_by("op").agg(
        calls=pl.col("calls").sum() / number, time_ns=pl.col("ns").sum() / number, slack_ns=pl.col("slack_ns").min(),
        median_slack_ns=pl.col("median_slack_ns").median()).sort("time_ns", "op", descending=[True, False])


def calls_on_path(path: DevicePath) -> pl.DataFrame:
    """Returns the runtime calls in which hosts are on the path: `name` and `time_ns`."""
    return path.calls.group_by("name").agg(time_ns=pl.col("ns").sum() / max(len(path.steps), 1)).sort(
        "time_ns", "name", descending=[True, False])


def lines_on_path(path: DevicePath) -> pl.DataFrame:
    """Returns the lines of the script in which hosts are on the path: `file`, `line`, `function`, `samples`; the most
    frequent first."""
    return path.lines.group_by("file", "line", "function").agg(pl.col("samples").sum()).sort(
        "samples", "file", "line", descending=[True, False, False])


def _of_step(path: DevicePath, links: pl.DataFrame, keys: list[str], parts: dict[str, pl.Expr]) -> pl.DataFrame:
    each = links.group_by(*keys, "rank").agg(ns=_NS.sum()).sort("ns", "rank", descending=[True, False])
    main = each.group_by(*keys, maintain_order=True).agg(
        pl.col("rank").first(), rank_ratio=pl.col("ns").first() / pl.col("ns").sum())
    sums = links.group_by(*keys).agg(time_ns=_NS.sum(), steps=pl.col("step").n_unique(), **{
        name: _NS.filter(held).sum() for name, held in parts.items()}).join(main, on=keys, nulls_equal=True)
    whole = int((path.steps["end_ns"] - path.steps["start_ns"]).sum())
    return sums.with_columns(pl.selectors.ends_with("_ns") / max(len(path.steps), 1),
                             ratio=pl.col("time_ns") / max(whole, 1)).sort(
        "time_ns", *keys, descending=[True, *[False] * len(keys)], nulls_last=True)
