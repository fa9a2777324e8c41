"""Work and time of every module of a model, submodules included, at one moment."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from distprof.compat.deepspeed.params import ParamCounts
from distprof.reporters.deepspeed_layout import ModuleProfile


class ModuleProfiles:
    """Sums the numbers of modules and their submodules.

    Args:
        params: By id of the module.
        amounts: FLOPs and MACs by id, submodules apart.
        seconds: Measured time by id, submodules included.
    """

    def __init__(self, params: Mapping[int, ParamCounts], amounts: Mapping[int, tuple[int, int]],
                 seconds: Mapping[int, float]) -> None:
        self._params, self._amounts, self._seconds = params, amounts, seconds
        self._summed: dict[int, ModuleProfile] = {}

    def of(self, module: nn.Module) -> ModuleProfile:
        """One module; a module that several others share has the calls of all of them."""
        if id(module) not in self._summed:
            amounts = [self._amounts[id(sub)] for sub in module.modules() if id(sub) in self._amounts]
            params = self._params.get(id(module), ParamCounts())
            self._summed[id(module)] = ModuleProfile(
                params=params.on_this_rank, flops=sum(flops for flops, _ in amounts),
                macs=sum(macs for _, macs in amounts), seconds=self._duration(module))
        return self._summed[id(module)]

    def _duration(self, module: nn.Module) -> float:
        """The children's time stands in for that of a module that is never called itself, like ModuleList."""
        return self._seconds.get(id(module), 0) or sum(self._duration(child) for child in module.children())
