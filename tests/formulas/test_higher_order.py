"""Higher-order operators under a dispatch mode: flex attention by its blocks, branches and loops by what runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from distprof.model.compiled import ABOUT_NO_FRAMES
from distprof.model.quiet import QuietAbout
from support.counter import Counter

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def eager():
    """flex_attention and cond compile themselves, which no dispatch mode lets through."""
    torch.compiler.set_stance("force_eager")
    quiet = QuietAbout(ABOUT_NO_FRAMES)
    quiet.start()
    yield
    quiet.stop()
    torch.compiler.set_stance("default")


@pytest.mark.long
@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 40), st.integers(1, 40),
       st.integers(1, 4))
def test_flex_attention_in_full_and_with_grouped_heads(batch, heads, shared, queries, keys, width):
    query = torch.randn(batch, heads * shared, queries, width)
    key, value = torch.randn(batch, heads, keys, width), torch.randn(batch, heads, keys, width)
    with Counter() as counter:
        flex_attention(query, key, value, enable_gqa=True)
    assert counter.by_op == {"higher_order::flex_attention": 2 * 2 * batch * heads * shared * queries * keys * width}


@pytest.mark.long
@settings(max_examples=25)
@given(st.integers(1, 70), st.integers(1, 70), st.sampled_from([8, 16, (8, 16)]), st.integers(0, 40),
       st.booleans(), st.booleans())
def test_flex_attention_counts_the_blocks_that_hold_a_pair(queries, keys, block, window, per_batch, per_head):
    tall, wide = block if isinstance(block, tuple) else (block, block)

    def mask(b, h, i, j):
        return (i >= j) & (i - j <= window + 8 * b + 16 * h)

    blocks = create_block_mask(mask, 2 if per_batch else None, 3 if per_head else None, queries, keys, device="cpu",
                               BLOCK_SIZE=block)
    expected = 0
    for b in range(2):
        for h in range(3):
            b_mask, h_mask = b if per_batch else 0, h if per_head else 0
            for top in range(0, queries, tall):
                for left in range(0, keys, wide):
                    inside = [(i, j) for i in range(top, min(top + tall, queries))
                              for j in range(left, min(left + wide, keys))]
                    if any(mask(b_mask, h_mask, i, j) for i, j in inside):
                        expected += len(inside)
    query, key = torch.randn(2, 3, queries, 4), torch.randn(2, 3, keys, 4)
    with Counter() as counter:
        flex_attention(query, key, key, block_mask=blocks)
    assert counter.total() == 2 * 4 * expected
    note = next(cost.note for name, cost in counter.costs if "flex" in name)
    assert note == ("" if expected == 6 * queries * keys else "kept blocks of the block mask")


def test_flex_attention_backward_is_five_products_and_unknown_masks_count_in_full():
    from torch._higher_order_ops.flex_attention import flex_attention as operator
    from torch.nn.attention.flex_attention import _create_empty_block_mask, _identity

    query, key, value = (torch.randn(2, 3, 64, 16, requires_grad=True) for _ in range(3))
    mask = _create_empty_block_mask(query, key).as_tuple()
    with Counter() as counter:
        operator(query, key, value, _identity, mask, 0.25, {})[0].sum().backward()
    forward = 2 * 2 * 6 * 64 * 64 * 16
    assert counter.by_op == {"higher_order::flex_attention": forward,
                             "higher_order::flex_attention_backward": forward * 5 // 2}
    assert counter.total("recompute_macs") == forward // 4
    from distprof import formulas

    unknown = tuple(part.to("meta") if isinstance(part, torch.Tensor) else part for part in mask)
    cost = formulas.cost(torch.ops.higher_order.flex_attention, (query, key, value, _identity, unknown, 0.25, {}), {},
                         (query,))
    assert (cost.flops, cost.note) == (forward, "upper bound: the block mask is unknown without data")


x = torch.randn(4, 4)


@pytest.mark.parametrize("grad", [False, True])
def test_a_branch_counts_when_it_runs(grad):
    source = x.clone().requires_grad_(grad)
    for taken, products in ((True, 1), (False, 2)):
        with Counter() as counter:
            torch.cond(torch.tensor(taken), lambda a: a @ a, lambda a: (a @ a) @ a, (source,))
        assert counter.total() == products * 64


def test_a_loop_counts_every_turn():
    from torch._higher_order_ops import while_loop

    with Counter() as counter:
        while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a @ a), (torch.tensor(0), x))
    assert counter.total() == 3 * 64


def test_scans_and_maps_count_every_element():
    from torch._higher_order_ops import scan
    from torch._higher_order_ops.map import map as mapped

    turns = []

    def turn(carry, y):
        turns.append(y)
        return carry @ carry, (carry @ y).clone()

    with Counter() as counter:
        scan(turn, x, torch.randn(3, 4, 4))
    # some versions of torch run the function once more than there are elements, to see what it returns
    assert counter.total() == len(turns) * 2 * 64 and len(turns) >= 3
    with Counter() as counter:
        mapped(lambda a: a @ a, torch.randn(3, 4, 4))
    assert counter.total() == 3 * 64


def test_checkpoints_count_the_work_done_twice():
    from torch.utils.checkpoint import checkpoint

    source = x.clone().requires_grad_()
    with Counter() as counter:
        checkpoint(lambda a: (a @ a).relu() @ a, source, use_reentrant=False).sum().backward()
    # two products forward, two again (the second of which is not needed and not done), four backward
    assert counter.total() in (7 * 64, 8 * 64)
