"""Prints operators of one rank in the columns, units and widths of torch.profiler's `key_averages().table()`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import polars as pl

from distprof.merge.torch_table.averages import TorchAverages

ROWS = 100
LONGEST_NAME, LONGEST_SHAPES, LONGEST_FRAME, WIDTH, GAP = 55, 80, 75, 12, "  "
_PARTS = {"cpu_time_total": "host_us", "self_cpu_time_total": "self_host_us", "device_time_total": "device_us",
          "self_device_time_total": "self_device_us", "cpu_memory_usage": "host_bytes",
          "self_cpu_memory_usage": "self_host_bytes", "device_memory_usage": "device_bytes",
          "self_device_memory_usage": "self_device_bytes", "count": "calls", "flops": "flops",
          "cpu_time": "host_us / calls", "device_time": "device_us / calls"}
SORTS = _PARTS | {name.replace("device", "cuda"): column for name, column in _PARTS.items() if "device" in name}
"""Values of `sort_by` -> column, or a mean per call."""
FLOPS = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs")


def torch_table(averages: TorchAverages, *, sort: str | None = None, rows: int = ROWS) -> str:
    """Returns the table.

    Args:
        averages: Result of `torch_averages`.
        sort: A name in `SORTS`, largest first; None: in the order of their first calls.
        rows: Maximum number of rows.
    """
    found = averages.rows
    if found.is_empty():
        return ""
    if sort is not None:
        column, _, per = SORTS[sort].partition(" / ")
        found = found.sort(pl.col(column) / pl.col(per) if per else column, descending=True, maintain_order=True)
    table = _Table(averages, found)
    rule = GAP.join("-" * width for width in table.widths) + GAP
    lines = [rule, table.line(table.header), rule]
    for row in found.head(rows).iter_rows(named=True):
        lines += table.lines(row)
    lines += [rule, f"Self CPU time total: {_time(table.host_us)}"]
    if table.busy:
        lines.append(f"Self CUDA time total: {_time(table.device_us)}")
    return "\n".join(lines)


class _Table:
    """The columns of a table, and their widths."""

    def __init__(self, averages: TorchAverages, rows: pl.DataFrame) -> None:
        self.host_us = _sum(rows["self_host_us"])
        self.device_us = _sum(rows.filter("on_device")["self_device_us"])
        self.busy, self._memory = bool((rows["self_device_us"] > 0).any()), averages.has_memory
        self._device_memory = averages.has_device and bool((rows["self_device_bytes"] > 0).any())
        self.header = ["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"]
        self.header += ["Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg"] if self.busy else []
        self.header += ["CPU Mem", "Self CPU Mem"] if self._memory else []
        self.header += ["CUDA Mem", "Self CUDA Mem"] if self._memory and self._device_memory else []
        self.header.append("# of Calls")
        self.widths = [_width(rows["name"], LONGEST_NAME), *[WIDTH] * (len(self.header) - 1)]
        self._shapes, self._frames, self._flops = self._last(averages, rows)

    def _last(self, averages: TorchAverages, rows: pl.DataFrame) -> tuple[int | None, int | None, float | None]:
        """Adds the columns that not every table has; returns widths of shapes and frames, and a factor for FLOPs."""
        shapes = frames = per_flop = None
        if rows["shapes"].is_not_null().any() and (rows["shapes"] != "[]").any():
            shapes = _width(rows["shapes"], LONGEST_SHAPES)
            self._add("Input Shapes", shapes)
        found = [frame for stack in rows["stack"].to_list() for frame in stack or ()]
        if found:
            frames = _width(found, LONGEST_FRAME)
            self._add("Source Location", frames)
        least = min((flops for flops in rows["flops"] if flops > 0), default=0)
        if averages.has_flops and least:
            unit = min(int(math.log10(least) / 3), len(FLOPS) - 1)
            per_flop = pow(10, unit * -3.0)
            self._add(f"Total {FLOPS[unit]}", WIDTH)
        return shapes, frames, per_flop

    def _add(self, title: str, width: int) -> None:
        self.header.append(title)
        self.widths.append(width)

    def lines(self, row: Mapping[str, Any]) -> list[str]:
        """Returns the lines of a row: one, and one for each further frame."""
        cells = [_name(row["name"]), _share(row["self_host_us"], self.host_us), _time(row["self_host_us"]),
                 "0" if row["is_async"] else _share(row["host_us"], self.host_us), _time(row["host_us"]),
                 _time(row["host_us"] / row["calls"])]
        if self.busy:
            cells += [_time(row["self_device_us"]), _share(row["self_device_us"], self.device_us),
                      _time(row["device_us"]), _time(row["device_us"] / row["calls"])]
        if self._memory:
            cells += [_size(row["host_bytes"]), _size(row["self_host_bytes"])]
            cells += [_size(row["device_bytes"]), _size(row["self_device_bytes"])] if self._device_memory else []
        cells.append(str(row["calls"]))
        if self._shapes is not None:
            cells.append(row["shapes"][:self._shapes])
        if self._flops is not None:  # before the frame, although its title comes after: torch does the same
            cells.append(f"{row['flops'] * self._flops:8.3f}" if row["flops"] else "--")
        if self._frames is None:
            return [self.line(cells)]
        first, *others = [_end(frame, self._frames) for frame in row["stack"]] or [""]
        empty = [""] * (len(self.header) - 1)
        return [self.line([*cells, first]), *(self.line([*empty, frame]) for frame in others), self.line([*empty, ""])]

    def line(self, cells: Sequence[str]) -> str:
        """Formats cells, right-aligned except for frames."""
        return GAP.join(cell.ljust(width) if title == "Source Location" else cell.rjust(width)
                        for cell, width, title in zip(cells, self.widths, self.header, strict=True)) + GAP


def _sum(values: pl.Series) -> float:
    """Sums values one after the other, as torch does: the last digit depends on it."""
    return reduce(add, values.to_list(), 0.0)


def _width(texts: Iterable[str], most: int) -> int:
    return min(max(map(len, texts)) + 4, most)


def _name(name: str) -> str:
    return name if len(name) < LONGEST_NAME - 3 else f"{name[:LONGEST_NAME - 3]}..."


def _end(frame: str, width: int) -> str:
    return frame if len(frame) <= width else f"...{frame[len(frame) - width + 3:]}"


def _share(part: float, whole: float) -> str:
    return f"{part * 100 / whole:.2f}%" if whole else "NaN"


def _time(us: float) -> str:
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= size:
            return f"{us / size:.3f}{unit}"
    return f"{us:.3f}us"


def _size(num_bytes: int) -> str:
    for exponent, unit in ((30, "GB"), (20, "MB"), (10, "KB")):
        if abs(num_bytes) >= 1 << exponent:
            return f"{num_bytes / (1 << exponent):.2f} {unit}"
    return f"{num_bytes} B"
