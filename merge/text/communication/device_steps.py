"""Shows devices in `distprof comms` and `waits`: how they spend their steps, why they are idle; also as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from distprof.merge.activity.device.mean_steps import (
    ENOUGH,
    OF_DEVICE,
    calls_meanwhile,
    counted_steps,
    host_meanwhile,
    lines_meanwhile,
    mean_device_steps,
    mean_streams,
)
from distprof.merge.activity.device.rank_device import DeviceSteps
from distprof.merge.activity.device.steps import CAUSES, PARTS
from distprof.merge.text.phrases import cut, rank_list, short_names, work_name
from distprof.merge.totals.step_time import StepTime
from distprof.reporters.page import Page
from distprof.units import UNKNOWN, counted, duration, numbered, percent

MOST_RANKS = 16
"""With more devices, only the slowest, the median and the fastest have a row."""
MOST_STREAMS = 8
NAME_LETTERS = 60
NAMED = 4
"""Number of host activities that are named for the idle time of devices."""
NO_SLICE = "unknown"
NAMED_LINES, NAMED_CALLS = 2, 3
IN_CALLS = 0.02
"""Runtime calls are named from this share of a step on."""
UNEVEN = 1.5
"""The rank with the largest value is named if it is at least this many times the mean."""
ENOUGH_SAMPLES = 3
"""Lines are named from this many samples on."""
LONGER = 1.1
"""The device's work exceeds the step time if it is at least this many times as long; profilers hardly slow kernels."""
LEAST = 0.005
"""Causes get a column, and activities are named, from this share of a step on."""
HEADER = ("device step in ms", "step", *PARTS, "overlapped comm.")
TITLES = {"host": "host late", "sync": "synchronising", "stream": "other stream", "latency": "latency",
          "unshown": "not shown", "unsent": "launch unknown", "unasked": "no command"}
"""Cause -> title of its column."""
WHY = {
    "host": "host late: the host had not launched the next command yet",
    "sync": "synchronising: the host could not launch it, because it waited for the device",
    "stream": "other stream: handed over from a command of another stream",
    "latency": "latency: the command was launched before and began within 10 us",
    "unshown": "not shown: the command was launched before, and the timeline does not show what it waited for "
               "(commands that were not recorded, or another process on the device)",
    "unsent": "launch unknown: the timeline does not show the launch of the next command",
    "unasked": "no command: no further command follows",
}
OF_STREAM = {"running_ns": "runs", "for_communication_ns": "communication", "for_copy_ns": "a copy",
             "for_kernel_ns": "a kernel", "host_ns": "the host", "sync_ns": "synchronising", "latency_ns": "latency",
             "unshown_ns": "not shown"}
"""Titles of columns."""


def show_device_steps(devices: DeviceSteps, page: Page, usual: StepTime | None = None,
                      without_kernels: Sequence[int] = ()) -> None:
    """Prints what the step of each device is spent on, and why it is idle.

    Args:
        devices: What they did in the shown steps; there is at least one step.
        page: Where to print.
        usual: The step time.
        without_kernels: Ranks that exchange data although no kernel communicates.
    """
    silent = pl.col("rank").is_in(list(without_kernels))
    rows = mean_device_steps(devices).with_columns(pl.when(~silent).then(pl.col("waiting_ns", "moving_ns")))
    page.table(HEADER, [_row(title, one) for title, one in _shown(rows)])
    for line in definitions(devices):
        page.line(line)
    if without_kernels:
        verb = "exchanges" if len(without_kernels) == 1 else "exchange"
        page.line(f"{rank_list(without_kernels)} {verb} data with others, but no kernel communicates, as with gloo: "
                  "while that lasts, the device counts as idle or copying")
    for line in alike_lines(devices):
        page.line(line)
    if usual is not None and usual.is_light:
        page.line(without_profiler(rows, usual))
    page.line()
    show_idleness(devices, page)


def alike_lines(devices: DeviceSteps) -> Iterator[str]:
    """Yields kernels that look like communication but count as computing."""
    rows = devices.alike.group_by("name").agg(pl.col("calls", "time_ns").sum()).sort("time_ns", "name",
                                                                                      descending=[True, False])
    if rows.is_empty():
        return
    shown = [f"{cut(name, NAME_LETTERS)} ({counted(calls, 'call')}, {duration(time_ns)})"
             for name, calls, time_ns in rows.head(NAMED).iter_rows()]
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    yield f"kernels that look like communication, but count as computing: {', '.join(shown)}{more}"


def without_profiler(rows: pl.DataFrame, usual: StepTime) -> str:
    """Returns how long steps are without the profiler, or that the device is busy for longer than that.

    Args:
        rows: Rows of `mean_device_steps`.
        usual: The step time, from steps without the profiler.
    """
    busy_ns: Any = (rows["device_step_ns"] - rows["idle_ns"]).mean()
    if busy_ns > LONGER * usual.time_ns:
        return (f"the device is busy for {duration(busy_ns)} of a step: the step time of {duration(usual.time_ns)} is "
                "that of the host, which runs ahead of the device, so FLOP/s and MFU are too high")
    return (f"these steps ran with the profiler; without it, a step takes {duration(usual.time_ns)}: the device waits "
            "for the host less")


def idle_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns `device step 58.3 ms, 81.0 % idle: host late 79.6 %, latency 1.3 %`, mean over devices.

    Args:
        rows: Rows of `mean_device_steps`.
    """
    whole = sum(one["device_step_ns"] for one in rows)
    share = {cause: sum(one[f"{cause}_idle_ns"] for one in rows) / max(whole, 1) for cause in CAUSES}
    parts = [f"{TITLES[cause]} {percent(ratio)}" for cause, ratio in sorted(share.items(), key=lambda one: -one[1])
             if ratio >= LEAST]
    return (f"device step {duration(whole / len(rows))}, {percent(sum(share.values()))} idle"
            f"{': ' if parts else ''}{', '.join(parts)}")


def show_idleness(devices: DeviceSteps, page: Page) -> None:
    """Prints why devices are idle, and what streams wait for if there are several."""
    rows = mean_device_steps(devices)
    step_ns = max(float(rows["device_step_ns"].mean() or 0), 1.0)  # type: ignore[arg-type]
    shown = [cause for cause in CAUSES if (rows[f"{cause}_idle_ns"] / step_ns).max() >= LEAST]  # type: ignore[operator]
    page.table(("idle in ms", "step", "idle", *(TITLES[cause] for cause in shown)), [
        (title, _ms(one["device_step_ns"]), _part(one, "idle_ns"), *(_part(one, f"{cause}_idle_ns") for cause in shown))
        for title, one in _shown(rows)])
    if shown:
        page.line("; ".join(WHY[cause] for cause in shown))
    for line in idle_lines(devices):
        page.line(line)
    page.line()
    _streams(devices, page)


def definitions(devices: DeviceSteps) -> Iterator[str]:
    """Yields what the table of steps covers, and what it leaves out."""
    steps = counted_steps(devices.steps)
    parts = ("waiting and moving: kernels that communicate while nothing is computed; copies: copies and fills while "
             "no kernel runs; idle: nothing runs")
    if not steps["is_marked"].all():
        yield f"from the first command in the trace to the last, because the trace marks no steps. {parts}"
        yield from outside_lines(devices)
        return
    numbers = sorted(set(steps["step"].to_list()))
    mean = "mean of " if len(numbers) > 1 else ""
    yield (f"{mean}{numbered('step', numbers)}: from the first command of a step on the device to the first of the "
           f"next, wherever that lies on the host; commands belong to the step that launched them. {parts}")
    open_steps = sorted(set(steps.filter(~pl.col("is_whole"))["step"].to_list()))
    if open_steps:
        yield f"{numbered('step', open_steps)} may be longer: no later step shows where it ends on the device"
    elif left := sorted(set(devices.steps["step"].to_list()) - set(numbers)):
        yield f"not included: {numbered('step', left)}, because no later step shows where it ends on the device"
    yield from outside_lines(devices)


def outside_lines(devices: DeviceSteps) -> Iterator[str]:
    """Yields commands that are in no step."""
    unsent, unsent_ns, outside, outside_ns, lost = devices.outside.select(
        "unsent", "unsent_ns", "outside", "outside_ns", "lost").sum().row(0)
    found = [(unsent, unsent_ns, "whose launch is unknown"),
             (outside, outside_ns, "launched outside of all steps")]
    said = [f"{counted(number, 'command')} ({duration(ns)}) {what}" for number, ns, what in found if number]
    if said:
        yield f"in no step: {' and '.join(said)}"
    elif lost and devices.steps.is_empty():
        yield f"the profiler recorded nothing of a device, though the host launched {lost} times"


def idle_lines(devices: DeviceSteps) -> Iterator[str]:
    """Yields what is known besides the causes: what hosts do meanwhile, costs of synchronisation, starts of CUDA
    graphs, and what the profiler lost."""
    yield from _meanwhile(devices)
    means = mean_device_steps(devices).mean().row(0, named=True)
    least = LEAST * (means["device_step_ns"] or 1)
    if means["after_sync_ns"] >= least:
        yield (f"host late: {duration(means['after_sync_ns'])} of it per step directly follow a synchronisation that "
               "emptied the queue: without it, the host might have launched ahead")
    if means["in_graph_ns"] >= least:
        yield (f"not shown: {duration(means['in_graph_ns'])} of it per step come before CUDA graph commands: the "
               "profiler may not have recorded all kernels of a graph")
    yield from doubts_of(devices)


def doubts_of(devices: DeviceSteps) -> Iterator[str]:
    """Yields why idle times or their causes may be wrong."""
    early, early_ns = devices.outside.select(pl.col("early").sum(), pl.col("early_ns").max()).row(0)
    if early:
        yield (f"{counted(early, 'command')} began ahead of the launching call, by up to {duration(early_ns)}: clocks "
               "of host and device differ or times are wrong, so causes may be wrong as well")
    unsent, lost, launches = devices.outside.select("unsent", "lost", "launches").sum().row(0)
    if lost and lost >= LEAST * launches:
        bound = "at least " if unsent else ""
        yield (f"{bound}{lost} of {launches} launches left nothing in the timeline: the profiler lost their kernels, "
               "so devices were busier, and idle for less time, than shown")


def _meanwhile(devices: DeviceSteps) -> Iterator[str]:
    """Yields what hosts do while they are late, according to slices and to samples."""
    named = [row for row in host_meanwhile(devices, with_modules=False).head(NAMED).iter_rows(named=True)
             if row["ratio"] >= LEAST]
    if any(row["kind"] is not None for row in named):
        yield "what the host does while it is late, per step: " + ", ".join(
            f"{NO_SLICE if row['kind'] is None else host_work(row['kind'], row['where'])} "
            f"{duration(row['idle_ns'])} ({percent(row['ratio'])}{_most(row)})"
            for row in named)
    calls = calls_meanwhile(devices).filter(pl.col("ratio") >= IN_CALLS).head(NAMED_CALLS)
    if len(calls):
        yield "runtime calls that its threads are in meanwhile: " + ", ".join(
            f"{row['name']} {duration(row['idle_ns'])} ({percent(row['ratio'])})"
            for row in calls.iter_rows(named=True))
    seen = lines_meanwhile(devices)
    total = int(seen["samples"].sum())
    if total >= ENOUGH_SAMPLES:
        files = short_names(seen["file"].unique().to_list())
        yield f"where the script is meanwhile, most of {counted(total, 'sample')}: " + ", ".join(
            cut(f"{files[row['file']]}:{row['line']} {row['function']} ({row['samples']})")
            for row in seen.head(NAMED_LINES).iter_rows(named=True))


def _most(row: Mapping[str, Any]) -> str:
    """Returns the rank that does much more of it than the mean."""
    much = row["most_ns"] >= UNEVEN * row["idle_ns"]
    return f"; rank {row['most_rank']} {duration(row['most_ns'])}" if much else ""


def host_work(kind: str, where: str | None) -> str:
    """Returns `backward`, `the optimizer`, `between backward and optimizer`."""
    return where if kind == "host" and where is not None else work_name(kind, where)


def _streams(devices: DeviceSteps, page: Page) -> None:
    rows = mean_streams(devices)
    step_ns = float(mean_device_steps(devices)["device_step_ns"].mean() or 0)  # type: ignore[arg-type]
    by_device: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        by_device.setdefault(tuple(row[key] for key in OF_DEVICE), []).append(row)
    longest = mean_device_steps(devices).sort("device_step_ns", descending=True).row(0, named=True)
    mine = by_device.get(tuple(longest[key] for key in OF_DEVICE), [])
    several = [row for row in mine if row["running_ns"] >= LEAST * step_ns]
    if len(several) < ENOUGH:
        return
    with_device = any(len({device for rank, device in by_device if rank == one}) > 1 for one, _ in by_device)
    columns = [name for name in OF_STREAM if any(row[name] >= 1e4 for row in several)]
    page.table(("stream, ms per step", "commands", *(OF_STREAM[name] for name in columns)), [
        (f"{_title(row, with_device=with_device)} stream {row['stream']}",
         f"{row['commands']:.3g}", *(_ms(row[name]) for name in columns)) for row in several[:MOST_STREAMS]])
    if len(by_device) > 1:
        page.line("this device has the longest step; --json lists the streams of all")
    elif len(several) > MOST_STREAMS:
        page.line(f"... {len(several) - MOST_STREAMS} more of {len(several)}: --json lists all")
    page.line("runs: its commands; the rest is what its next command waits for: a communication, copy or kernel of "
              "another stream that ended just before it began, or as above")
    page.line()


def _shown(rows: pl.DataFrame) -> Sequence[tuple[str, Mapping[str, Any]]]:
    found = rows.to_dicts()
    several = len(found) > rows["rank"].n_unique()
    titled = [(_title(one, with_device=several), one) for one in found]
    if len(found) > MOST_RANKS:
        by_time = sorted(titled, key=lambda one: -one[1]["device_step_ns"])
        picked = {"slowest": by_time[0], "median": by_time[len(by_time) // 2], "fastest": by_time[-1]}
        titled = [(f"{title} ({why})", one) for why, (title, one) in picked.items()]
    if len(found) > 1:
        titled.append((f"mean of {len(found)}", rows.mean().row(0, named=True)))
    return titled


def _title(one: Mapping[str, Any], *, with_device: bool) -> str:
    return f"rank {one['rank']} device {one['device']}" if with_device else f"rank {one['rank']}"


def _row(title: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    overlap = "-" if not one["communication_ns"] else _ms(one["overlapped_ns"])
    return title, _ms(one["device_step_ns"]), *(_part(one, f"{part}_ns") for part in PARTS), overlap


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f}"


def _part(one: Mapping[str, Any], name: str) -> str:
    whole = one["device_step_ns"]
    if one[name] is None:
        return UNKNOWN
    return f"{_ms(one[name])} {100 * one[name] / whole:4.1f} %" if whole else _ms(one[name])


def devices_data(devices: DeviceSteps) -> dict[str, Any]:
    """Returns the mean step of each device, each step, its streams, and what hosts do while devices wait for them."""
    return {"steps": mean_device_steps(devices).to_dicts(), "by_step": devices.steps.to_dicts(),
            "streams": mean_streams(devices), "host_meanwhile": host_meanwhile(devices).to_dicts(),
            "calls_meanwhile": calls_meanwhile(devices).to_dicts(),
            "lines_meanwhile": lines_meanwhile(devices).to_dicts(),
            "look_like_communication": devices.alike.to_dicts(), "in_no_step": devices.outside.to_dicts()}
