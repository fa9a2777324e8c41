"""Counts multiply-accumulates independently, from the products that torch's own profiler sees, also inside kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from torch.profiler import ProfilerActivity, profile

MATRICES = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "baddbmm_": 1, "addbmm": 1, "addbmm_": 1}
"""Operator -> position of the first of its two factors; the second follows."""
VECTORS = {"mv": 0, "dot": 0, "vdot": 0, "addmv": 1, "addmv_": 1}
"""Operator -> position of the factor whose elements are each multiplied once."""


def profiled_macs(function: Callable[[], Any]) -> int:
    """Returns the multiply-accumulates of all matrix and vector products in a call, from their shapes."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        function()
    roots = [event for event in found.events() if event.cpu_parent is None]
    return sum(_macs(event) for event in _outermost(roots, lambda name: name in MATRICES or name in VECTORS))


def profiled_calls(function: Callable[[], Any], names: Callable[[str], bool]) -> Counter[str]:
    """Returns the number of calls of operators for which `names` is true, without calls nested in another of them."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        function()
    roots = [event for event in found.events() if event.cpu_parent is None]
    return Counter(event.name.removeprefix("aten::") for event in _outermost(roots, names))


def _outermost(events: list[Any], names: Callable[[str], bool]) -> Iterator[Any]:
    for event in events:
        if event.name.startswith("aten::") and names(event.name.removeprefix("aten::")):
            yield event
        else:
            yield from _outermost(event.cpu_children, names)


def _macs(event: Any) -> int:
    name, shapes = event.name.removeprefix("aten::"), event.input_shapes
    if name in VECTORS:
        return prod(shapes[VECTORS[name]])
    first = MATRICES[name]
    return prod(shapes[first]) * shapes[first + 1][-1]
