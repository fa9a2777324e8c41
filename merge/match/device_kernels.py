"""Kernels that communicate: by their names, as libraries of communication call them."""

from __future__ import annotations

import re

LIBRARIES = "(?:nccl|rccl)"
"""Begins the names of kernels of NCCL and RCCL, which say the op themselves."""
ROWS: tuple[tuple[str, str | None], ...] = (
    # torch's symmetric memory, TensorRT-LLM, FlashInfer, Aiter, QuickReduce: multimem_all_reduce_kernel,
    # twoShotAllReduceKernel, allreduce_fusion_kernel_oneshot_lamport, allreduce_prototype_twoshot; the name has the op
    ("all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", None),
    ("cross_device_reduce", "all_reduce"),  # vLLM and SGLang: cross_device_reduce_2stage
    # DeepEP, its notify_dispatch and cached_notify_combine as well; not get_dispatch_layout, which only counts tokens
    ("deep_ep::[a-z_:]*::(?:[a-z_]*notify_)?(?:dispatch|combine)", "all_to_all"),
    ("nvshmem", None),  # transfers and barriers that a program makes its own ops of
)
"""Part of the name of a kernel -> its op; None: the name has it, or nothing does."""
CUSTOM = "|".join(f"(?:{pattern})" for pattern, _ in ROWS)
COMMUNICATES = f"(?i)^{LIBRARIES}|{CUSTOM}"
"""For polars: what kernels that communicate are called; those of `COMPILED` are not."""
COMPILED = "^triton_(?:[a-z]+_)?fused_"
"""Begins the names of kernels that torch.compile makes. They have the ops in them that they stand beside:
triton_poi_fused_all_reduce_0 copies what will be reduced."""
_OPS = tuple((re.compile(pattern, re.IGNORECASE), op) for pattern, op in ROWS if op is not None)


def custom_op(kernel: str) -> str | None:
    """`all_reduce` of `cross_device_reduce_1stage`; None where the name of the kernel has its op itself."""
    return next((op for pattern, op in _OPS if pattern.search(kernel)), None)
