"""Numbers of every module at one moment: parameters, own work and times come in, inclusive sums go out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from distprof.reporters.deepspeed_layout import Numbers

EXPERT_GROUP = "ep_size_"
"""DeepSpeed's name of the process group of an expert parameter begins so and ends with the number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamNumbers:
    """Parameters of one module, submodules included."""

    plain: int = 0
    expert: int = 0
    """Of the experts on this rank."""
    all_experts: int = 0
    """Of the experts on all ranks of their groups."""

    @property
    def params(self) -> int:
        """All on this rank."""
        return self.plain + self.expert

    @classmethod
    def of(cls, module: nn.Module, *, logical: bool) -> ParamNumbers:
        """Counts them; `logical` takes a parameter that ZeRO-3 has partitioned with its full size."""
        plain = expert = all_experts = 0
        for parameter in module.parameters():
            size = int(getattr(parameter, "ds_numel", parameter.numel()) if logical else parameter.numel())
            ranks = _expert_ranks(parameter)
            plain += 0 if ranks else size
            expert += size if ranks else 0
            all_experts += size * ranks
        return cls(plain=plain, expert=expert, all_experts=all_experts)


def _expert_ranks(parameter: Any) -> int:
    name = getattr(parameter, "group_name", "")
    number = name.removeprefix(EXPERT_GROUP) if name.startswith(EXPERT_GROUP) else ""
    return int(number) if number.isdecimal() else 0


class Snapshot:
    """Inclusive numbers of the modules of one model.

    Args:
        params: By id of the module.
        amounts: FLOPs and MACs by id, submodules apart.
        seconds: Measured time by id, submodules included.
    """

    def __init__(self, params: Mapping[int, ParamNumbers], amounts: Mapping[int, tuple[int, int]],
                 seconds: Mapping[int, float]) -> None:
        self._params, self._amounts, self._seconds = params, amounts, seconds
        self._known: dict[int, Numbers] = {}

    def of(self, module: nn.Module) -> Numbers:
        """One module; one that several modules share has the calls of all of them."""
        if id(module) not in self._known:
            amounts = [self._amounts[id(sub)] for sub in module.modules() if id(sub) in self._amounts]
            params = self._params.get(id(module), ParamNumbers())
            self._known[id(module)] = Numbers(
                params=params.params, flops=sum(flops for flops, _ in amounts), macs=sum(macs for _, macs in amounts),
                seconds=self._duration(module))
        return self._known[id(module)]

    def _duration(self, module: nn.Module) -> float:
        """Of a module that is never called itself, like ModuleList: the time of its children."""
        return self._seconds.get(id(module), 0) or sum(self._duration(child) for child in module.children())
