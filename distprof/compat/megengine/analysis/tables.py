"""Tables of operators: boxed with several lines per cell, or for a wiki."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from distprof.terminal import visible

UNKNOWN = "N/A"
PREFIXES = ("", "K", "M", "G", "T", "P", "E")
BAR = 15
"""Length of the longest bar, in characters."""
WIDEST = 30
"""Names are wrapped at this number of characters."""


def boxed_operators(records: pl.DataFrame, side: str, total: float, *, ranks: bool) -> str:
    """Returns the default table.

    Args:
        records: The rows of `choosing.records` to show.
        side: device or host.
        total: Seconds to which percentages refer.
        ranks: Whether to show the rank of each operator.
    """
    header = [f"{side} self time", "cumulative", "operator info", "computation", "FLOPS", "memory", "bandwidth",
              "in_shapes", "out_shapes"]
    rows, cumulative = list[list[str]](), 0.0
    for index, row in enumerate(records.iter_rows(named=True)):
        cumulative += row["time"]
        rows.append([
            f"#{index}\n{row['time']:.3}\n{_share(row['time'], total)}",
            f"{cumulative:.3}\n{_share(cumulative, total)}",
            "\n".join("\n-  ".join(textwrap.wrap(visible(one), width=WIDEST)) for one in info(row, ranks=ranks)),
            _number(row["computation"], 1000, "FLO"), _number(row["flops"], 1000, "FLOPS"),
            _number(row["memory"], 1024, "iB", "byte"), _number(row["bandwidth"], 1024, "iB/s", "byte/s"),
            _shapes(row, "in_shapes"), _shapes(row, "out_shapes")])
    return boxed(header, rows)


def wiki_operators(records: pl.DataFrame, total: float, *, ranks: bool) -> str:
    """Returns the table for a wiki."""
    longest: dict[str, float] = {name: _largest(records[name]) for name in ("time", "flops", "bandwidth")}
    added_up = records["name"].null_count() == len(records)
    header = ["#", "time", "ratio", "time bar", "cum-time", "cum-time ratio",
              *(["opr type", "opr count", "opr id"] if added_up else ["opr name", "opr type", "opr id"]),
              *(["opr rank"] if ranks and not added_up else []), "computation (MFLO)", "MFLOPS", "MFLOPS-bar",
              "memory (MB)", "bandwidth (MiB/s)", "bandwidth bar", "in_shapes", "out_shapes"]
    rows, cumulative = list[list[str]](), 0.0
    for index, row in enumerate(records.iter_rows(named=True)):
        cumulative += row["time"]
        bars = {name: _bar(row[name], most) for name, most in longest.items()}
        rows.append([
            str(index), f"{row['time']:.3}", _share(row["time"], total), bars["time"], f"{cumulative:g}",
            f"{cumulative / total:g}" if total else UNKNOWN, *info(row, ranks=ranks),
            _scaled(row["computation"], 1000**2), _scaled(row["flops"], 1000**2), bars["flops"],
            _scaled(row["memory"], 1024**2), _scaled(row["bandwidth"], 1024**2), bars["bandwidth"],
            _shapes(row, "in_shapes", ", "), _shapes(row, "out_shapes", ", ")])
    return wiki(header, rows)


def info(row: dict[str, Any], *, ranks: bool = False) -> list[str]:
    """Returns name, type and id of an operator; for aggregated operators, type, count and `N/A`."""
    if row["name"] is None:
        return [row["type"], str(row["count"]), UNKNOWN]
    return [row["name"], row["type"], row["id"], *([f"rank {row['rank']}"] if ranks else [])]


def boxed(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Draws a box around each cell; line ends in cells are kept."""
    cells = [[cell.split("\n") for cell in row] for row in (header, *rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(header))]
    lines = [_rule("╒═╤╕", widths)]
    for number, row in enumerate(cells):
        if number:
            lines.append(_rule("╞═╪╡" if number == 1 else "├─┼┤", widths))
        for depth in range(max(map(len, row))):
            parts = ((cell[depth] if depth < len(cell) else "").ljust(width)
                     for cell, width in zip(row, widths, strict=True))
            lines.append(f"│ {' │ '.join(parts)} │")
    return "\n".join([*lines, _rule("╘═╧╛", widths)])


def wiki(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns rows as lines, with cells between vertical bars."""
    cells = [[visible(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    first, *others = (f"| {' | '.join(map(str.ljust, row, widths))} |" for row in cells)
    return "\n".join([first, f"|{'|'.join('-' * (width + 2) for width in widths)}|", *others])


def plain(rows: Sequence[Sequence[str]]) -> str:
    """Returns two columns between two horizontal rules."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([rule, *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows), rule])


def _rule(letters: str, widths: Sequence[int]) -> str:
    left, line, middle, right = list(letters)
    return left + middle.join(line * (width + 2) for width in widths) + right


def _bar(value: float | None, most: float) -> str:
    # 3 of 4.5 are 10 of 15, and 9.999999999999998 in floating point
    return "#" * int((value or 0) / most * BAR + 1e-9) if most else ""


def _share(part: float, whole: float) -> str:
    return f"{part / whole * 100:.1f}%" if whole else UNKNOWN


def _number(value: float | None, base: int, unit: str, small: str | None = None) -> str:
    """Formats a number: `1.50\\nGFLO`; `small` is the unit without a prefix."""
    if value is None:
        return f"{UNKNOWN}\n{small or unit}"
    index = 0
    while value >= base and index < len(PREFIXES) - 1:
        value, index = value / base, index + 1
    return f"{value:.2f}\n{PREFIXES[index]}{unit if index or small is None else small}"


def _scaled(value: float | None, base: int) -> str:
    return UNKNOWN if value is None else f"{value / base:.1f}"


def _largest(column: pl.Series) -> float:
    most = column.max()
    return float(most) if isinstance(most, int | float) else 0.0


def _shapes(row: dict[str, Any], name: str, separator: str = "\n") -> str:
    """Returns `{1,3,8,8}` for each tensor, with its strides if it is not contiguous."""
    if row[name] is None:
        return str(None) if row["name"] is None else UNKNOWN
    shapes = json.loads(row[name])
    strides = json.loads(row["in_layouts"] or "[]") if name == "in_shapes" else []
    between = "\n" if separator == "\n" else ""
    each = [_numbers("{%s}", shape) + (_numbers(f"{between} -[%s]", strides[index])
                                       if index < len(strides) and strides[index] else "")
            for index, shape in enumerate(shapes)]
    return separator.join(each)


def _numbers(form: str, numbers: object) -> str:
    return form % (",".join(map(str, numbers)) if isinstance(numbers, list) else numbers)
