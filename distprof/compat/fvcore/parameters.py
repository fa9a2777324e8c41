"""fvcore's counts of parameters, as numbers and as a table."""

from __future__ import annotations

from collections import defaultdict

from torch import nn

from distprof.compat.fvcore.module_names import name_and_holders
from distprof.compat.fvcore.row_tree import pipe_table, row_tree, scaled

HEADERS = ("name", "#elements or shape")


def parameter_count(model: nn.Module) -> defaultdict[str, int]:
    """Elements of every parameter and, summed, of every module that holds it; '' is the model. Tied ones count once."""
    sums: defaultdict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        for module in name_and_holders(name):
            sums[module] += parameter.numel()
    return sums


def parameter_shapes(model: nn.Module) -> dict[str, str]:
    """Name of a parameter -> its shape, as text."""
    return {name: str(tuple(parameter.shape)) for name, parameter in model.named_parameters()}


def parameter_count_table(model: nn.Module, max_depth: int = 3) -> str:
    """Parameters of a model as a table, modules down to a depth."""
    texts = {"": "0"}
    for name, number in parameter_count(model).items():
        texts[name] = scaled(number, 1, letters="GMK", trimmed=False)
    texts |= parameter_shapes(model)
    root = row_tree({name: {HEADERS[1]: text} for name, text in texts.items()})
    return pipe_table(HEADERS, root.lines(HEADERS[1:], max_depth))
