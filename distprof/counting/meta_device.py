"""Why a model cannot be called on the meta device, where tensors have shapes and no values."""

from __future__ import annotations

from typing import NamedTuple

import torch

READS_VALUES = "the model reads tensor values, which do not exist on the meta device"
GROUPED = "torch's grouped matrix product does not support float32 on the meta device"
"""Of experts: `torch._grouped_mm` runs in any precision on the CPU, where torch has a kernel for it."""

NO_FLOAT32 = ("Expected inputs of BF16 type", "Expected mat_a to be BFloat16")
"""What it says on the meta device, before torch 2.14 and in it."""


class NotOnMeta(NamedTuple):
    """The cause of an error that a model on meta raised."""

    cause: str
    cpu_can: bool
    """False if the model cannot run on the CPU either."""


def why_not_on_meta(error: BaseException) -> NotOnMeta | None:
    """The cause of an error that a model on meta raised; None if it has another one."""
    message = str(error)
    if any(words in message for words in NO_FLOAT32):
        return NotOnMeta(GROUPED, has_grouped_product_on_cpu())
    return NotOnMeta(READS_VALUES, cpu_can=True) if "meta" in message.lower() else None


def has_grouped_product_on_cpu() -> bool:
    """False for a torch, such as 2.8, that multiplies in groups on GPUs only."""
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key("aten::_grouped_mm", "CPU")
