"""Which modules are routed experts, and to how many of them a token goes.

Read from what implementations of mixtures of experts have in common: children with `expert` in their name, beside a
gate or router whose weight has a row per expert, and the number of experts of a token as an attribute.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

ROUTERS = ("gate", "router")
NUM_EXPERTS = ("num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts", "num_total_experts",
               "n_experts", "num_local_experts")
"""Names of the number of experts; the last is that of all experts in Mixtral, and of this rank's in DeepSpeed, whose
router says the other."""
TOP_K = ("top_k", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "topk", "moe_router_topk", "k")


def active_ratios(root: nn.Module) -> dict[int, float]:
    """Share of the tokens that a routed expert sees, if all experts get the same.

    Returns:
        id of a module -> experts of a token / experts, for routed experts and what is inside them; what does not say
        both numbers is left out.
    """
    return {id(inner): ratio for module in root.modules() if (ratio := _ratio(module)) is not None
            for inner in _routed(module)}


def _ratio(module: nn.Module) -> float | None:
    children = dict(module.named_children())
    if not any("expert" in name for name in children):
        return None
    routers = [children[name] for name in ROUTERS if name in children]
    places = [*routers, module, *(found for one in (*routers, module) if (found := getattr(one, "config", None)))]
    num_experts = next((rows for one in routers if (rows := _rows(one)) is not None), None) or _first(
        places, NUM_EXPERTS)
    top_k = _first(places, TOP_K)
    return top_k / num_experts if num_experts and top_k and top_k <= num_experts else None


def _rows(router: nn.Module) -> int | None:
    """Rows of the only matrix of a router: one per expert."""
    matrices = [parameter for parameter in router.parameters() if parameter.dim() == 2]
    return int(matrices[0].shape[0]) if len(matrices) == 1 else None


def _first(places: list[object], names: tuple[str, ...]) -> int | None:
    found = (getattr(place, name, None) for place in places for name in names)
    return next((value for value in found if type(value) is int and value > 0), None)


def _routed(module: nn.Module) -> Iterator[nn.Module]:
    for name, child in module.named_children():
        if "expert" in name and "shared" not in name:
            yield from (inner for path, inner in child.named_modules() if "shared" not in path)
