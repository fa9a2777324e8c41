"""fvcore's tables and model string: an analysis comes in, text equal to fvcore's goes out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from distprof.compat.fvcore.analysis import JitModelAnalysis

Stats = dict[str, dict[str, Any]]
"""Name of a module or parameter -> column -> value."""
UNITS = ((1e14, 1e15, "P"), (1e11, 1e12, "T"), (1e8, 1e9, "G"), (1e5, 1e6, "M"), (1e2, 1e3, "K"))
"""Numbers above the first are divided by the second."""
MISSING = ("N/A indicates a possibly missing statistic due to how the module was called. Missing values are still "
           "included in the parent's total.\n")


def parameter_count(model: nn.Module) -> defaultdict[str, int]:
    """Elements of every parameter and, summed, of every prefix of its name; '' is the model. A tied one counts once."""
    sums: defaultdict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        parts = name.split(".")
        for length in range(len(parts) + 1):
            sums[".".join(parts[:length])] += parameter.numel()
    return sums


def parameter_count_table(model: nn.Module, max_depth: int = 3) -> str:
    """Parameters of a model as a table, modules down to a depth."""
    counts = parameter_count(model)
    shapes, inside = _shapes(model), _inside(counts)
    rows = [["model", _rough(counts[""])]]

    def fill(module: str, level: int) -> None:
        if level > max_depth:
            return
        for name in inside[module]:
            value = shapes[name] if name in shapes else _rough(counts[name])
            rows.append([" " * level + name, " " * level + value])
            if name not in shapes:
                fill(name, level + 1)

    fill("", 1)
    return pipe_table(["name", "#elements or shape"], rows)


def flop_count_table(flops: JitModelAnalysis, max_depth: int = 3, activations: JitModelAnalysis | None = None,
                     show_param_shapes: bool = True) -> str:  # noqa: FBT001 (fvcore's signature)
    """Parameters, flops and activations by module as a table; a module with one child that says the same is one row.

    Args:
        flops: A `FlopCountAnalysis`.
        max_depth: How deep to go.
        activations: An `ActivationCountAnalysis` for one more column.
        show_param_shapes: Rows for parameters, with their shapes.
    """
    header = "#parameters or shape" if show_param_shapes else "#parameters"
    columns = {"#flops": flops} | ({"#activations": activations} if activations is not None else {})
    stats = _without_zeros(_gather(flops.model, header, columns), keep={""}, with_parents=True)
    cells = _texts(stats, digits=3)
    for column, analysis in columns.items():
        for name in analysis.uncalled_modules() & cells.keys():
            cells[name][column] = ""
    for name, shape in _shapes(flops.model).items():
        if name in cells and show_param_shapes:
            cells[name][header] = shape
        elif name in cells:
            del cells[name]
    return pipe_table(["module", header, *columns], _rows(cells, [header, *columns], max_depth))


def flop_count_str(flops: JitModelAnalysis, activations: JitModelAnalysis | None = None) -> str:
    """The model as `print(model)` shows it, with parameters, flops and activations of every module."""
    model = flops.model
    columns = {"#flops": flops} | ({"#acts": activations} if activations is not None else {})
    stats = _gather(model, "#params", columns)
    uncalled = {column: analysis.uncalled_modules() for column, analysis in columns.items()}
    for name, _ in model.named_modules():
        stats[name] = dict.fromkeys(("#params", *columns), 0) | stats.get(name, {})
    never: set[str] = set().union(*uncalled.values())
    cells = _texts(_without_zeros(stats, keep=never or {""}, with_parents=False), digits=2)
    for column, names in uncalled.items():
        for name in names:
            cells.setdefault(name, {})[column] = "N/A"
    return (MISSING if never else "") + _model_text(model, "", cells)


def pipe_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns; a column of nothing but integers is flush right."""
    columns = list(zip(headers, *rows, strict=True))
    widths = [max(len(header) + 2, *map(len, cells)) for header, *cells in columns]
    right = [_is_numeric(cells) for _, *cells in columns]
    rule = "|".join("-" * (width + 1) + ":" if flush else ":" + "-" * (width + 1)
                    for width, flush in zip(widths, right, strict=True))
    lines = [" | ".join(cell.rjust(width) if flush else cell.ljust(width)
                        for cell, width, flush in zip(row, widths, right, strict=True)) for row in (headers, *rows)]
    return "\n".join([f"| {lines[0]} |", f"|{rule}|", *(f"| {line} |" for line in lines[1:])])


def _is_numeric(cells: Iterable[str]) -> bool:
    filled = [cell.strip() for cell in cells if cell]
    return bool(filled) and all(cell.isdecimal() for cell in filled)


def _shapes(model: nn.Module) -> dict[str, str]:
    return {name: str(tuple(parameter.shape)) for name, parameter in model.named_parameters()}


def _gather(model: nn.Module, header: str, columns: Mapping[str, JitModelAnalysis]) -> Stats:
    stats: Stats = defaultdict(dict)
    for name, number in parameter_count(model).items():
        stats[name][header] = number
    for column, analysis in columns.items():
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).tracer_warnings("none")
        for name, number in analysis.by_module().items():
            stats[name][column] = number
    return stats


def _inside(names: Iterable[str]) -> defaultdict[str, list[str]]:
    """Name -> names directly below it, in their order."""
    found = defaultdict(list)
    for name in names:
        if name:
            found[name.rpartition(".")[0]].append(name)
    return found


def _below(name: str) -> str:
    return f"{name}." if name else ""


def _without_zeros(stats: Stats, *, keep: set[str], with_parents: bool) -> Stats:
    """What is not zero in every column or must be kept; if asked, also the modules above."""
    kept: set[str] = set()
    inside = _inside(stats)

    def visit(name: str) -> None:
        for child in inside[name]:
            visit(child)
        if any(stats[name].values()) or name in keep or (with_parents and not kept.isdisjoint(inside[name])):
            kept.add(name)

    visit("")
    return {name: dict(values) for name, values in stats.items() if name in kept}


def _texts(stats: Stats, digits: int) -> dict[str, dict[str, str]]:
    return {name: {column: _size(value, digits) for column, value in values.items()}
            for name, values in stats.items()}


def _size(number: float, digits: int) -> str:
    for above, unit, suffix in UNITS:
        if number > above:
            return f"{number / unit:.{digits}f}".rstrip("0").rstrip(".") + suffix
    return str(number)


def _rough(number: int) -> str:
    return next((f"{number / unit:.1f}{suffix}" for above, unit, suffix in UNITS[2:] if number > above), str(number))


def _rows(cells: dict[str, dict[str, str]], columns: Sequence[str], max_depth: int) -> list[list[str]]:
    inside = _inside(cells)
    root, values = _merged("", cells, inside)
    rows = [[root or "model", *(values.get(column, "") for column in columns)]]

    def fill(module: str, level: int) -> None:
        if level > max_depth:
            return
        for child in inside[module]:
            name, values = _merged(child, cells, inside)
            texts = [name.removeprefix(_below(root)),
                     *(values.get(column) for column in columns)]
            rows.append(["" if text is None else " " * level + text for text in texts])
            fill(name, level + 1)

    fill(root, 1)
    return rows


def _merged(name: str, cells: dict[str, dict[str, str]], inside: Mapping[str, list[str]],
            ) -> tuple[str, dict[str, str]]:
    """Goes down while a module has a single child that says nothing else; name of the last and what all say."""
    values = cells[name]
    while len(inside[name]) == 1 and (together := _together(values, cells[inside[name][0]])) is not None:
        name, values = inside[name][0], together
        cells[name] = values
    return name, values


def _together(first: dict[str, str], second: dict[str, str]) -> dict[str, str] | None:
    """Both rows as one; None where they have other columns or differ in one that both fill."""
    if first.keys() != second.keys() or any(
            text and second[column] and text != second[column] for column, text in first.items()):
        return None
    return {column: text or second[column] for column, text in first.items()}


def _model_text(module: nn.Module, name: str, cells: Mapping[str, Mapping[str, str]]) -> str:
    facts = ", ".join(f"{column}: {text}" for column, text in cells.get(name, {}).items())
    own = [line for text in (module.extra_repr(), facts) if text for line in text.split("\n")]
    below = []
    for key, child in module._modules.items():
        text = "None" if child is None else _model_text(child, f"{_below(name)}{key}", cells)
        below.append(f"({key}): {text}")
    if not own and not below:
        inside = ""
    elif len(own) == 1 and not below:
        inside = own[0]
    else:
        inside = "\n  " + "\n  ".join([*own, *(line for text in below for line in text.split("\n"))]) + "\n"
    return f"{module._get_name()}({inside})"
