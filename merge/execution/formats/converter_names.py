"""How chakra_converter (mlc-chakra 1.0.0, src/converter) tells communication: by names of NCCL's kernels, and those of
sends and receives by the name of the call around."""

from __future__ import annotations

import re
from typing import Any

KERNELS = {"all_reduce": "AllReduce", "all_to_all": "AllToAll", "all_gather": "AllGather",
           "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast"}
"""Op -> its name in those of kernels, in the order in which the converter looks for them."""
OF_NCCL = re.compile("nccl(dev)?kernel", re.IGNORECASE)
"""A kernel with this in its name and no op that the converter knows ends it with an error."""
KERNEL = re.compile("ncclKernel|ncclDevKernel")
BEGIN, SEND_RECV = "ncclDevKernel_", "ncclDevKernel_SendRecv"
AROUND = {"send": "c10d::send", "recv": "c10d::recv_"}
"""Op -> name of a call around it by which it is known."""
ELEMENTS, ITEM = 3, 4
"""Places in a recorded tensor."""


def is_read(op: str) -> bool:
    """Whether the converter has a way to tell this op."""
    return op in KERNELS or op in AROUND


def name_of(op: str, recorded: str) -> str:
    """The name of a kernel that is read as the op, with the recorded one in it unless that would be misread."""
    if op in AROUND:
        return recorded if SEND_RECV in recorded else f"{SEND_RECV}: {recorded}"
    if KERNEL.search(recorded) and _is_read_as(op, recorded):
        return recorded
    name = f"{BEGIN}{KERNELS[op]}"
    return both if _is_read_as(op, both := f"{name}: {recorded}") else name


def _is_read_as(op: str, name: str) -> bool:
    plain = name.replace("_", "").replace("-", "").lower()
    return SEND_RECV not in name and next((one for one, word in KERNELS.items() if word.lower() in plain), None) == op


def name_around(op: str) -> str | None:
    """The name of the call that has to be around the op; None where there may be any."""
    return AROUND.get(op)


def read_around(name: str) -> str | None:
    """The op as which a send or receive is read that has a call of this name around it."""
    return next((op for op in AROUND if op in name), None)


def read_bytes(values: Any, types: Any) -> int | None:
    """The bytes that the converter reads from inputs; None where they end it with an error."""
    if not isinstance(values, list) or not isinstance(types, list):
        return None
    found = 0
    try:
        for value, kind in zip(values, types, strict=False):
            if "Tensor" in kind:
                some = value if kind.startswith("GenericList[Tensor") else [value]
                found += sum(one[ELEMENTS] * one[ITEM] for one in some)
    except (TypeError, IndexError, KeyError, AttributeError):
        return None
    return found if type(found) is int else None
