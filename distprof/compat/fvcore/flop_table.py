"""fvcore's table of parameters, flops and activations by module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from distprof.compat.fvcore.analysis import JitModelAnalysis
from distprof.compat.fvcore.module_names import name_and_holders
from distprof.compat.fvcore.parameters import parameter_count, parameter_shapes
from distprof.compat.fvcore.row_tree import Row, pipe_table, row_tree, scaled

Cells = dict[str, dict[str, str]]
"""Name of a module or parameter -> column -> text."""


def flop_count_table(flops: JitModelAnalysis, max_depth: int = 3, activations: JitModelAnalysis | None = None,
                     show_param_shapes: bool = True) -> str:  # noqa: FBT001 (fvcore's signature)
    """Parameters, flops and activations by module as a table; a module with one child that has the same is one row.

    Args:
        flops: A `FlopCountAnalysis`.
        max_depth: How deep to go.
        activations: An `ActivationCountAnalysis` for one more column.
        show_param_shapes: Rows for parameters, with their shapes.
    """
    header = "#parameters or shape" if show_param_shapes else "#parameters"
    analyses = {"#flops": flops} | ({"#activations": activations} if activations is not None else {})
    cells = _without_zeros(header, analyses)
    for name, shape in parameter_shapes(flops.model).items():
        if show_param_shapes and name in cells:
            cells[name][header] = shape
        else:
            cells.pop(name, None)
    columns = [header, *analyses]
    return pipe_table(["module", *columns], _joined(row_tree(cells)).lines(columns, max_depth))


def _without_zeros(header: str, analyses: Mapping[str, JitModelAnalysis]) -> Cells:
    """Numbers of modules and parameters as text, where one or what it holds has more than zeros."""
    columns: dict[str, Mapping[str, float]] = {header: parameter_count(analyses["#flops"].model)}
    columns |= {column: analysis.quiet().by_module() for column, analysis in analyses.items()}
    numbers: dict[str, dict[str, float]] = defaultdict(dict)
    for column, by_name in columns.items():
        for name, number in by_name.items():
            numbers[name][column] = number
    kept = {""}.union(*(name_and_holders(name) for name, values in numbers.items() if any(values.values())))
    unseen = {(name, column) for column, analysis in analyses.items() for name in analysis.uncalled_modules()}
    return {name: {column: "" if (name, column) in unseen else scaled(number, 3) for column, number in values.items()}
            for name, values in numbers.items() if name in kept}


def _joined(row: Row) -> Row:
    """Rows with one row below them that differs in no cell both fill become that row."""
    while len(row.below) == 1 and (cells := _together(row.cells, row.below[0].cells)) is not None:
        row = Row(name=row.below[0].name, cells=cells, below=row.below[0].below)
    return Row(name=row.name, cells=row.cells, below=[_joined(below) for below in row.below])


def _together(upper: Mapping[str, str], lower: Mapping[str, str]) -> dict[str, str] | None:
    """The filled cells of two rows; None where they have other columns or differ in a cell."""
    both = {column: {upper[column], lower[column]} - {""} for column in upper.keys() & lower.keys()}
    if upper.keys() != lower.keys() or any(len(texts) > 1 for texts in both.values()):
        return None
    return {column: "".join(both[column]) for column in upper}
