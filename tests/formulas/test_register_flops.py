"""Formulas of users: how they are found, what they get, what they may not answer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import distprof
from distprof import formulas
from distprof.errors import FormulaError, UsageError
from distprof.formulas import user_formulas
from support.counter import Counter

x = torch.ones(3, 4)


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    monkeypatch.setattr(user_formulas, "REGISTERED", {})


@pytest.fixture
def op():
    @torch.library.custom_op("distprof_test::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor

    return scaled


def flops(function, *args, **kwargs) -> int:
    with Counter() as counter:
        function(*args, **kwargs)
    return counter.total("flops")


def test_a_formula_gets_the_call_as_the_dispatcher_passes_it(op):
    seen = []

    def formula(*args, out, **kwargs):
        seen.append((args[1:], kwargs, args[0].shape, out.shape))
        return 9001

    assert distprof.register_flops("distprof_test::scaled", formula) is formula
    assert flops(op, x, factor=3.0) == 9001
    assert flops(op, x) == 9001
    assert flops(op, factor=4.0, x=x) == 9001
    assert seen == [((3.0,), {}, (3, 4), (3, 4)), ((), {}, (3, 4), (3, 4)), ((4.0,), {}, (3, 4), (3, 4))]


def test_a_decorator_an_operator_an_overload_and_replacing(op):
    func = torch.ops.distprof_test.scaled

    @distprof.register_flops(func)
    def formula(x, factor=2.0, *, out):
        return 2 * x.numel()

    assert flops(op, x) == 24
    cost = formulas.cost(func.default, (x,), {}, x)
    assert (cost.macs, cost.flops, cost.kind, cost.counted) == (12, 24, "contraction", True)
    with pytest.raises(UsageError, match="distprof_test::scaled already has a formula"):
        distprof.register_flops("distprof_test::scaled", formula)
    distprof.register_flops("distprof_test::scaled", lambda x, factor=2.0, *, out: 7, replace=True)
    assert flops(op, x) == 7
    distprof.register_flops(func.default, lambda x, factor=2.0, *, out: 5)
    assert flops(op, x) == 5
    user_formulas.REGISTERED.clear()
    distprof.register_flops(op, lambda x, factor=2.0, *, out: 3)
    assert flops(op, x) == 3


def test_our_own_formulas_are_replaced_only_on_purpose():
    for known in ("aten::mm", "aten::mm.dtype", "aten::matmul", torch.ops.aten.mm, torch.ops.aten.mm.default,
                  torch.ops.aten.mm.out):
        with pytest.raises(UsageError, match=r"aten::\w+(\.\w+)? already has a formula"):
            distprof.register_flops(known, lambda *args, out: 1)
    distprof.register_flops("aten::mm", lambda left, right, *, out: 1, replace=True)
    assert flops(torch.mm, x, x.t()) == 1
    distprof.register_flops(torch.ops.aten.bmm.default, lambda left, right, *, out: 3, replace=True)
    assert flops(torch.bmm, x[None], x.t()[None]) == 3
    distprof.register_flops("aten::add", lambda *args, out, **given: out.numel())
    assert flops(torch.add, x, x) == 12
    assert flops(torch.add, x, x, out=torch.empty(3, 4)) == 12


@pytest.mark.parametrize("answer", [-1, 1.5, float("nan"), "many", None, True])
def test_nonsense_is_told(op, answer):
    distprof.register_flops("distprof_test::scaled", lambda *args, out: answer)
    expected = "the formula registered for distprof_test::scaled must return an int >= 0"
    with pytest.raises(FormulaError, match=expected) as told:
        formulas.cost(torch.ops.distprof_test.scaled.default, (x,), {}, x)
    assert repr(answer) in str(told.value) and told.value.hint
    assert isinstance(told.value, distprof.errors.DistprofError)


def test_a_formula_that_raises_is_told(op):
    distprof.register_flops("distprof_test::scaled", lambda nothing_else: 1)
    with pytest.raises(FormulaError, match="registered for distprof_test::scaled raised TypeError"):
        formulas.cost(torch.ops.distprof_test.scaled.default, (x,), {}, x)


@pytest.mark.parametrize("name", ["mm", "aten.mm", "::mm", "a b::c", "my-lib::op", "", "lib::"])
def test_malformed_names_are_refused(name):
    with pytest.raises(UsageError, match="is not an operator name like 'mylib::op'"):
        distprof.register_flops(name, lambda *args, out: 1)


def test_what_is_no_operator_is_refused():
    with pytest.raises(UsageError, match="expected an operator"):
        distprof.register_flops(3, lambda *args, out: 1)
    with pytest.raises(UsageError, match="must be a function, not"):
        distprof.register_flops("mylib::op", 3)


def test_a_name_may_come_before_the_library():
    distprof.register_flops("distprof_later::op", lambda x, *, out: 4)
    library = torch.library.Library("distprof_later", "FRAGMENT")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", lambda x: x.clone(), "CompositeExplicitAutograd")
    assert flops(torch.ops.distprof_later.op, x) == 4


def test_what_was_registered_with_torch_counts_too():
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    library = torch.library.Library("distprof_torch", "FRAGMENT")
    library.define("op(Tensor x) -> Tensor")
    library.impl("op", lambda x: x.clone(), "CompositeExplicitAutograd")
    register_flop_formula(torch.ops.distprof_torch.op)(lambda shape, *, out_shape, **_: shape.numel() + 1)
    try:
        assert flops(torch.ops.distprof_torch.op, x) == 13
    finally:
        del flop_registry[torch.ops.distprof_torch.op]


def test_triton_kernels_are_found_by_kernel_or_name():
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_mutation

    def saxpy_kernel(x_ptr, out, n, BLOCK):
        raise AssertionError("never runs")

    class Kernel:
        """As triton.runtime.jit.JITFunction and the autotuner around it: the function is in `fn`."""

        def __init__(self, fn):
            self.fn = fn

    tuned = Kernel(Kernel(saxpy_kernel))
    launch = {"kernel_idx": kernel_side_table.add_kernel(tuned),
              "constant_args_idx": kernel_side_table.add_constant_args({"BLOCK": 64}),
              "grid": [(2, 1, 1)], "tma_descriptor_metadata": {}, "kwargs": {"x_ptr": x, "out": x, "n": 12}}
    seen = SimpleNamespace()

    def formula(**given):
        seen.given = given
        return 2 * given["n"]

    assert not formulas.has_formula(triton_kernel_wrapper_mutation, launch)
    assert formulas.cost(triton_kernel_wrapper_mutation, (), launch, None).counted is False
    distprof.register_flops("triton::saxpy_kernel", formula)
    assert formulas.has_formula(triton_kernel_wrapper_mutation, launch)
    assert formulas.cost(triton_kernel_wrapper_mutation, (), launch, None).flops == 24
    assert seen.given == {"x_ptr": x, "out": x, "n": 12, "BLOCK": 64, "grid": (2, 1, 1)}
    user_formulas.REGISTERED.clear()
    distprof.register_flops(tuned, lambda **given: 5)
    assert formulas.cost(triton_kernel_wrapper_mutation, (), launch, None).flops == 5
