"""The tables: every name is there, and operators that have no kernel here count what the plain operator does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof import formulas
from distprof.formulas.bytes_moved import BY_ROWS
from distprof.formulas.contractions import THIRD_PARTY
from distprof.formulas.dispatched_call import kind_without_formula
from distprof.shape_formulas.estimates import ESTIMATES
from distprof.shape_formulas.kind_names import KIND_OF
from support.operators import LOADED_LATER, NOT_IN_EVERY_TORCH, SCHEMAS, cost, define_libraries, meta, operator

SIZE = st.integers(1, 4)
# what a counter must know
PROMISED = [
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr", "linear",
    "_addmm_activation", "linear_backward", "mkldnn_linear", "convolution", "convolution_overrideable",
    "mkldnn_convolution", "cudnn_convolution", "cudnn_convolution_transpose", "cudnn_convolution_relu",
    "cudnn_convolution_add_relu", "miopen_convolution", "miopen_convolution_transpose", "miopen_convolution_relu",
    "miopen_convolution_add_relu", "miopen_depthwise_convolution", "_mps_convolution", "_slow_conv2d_forward",
    "slow_conv3d", "slow_conv3d_forward", "slow_conv_dilated2d", "slow_conv_dilated3d", "slow_conv_transpose2d",
    "slow_conv_transpose3d", "_convolution", "convolution_backward", "conv_tbc", "conv_tbc_backward",
    "conv_depthwise3d", "_conv_depthwise2d", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward", "_scaled_dot_product_fused_attention_overrideable_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "_flash_attention_forward", "_flash_attention_backward",
    "_efficient_attention_forward", "_efficient_attention_backward", "_cudnn_attention_forward",
    "_cudnn_attention_backward", "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_scaled_mm",
    "_scaled_mm_v2", "_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2", "_int_mm", "_weight_int4pack_mm",
    "_weight_int4pack_mm_for_cpu", "_weight_int8pack_mm", "_dyn_quant_matmul_4bit", "_sparse_semi_structured_mm",
    "_sparse_semi_structured_linear", "_sparse_semi_structured_addmm", "_cslt_sparse_mm", "_sparse_mm", "_sparse_addmm",
    "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "_cudnn_rnn", "_cudnn_rnn_backward", "miopen_rnn",
    "miopen_rnn_backward",
]


@pytest.mark.long
def test_every_formula_is_of_an_operator_that_exists():
    define_libraries()
    there = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    there |= {f"higher_order::{name}" for name in ("flex_attention", "flex_attention_backward")}
    named = set(formulas.MACS) | set(ESTIMATES)
    of_libraries = {name for name in named if name.split("::")[0] in SCHEMAS}
    assert of_libraries == set(THIRD_PARTY)
    # oneDNN, MKL and FBGEMM are parts of torch that a build may lack
    absent = {name for name in named - there - of_libraries
              if not name.startswith(("mkldnn::", "mkl::", "onednn::", *LOADED_LATER))}
    assert not absent


def test_every_bare_name_is_that_of_an_operator():
    define_libraries()
    names = {name.split(".")[0].partition("::")[2] for name in torch._C._dispatch_get_all_op_names()}
    names |= {name.removesuffix("_").removesuffix("_backward") for name in names}
    libraries = {"roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"}
    assert not set(KIND_OF) - names - libraries - NOT_IN_EVERY_TORCH
    assert not set(BY_ROWS) - names


@pytest.mark.parametrize("name", PROMISED)
def test_what_is_promised_is_there(name):
    func = operator(f"aten::{name}")
    assert formulas.has_formula(func)


@pytest.mark.parametrize("name", ["_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "_transform_bias_rescale_qkv",
                                  "_thnn_fused_lstm_cell_backward_impl", "_thnn_fused_gru_cell_backward"])
def test_gates_and_rescaling_are_elementwise(name):
    assert kind_without_formula(operator(f"aten::{name}")) == "elementwise"


@given(SIZE, SIZE, SIZE, SIZE)
def test_convolutions_of_other_devices_count_like_the_plain_one(batch, c_in, c_out, groups):
    image, weight = meta(batch, groups * c_in, 5, 5), meta(groups * c_out, c_in, 3, 3)
    output = torch.nn.functional.conv2d(image, weight, groups=groups)
    expected = cost("aten::convolution", output, input=image, weight=weight, transposed=False).macs
    assert expected == output.numel() * c_in * 9
    for name in ("cudnn_convolution", "cudnn_convolution_relu", "cudnn_convolution_add_relu", "miopen_convolution",
                 "miopen_convolution_relu", "miopen_convolution_add_relu", "miopen_depthwise_convolution",
                 "_mps_convolution", "_conv_depthwise2d", "conv_depthwise3d", "mkldnn_convolution"):
        assert cost(f"aten::{name}", output, self=image, weight=weight).macs == expected
    assert cost("aten::_nnpack_spatial_convolution", output, input=image, weight=weight).macs == expected
    for kind in ("", "1d", "2d", "3d"):
        assert cost(f"onednn::qconv{kind}_pointwise", output, qx=image, qw=weight).macs == expected
    assert cost("torchvision::deform_conv2d", output, input=image, weight=weight).macs == expected
    assert cost("torchvision::_deform_conv2d_backward", None, grad=output, weight=weight).macs == 2 * expected
    backward = {"grad_output": output, "weight": weight}
    for wanted in ([True, True, True], [False, True, True], [True, False, False], [False, False, True]):
        times = sum(wanted[:2])
        given = backward | {"output_mask": wanted}
        for name in ("convolution_backward", "convolution_backward_overrideable"):
            assert cost(f"aten::{name}", None, input=image, transposed=False, **given).macs == times * expected
        masked = torch.ops.aten._slow_conv2d_backward.output_mask
        assert formulas.cost(masked, (), given | {"self": image}, None).macs == times * expected
        assert cost("aten::mps_convolution_backward", None, self=image, **given).macs == times * expected


@given(SIZE, SIZE, SIZE, SIZE)
def test_transposed_convolutions_of_other_devices(batch, c_in, c_out, groups):
    image, weight = meta(batch, groups * c_in, 5, 5), meta(groups * c_in, c_out, 3, 3)
    output = torch.nn.functional.conv_transpose2d(image, weight, groups=groups, stride=2)
    expected = cost("aten::convolution", output, input=image, weight=weight, transposed=True).macs
    assert expected == image.numel() * c_out * 9
    for name in ("cudnn_convolution_transpose", "miopen_convolution_transpose", "_mps_convolution_transpose"):
        assert cost(f"aten::{name}", output, self=image, weight=weight).macs == expected
    assert cost("mkldnn::_convolution_transpose_pointwise", output, X=image, W=weight).macs == expected
    assert cost("aten::mps_convolution_transpose_backward", None, self=image, weight=weight, grad_output=output,
                output_mask=[True, True]).macs == 2 * expected


@given(SIZE, SIZE, SIZE)
def test_products_without_a_kernel_here(m, k, n):
    left, right, result = meta(m, 2 * k), meta(2 * k, n), meta(m, n)
    expected = 2 * m * k * n
    for name in ("_scaled_mm", "_scaled_mm_v2", "_int_mm"):
        assert cost(f"aten::{name}", result, self=left, mat2=right).macs == expected
    for name in ("_weight_int4pack_mm", "_weight_int4pack_mm_with_scales_and_zeros", "_weight_int8pack_mm"):
        assert cost(f"aten::{name}", result, self=left).macs == expected
    assert cost("aten::_dyn_quant_matmul_4bit", result, inp=left).macs == expected
    assert cost("aten::_mixed_dtypes_linear", result, input=left).macs == expected
    for name in ("qlinear", "qlinear_relu", "qlinear_dynamic", "qlinear_relu_dynamic"):
        assert cost(f"sparse::{name}", result, X=left).macs == expected
    assert cost("onednn::qlinear_pointwise", result, qx=left).macs == expected
    assert cost("onednn::linear_dynamic_fp16", result, x=left).macs == expected
    assert cost("mkl::_mkl_linear", result, X=left).macs == expected
    # half of a 2:4 sparse matrix is stored
    for name in ("_sparse_semi_structured_mm", "_sparse_semi_structured_addmm"):
        assert cost(f"aten::{name}", result, mat1=meta(m, k), mat2=right).macs == expected // 2
    assert cost("aten::_sparse_semi_structured_linear", result, input=left, weight=meta(n, k)).macs == expected // 2
    assert cost("aten::_cslt_sparse_mm", result, compressed_A=meta(m * k), dense_B=right).macs == expected // 2
    assert cost("inductor::_mm_plus_mm", result, a=left, b=right, c=meta(m, 3), d=meta(3, n)).macs \
        == expected + 3 * m * n
    assert cost("symm_mem::_async_input_mm", result, a=left, b=right).macs == expected
    for name in ("fused_matmul_reduce_scatter", "fused_scaled_matmul_reduce_scatter"):
        assert cost(f"symm_mem::{name}", result, A=left, B=right).macs == expected
    for name in ("fused_all_gather_matmul", "fused_all_gather_scaled_matmul"):  # over 4 ranks
        assert cost(f"symm_mem::{name}", (meta(4 * m, 2 * k), [meta(4 * m, n)]), A=left, Bs=[right]).macs \
            == 4 * expected
    assert cost("aten::_grouped_mm", None, self=left, mat2=meta(3, 2 * k, n)).macs == expected
    for name in ("_scaled_grouped_mm", "_scaled_grouped_mm_v2"):
        assert cost(f"aten::{name}", None, self=left, mat2=meta(3, 2 * k, n)).macs == expected
    given = {"grad_output": meta(m, n), "weight": meta(n, 2 * k), "self": left}
    for name in ("linear_backward", "mkldnn_linear_backward"):
        assert cost(f"aten::{name}", None, output_mask=[True, True, True], **given).macs == 2 * expected
        assert cost(f"aten::{name}", None, output_mask=[False, True, True], **given).macs == expected


@given(st.sampled_from([(1, "LSTM", 4), (2, "GRU", 3), (3, "RNN", 1)]), SIZE, SIZE, SIZE, SIZE, st.integers(1, 3),
       st.booleans())
def test_recurrent_layers_of_other_devices_meet_every_weight(kind, time, batch, width, hidden, layers, both):
    _, name, gates = kind
    model = getattr(torch.nn, name)(width, hidden, layers, bidirectional=both, device="meta")
    weights = [parameter.detach() for parameter in model.parameters()]
    rows = gates * hidden
    expected = time * batch * (1 + both) * rows * (width + hidden + (layers - 1) * ((1 + both) * hidden + hidden))
    source = meta(time, batch, width)
    for family in ("_cudnn_rnn", "miopen_rnn"):
        assert cost(f"aten::{family}", None, input=source, weight=weights, batch_sizes=[]).macs == expected
        for wanted in (True, False):
            assert cost(f"aten::{family}_backward", None, input=source, weight=weights, batch_sizes=[],
                        output_mask=[True, True, True, wanted]).macs == expected * (1 + wanted)
    packed = meta(time * batch, width)
    assert cost("aten::_cudnn_rnn", None, input=packed, weight=weights, batch_sizes=[batch] * time).macs == expected
    if name == "LSTM":
        assert cost("aten::_lstm_mps", None, input=source, params=weights).macs == expected
        assert cost("aten::lstm_mps_backward", None, input=source, params=weights).macs == 2 * expected
        one = weights[0], weights[1]
        alone = time * batch * rows * (width + hidden)
        assert cost("aten::mkldnn_rnn_layer", None, input=source, weight0=one[0], weight1=one[1],
                    batch_sizes=[]).macs == alone
        assert cost("aten::mkldnn_rnn_layer_backward", None, input=source, weight1=one[0], weight2=one[1],
                    batch_sizes=[]).macs == 2 * alone


class Packed:
    """A weight that has been packed for quantized kernels: it only gives itself back."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def unpack(self):
        return self.weight, None


QUANTIZED_LINEAR = [
    *(f"quantized::linear{kind}" for kind in (
        "", "_relu", "_leaky_relu", "_tanh", "_dynamic", "_relu_dynamic", "_dynamic_fp16", "_relu_dynamic_fp16",
        "_with_input_q_dq_qweight_dq_output_fp32", "_with_input_q_dq_qweight_dq_relu_output_fp32",
        "_dynamic_fp16_unpacked_weight")),
    "_quantized::linear", "_quantized::linear_dynamic", "_quantized::wrapped_quantized_linear",
    "_quantized::wrapped_fbgemm_linear_fp16_weight",
]


@pytest.mark.parametrize("name", QUANTIZED_LINEAR)
@settings(max_examples=10)
@given(batch=SIZE, k=SIZE, n=SIZE)
def test_quantized_linear_layers(name, batch, k, n):
    assert cost(name, meta(batch, 3, n), X=meta(batch, 3, k)).macs == batch * 3 * k * n


@given(SIZE, SIZE, SIZE, SIZE)
def test_quantized_convolutions_and_cells(batch, c_in, c_out, groups):
    for dims in (1, 2, 3):
        image, weight = meta(batch, groups * c_in, *[4] * dims), meta(groups * c_out, c_in, *[3] * dims)
        output = meta(batch, groups * c_out, *[2] * dims)
        kinds = [f"quantized::conv{dims}d{kind}" for kind in ("", "_relu", "_dynamic")]
        kinds += [] if dims == 1 else [f"_quantized::conv{dims}d", f"_quantized::conv{dims}d_relu"]
        kinds += ["quantized::conv2d_add", "quantized::conv2d_add_relu"] if dims == 2 else []
        for name in kinds:
            names = {argument.name for argument in operator(name)._schema.arguments}
            packed = {"packed_weight" if "packed_weight" in names else "weight": Packed(weight)}
            assert cost(name, output, qx=image, **packed).macs == output.numel() * c_in * 3 ** dims
        weight = meta(groups * c_in, c_out, *[3] * dims)
        kinds = [f"quantized::conv_transpose{dims}d", f"quantized::conv_transpose{dims}d_dynamic"]
        kinds += [] if dims == 3 else [f"_quantized::conv_transpose{dims}d"]
        for name in kinds:
            assert cost(name, None, qx=image, packed_weight=Packed(weight)).macs == image.numel() * c_out * 3 ** dims
    assert cost("quantized::matmul", None, qa=meta(batch, c_in, 2), qb=meta(batch, 2, c_out)).macs \
        == batch * c_in * 2 * c_out
    assert cost("quantized::int4mm_packed_weight_cpu", meta(batch, c_out), self=meta(batch, c_in)).macs \
        == batch * c_in * c_out
    source, state = meta(batch, c_in), meta(batch, c_out)
    for kind, gates in (("lstm", 4), ("gru", 3), ("rnn_relu", 1), ("rnn_tanh", 1)):
        given = {"input": source, "hx": [state, state] if kind == "lstm" else state}
        assert cost(f"quantized::quantized_{kind}_cell_dynamic", None, **given).macs \
            == batch * gates * c_out * (c_in + c_out)
    assert cost("aten::quantized_gru", None, input=meta(5, batch, c_in), hx=meta(2, batch, c_out), num_layers=1,
                bidirectional=True).macs == 5 * batch * 2 * 3 * c_out * (c_in + c_out)


@given(SIZE, SIZE, SIZE)
def test_further_names_of_known_work(batch, c_in, c_out):
    cube, kernel = meta(batch, c_in, 4, 4, 4), meta(c_out, c_in, 3, 3, 3)
    output = meta(batch, c_out, 2, 2, 2)
    expected = batch * c_out * 8 * c_in * 27
    assert cost("aten::slow_conv3d", output, self=cube, weight=kernel).macs == expected
    assert cost("aten::convolution_overrideable", output, input=cube, weight=kernel, transposed=False).macs == expected
    assert cost("aten::thnn_conv2d", meta(batch, c_out, 2, 2), self=meta(batch, c_in, 4, 4),
                weight=meta(c_out, c_in, 3, 3)).macs == batch * c_out * 4 * c_in * 9
    grad = meta(4, batch, c_out)
    assert cost("aten::conv_tbc_backward", None, self=grad, weight=meta(3, c_in, c_out)).macs \
        == 2 * grad.numel() * 3 * c_in
    stored = torch.eye(c_in).to_sparse()
    assert cost("aten::_sparse_mm", None, sparse=stored, dense=torch.ones(c_in, c_out)).macs == c_in * c_out
    assert cost("onednn::linear_relu_dynamic_fp16", meta(batch, c_out), x=meta(batch, c_in)).macs \
        == batch * c_in * c_out
    query = meta(batch, 3, c_in, 4)
    given = {"query": query, "key": query, "value": query}
    assert cost("aten::_scaled_dot_product_attention_math_for_mps", None, **given).macs == batch * 3 * c_in ** 2 * 8
    flash = "aten::_flash_attention_forward_no_dropout_inplace"
    rows = meta(batch, c_in, 3, 4)
    given = {"query": rows, "key": rows, "value": rows, "is_causal": False}
    assert cost(flash, None, **given).macs == batch * 3 * c_in ** 2 * 8
    bounds = torch.tensor([0, 2, 5])
    packed = meta(5, 3, 4)
    given = {"query": packed, "key": packed, "value": packed, "cu_seq_q": bounds, "cu_seq_k": bounds}
    assert cost("torch_attn::_varlen_attn_out", None, is_causal=False, **given).macs == 3 * (4 + 9) * 8
    source = meta(batch, c_in, 8)
    assert cost("aten::_triton_multi_head_attention", None, query=source, key=source, value=source, embed_dim=8).macs \
        == cost("aten::_native_multi_head_attention", None, query=source, key=source, value=source, embed_dim=8).macs


SQUARE = meta(2, 6, 6)


@pytest.mark.parametrize(("name", "given", "flops"), [
    ("_cdist_backward", {"cdist": meta(4, 5), "x1": meta(4, 3)}, 3 * 20 * 3),
    ("_pdist_backward", {"pdist": meta(6), "self": meta(4, 3)}, 3 * 6 * 3),
    ("_lu_with_info", {"self": SQUARE}, 2 * 144),
    ("linalg_lu", {"A": SQUARE}, 2 * 144),
    ("linalg_lu_solve", {"LU": SQUARE, "B": meta(2, 6, 3)}, 2 * 2 * 36 * 3),
    ("cholesky", {"self": SQUARE}, 2 * 72),
    ("cholesky_inverse", {"self": SQUARE}, 2 * 144),
    ("_cholesky_solve_helper", {"A": SQUARE, "self": meta(2, 6, 3)}, 2 * 2 * 36 * 3),
    ("linalg_ldl_factor_ex", {"self": SQUARE}, 2 * 72),
    ("linalg_ldl_solve", {"LD": SQUARE, "B": meta(2, 6, 3)}, 2 * 2 * 36 * 3),
    ("geqrf", {"self": meta(8, 3)}, 2 * 8 * 9 - 18),
    ("linalg_householder_product", {"input": meta(8, 3)}, 2 * 8 * 9 - 18),
    ("ormqr", {"input2": meta(8, 3), "input3": meta(8, 5)}, 4 * 8 * 5 * 3),
    ("triangular_solve", {"A": SQUARE, "self": meta(2, 6, 3)}, 2 * 36 * 3),
    ("linalg_eig", {"self": SQUARE}, 2 * 25 * 216),
    ("_linalg_eigvals", {"self": SQUARE}, 2 * 10 * 216),
    ("linalg_eigvals", {"self": SQUARE}, 2 * 10 * 216),
    ("_linalg_slogdet", {"A": SQUARE}, 2 * 144),
])
def test_estimates_by_their_textbook_terms(name, given, flops):
    found = cost(f"aten::{name}", None, **given)
    assert (found.estimate_flops, found.kind, found.flops) == (flops, "estimate", 0)
