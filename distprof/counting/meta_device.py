"""Why a model cannot be called on the meta device, where tensors have shapes and no values."""

from __future__ import annotations

READS_VALUES = "the model reads tensor values, which do not exist on the meta device"
GROUPED = "torch's grouped matrix product takes bfloat16 alone on the meta device"
"""Of experts: `torch._grouped_mm` runs in any precision on the CPU."""


def why_not_on_meta(error: BaseException) -> str | None:
    """The cause of an error that a model on meta raised; None if it has another one."""
    message = str(error)
    if "Expected inputs of BF16 type" in message:
        return GROUPED
    return READS_VALUES if "meta" in message.lower() else None
