"""Tables whose rows are a tree of modules and parameters, indented by depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))


@dataclass(slots=True, kw_only=True)
class Row:
    """A module or a parameter."""

    name: str
    """Full, like features.0.weight; '' is the model."""
    cells: dict[str, str]
    """Column -> text; a column may be missing."""
    below: list[Row] = field(default_factory=list)

    def lines(self, columns: Sequence[str], max_depth: int) -> Iterator[list[str]]:
        """The cells of this row and those below it, down to a depth; names lack that of this row, which all share."""
        yield [self.name or "model", *(self.cells.get(column, "") for column in columns)]
        prefix = f"{self.name}." if self.name else ""
        yield from (line for row in self.below for line in row._indented(columns, prefix, 1, max_depth))

    def _indented(self, columns: Sequence[str], prefix: str, depth: int, max_depth: int) -> Iterator[list[str]]:
        if depth <= max_depth:
            indent = " " * depth
            texts = (indent + self.cells[column] if column in self.cells else "" for column in columns)
            yield [indent + self.name.removeprefix(prefix), *texts]
            for row in self.below:
                yield from row._indented(columns, prefix, depth + 1, max_depth)


def row_tree(cells: Mapping[str, dict[str, str]]) -> Row:
    """The row of the model, with all others below it in their order.

    Args:
        cells: Name -> column -> text; the name above each name is there as well, '' for the model.
    """
    rows = {name: Row(name=name, cells=texts) for name, texts in cells.items()}
    for name, row in rows.items():
        if name:
            rows[name.rpartition(".")[0]].below.append(row)
    return rows[""]


def pipe_table(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; a column of nothing but integers is flush right."""
    table = [headers, *lines]
    columns = [_column(cells) for cells in zip(*table, strict=True)]
    return "\n".join(f"|{'|'.join(cells)}|" for cells in zip(*columns, strict=True))


def _column(cells: Sequence[str]) -> list[str]:
    header, *below = cells
    filled = [cell.strip() for cell in below if cell]
    width = max(len(header) + 2, *map(len, below))
    if filled and all(cell.isdecimal() for cell in filled):
        texts, rule = [cell.rjust(width) for cell in cells], "-" * (width + 1) + ":"
    else:
        texts, rule = [cell.ljust(width) for cell in cells], ":" + "-" * (width + 1)
    first, *rest = (f" {text} " for text in texts)
    return [first, rule, *rest]


def scaled(number: float, digits: int, *, letters: str = "PTGMK", trimmed: bool = True) -> str:
    """A number in the largest scale of which it is more than a tenth: 123456 is 0.123M.

    Args:
        number: A number of elements, flops or activations.
        digits: Behind the point.
        letters: Of the scales to choose from.
        trimmed: Without zeros at the end.
    """
    for scale, letter in SCALES:
        if letter in letters and number > scale / 10:
            text = f"{number / scale:.{digits}f}"
            return (text.rstrip("0").rstrip(".") if trimmed else text) + letter
    return str(number)
