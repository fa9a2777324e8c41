"""Operators of one rank in the columns, units and widths of torch.profiler's `key_averages().table()`."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

ROWS = 100
LONGEST_NAME, LONGEST_SHAPES, WIDTH, GAP = 55, 80, 12, "  "
SORTS = {"cpu_time_total": "host_ns", "self_cpu_time_total": "self_host_ns", "device_time_total": "device_ns",
         "self_device_time_total": "self_device_ns", "cuda_time_total": "device_ns",
         "self_cuda_time_total": "self_device_ns", "count": "calls", "cpu_time": "host_ns / calls",
         "device_time": "device_ns / calls", "cuda_time": "device_ns / calls"}
"""What `sort_by` may be -> column, or a mean a call."""


def torch_table(averages: pl.DataFrame, *, sort: str | None = None, rows: int = ROWS) -> str:
    """The table.

    Args:
        averages: Of `torch_averages`.
        sort: A name of `SORTS`, largest first; None: in the order of their first calls.
        rows: How many are shown.
    """
    if averages.is_empty():
        return ""
    totals = (int(averages["self_host_ns"].sum()), int(averages.filter("on_device")["self_device_ns"].sum()))
    if sort is not None:
        column, _, per = SORTS[sort].partition(" / ")
        key = pl.col(column) / pl.col(per) if per else pl.col(column)
        averages = averages.sort(key, descending=True, maintain_order=True)
    busy, shaped = bool(averages["self_device_ns"].sum()), averages["shapes"].is_not_null().any()
    header = ["Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg",
              *(("Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg") if busy else ()), "# of Calls",
              *(["Input Shapes"] if shaped else [])]
    widths = [_width(averages["name"], LONGEST_NAME), *[WIDTH] * (len(header) - 1 - shaped)]
    if shaped:
        widths.append(_width(averages["shapes"], LONGEST_SHAPES))
    rule = GAP.join("-" * width for width in widths) + GAP
    lines = [rule, _line(header, widths), rule]
    for row in averages.head(rows).iter_rows(named=True):
        calls = row["calls"]
        cells = [_name(row["name"]), _share(row["self_host_ns"], totals[0]), _time(row["self_host_ns"]),
                 _share(row["host_ns"], totals[0]), _time(row["host_ns"]), _time(row["host_ns"] / calls)]
        if busy:
            cells += [_time(row["self_device_ns"]), _share(row["self_device_ns"], totals[1]),
                      _time(row["device_ns"]), _time(row["device_ns"] / calls)]
        cells += [str(calls), *([row["shapes"][:widths[-1]]] if shaped else [])]
        lines.append(_line(cells, widths))
    lines += [rule, f"Self CPU time total: {_time(totals[0])}"]
    if busy:
        lines.append(f"Self CUDA time total: {_time(totals[1])}")
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) + GAP


def _width(texts: pl.Series, most: int) -> int:
    return min(max(map(len, texts.to_list())) + 4, most)


def _name(name: str) -> str:
    return name if len(name) < LONGEST_NAME - 3 else f"{name[:LONGEST_NAME - 3]}..."


def _share(part_ns: int, whole_ns: int) -> str:
    return f"{part_ns * 100 / whole_ns:.2f}%" if whole_ns else "NaN"


def _time(ns: float) -> str:
    for size, unit in ((1e9, "s"), (1e6, "ms")):
        if ns >= size:
            return f"{ns / size:.3f}{unit}"
    return f"{ns / 1000:.3f}us"
