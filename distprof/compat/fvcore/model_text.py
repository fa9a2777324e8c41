"""A model as torch prints it, with parameters, flops and activations of every module."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from distprof.compat.fvcore.analysis import JitModelAnalysis
from distprof.compat.fvcore.parameters import parameter_count
from distprof.compat.fvcore.row_tree import scaled

MISSING = ("N/A indicates a possibly missing statistic due to how the module was called. Missing values are still "
           "included in the parent's total.\n")


def flop_count_str(flops: JitModelAnalysis, activations: JitModelAnalysis | None = None) -> str:
    """The model as `print(model)` shows it, with parameters, flops and activations of every module."""
    analyses = {"#flops": flops} | ({"#acts": activations} if activations is not None else {})
    numbers = {"#params": parameter_count(flops.model)} | {
        label: analysis.quiet().by_module() for label, analysis in analyses.items()}
    uncalled = {label: analysis.uncalled_modules() for label, analysis in analyses.items()}
    never: set[str] = set().union(*uncalled.values())
    facts = {}
    for name, _ in flops.model.named_modules():
        own = {label: by_name.get(name, 0) for label, by_name in numbers.items()}
        if any(own.values()) or name in (never or {""}):
            facts[name] = ", ".join(f"{label}: {'N/A' if name in uncalled.get(label, ()) else scaled(number, 2)}"
                                    for label, number in own.items())
    return (MISSING if never else "") + repr(_Printed(flops.model, "", facts))


class _Printed(nn.Module):
    """Takes the place of a module in print: same name, its description and its numbers, the same below it."""

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
