"""MACs of contractions that have a kernel here: of ones, each multiply-accumulate adds 1 to the sum of the result."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from support.counter import Counter, macs
from support.operators import needs_grouped_product

aten = torch.ops.aten
SIZE = st.integers(1, 5)
MAYBE_EMPTY = st.integers(0, 4)
pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:.*sparse.*:UserWarning")


def ones(*shape: int, **options) -> torch.Tensor:
    return torch.ones(*shape, dtype=options.pop("dtype", torch.float64), **options)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


def total(result) -> int:
    return int((result.to_dense() if result.layout is not torch.strided else result).sum())


def check(function, *args, **kwargs) -> None:
    assert macs(function, *args, **kwargs) == total(function(*args, **kwargs))


@given(MAYBE_EMPTY, MAYBE_EMPTY, MAYBE_EMPTY, MAYBE_EMPTY)
def test_products_in_place_and_by_name(b, m, k, n):
    left, right = ones(m, k), ones(k, n)
    for function in (torch.Tensor.addmm_, torch.Tensor.addmm):
        assert macs(function, zeros(m, n), left, right) == total(left @ right)
    assert macs(torch.Tensor.baddbmm_, zeros(b, m, n), ones(b, m, k), ones(b, k, n)) == b * m * k * n
    assert macs(torch.Tensor.addmv_, zeros(m), left, ones(k)) == m * k
    assert macs(torch.Tensor.addr_, zeros(m, n), ones(m), ones(n)) == m * n
    check(aten._addmm_activation, zeros(n), left, right)
    check(aten.mm.default, mat2=right, self=left)
    check(torch.tensordot, ones(b + 1, m + 1, k + 1), ones(k + 1, n + 1), dims=1)


@given(SIZE, SIZE, SIZE, SIZE, SIZE)
def test_broadcast_one_dimensional_and_chained_products(a, b, m, k, n):
    check(torch.matmul, ones(a, 1, m, k), ones(b, k, n))
    check(torch.matmul, ones(k), ones(k))
    check(torch.matmul, ones(a, m, k), ones(k))
    check(torch.matmul, ones(k), ones(a, k, n))
    assert macs(torch.Tensor.addbmm_, zeros(m, n), ones(b, m, k), ones(b, k, n)) == b * m * k * n
    with Counter() as counter, torch.inference_mode():
        torch.einsum("abm,bmk->ak", ones(a + 1, b + 1, m + 1), ones(b + 1, m + 1, k + 1))
    assert counter.total() == (a + 1) * (b + 1) * (m + 1) * (k + 1)


@given(SIZE, SIZE, SIZE, st.lists(st.booleans(), min_size=25, max_size=25),
       st.lists(st.booleans(), min_size=25, max_size=25))
def test_of_sparse_matrices_what_is_stored_counts(m, k, n, left_kept, right_kept):
    left = torch.tensor(left_kept[:m * k], dtype=torch.float64).reshape(m, k)
    right = torch.tensor(right_kept[:k * n], dtype=torch.float64).reshape(k, n)
    dense = ones(k, n)
    for sparse in (left.to_sparse(), left.to_sparse_csr()):
        check(torch.sparse.mm, sparse, dense)
        check(torch.mm, sparse, dense)
        check(torch.addmm, zeros(m, n), sparse, dense)
        check(torch.mv, sparse, ones(k))
    check(torch.sparse.mm, left.to_sparse(), right.to_sparse())
    check(aten._sparse_sparse_matmul, left.to_sparse(), right.to_sparse())
    check(torch.hspmm, left.to_sparse(), dense)
    check(torch.sspaddmm, zeros(m, n).to_sparse(), left.to_sparse(), dense)
    check(torch.smm, left.to_sparse(), dense)
    pattern = right.to_sparse_csr()
    assert macs(torch.sparse.sampled_addmm, pattern, ones(k, m), ones(m, n)) == int(right.sum()) * m


@given(SIZE, SIZE, SIZE, st.booleans())
def test_reduced_sparse_products(m, k, n, wants_dense):
    sparse = ones(m, k).to_sparse_csr().requires_grad_()
    dense = ones(k, n).requires_grad_(wants_dense)
    with Counter() as counter:
        torch.sparse.mm(sparse, dense, "sum").sum().backward()
    assert counter.total() == m * k * n * (2 + wants_dense)


@given(SIZE, SIZE, SIZE)
def test_low_precision_products(m, k, n):
    left, right = ones(16 * m, 16 * k, dtype=torch.bfloat16), ones(16 * n, 16 * k, dtype=torch.bfloat16)
    expected = 16 ** 3 * m * k * n
    scale = torch.ones((), dtype=torch.float32)
    floats = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
    assert macs(aten._scaled_mm, *floats, scale, scale, out_dtype=torch.bfloat16) == expected
    integers = ones(17 * m, 16 * k, dtype=torch.int8), ones(16 * k, 16 * n, dtype=torch.int8)
    assert macs(torch._int_mm, *integers) == total(torch._int_mm(*integers).long())
    assert macs(aten._weight_int8pack_mm, left, right.to(torch.int8), ones(16 * n, dtype=torch.bfloat16)) == expected
    packed = aten._convert_weight_to_int4pack_for_cpu(ones(16 * n, 32 * k, dtype=torch.int32), 1)
    scales = torch.ones(k, 16 * n, 2, dtype=torch.bfloat16)
    wide = ones(16 * m, 32 * k, dtype=torch.bfloat16)
    assert macs(aten._weight_int4pack_mm_for_cpu, wide, packed, 32, scales) == 2 * expected


@pytest.mark.skipif(not hasattr(aten, "_foreach_mm"), reason="this torch has no _foreach_mm")
@given(SIZE, SIZE, SIZE)
def test_products_of_lists(m, k, n):
    assert macs(aten._foreach_mm, [ones(m, k), ones(n, k)], [ones(k, n), ones(k, 1)]) == m * k * n + n * k


@needs_grouped_product
@given(st.lists(SIZE, min_size=1, max_size=4), SIZE, SIZE)
def test_grouped_products_whatever_is_grouped(groups, k, n):
    rows, count = 8 * sum(groups), len(groups)
    ends = (8 * torch.tensor(groups)).cumsum(0).to(torch.int32)
    half = {"dtype": torch.bfloat16}
    # rows in groups, each with a matrix of its own
    left, right = torch.ones(rows, 8 * k, **half), torch.ones(count, 8 * k, 8 * n, **half)
    assert macs(torch._grouped_mm, left, right, offs=ends) == rows * 64 * k * n
    # the summed dimension in groups, a result for each
    left, right = torch.ones(8 * n, rows, **half), torch.ones(rows, 8 * k, **half)
    result = torch._grouped_mm(left, right, offs=ends)
    assert macs(torch._grouped_mm, left, right, offs=ends) == total(result.double()) == rows * 64 * k * n
    # columns in groups
    left, right = torch.ones(count, 8 * n, 8 * k, **half), torch.ones(8 * k, rows, **half)
    assert macs(torch._grouped_mm, left, right, offs=ends) == rows * 64 * k * n
    # a batch
    left, right = torch.ones(count, 8 * n, 8 * k, **half), torch.ones(count, 8 * k, 8, **half)
    assert macs(torch._grouped_mm, left, right) == count * 8 * n * 8 * k * 8


@given(SIZE, SIZE, SIZE, SIZE, st.booleans(), st.booleans())
def test_products_forward_and_backward_cost_three_forwards(b, m, k, n, wants_left, wants_right):
    for left, right, function in (
            ((m, k), (k, n), torch.mm), ((b, m, k), (b, k, n), torch.bmm), ((m, k), (k,), torch.mv),
            ((k,), (k,), torch.dot), ((b, m, k), (n, k), F.linear), ((b, m, k), (k, n), torch.matmul)):
        a, c = ones(*left).requires_grad_(wants_left), ones(*right).requires_grad_(wants_right)
        forward = macs(function, a, c)
        if function in (torch.mv, torch.dot) or not (wants_left or wants_right):
            continue  # their gradients are outer products, which torch makes of multiplications
        with Counter() as counter:
            function(a, c).sum().backward()
        assert counter.total() == forward * (1 + wants_left + wants_right), function


GEOMETRY = (st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2),
            st.integers(1, 2), st.integers(1, 2), st.integers(0, 3), st.booleans(), st.booleans())


@given(*GEOMETRY)
def test_convolutions_cost_three_forwards_with_both_gradients(
        dims, groups, batch, c_in, c_out, stride, dilation, extra, transposed, bias):
    image = ones(batch, groups * c_in, *[1 + 2 * dilation + extra] * dims).requires_grad_()
    sizes = (groups * c_in, c_out) if transposed else (groups * c_out, c_in)
    weight = ones(*sizes, *[3] * dims).requires_grad_()
    plain = (F.conv1d, F.conv2d, F.conv3d), (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    convolve = plain[transposed][dims - 1]
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    if bias:
        options["bias"] = ones(groups * c_out).requires_grad_()
    forward = macs(convolve, image, weight, **options)
    assert forward == total(convolve(image, weight, **options | {"bias": None}))
    with Counter() as counter:
        convolve(image, weight, **options).sum().backward()
    assert counter.total() == 3 * forward


@given(SIZE, SIZE, SIZE, st.integers(1, 2), st.integers(0, 2))
def test_convolutions_under_other_names(batch, c_in, c_out, stride, extra):
    size = 3 + extra
    image, weight = ones(batch, c_in, size, size), ones(c_out, c_in, 3, 3)
    check(aten._slow_conv2d_forward, image, weight, [3, 3], None, [stride] * 2, [0, 0])
    check(aten.thnn_conv2d, image, weight, [3, 3], None, [stride] * 2, [0, 0])
    check(aten.slow_conv_dilated2d, image, weight, [3, 3], None, [stride] * 2)
    check(aten.slow_conv_transpose2d, image, ones(c_in, c_out, 3, 3), [3, 3], None, [stride] * 2)
    cube, kernel = ones(batch, c_in, size, size, size), ones(c_out, c_in, 3, 3, 3)
    check(aten.slow_conv3d_forward, cube, kernel, [3, 3, 3], None, [stride] * 3, [0] * 3)
    check(aten.slow_conv3d, cube, kernel, [3, 3, 3], None, [stride] * 3)
    check(aten.slow_conv_dilated3d, cube, kernel, [3, 3, 3], None, [stride] * 3)
    check(aten.slow_conv_transpose3d, cube, ones(c_in, c_out, 3, 3, 3), [3, 3, 3], None, [stride] * 3)
    check(aten._convolution, image, weight, None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, False, False, True,
          True)
    check(torch.conv_tbc, ones(size, batch, c_in), ones(3, c_in, c_out), zeros(c_out))
    check(F.conv2d, image[0], weight)
    with torch.inference_mode():
        check(F.conv2d, image, weight, stride=stride)


@pytest.mark.long
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
@settings(max_examples=30)
@given(SIZE, SIZE, SIZE, st.integers(1, 2))
def test_onednn_operators(batch, c_in, c_out, groups):
    image = torch.ones(batch, groups * c_in, 5, 5)
    weight = torch.ones(groups * c_out, c_in, 3, 3)
    geometry = [0, 0], [1, 1], [1, 1], groups
    expected = batch * groups * c_out * 9 * c_in * 9
    assert macs(aten.mkldnn_convolution, image, weight, None, *geometry) == expected
    pointwise = torch.ops.mkldnn._convolution_pointwise
    assert macs(pointwise, image, weight, None, *geometry, "none", [], "") == expected
    other = torch.ones(batch, groups * c_out, 3, 3)
    assert macs(pointwise, image, other, weight, None, *geometry, "add", None, None, [], None) == expected
    assert macs(torch.ops.mkldnn._convolution_pointwise_, other.to(memory_format=torch.channels_last), image, weight,
                None, *geometry, "add", None, None, [], None) == expected
    assert macs(torch.ops.mkldnn._linear_pointwise, torch.ones(batch, c_in), torch.ones(c_out, c_in), None, "none", [],
                "") == batch * c_in * c_out
    dense = torch.ones(batch, c_in).to_mkldnn(), torch.ones(c_out, c_in).to_mkldnn()
    assert macs(aten.mkldnn_linear, *dense) == batch * c_in * c_out
    assert macs(aten.mkldnn_linear_backward_input, [batch, c_in], torch.ones(batch, c_out).to_mkldnn(),
                torch.ones(c_out, c_in)) \
        == batch * c_in * c_out
    assert macs(aten.mkldnn_linear_backward_weights, torch.ones(batch, c_out).to_mkldnn(), dense[0],
                torch.ones(c_out, c_in), True) \
        == batch * c_in * c_out


@pytest.mark.long
@pytest.mark.skipif("x86" not in torch.backends.quantized.supported_engines, reason="needs x86 quantized kernels")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quant.*:UserWarning")
@settings(max_examples=20)
@given(SIZE, SIZE, SIZE)
def test_quantized_operators_count_like_those_they_stand_for(batch, c_in, c_out):
    from torch.ao.nn.quantized import Conv1d, Conv2d, Conv3d, ConvTranspose2d, Linear
    from torch.ao.nn.quantized.dynamic import LSTM, GRUCell
    from torch.ao.nn.quantized.dynamic import Linear as DynamicLinear

    def quantized(*shape: int) -> torch.Tensor:
        return torch.quantize_per_tensor(torch.ones(*shape), 1.0, 0, torch.quint8)

    assert macs(Linear(c_in, c_out), quantized(batch, 3, c_in)) == batch * 3 * c_in * c_out
    assert macs(DynamicLinear(c_in, c_out), torch.ones(batch, c_in)) == batch * c_in * c_out
    for dims, kind in enumerate((Conv1d, Conv2d, Conv3d), 1):
        layer = kind(2 * c_in, 2 * c_out, 3, groups=2)
        assert macs(layer, quantized(batch, 2 * c_in, *[4] * dims)) == batch * 2 * c_out * 2 ** dims * c_in * 3 ** dims
    assert macs(ConvTranspose2d(c_in, c_out, 2, stride=2), quantized(batch, c_in, 3, 3)) == batch * c_in * 9 * c_out * 4
    lstm = LSTM(c_in, c_out, num_layers=2, bidirectional=True)
    weights = 2 * 4 * c_out * (c_in + c_out) + 2 * 4 * c_out * (2 * c_out + c_out)
    assert macs(lstm, torch.ones(3, batch, c_in)) == 3 * batch * weights
    assert macs(GRUCell(c_in, c_out), torch.ones(batch, c_in)) == batch * 3 * c_out * (c_in + c_out)
