"""Numbers of parameters as DeepSpeed counts them: those of experts apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

EXPERT_GROUP = "ep_size_"
"""DeepSpeed's name of the process group of an expert parameter begins so and ends with the number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCounts:
    """Parameters of one module, submodules included."""

    plain: int = 0
    expert: int = 0
    """Of the experts on this rank."""
    all_experts: int = 0
    """Of the experts on all ranks of their groups."""

    @property
    def on_this_rank(self) -> int:
        """Plain ones and those of the experts here."""
        return self.plain + self.expert

    @classmethod
    def of(cls, module: nn.Module, *, logical: bool) -> ParamCounts:
        """Counts the parameters of a module; `logical` takes one that ZeRO-3 has partitioned with its full size."""
        plain = expert = all_experts = 0
        for parameter in module.parameters():
            size = int(getattr(parameter, "ds_numel", parameter.numel()) if logical else parameter.numel())
            ranks = _expert_ranks(parameter)
            plain += 0 if ranks else size
            expert += size if ranks else 0
            all_experts += size * ranks
        return cls(plain=plain, expert=expert, all_experts=all_experts)


def _expert_ranks(parameter: Any) -> int:
    """Ranks among which the experts are spread; 0 for a parameter of no expert."""
    name = getattr(parameter, "group_name", "")
    number = name.removeprefix(EXPERT_GROUP) if name.startswith(EXPERT_GROUP) else ""
    return int(number) if number.isdecimal() else 0
