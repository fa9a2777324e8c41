"""The mean step of each device, why the device is idle in it, and what the host does meanwhile."""

from __future__ import annotations

from typing import Any

import polars as pl

from distprof.merge.activity.activities import OF_MODULES
from distprof.merge.activity.breakdown import overlap_ratio
from distprof.merge.activity.device.rank_device import DeviceSteps
from distprof.merge.activity.device.steps import BESIDE, CAUSES, PARTS

ENOUGH = 2
"""If a device has at least this many whole steps, steps without a known end are left out of means."""
SETTLES = 3
"""From this many steps of a timeline on, the first does not count: the profiler warms up in it."""
OF_DEVICE = ("rank", "device")
"""Columns that identify a device."""
TIMES = ("device_step_ns", *(f"{part}_ns" for part in PARTS), *(f"{cause}_idle_ns" for cause in CAUSES),
         *(f"{one}_ns" for one in BESIDE))
"""Columns of times of which means are taken."""


def settled_steps(steps: list[int]) -> list[int]:
    """Returns the steps of a timeline, ascending, without the first, which each rank begins at another time."""
    return steps[1:] if len(steps) >= SETTLES else steps


def counted_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Returns the steps of each device over which means are taken: only whole ones, if there are several.

    The last step of a timeline ends with its last command, because no next step shows its real end.

    Args:
        steps: `DeviceSteps.steps`.
    """
    whole = pl.col("is_whole").sum().over(OF_DEVICE)
    return steps.filter((whole < ENOUGH) | pl.col("is_whole"))


def mean_device_steps(devices: DeviceSteps) -> pl.DataFrame:
    """Returns a row per device: `TIMES`, `commands`, `first_step`, `last_step`, `num_steps`, `num_open` and
    `overlap_ratio`."""
    return counted_steps(devices.steps).group_by(OF_DEVICE).agg(
        pl.col(*TIMES, "commands").mean(), first_step=pl.col("step").min(), last_step=pl.col("step").max(),
        num_steps=pl.len(), num_open=(~pl.col("is_whole")).sum(), overlap_ratio=overlap_ratio()).sort(OF_DEVICE)


def without_kernels(devices: DeviceSteps, rows: pl.DataFrame) -> list[int]:
    """Returns ranks that exchange data with others in these steps although none of their kernels communicates.

    Gloo communicates on the host, and kernels may be unknown: the device is idle or copies meanwhile.

    Args:
        devices: What devices did.
        rows: `MERGED_COLLECTIVES`.
    """
    silent = devices.steps.group_by("rank").agg(pl.col("communication_ns").sum() == 0).filter("communication_ns")
    steps = devices.steps.select("rank", "step").unique()
    calling = rows.filter(pl.col("num_ranks") > 1).join(steps, on=("rank", "step"), how="semi")["rank"]
    return sorted(set(silent["rank"].to_list()) & set(calling.to_list()))


def host_meanwhile(devices: DeviceSteps, *, with_modules: bool = True) -> pl.DataFrame:
    """Returns what hosts do while their devices are idle because of it, over the steps that count, most first.

    Args:
        devices: What devices did.
        with_modules: Whether modules are distinguished; else their times are summed, but activities of the host itself
            remain distinguished.

    Returns:
        `kind`, `where`, `idle_ns` per step and device (mean over all devices), its `ratio` to the mean step, `most_ns`
        of the device with most of it, and `most_rank`, the rank of that device.
    """
    steps = counted_steps(devices.steps)
    kept = devices.doing.join(steps.select(*OF_DEVICE, "step"), on=(*OF_DEVICE, "step"), how="semi")
    if not with_modules:
        of_modules = pl.col("kind").is_in([*OF_MODULES, "optimizer"])
        kept = kept.with_columns(where=pl.when(~of_modules).then("where"))
    number = steps.group_by(OF_DEVICE).agg(num_steps=pl.len())
    each = kept.group_by(*OF_DEVICE, "kind", "where").agg(pl.col("idle_ns").sum()).join(number, on=OF_DEVICE)
    each = each.sort(OF_DEVICE).with_columns(mean_ns=pl.col("idle_ns") / pl.col("num_steps"))
    found = each.group_by("kind", "where").agg(
        idle_ns=pl.col("idle_ns").sum() / max(len(steps), 1), most_ns=pl.col("mean_ns").max(),
        most_rank=pl.col("rank").get(pl.col("mean_ns").arg_max()))
    return found.with_columns(ratio=pl.col("idle_ns") / steps["device_step_ns"].mean()).sort(
        "idle_ns", "kind", "where", descending=[True, False, False])


def calls_meanwhile(devices: DeviceSteps) -> pl.DataFrame:
    """Returns the runtime calls of hosts during such time: `name`, `idle_ns` per step and device, `ratio`; most
    first."""
    steps = counted_steps(devices.steps)
    kept = devices.calls.join(steps.select(*OF_DEVICE, "step"), on=(*OF_DEVICE, "step"), how="semi")
    return kept.group_by("name").agg(idle_ns=pl.col("idle_ns").sum() / max(len(steps), 1)).with_columns(
        ratio=pl.col("idle_ns") / steps["device_step_ns"].mean()).sort("idle_ns", "name", descending=[True, False])


def lines_meanwhile(devices: DeviceSteps) -> pl.DataFrame:
    """Returns the script lines of hosts during such time: `file`, `line`, `function`, `samples`; most first."""
    kept = devices.lines.join(counted_steps(devices.steps).select(*OF_DEVICE, "step"), on=(*OF_DEVICE, "step"),
                              how="semi")
    return kept.group_by("file", "line", "function").agg(pl.col("samples").sum()).sort(
        "samples", "file", "line", descending=[True, False, False])


def mean_streams(devices: DeviceSteps) -> list[dict[str, Any]]:
    """Returns a row per stream that had commands in the steps that count: what it did per step."""
    kept = devices.streams.join(counted_steps(devices.steps).select(*OF_DEVICE, "step"), on=(*OF_DEVICE, "step"),
                                how="semi")
    found = kept.group_by(*OF_DEVICE, "stream").agg(pl.exclude("step").mean()).filter(pl.col("commands") > 0)
    return found.sort(*OF_DEVICE, "running_ns", "stream", descending=[False, False, True, False]).to_dicts()
