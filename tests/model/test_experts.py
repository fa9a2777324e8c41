"""Which modules are routed experts, and which share of the tokens each of them sees."""

from __future__ import annotations

import pytest
from torch import nn

from distprof.model.experts import active_ratios


class Mixture(nn.Module):
    """Four routed experts, of which a token goes to two, and one that all tokens go to."""

    def __init__(self, shared: str = "shared_expert") -> None:
        super().__init__()
        self.top_k = 2
        self.gate = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8)) for _ in range(4))
        self.add_module(shared, nn.Linear(8, 8))
        self.experts[0].add_module("shared", nn.Linear(8, 8))


def ratios(model: nn.Module) -> dict[str, float]:
    found = active_ratios(model)
    return {name: found[id(module)] for name, module in model.named_modules() if id(module) in found}


@pytest.mark.parametrize("shared", ["shared_expert", "shared_experts"])
def test_routed_experts_see_a_share_of_the_tokens_and_shared_ones_all(shared):
    routed = {"experts", *(f"experts.{number}{part}" for number in range(4) for part in ("", ".0", ".1"))}
    assert ratios(nn.Sequential(Mixture(shared))) == {f"0.{name}": 0.5 for name in routed}


def test_a_mixture_that_does_not_say_how_many_experts_a_token_goes_to_is_left_out():
    model = Mixture()
    del model.top_k
    assert ratios(model) == {}
