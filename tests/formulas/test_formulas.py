"""Formulas against independent counts: a contraction of ones sums to its MACs, fused operators to what they replace."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from distprof import formulas
from support.counter import Counter

SIZE = st.integers(1, 5)
MAYBE_EMPTY = st.integers(0, 4)
aten = torch.ops.aten


def macs(function, *args, **kwargs) -> int:
    with Counter() as counter:
        function(*args, **kwargs)
    return sum(counter.by_op.values()) // 2


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.float64)


def check(function, *args, **kwargs) -> None:
    """Every term of a contraction of ones adds 1 to the sum of its result."""
    assert macs(function, *args, **kwargs) == int(function(*args, **kwargs).sum())


@given(MAYBE_EMPTY, MAYBE_EMPTY, MAYBE_EMPTY, MAYBE_EMPTY)
def test_matrix_products(b, m, k, n):
    check(torch.mm, ones(m, k), ones(k, n))
    check(torch.addmm, torch.zeros(m, n, dtype=torch.float64), ones(m, k), ones(k, n))
    check(torch.bmm, ones(b, m, k), ones(b, k, n))
    check(torch.baddbmm, torch.zeros(b, m, n, dtype=torch.float64), ones(b, m, k), ones(b, k, n))
    check(torch.mv, ones(m, k), ones(k))
    check(torch.dot, ones(k), ones(k))
    check(torch.vdot, ones(k), ones(k))
    check(torch.addmv, torch.zeros(m, dtype=torch.float64), ones(m, k), ones(k))
    check(torch.addr, torch.zeros(m, n, dtype=torch.float64), ones(m), ones(n))
    check(torch.matmul, ones(b, 1, m, k), ones(3, k, n))
    check(torch.matmul, ones(k), ones(b, k, n))
    # over sizes of 1 torch multiplies elements instead
    check(torch.einsum, "bmk,bkn->mn", ones(b + 2, m + 2, k + 2), ones(b + 2, k + 2, n + 2))


@given(SIZE, SIZE, SIZE, SIZE)
def test_matrix_products_that_refuse_empty_ones(b, m, k, n):
    check(torch.addbmm, torch.zeros(m, n, dtype=torch.float64), ones(b, m, k), ones(b, k, n))
    check(F.linear, ones(b, m, k), ones(n, k))
    sparse = ones(m, k).to_sparse()
    check(torch.sparse.mm, sparse, ones(k, n))
    left, right = torch.ones(17, 8, dtype=torch.int8), torch.ones(8, 8 * n, dtype=torch.int8)
    assert macs(aten._int_mm, left, right) == 17 * 64 * n


@given(SIZE, SIZE, SIZE)
def test_arguments_may_be_passed_by_name(m, k, n):
    assert macs(aten.addmm.default, mat2=ones(k, n), mat1=ones(m, k), self=ones(n)) == m * k * n
    assert macs(torch.mm, ones(m, k), ones(k, n), out=ones(m, n)) == m * k * n


@given(st.integers(1, 3), st.integers(1, 3), SIZE, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2),
       st.integers(0, 4), st.booleans())
def test_convolutions_with_groups_strides_and_dilation(dims, groups, batch, c_in, c_out, stride, extra, unbatched):
    kernel, dilation = 2, 1 + extra % 2
    image = ones(*([] if unbatched else [batch]), groups * c_in, *[1 + dilation + extra] * dims)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    check(convolve, image, ones(groups * c_out, c_in, *[kernel] * dims), **options)
    spread = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    check(spread, image, ones(groups * c_in, c_out, *[kernel] * dims), **options)


def test_padding_counts_like_data():
    assert macs(F.conv2d, ones(1, 2, 4, 4), ones(3, 2, 3, 3), padding=1) == 3 * 2 * 9 * 16
    assert macs(F.conv2d, ones(1, 3, 8, 8), ones(8, 3, 3, 3), padding="same") == 8 * 3 * 9 * 64


@given(st.integers(1, 2), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans())
def test_backward_costs_a_forward_for_each_gradient(dims, groups, transposed, wants_image, wants_weight):
    image = torch.randn(2, 2 * groups, *[5] * dims, requires_grad=wants_image)
    weight = torch.randn(2 * groups, 2, *[3] * dims, requires_grad=wants_weight)
    convolve = ((F.conv1d, F.conv2d), (F.conv_transpose1d, F.conv_transpose2d))[transposed][dims - 1]
    forward = macs(convolve, image, weight, groups=groups)
    with Counter() as counter:
        result = convolve(image, weight, groups=groups)
        if result.requires_grad:
            result.sum().backward()
    assert sum(counter.by_op.values()) // 2 == forward * (1 + wants_image + wants_weight)


@given(SIZE, st.integers(1, 3), st.integers(1, 3), SIZE, SIZE, st.integers(1, 3), st.booleans())
def test_fused_attention_is_what_it_replaces(batch, heads, shared, queries, keys, width, causal):
    query = torch.randn(batch, heads * shared, queries, width)
    key, value = torch.randn(batch, heads, keys, width), torch.randn(batch, heads, keys, width)
    scores = batch * heads * shared * queries * keys
    with Counter() as counter:
        F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
    assert sum(counter.by_op.values()) == 2 * scores * 2 * width


@pytest.mark.parametrize(("shape_k", "causal", "forward"), [
    (128, False, 134_217_728), (128, True, 134_217_728), (256, False, 268_435_456)])
def test_attention_golden_numbers(shape_k, causal, forward):
    query = torch.randn(4, 8, 128, 64, requires_grad=True)
    key, value = (torch.randn(4, 8, shape_k, 64, requires_grad=True) for _ in range(2))
    with Counter() as counter:
        F.scaled_dot_product_attention(query, key, value, is_causal=causal).sum().backward()
    by_op = counter.by_op
    assert by_op["_scaled_dot_product_flash_attention_for_cpu"] == forward
    assert by_op["_scaled_dot_product_flash_attention_for_cpu_backward"] == forward * 5 // 2
    with Counter() as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        F.scaled_dot_product_attention(query, key, value, is_causal=causal).sum().backward()
    assert sum(counter.by_op.values()) == 3 * forward


@pytest.mark.parametrize("device", ["meta"])
def test_cuda_attention_operators_by_their_layouts(device):
    query = torch.empty(2, 1024, 16, 64, device=device, dtype=torch.bfloat16)
    forward = 2 * 2 * 16 * 1024 * 1024 * 64 * 2
    with Counter() as counter:
        aten._flash_attention_forward(query, query, query, None, None, 1024, 1024, 0.0, False, False)
        aten._efficient_attention_forward(query, query, query, None, None, None, 1024, 1024, 0.0, 0)
    assert counter.by_op == {"_flash_attention_forward": forward, "_efficient_attention_forward": forward}
    assert forward == 8_589_934_592


def test_packed_sequences_attend_to_themselves_only():
    from distprof.formulas.attention import PACKED_ATTENTION
    from distprof.shape_formulas.operator_call import OperatorCall

    query, bounds = torch.empty(7, 2, 4), torch.tensor([0, 3, 7])
    call = OperatorCall({"query": query, "key": query, "value": query, "cum_seq_q": bounds, "cum_seq_k": bounds,
                 "is_causal": True}, None)
    macs = PACKED_ATTENTION["aten::_flash_attention_forward"](call)
    assert macs.full == 2 * (9 + 16) * 2 * 4
    assert macs.causal == 2 * (6 + 10) * 2 * 4


def test_the_fast_path_of_transformer_layers_counts_what_the_slow_one_does():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    source = torch.randn(2, 5, 16)
    slow = macs(layer, source)
    with torch.no_grad(), Counter() as counter:
        layer(source)
    assert list(counter.by_op) == ["_transformer_encoder_layer_fwd"]
    assert sum(counter.by_op.values()) // 2 == slow == 2 * 5 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 2 * 25 * 16
    attention = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with torch.no_grad(), Counter() as counter:
        attention(source, source, source)
    assert list(counter.by_op) == ["_native_multi_head_attention"]
    assert sum(counter.by_op.values()) // 2 == 2 * 5 * 4 * 16 * 16 + 2 * 2 * 25 * 16


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("layers", "both"), [(1, False), (2, True)])
def test_recurrent_layers_meet_every_weight_at_every_step(kind, layers, both):
    model = kind(6, 8, layers, bidirectional=both, batch_first=True)
    weights = sum(weight.numel() for name, weight in model.named_parameters() if "weight" in name)
    source = torch.randn(3, 5, 6, requires_grad=True)
    assert macs(model, source) == 3 * 5 * weights
    with Counter() as counter:
        model(source)[0].sum().backward()
    # the state before the first step needs no gradient
    hidden = sum(weight.numel() for name, weight in model.named_parameters() if "weight_hh" in name)
    total = sum(counter.by_op.values()) // 2
    assert 3 * 3 * 5 * weights - 3 * hidden <= total <= 3 * 3 * 5 * weights


def test_operators_a_user_registered_with_torch_are_counted():
    assert formulas.has_formula(aten.mm.default) and not formulas.has_formula(aten.relu.default)
    assert formulas.cost(aten.relu.default, (ones(2),), {}, ones(2)).flops == 0
