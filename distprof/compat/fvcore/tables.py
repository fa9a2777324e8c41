"""fvcore's texts: tables of modules and parameters, and the printed model with its numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from distprof.compat.fvcore.analysis import JitModelAnalysis
from distprof.compat.fvcore.module_sums import name_and_holders

SCALES = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3}
MISSING = ("N/A indicates a possibly missing statistic due to how the module was called. Missing values are still "
           "included in the parent's total.\n")
NAME, SHAPE = "name", "#elements or shape"


def parameter_count(model: nn.Module) -> defaultdict[str, int]:
    """Returns the elements of every parameter, and their sums for all modules; '' is the model. Tied ones count
    once."""
    sums: defaultdict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        for module in name_and_holders(name):
            sums[module] += parameter.numel()
    return sums


def parameter_count_table(model: nn.Module, max_depth: int = 3) -> str:
    """Returns a table of the parameters of a model and its modules down to a depth."""
    texts = {"": "0"} | {name: _scaled(number, 1, letters="GMK", trimmed=False)
                         for name, number in parameter_count(model).items()} | _parameter_shapes(model)
    root = _row_tree({name: {SHAPE: text} for name, text in texts.items()})
    return _pipe_table([NAME, SHAPE], root.lines([SHAPE], max_depth))


def flop_count_table(flops: JitModelAnalysis, max_depth: int = 3, activations: JitModelAnalysis | None = None,
                     show_param_shapes: bool = True) -> str:  # noqa: FBT001 (fvcore's signature)
    """Returns a table of parameters, flops and activations by module; a module and its only child share a row if equal.

    Args:
        flops: A `FlopCountAnalysis`.
        max_depth: Largest depth of a row.
        activations: An `ActivationCountAnalysis` for another column.
        show_param_shapes: Whether to add rows for parameters, with their shapes.
    """
    header = "#parameters or shape" if show_param_shapes else "#parameters"
    numbers, uncalled = _numbers(header, {"#flops": flops, "#activations": activations})
    texts = {column: {name: "" if name in uncalled.get(column, ()) else _scaled(number, 3)
                      for name, number in by_name.items()} for column, by_name in numbers.items()}
    busy = (name_and_holders(name) for by_name in numbers.values() for name, number in by_name.items() if number)
    shown = {""}.union(*busy)
    cells = {name: {column: by_name[name] for column, by_name in texts.items() if name in by_name}
             for name in dict.fromkeys(name for by_name in texts.values() for name in by_name) if name in shown}
    for name, shape in _parameter_shapes(flops.model).items():
        if show_param_shapes and name in cells:
            cells[name][header] = shape
        else:
            cells.pop(name, None)
    return _pipe_table(["module", *numbers], _joined(_row_tree(cells)).lines(list(numbers), max_depth))


def flop_count_str(flops: JitModelAnalysis, activations: JitModelAnalysis | None = None) -> str:
    """Returns the text of `print(model)`, with parameters, flops and activations of every module."""
    numbers, uncalled = _numbers("#params", {"#flops": flops, "#acts": activations})
    never: set[str] = set().union(*uncalled.values())
    facts = {}
    for name, _ in flops.model.named_modules():
        own = {label: by_name.get(name, 0) for label, by_name in numbers.items()}
        if any(own.values()) or name in (never or {""}):
            facts[name] = ", ".join(f"{label}: {'N/A' if name in uncalled.get(label, ()) else _scaled(number, 2)}"
                                    for label, number in own.items())
    return (MISSING if never else "") + repr(_Printed(flops.model, "", facts))


class _Printed(nn.Module):
    """Replaces a module for printing: the same name and description, plus its numbers; its children likewise."""

    def __init__(self, module: nn.Module, name: str, facts: Mapping[str, str]) -> None:
        super().__init__()
        self._title: str = module._get_name()
        self._text: str = "\n".join(filter(None, (module.extra_repr(), facts.get(name, ""))))
        for key, child in module._modules.items():
            path = f"{name}.{key}" if name else key
            self._modules[key] = None if child is None else _Printed(child, path, facts)

    def _get_name(self) -> str:
        return self._title

    def extra_repr(self) -> str:
        return self._text


def _numbers(params: str, analyses: Mapping[str, JitModelAnalysis | None],
             ) -> tuple[dict[str, Mapping[str, float]], dict[str, set[str]]]:
    """Returns label -> numbers by name, parameters first; and label of an analysis -> modules in which nothing ran."""
    made = {label: analysis.quiet() for label, analysis in analyses.items() if analysis is not None}
    found: dict[str, Mapping[str, float]] = {params: parameter_count(made["#flops"].model)}
    return (found | {label: analysis.by_module() for label, analysis in made.items()},
            {label: analysis.uncalled_modules() for label, analysis in made.items()})


def _parameter_shapes(model: nn.Module) -> dict[str, str]:
    return {name: str(tuple(parameter.shape)) for name, parameter in model.named_parameters()}


@dataclass(slots=True, kw_only=True)
class _Row:
    """A module or parameter."""

    name: str
    """Full name, like features.0.weight; '' is the model."""
    cells: dict[str, str]
    """Column -> text; a column may be missing."""
    below: list[_Row] = field(default_factory=list)

    def lines(self, columns: Sequence[str], max_depth: int, depth: int = 0, prefix: str = "") -> Iterator[list[str]]:
        """Yields the cells of this row and those below it, indented, down to a depth; names omit the prefix.

        The prefix is the name of the first row, which is not '' if the model was joined with its only child.
        """
        indent = " " * depth
        yield [indent + (self.name.removeprefix(prefix) or "model"),
               *(indent + self.cells[column] if column in self.cells else "" for column in columns)]
        if depth == 0:
            prefix = f"{self.name}." if self.name else ""
        for row in self.below if depth < max_depth else ():
            yield from row.lines(columns, max_depth, depth + 1, prefix)


def _row_tree(cells: Mapping[str, dict[str, str]]) -> _Row:
    """Returns the row of the model, with all others below it; `cells` has each name, and all names above it."""
    rows = {name: _Row(name=name, cells=texts) for name, texts in cells.items()}
    for name, row in rows.items():
        if name:
            rows[name.rpartition(".")[0]].below.append(row)
    return rows[""]


def _joined(row: _Row) -> _Row:
    """Joins rows with their only child if no cell that both fill differs; returns the rows."""
    while len(row.below) == 1 and (cells := _together(row.cells, row.below[0].cells)) is not None:
        row = _Row(name=row.below[0].name, cells=cells, below=row.below[0].below)
    return _Row(name=row.name, cells=row.cells, below=[_joined(below) for below in row.below])


def _together(upper: Mapping[str, str], lower: Mapping[str, str]) -> dict[str, str] | None:
    """Returns the joint cells of two rows; None if their columns or a cell that both fill differ."""
    differs = upper.keys() != lower.keys() or any(
        upper[column] and lower[column] and upper[column] != lower[column] for column in upper)
    return None if differs else {column: upper[column] or lower[column] for column in upper}


def _pipe_table(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table with aligned columns; columns of integers are aligned right."""
    columns = [_column(cells) for cells in zip(headers, *lines, strict=True)]
    return "\n".join(f"|{'|'.join(cells)}|" for cells in zip(*columns, strict=True))


def _column(cells: Sequence[str]) -> list[str]:
    header, *below = cells
    filled = [cell.strip() for cell in below if cell]
    width = max(len(header) + 2, *map(len, below))
    numeric = bool(filled) and all(cell.isdecimal() for cell in filled)
    first, *rest = (f" {cell:{'>' if numeric else '<'}{width}} " for cell in cells)
    line = "-" * (width + 1)
    return [first, f"{line}:" if numeric else f":{line}", *rest]


def _scaled(number: float, digits: int, *, letters: str = "PTGMK", trimmed: bool = True) -> str:
    """Formats a number with the largest prefix of which it exceeds a tenth: 0.123M for 123456; `trimmed` removes final
    zeros."""
    for letter in letters:
        if number > SCALES[letter] / 10:
            text = f"{number / SCALES[letter]:.{digits}f}"
            return (text.rstrip("0").rstrip(".") if trimmed else text) + letter
    return str(number)
