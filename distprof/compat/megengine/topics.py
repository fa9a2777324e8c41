"""Which events of torch.profiler belong to which topic."""

from __future__ import annotations

from typing import Any

from distprof.contract.tables import COMPILE_SLICE_END
from distprof.contract.topics import Topic

DEFAULT = Topic.OPERATOR | Topic.SCOPE
READS = frozenset(("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"))
"""Operators that give the script a value."""
BLOCKING = READS | {"aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim"}
"""Operators whose result depends on values, so that the host waits for them."""
BLOCKING_CALLS = ("Synchronize", "cudaMemcpy")
"""Found in names of calls of the runtime that wait; `cudaMemcpyAsync` does not."""
BY_CATEGORY = {
    "kernel": Topic.OPERATOR, "gpu_memcpy": Topic.OPERATOR, "gpu_memset": Topic.OPERATOR, "fwdbwd": Topic.OPERATOR,
    "cuda_runtime": Topic.COMMAND, "cuda_driver": Topic.COMMAND, "ac2g": Topic.COMMAND | Topic.OPERATOR,
    "user_annotation": Topic.SCOPE, "gpu_user_annotation": Topic.SCOPE}


def topics_of(category: str, name: str) -> Topic:
    """The topics that an event of torch.profiler belongs to; none for what no topic shows."""
    if name.endswith(COMPILE_SLICE_END):
        return Topic.SHAPE_INFER
    found = BY_CATEGORY.get(category, Topic(0))
    if category == "cpu_op":
        found = Topic.OPERATOR
        found |= Topic.TENSOR_PROP if name in READS else Topic(0)
        found |= Topic.SYNC if name in BLOCKING else Topic(0)
    if category in ("cuda_runtime", "cuda_driver") and _waits(name):
        found |= Topic.SYNC
    return found


def wanted(event: dict[str, Any], topic: Topic) -> bool:
    """True for an event that one of the topics shows; an arrow needs those of both its ends."""
    found = topics_of(str(event.get("cat", "")), str(event.get("name", "")))
    return bool(found) and (found & topic == found if event.get("ph") in ("s", "f") else bool(found & topic))


def _waits(name: str) -> bool:
    return any(part in name for part in BLOCKING_CALLS) and "Async" not in name
