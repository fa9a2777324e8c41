"""The work of a TorchScript module that torch's dispatcher does not see.

Optimised scripts hold operators of the interpreter's own: convolutions of oneDNN, fused groups. No mode sees them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

HIDDEN = ("mkldnn", "onednn", "fusiongroup", "tensorexprgroup")
"""Parts of the names of operators that work outside of the dispatcher."""
CONSTANTS = ("prim::ConstantMKLDNNTensor",)


def hidden_operators(module: nn.Module) -> Counter[str]:
    """Operators of the graph that was executed last on this thread, by how often they stand in it.

    Args:
        module: One that has just returned; anything but a script hides nothing.
    """
    if not isinstance(module, torch.jit.ScriptModule):
        return Counter()
    jit: Any = torch.jit
    graph = jit.last_executed_optimized_graph()
    return Counter(name for name in _names(graph) if _is_hidden(name)) if graph is not None else Counter()


def _is_hidden(name: str) -> bool:
    return name.startswith("prim::") and name not in CONSTANTS and any(part in name.lower() for part in HIDDEN)


def _names(block: Any) -> Iterator[str]:
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _names(inner)
        if node.kind().startswith("prim::DifferentiableGraph"):
            yield from _names(node.g("Subgraph"))
