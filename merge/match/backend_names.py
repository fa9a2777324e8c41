"""Translates names that backends and traces give to ops, kernels and element types into ours."""

from __future__ import annotations

import re

from distprof.contract.collective_ops import ROWS

SEND_RECV = "send_recv"
"""For a kernel of NCCL that is named after sends and receives, of which any op may be made."""
RUNTIME_CATEGORIES = ("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "xpu_driver", "mtia_runtime",
                      "privateuse1_runtime", "privateuse1_driver")
"""Categories of torch.profiler for calls of the host that drive a device, in lower case; HIP has those of CUDA."""
_KEYWORDS = {"sendrecv": SEND_RECV, **{op.keyword: op.name for op in ROWS}}
UNKNOWN = "unknown"
"""For a kernel whose op nothing names."""
_NO_OP = ("wait", "init")
"""Notes of torch that are no communication."""

_LIBRARIES = r"\w*(?:nccl|rccl)"
"""Begins the names of kernels of NCCL and RCCL, which say the op themselves."""
_CUSTOM: tuple[tuple[str, str | None], ...] = (
    # torch's symmetric memory, TensorRT-LLM, FlashInfer, Aiter, QuickReduce: multimem_all_reduce_kernel,
    # twoShotAllReduceKernel, allreduce_fusion_kernel_oneshot_lamport, allreduce_prototype_twoshot; the name has the op
    ("all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", None),
    ("cross_device_reduce", "all_reduce"),  # vLLM and SGLang: cross_device_reduce_2stage
    # DeepEP, its notify_dispatch and cached_notify_combine as well; not get_dispatch_layout, which only counts tokens
    ("deep_ep::[a-z_:]*::(?:[a-z_]*notify_)?(?:dispatch|combine)", "all_to_all"),
    ("nvshmem", None),  # transfers and barriers that a program makes its own ops of
)
"""Part of the name of a kernel -> its op; None: the name has it, or nothing does."""
_COMPILED = "triton_(?:[a-z]+_)?fused_"
"""Begins the names of kernels that torch.compile makes. They have the ops in them that they stand beside:
triton_poi_fused_all_reduce_0 copies what will be reduced."""
_COMMUNICATES = re.compile(
    f"(?!{_COMPILED})(?:{_LIBRARIES}|.*(?:{'|'.join(pattern for pattern, _ in _CUSTOM)}))", re.IGNORECASE)
_ALIKE = re.compile(
    f"(?!{_COMPILED}).*(?:nccl|rccl|nvls|multimem|multicast|symm_?mem|custom_?ar(?![a-z])|(?:one|two)_?shot|p2p"
    "|cross_?(?:device|rank|gpu)|inter_?node|intra_?node|rdma|ibgda|all_?2_?all|a2a|send_?recv|peer_?to_?peer"
    "|ep_(?:dispatch|combine))", re.IGNORECASE)
"""Words of exchanging data, in names of kernels of which nobody has said that they do nothing else."""
_OPS = tuple((re.compile(pattern, re.IGNORECASE), op) for pattern, op in _CUSTOM if op is not None)

_TYPES = {
    "float32": ("float", 4), "float64": ("double", 8), "float16": ("half", 2), "bfloat16": ("bfloat16", 2),
    "float8_e4m3fn": ("float8_e4m3fn", 1), "float8_e4m3fnuz": ("float8_e4m3fnuz", 1), "float8_e5m2": ("float8_e5m2", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1), "int8": ("char", 1), "int16": ("short", 2), "int32": ("int", 4),
    "int64": ("long", 8), "uint8": ("byte", 1), "uint16": ("uint16", 2), "uint32": ("uint32", 4),
    "uint64": ("uint64", 8), "bool": ("bool", 1), "complex32": ("complexhalf", 4), "complex64": ("complexfloat", 8),
    "complex128": ("complexdouble", 16),
}
"""Our name -> name of torch's scalar type in lower case, bytes."""
_OTHER_NAMES = {
    "long int": "int64", "short int": "int16", "signed char": "int8", "unsigned char": "uint8",
    "unsigned int": "uint32", "unsigned short": "uint16", "unsigned long": "uint64", "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128", "c10::complex<c10::half>": "complex32",
}
"""As C++ calls the types, in `Input type`."""
_BY_NAME = {scalar: name for name, (scalar, _) in _TYPES.items()} | {name: name for name in _TYPES} | _OTHER_NAMES


def communicates(kernel: str) -> bool:
    """True for names of kernels that do nothing but exchange data with other ranks, or wait for them."""
    return _COMMUNICATES.match(kernel) is not None


def may_communicate(kernel: str) -> bool:
    """True for names of other kernels that look like communication."""
    return not communicates(kernel) and _ALIKE.match(kernel) is not None


def op_of_kernel(name: str) -> str | None:
    """`all_reduce` of `void vllm::cross_device_reduce_1stage<half, 8>(...)`; None where nothing tells."""
    return next((op for pattern, op in _OPS if pattern.search(name)), None) or op_of(name)


def op_of(name: str) -> str | None:
    """`all_reduce` of `ncclDevKernel_AllReduce_Sum_f32`, `c10d::allreduce_`, `_allgather_base`; None for no op."""
    plain = name.lower().replace("_", "")
    if plain in _NO_OP or not plain:
        return None
    found = max((word for word in _KEYWORDS if word in plain), key=len, default=None)  # allreduce has reduce in it
    return None if found is None else _KEYWORDS[found]


def dtype_of(name: str | None) -> str | None:
    """`bfloat16` of `BFloat16` and `c10::BFloat16`; None for what is no type we know."""
    plain = (name or "").lower()
    return _BY_NAME.get(plain) or _BY_NAME.get(plain.removeprefix("c10::"))


def item_bytes(dtype: str | None) -> int | None:
    """Bytes of an element."""
    return _TYPES[dtype][1] if dtype in _TYPES else None
