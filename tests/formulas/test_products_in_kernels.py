"""Kernels that call matrix products, which no dispatch mode sees by itself: their products count like any other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import distprof
from distprof import formulas
from distprof.formulas.composite_operators import CALL_PRODUCTS, is_composite
from support.counter import Counter, macs
from support.operators import operator
from support.profiled import profiled_calls, profiled_macs

SIZE = st.integers(1, 5)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of the profiler, and of new functions


def rand(*shape: int, **options) -> torch.Tensor:
    return torch.rand(*shape, requires_grad=True, **options)


def loss(reduction: str):
    """Of a linear layer and cross entropy in chunks, without the logits as a whole."""
    options = getattr(nn, "LinearCrossEntropyOptions", None)
    if options is None:
        pytest.skip("this torch has no F.linear_cross_entropy")
    x, weight, target = rand(64, 8), rand(20, 8), torch.zeros(64, dtype=torch.long)
    return lambda: F.linear_cross_entropy(x, weight, target, reduction=reduction, options=options()).sum()


CALLS = {
    "cdist": lambda: torch.cdist(rand(30, 7), rand(4, 7)),
    "cdist, a batch": lambda: torch.cdist(rand(2, 3, 4, 5), rand(3, 26, 5)),
    "cdist, few rows": lambda: torch.cdist(rand(25, 7), rand(25, 7)),
    "cdist, by products": lambda: torch.cdist(rand(5, 7), rand(4, 7), compute_mode="use_mm_for_euclid_dist"),
    "cdist, never by products": lambda: torch.cdist(
        rand(30, 7), rand(40, 7), compute_mode="donot_use_mm_for_euclid_dist"),
    "cdist, another norm": lambda: torch.cdist(rand(30, 7), rand(40, 7), p=1.0),
    "affine_grid": lambda: F.affine_grid(rand(2, 2, 3), [2, 3, 4, 5], align_corners=False),
    "affine_grid in space": lambda: F.affine_grid(rand(2, 3, 4), [2, 3, 4, 5, 6], align_corners=True),
    "Bilinear": lambda: nn.Bilinear(4, 5, 6)(rand(6, 4), rand(6, 5)),
    "Bilinear, a batch": lambda: F.bilinear(rand(2, 3, 4), rand(2, 3, 5), rand(6, 4, 5)),
    "matrix_exp": lambda: torch.linalg.matrix_exp(rand(3, 6, 6)),
    "matrix_exp, squared": lambda: torch.linalg.matrix_exp(20 * rand(6, 6)),
    "pinv": lambda: torch.linalg.pinv(rand(6, 4)),
    "linear_cross_entropy": lambda: loss("mean")(),
    "linear_cross_entropy, each row": lambda: loss("none")(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("grad", [True, False])
def test_what_counts_is_what_the_profiler_sees(name, grad):
    def run():
        torch.manual_seed(0)
        out = CALLS[name]()
        if out.requires_grad:
            out.sum().backward()

    with torch.set_grad_enabled(grad):
        run()
        expected = profiled_macs(run)
        with Counter() as counter:
            run()
    assert counter.total() == expected
    assert all(cost.counted for op, cost in counter.costs)
    assert (expected > 0) == (name not in ("cdist, few rows", "cdist, never by products", "cdist, another norm"))


@settings(max_examples=15)
@given(SIZE, SIZE, SIZE, SIZE)
def test_by_hand(batch, left, right, out):
    # the squared norms of both sides are two columns more
    assert macs(torch.cdist, rand(batch, 26, left), rand(batch, right, left)) == batch * 26 * right * (left + 2)
    assert macs(F.affine_grid, rand(batch, 2, 3), [batch, 3, left, right], align_corners=False) \
        == batch * left * right * 3 * 2
    # the first input with the weight, then the result with the second input; sizes of 1 need no product
    batch, left, right, out = batch + 1, left + 1, right + 1, out + 1
    assert macs(F.bilinear, rand(batch, left), rand(batch, right), rand(out, left, right)) \
        == batch * left * right * out + batch * right * out


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_those_without_counting(name):
    def results():
        torch.manual_seed(0)
        leaves: list[torch.Tensor] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(globals(), "rand", lambda *shape: leaves.append(torch.rand(*shape, requires_grad=True))
                          or leaves[-1])
            out = CALLS[name]()
            out.sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    plain = results()
    with Counter():
        watched = results()
    assert len(plain) == len(watched) and all(map(torch.equal, plain, watched))


@pytest.mark.parametrize("name", ["cdist", "cdist, a batch", "affine_grid", "Bilinear", "pinv"])
def test_meta_fake_and_inference_count_the_same(name):
    expected = distprof.count(CALLS[name])
    assert expected.coverage_ratio == 1 and expected.macs == profiled_macs(CALLS[name])
    with torch.device("meta"):
        assert distprof.count(CALLS[name]).macs == expected.macs
    with FakeTensorMode():
        assert distprof.count(CALLS[name]).macs == expected.macs
    with torch.inference_mode():
        assert distprof.count(CALLS[name]).macs == expected.macs


def test_a_kernel_that_reads_data_is_not_counted_where_there_is_none():
    found = distprof.count(torch.linalg.matrix_exp, torch.empty(3, 3, device="meta"))
    assert found.macs == 0 and [one.op for one in found.uncounted] == ["aten::linalg_matrix_exp"]


def test_every_name_is_that_of_an_operator_without_a_formula():
    known = hasattr(F, "linear_cross_entropy")
    for name in CALL_PRODUCTS if known else (name for name in CALL_PRODUCTS if "linear_cross_entropy" not in name):
        assert not formulas.has_formula(operator(name)), name


def contraction(name: str) -> bool:
    """True for an operator with a formula that the dispatcher does not split."""
    if f"aten::{name}" not in formulas.MACS:
        return False
    packet = getattr(torch.ops.aten, name)
    return not any(is_composite(getattr(packet, overload), "cpu") for overload in packet.overloads())


def samples(op, dtype: torch.dtype):
    """Calls of one entry of torch's database of operators, with backward where it has one."""
    has_gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    for sample, _ in zip(op.sample_inputs("cpu", dtype, requires_grad=has_gradient), range(6), strict=False):
        def run(sample=sample):
            torch.manual_seed(0)
            out = op(sample.input, *sample.args, **sample.kwargs)
            ends = [tensor for tensor in torch.utils._pytree.tree_leaves(out)
                    if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
            torch.autograd.backward(ends, [torch.ones_like(tensor) for tensor in ends])

        yield run


@pytest.mark.stress
@pytest.mark.filterwarnings("ignore")
def test_no_operator_of_torch_hides_a_product():
    """Every entry of torch's own database: the products inside kernels are those that count, and as often."""
    pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    hidden, ran = {}, 0
    for op in op_db:
        if torch.float32 not in op.supported_dtypes("cpu") or op.name.startswith("jiterator"):
            continue
        for run in samples(op, torch.float32):
            try:
                run()
                run()
            except RuntimeError:  # a gradient that is not unique, or to which torch can add none
                continue
            with Counter() as counter:
                run()
            mine = {name.removeprefix("aten::") for name, cost in counter.costs if cost.kind == "contraction"}
            theirs = profiled_calls(run, contraction)
            ran += 1
            if set(theirs) - mine:
                hidden[op.name] = set(theirs) - mine
    assert not hidden, hidden
    assert ran > 1000
