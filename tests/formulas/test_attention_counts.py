"""Attention: full and causal counts against masks drawn in full, layouts, packed sequences, published numbers."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from distprof import formulas
from distprof.shape_formulas.attention import BEYOND, AttentionWindow
from support.counter import Counter
from support.operators import cost, define_libraries, meta, operator, takes

aten = torch.ops.aten
SIZE = st.integers(1, 4)
POSITIONS = st.integers(1, 9)
MAYBE = st.one_of(st.none(), st.integers(0, 9))


def drawn(queries: int, keys: int, left: int | None, right: int | None, bottom_right: bool) -> int:
    """Pairs that remain, drawn one by one."""
    shift = keys - queries if bottom_right else 0
    return sum(1 for i in range(queries) for j in range(keys)
               if (left is None or j >= i + shift - left) and (right is None or j <= i + shift + right))


@given(st.integers(0, 9), st.integers(0, 9), MAYBE, MAYBE, st.booleans())
def test_pairs_that_a_window_leaves(queries, keys, left, right, bottom_right):
    window = AttentionWindow(left=BEYOND if left is None else left, right=BEYOND if right is None else right,
                    bottom_right=bottom_right)
    assert window.pairs(queries, keys) == drawn(queries, keys, left, right, bottom_right)


@given(SIZE, SIZE, SIZE, POSITIONS, POSITIONS, SIZE, SIZE)
def test_causal_attention_counts_the_pairs_that_its_own_kernel_leaves(batch, heads, shared, queries, keys, width, out):
    query = torch.randn(batch, heads * shared, queries, width)
    key, value = torch.randn(batch, heads, keys, width), torch.randn(batch, heads, keys, out)
    mask = torch.ones(queries, keys).tril() > 0
    plain = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(
        F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True), plain)
    rows = batch * heads * shared
    for name in ("flash_attention_for_cpu", "efficient_attention", "cudnn_attention", "fused_attention_overrideable"):
        given = {"query": query, "key": key, "value": value, "is_causal": True}
        found = cost(f"aten::_scaled_dot_product_{name}", None, **given)
        assert found.macs == rows * queries * keys * (width + out)
        assert found.causal_macs == rows * int(mask.sum()) * (width + out)
        assert found.recompute_macs == 0
        found = cost(f"aten::_scaled_dot_product_{name}_backward", None, **given)
        assert found.macs == rows * queries * keys * (3 * width + 2 * out)
        assert found.causal_macs == rows * int(mask.sum()) * (3 * width + 2 * out)
        assert found.recompute_macs == rows * queries * keys * width
        assert cost(f"aten::_scaled_dot_product_{name}", None, **given | {"is_causal": False}).causal_macs \
            == rows * queries * keys * (width + out)
    found = cost("aten::_scaled_dot_product_flash_attention", None, **given)
    assert found.causal_macs == rows * drawn(queries, keys, None, 0, True) * (width + out)


@given(SIZE, SIZE, POSITIONS, POSITIONS, SIZE, MAYBE, MAYBE, st.booleans())
def test_flash_attention_begins_in_the_other_corner(batch, heads, queries, keys, width, left, right, causal):
    define_libraries()
    query, key = meta(batch, queries, heads, width), meta(batch, keys, heads, width)
    pairs = batch * heads * drawn(queries, keys, left, 0 if causal else right, True)
    ends = {"window_size_left": -1 if left is None else left, "window_size_right": -1 if right is None else right}
    own = cost("aten::_flash_attention_forward", None, query=query, key=key, value=key, is_causal=causal, **ends)
    assert own.causal_macs == 2 * width * pairs
    assert own.macs == 2 * width * batch * heads * queries * keys
    back = cost("aten::_flash_attention_backward", None, query=query, key=key, value=key, is_causal=causal, **ends,
                cum_seq_q=None, cum_seq_k=None)
    assert (back.causal_macs, back.recompute_macs) == (5 * width * pairs, own.macs // 2)
    given = {"q": query, "k": key, "v": key}
    for name, flag in (("flash_attn::_flash_attn", "causal"), ("flash_attn_3::_flash_attn", "causal")):
        assert cost(f"{name}_forward", None, **given, **{flag: causal}, **ends).causal_macs == own.causal_macs
    assert cost("flash_attn_3::fwd", None, **given, is_causal=causal, **ends).causal_macs == own.causal_macs
    assert cost("flash_attn_3::bwd", None, **given, is_causal=causal, **ends).causal_macs == back.causal_macs
    assert cost("flash_attn_3::_flash_attn_backward", None, **given, is_causal=causal, **ends) \
        .causal_macs == back.causal_macs
    assert cost("flash_attn::_flash_attn_backward", None, **given, causal=causal, **ends).macs == back.macs


@given(POSITIONS, POSITIONS, st.integers(0, 2), st.integers(0, 9))
def test_efficient_attention_has_both_corners(queries, keys, kind, window):
    query, key = meta(2, queries, 3, 4), meta(2, keys, 3, 4)
    given = {"query": query, "key": key, "value": key, "custom_mask_type": kind, "window_size": window}
    left = window - 1 if window and kind else None
    pairs = 6 * drawn(queries, keys, left, 0 if kind else None, kind == 2)
    found = cost("aten::_efficient_attention_forward", None, **given)
    assert (found.macs, found.causal_macs) == (6 * queries * keys * 8, pairs * 8)
    given |= {"cu_seqlens_q": None, "cu_seqlens_k": None}
    assert cost("aten::_efficient_attention_backward", None, **given).causal_macs == pairs * 20
    del given["cu_seqlens_q"], given["cu_seqlens_k"]
    given |= {"seqstart_q": None, "seqstart_k": None}
    assert cost("xformers::efficient_attention_forward_ck", None, **given).causal_macs == pairs * 8
    assert cost("xformers::efficient_attention_backward_ck", None, **given).causal_macs == pairs * 20


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4), SIZE, SIZE, st.booleans())
def test_packed_sequences_count_as_if_they_were_alone(lengths, heads, width, causal):
    define_libraries()
    rows, columns = (torch.tensor([0, *[pair[side] for pair in lengths]]).cumsum(0).int() for side in (0, 1))
    query, key = torch.empty(int(rows[-1]), heads, width), torch.empty(int(columns[-1]), heads, width)
    full = heads * sum(q * k for q, k in lengths)
    left = heads * sum(drawn(q, k, None, 0 if causal else None, True) for q, k in lengths)
    longest = max(q for q, _ in lengths), max(k for _, k in lengths)
    names = {
        "aten::_flash_attention": ("query key value cum_seq_q cum_seq_k max_q max_k is_causal", left),
        "aten::_cudnn_attention": ("query key value cum_seq_q cum_seq_k max_q max_k is_causal", heads * sum(
            drawn(q, k, None, 0 if causal else None, False) for q, k in lengths)),
        "flash_attn::_flash_attn_varlen": ("q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k causal", left),
        "torch_attn::_varlen_attn": ("query key value cu_seq_q cu_seq_k max_q max_k is_causal", left),
    }
    for name, (arguments, causal_pairs) in names.items():
        given = dict(zip(arguments.split(), (query, key, key, rows, columns, *longest, causal), strict=True))
        forward = name if "varlen_attn" in name and "torch" in name else f"{name}_forward"
        found = cost(forward, None, **given)
        assert (found.macs, found.causal_macs, found.note) == (2 * width * full, 2 * width * causal_pairs, "")
        found = cost(f"{name}_backward", None, **given)
        assert (found.macs, found.causal_macs) == (5 * width * full, 5 * width * causal_pairs)
        # without data: an upper bound, and it says so
        unknown = {key: value.to("meta") if isinstance(value, torch.Tensor) else value
                   for key, value in given.items()}
        found = cost(forward, None, **unknown)
        assert found.macs >= 2 * width * full and found.note.startswith("upper bound")


def test_keys_in_use_of_a_cache():
    if not takes("torch_attn::_varlen_attn", "seqused_k"):
        pytest.skip("in this torch varlen_attn takes no cache")
    query, cache = torch.empty(3, 2, 4), torch.empty(5, 16, 2, 4)
    found = cost("torch_attn::_varlen_attn", None, query=query, key=cache, value=cache,
                 cu_seq_q=torch.tensor([0, 1, 3]), cu_seq_k=None, seqused_k=torch.tensor([7, 20]), is_causal=False)
    assert found.macs == 2 * (7 + 2 * 20) * 2 * 4


def test_layers_with_sequences_of_several_lengths_count_no_padding():
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1).eval()
    source = torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with warnings.catch_warnings(), torch.no_grad(), Counter() as counter:
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")  # torch says it once a process
        model(source, src_key_padding_mask=padding)
    assert counter.total() == 8 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 16 * (25 + 9)



@pytest.mark.parametrize(("keys", "forward"), [(128, 134_217_728), (256, 268_435_456)])
@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_published_numbers_of_scaled_dot_product_attention(kind, keys, forward):
    query, key = meta(4, 8, 128, 64), meta(4, 8, keys, 64)
    name = f"aten::_scaled_dot_product_{kind}_attention"
    given = {"query": query, "key": key, "value": key, "is_causal": False}
    assert cost(name, None, **given).flops == forward
    assert forward + cost(f"{name}_backward", None, **given).flops == forward * 7 // 2
    assert {128: 469_762_048, 256: 939_524_096}[keys] == forward * 7 // 2
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), Counter() as counter:
        tensors = [torch.randn(4, 8, size, 64, requires_grad=True) for size in (128, keys, keys)]
        F.scaled_dot_product_attention(*tensors).sum().backward()
    assert counter.total("flops") == 3 * forward == {128: 402_653_184, 256: 805_306_368}[keys]


def test_published_numbers_of_efficient_attention_on_meta():
    query = meta(2, 1024, 16, 64)
    given = {"query": query, "key": query, "value": query, "custom_mask_type": 0}
    assert cost("aten::_efficient_attention_forward", None, **given).flops == 8_589_934_592
    given |= {"cu_seqlens_q": None, "cu_seqlens_k": None}
    assert cost("aten::_efficient_attention_backward", None, **given).flops == 21_474_836_480


def test_the_causal_half_is_exact():
    for size in (1, 2, 7, 1024):
        query = meta(1, 1, size, 1)
        found = cost("aten::_scaled_dot_product_cudnn_attention", None, query=query, key=query, value=query,
                     is_causal=True)
        assert (found.macs, found.causal_macs) == (2 * size * size, size * (size + 1))


def test_heads_of_the_fast_path_of_other_devices():
    query = meta(2, 3, 5, 4)
    assert cost("aten::_triton_scaled_dot_attention", None, q=query, k=query, v=query).macs == 2 * 6 * 25 * 4
    assert formulas.has_formula(operator("aten::_triton_multi_head_attention"))
