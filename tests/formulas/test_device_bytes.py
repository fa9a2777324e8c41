"""Bytes of operators of devices from the shapes in a trace: those of the tensors that torch makes, without a device."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from distprof.shape_formulas.traced_bytes import TRAFFIC, bytes_known
from distprof.shape_formulas.traced_cost import traced_cost
from distprof.shape_formulas.traced_names import is_fused

aten = torch.ops.aten
F8, F32, I32 = torch.float8_e4m3fn, torch.float32, torch.int32
SEEDS = (torch.int64, torch.uint64)
LIBRARY = torch.uint8
"""Type of buffers that only the device's library understands."""


def t(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def per_channel(number: int) -> tuple[torch.Tensor, ...]:
    return tuple(t(16, dtype=F32) for _ in range(number))


IMAGE = (8, 16, 4, 4)
QUERY, KEY, VALUE = (2, 4, 32, 8), (2, 4, 24, 8), (2, 4, 24, 8)
GRADIENTS = (t(*QUERY), t(*QUERY), t(*KEY), t(*VALUE))
SEED = (torch.empty(2, dtype=torch.uint64, device="meta"), torch.empty((), dtype=torch.uint64, device="meta"))
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "fp8": (aten._scaled_mm.default, (t(64, 32, dtype=F8), t(48, 32, dtype=F8).t(), t(1, dtype=F32), t(1, dtype=F32),
                                      None, None, torch.bfloat16, False)),
    "fp8 by rows": (aten._scaled_mm.default, (t(64, 32, dtype=F8), t(48, 32, dtype=F8).t(), t(64, 1, dtype=F32),
                                              t(1, 48, dtype=F32), t(48), None, torch.bfloat16, True)),
    "experts": (aten._grouped_mm.default, (t(64, 32), t(4, 32, 48), t(4, dtype=I32))),
    "experts of one size": (aten._grouped_mm.default, (t(4, 64, 32), t(4, 32, 48))),
    "gradient of experts": (aten._grouped_mm.default, (t(64, 32), t(32, 48), t(4, dtype=I32))),
    "groups of columns": (aten._grouped_mm.default, (t(4, 64, 32), t(32, 48), t(4, dtype=I32))),
    "rms norm": (aten._fused_rms_norm.default, (t(8, 64), [64], t(64), 1e-5)),
    "rms norm without weight": (aten._fused_rms_norm.default, (t(8, 4, 64, dtype=F32), [4, 64], None, 1e-5)),
    "rms norm, backward": (aten._fused_rms_norm_backward.default,
                           (t(8, 64), t(8, 64), [64], t(8, 1, dtype=F32), t(64), [True, True])),
    "batch norm": (aten.native_batch_norm.default, (t(*IMAGE), *per_channel(4), True, 0.1, 1e-5)),
    "batch norm without parameters": (aten.native_batch_norm.default,
                                      (t(*IMAGE), None, None, None, None, True, 0.1, 1e-5)),
    "batch norm of MIOpen": (aten.miopen_batch_norm.default, (t(*IMAGE), *per_channel(4), True, 0.1, 1e-5)),
    "batch norm of cuDNN": (aten.cudnn_batch_norm.default, (t(*IMAGE), *per_channel(4), True, 0.1, 1e-5)),
    "batch norm, backward": (aten.native_batch_norm_backward.default,
                             (t(*IMAGE), t(*IMAGE), *per_channel(5), True, 1e-5, [True, True, False])),
    "batch norm of cuDNN, backward": (aten.cudnn_batch_norm_backward.default, (
        t(*IMAGE), t(*IMAGE), *per_channel(5), 1e-5, t(77, dtype=LIBRARY))),
    "batch norm of MIOpen, backward": (aten.miopen_batch_norm_backward.default,
                                       (t(*IMAGE), t(*IMAGE), *per_channel(5), 1e-5)),
    "layer norm": (aten.native_layer_norm.default, (t(8, 64), [64], t(64), t(64), 1e-5)),
    "layer norm, backward": (aten.native_layer_norm_backward.default, (
        t(8, 64), t(8, 64), [64], t(8, 1, dtype=F32), t(8, 1, dtype=F32), t(64), t(64), [True, True, False])),
    "group norm": (aten.native_group_norm.default, (t(*IMAGE), t(16), t(16), 8, 16, 16, 4, 1e-5)),
    "group norm, backward": (aten.native_group_norm_backward.default,
                             (t(*IMAGE), t(*IMAGE), t(8, 4), t(8, 4), t(16), 8, 16, 16, 4, [True, True, True])),
    "flash": (aten._scaled_dot_product_flash_attention.default, (t(*QUERY), t(*KEY), t(*VALUE), 0.0, True, False)),
    "flash, backward": (aten._scaled_dot_product_flash_attention_backward.default, (
        *GRADIENTS, t(*QUERY), t(2, 4, 32, dtype=F32), None, None, 32, 24, 0.0, True, *SEED)),
    "efficient": (aten._scaled_dot_product_efficient_attention.default,
                  (t(*QUERY), t(*KEY), t(*VALUE), t(2, 4, 32, 24), True)),
    "efficient, in inference": (aten._scaled_dot_product_efficient_attention.default,
                                (t(*QUERY), t(*KEY), t(*VALUE), None, False)),
    "efficient, backward": (aten._scaled_dot_product_efficient_attention_backward.default, (
        *GRADIENTS, t(2, 4, 32, 24), t(*QUERY), t(2, 4, 32, dtype=F32), *SEED, 0.0, [True, True, True, True])),
    "cudnn": (aten._scaled_dot_product_cudnn_attention.default, (t(*QUERY), t(*KEY), t(*VALUE), None, True)),
}
"""Operator and arguments."""


def noted(call: Callable[[], object], op: str, path: Any) -> dict[str, Any]:
    """What the profiler notes of the call of an operator."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        call()
    found.export_chrome_trace(str(path))
    args: dict[str, Any] = next(event["args"] for event in json.loads(path.read_text())["traceEvents"]
                                if event.get("cat") == "cpu_op" and event["name"] == op)
    return args


def sizes(tensors: Sequence[object]) -> int:
    return sum(one.nbytes for one in tensors if isinstance(one, torch.Tensor) and one.dtype not in (*SEEDS, LIBRARY))


@pytest.mark.parametrize("name", CALLS)
def test_bytes_are_those_of_the_tensors(name, tmp_path):
    func, given = CALLS[name]
    op = func._schema.name
    results = list[object]()

    def call() -> None:
        found = func(*given)
        results.extend(found if isinstance(found, tuple) else [found])

    args = noted(call, op, tmp_path / "trace.json")
    cost = traced_cost(op, args["Input Dims"], args["Input type"], args["Input Strides"], args["Concrete Inputs"])
    assert cost.num_bytes == sizes(given) + sizes(results)


def test_all_are_tested():
    tested = {func._schema.name for func, _ in CALLS.values()}
    devices = {name for name in TRAFFIC if any(word in name for word in (
        "scaled_mm", "grouped_mm", "rms_norm", "batch_norm", "group_norm", "efficient_", "cudnn_", "flash_attention"))}
    untested = {name for name in devices - tested if name.startswith("aten::") and "_for_cpu" not in name}
    assert untested <= {"aten::_scaled_grouped_mm",  # torch runs it on devices only
                        "aten::_scaled_dot_product_cudnn_attention_backward"}


FUSED = ("triton_poi_fused__unsafe_view_mul_silu_2", [[8, 16, 32], [128, 32], []], ["c10::BFloat16"] * 2 + ["Scalar"],
         [[512, 32, 1], [32, 1], []], ["", "", "4096"])


@pytest.mark.parametrize("numbers", [["393216"], ["512", "393216"]])
def test_a_table_that_a_kernel_reads_in_part_has_unknown_bytes(numbers):
    dims = [[512], [50000, 768], [512, 768], *([] for _ in numbers)]
    cost = traced_cost("triton_poi_fused_embedding_0", dims, ["long int", "float", "float", *["Scalar"] * len(numbers)],
                       [[1], [768, 1], [768, 1], *([] for _ in numbers)], ["", "", "", *numbers])
    assert cost.num_bytes is None


@pytest.mark.parametrize(("name", "numel", "known"), [
    (FUSED[0], "4096", 2 * 2 * 4096),
    (FUSED[0], "100", None),  # it takes some elements of a table
    ("triton_red_fused_add_addmm_mean_2", "4096", None),  # it may hold the product
    ("triton_tem_fused_mm_2", "4096", None)])
def test_kernels_of_torch_compile_move_their_arguments(name, numel, known):
    cost = traced_cost(name, FUSED[1], FUSED[2], FUSED[3], ["", "", numel])
    assert (cost.flops, cost.num_bytes) == ((0 if is_fused(name) else None), known)
    assert bytes_known(name) is is_fused(name)
