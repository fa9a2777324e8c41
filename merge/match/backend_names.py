"""Translates the names of ops, kernels and element types in backends and traces to those of distprof."""

from __future__ import annotations

import re

from distprof.contract.collective_ops import ROWS

SEND_RECV = "send_recv"
"""Op of a kernel of NCCL that is named after sends and receives, of which any op may consist."""
RUNTIME_CATEGORIES = ("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "xpu_driver", "mtia_runtime",
                      "privateuse1_runtime", "privateuse1_driver")
"""Categories of torch.profiler for host calls that drive a device, in lower case; HIP has those of CUDA."""
_KEYWORDS = {"sendrecv": SEND_RECV, **{op.keyword: op.name for op in ROWS}}
UNKNOWN = "unknown"
"""Op of a kernel whose op is not known."""
_NO_OP = ("wait", "init")
"""Names recorded by torch that are not communication."""

_LIBRARIES = r"\w*(?:nccl|rccl)"
"""Start of the names of kernels of NCCL and RCCL, which contain the op."""
_CUSTOM: tuple[tuple[str, str | None], ...] = (
    # torch's symmetric memory, TensorRT-LLM, FlashInfer, Aiter, QuickReduce: multimem_all_reduce_kernel,
    # twoShotAllReduceKernel, allreduce_fusion_kernel_oneshot_lamport, allreduce_prototype_twoshot; the name has the op
    ("all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", None),
    ("cross_device_reduce", "all_reduce"),  # vLLM and SGLang: cross_device_reduce_2stage
    # DeepEP, its notify_dispatch and cached_notify_combine as well; not get_dispatch_layout, which only counts tokens
    ("deep_ep::[a-z_:]*::(?:[a-z_]*notify_)?(?:dispatch|combine)", "all_to_all"),
    ("nvshmem", None),  # transfers and barriers that a program makes its own ops of
)
"""Part of a kernel's name -> its op. None: the name contains the op, or it is unknown."""
_COMPILED = "triton_(?:[a-z]+_)?fused_"
"""Start of the names of kernels that torch.compile generates. They contain the names of adjacent ops:
triton_poi_fused_all_reduce_0 copies what will be reduced."""
_COMMUNICATES = re.compile(
    f"(?!{_COMPILED})(?:{_LIBRARIES}|.*(?:{'|'.join(pattern for pattern, _ in _CUSTOM)}))", re.IGNORECASE)
_ALIKE = re.compile(
    f"(?!{_COMPILED}).*(?:nccl|rccl|nvls|multimem|multicast|symm_?mem|custom_?ar(?![a-z])|(?:one|two)_?shot|p2p"
    "|cross_?(?:device|rank|gpu)|inter_?node|intra_?node|rdma|ibgda|all_?2_?all|a2a|send_?recv|peer_?to_?peer"
    "|ep_(?:dispatch|combine))", re.IGNORECASE)
"""Words that suggest data exchange, in names of kernels that are not known to do only that."""
_OPS = tuple((re.compile(pattern, re.IGNORECASE), op) for pattern, op in _CUSTOM if op is not None)

_TYPES = {
    "float32": ("float", 4), "float64": ("double", 8), "float16": ("half", 2), "bfloat16": ("bfloat16", 2),
    "float8_e4m3fn": ("float8_e4m3fn", 1), "float8_e4m3fnuz": ("float8_e4m3fnuz", 1), "float8_e5m2": ("float8_e5m2", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1), "int8": ("char", 1), "int16": ("short", 2), "int32": ("int", 4),
    "int64": ("long", 8), "uint8": ("byte", 1), "uint16": ("uint16", 2), "uint32": ("uint32", 4),
    "uint64": ("uint64", 8), "bool": ("bool", 1), "complex32": ("complexhalf", 4), "complex64": ("complexfloat", 8),
    "complex128": ("complexdouble", 16),
}
"""Our name -> name of torch's scalar type in lower case, and bytes."""
_OTHER_NAMES = {
    "long int": "int64", "short int": "int16", "signed char": "int8", "unsigned char": "uint8",
    "unsigned int": "uint32", "unsigned short": "uint16", "unsigned long": "uint64", "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128", "c10::complex<c10::half>": "complex32",
}
"""C++ names of types, as in `Input type`, -> our names."""
_BY_NAME = {scalar: name for name, (scalar, _) in _TYPES.items()} | {name: name for name in _TYPES} | _OTHER_NAMES


def communicates(kernel: str) -> bool:
    """Returns True for names of kernels that only exchange data with other ranks, or wait for them."""
    return _COMMUNICATES.match(kernel) is not None


def may_communicate(kernel: str) -> bool:
    """Returns True for names of other kernels that look like communication."""
    return not communicates(kernel) and _ALIKE.match(kernel) is not None


def op_of_kernel(name: str) -> str | None:
    """Returns `all_reduce` for `void vllm::cross_device_reduce_1stage<half, 8>(...)`; None if unknown."""
    return next((op for pattern, op in _OPS if pattern.search(name)), None) or op_of(name)


def op_of(name: str) -> str | None:
    """Returns the op in `ncclDevKernel_AllReduce_Sum_f32`, `c10d::allreduce_`, `_allgather_base`; None for no op."""
    plain = name.lower().replace("_", "")
    if plain in _NO_OP or not plain:
        return None
    found = max((word for word in _KEYWORDS if word in plain), key=len, default=None)  # allreduce contains reduce
    return None if found is None else _KEYWORDS[found]


def dtype_of(name: str | None) -> str | None:
    """Returns `bfloat16` for `BFloat16` and `c10::BFloat16`; None for unknown types."""
    plain = (name or "").lower()
    return _BY_NAME.get(plain) or _BY_NAME.get(plain.removeprefix("c10::"))


def item_bytes(dtype: str | None) -> int | None:
    """Returns the bytes of an element; None for unknown types."""
    return _TYPES[dtype][1] if dtype in _TYPES else None
