"""fvcore's drop-in beside the real package: same numbers, same text."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import distprof.compat.fvcore as ours
from support.peer_nets import NETS, ROWS, Codec, Onion, TwoHeads

pytestmark = pytest.mark.long

SIZES = {"encoder": Counter({"aten::div": 1, "aten::mul": 4})}
"""Arithmetic on sizes, which a trace takes for operators."""


def quiet(analysis):
    """An analysis of either package without warnings."""
    return analysis.tracer_warnings("none").unsupported_ops_warnings(False).uncalled_modules_warnings(False)


def analyses(package, model, inputs):
    """The analyses of flops by the package and by the drop-in."""
    return quiet(package.FlopCountAnalysis(model, inputs)), quiet(ours.FlopCountAnalysis(model, inputs))


def assert_equal_numbers(theirs, mine, sizes=None):
    assert mine.total() == theirs.total()
    assert mine.by_operator() == theirs.by_operator()
    assert mine.by_module() == theirs.by_module()
    assert mine.by_module_and_operator() == theirs.by_module_and_operator()
    assert mine.uncalled_modules() == theirs.uncalled_modules()
    assert mine.unsupported_ops() + (sizes or Counter()) == theirs.unsupported_ops()


@pytest.mark.parametrize("mode", ["owner", "caller"])
@pytest.mark.parametrize("name", NETS)
def test_numbers(fvcore_package, name, mode):
    build, inputs = NETS[name]
    theirs, mine = analyses(fvcore_package, build(), inputs)
    assert_equal_numbers(theirs.ancestor_mode(mode), mine.ancestor_mode(mode), SIZES.get(name))


@pytest.mark.parametrize("name", NETS)
def test_activations(fvcore_package, name):
    build, inputs = NETS[name]
    model = build()
    theirs = quiet(fvcore_package.ActivationCountAnalysis(model, inputs))
    assert ours.ActivationCountAnalysis(model, inputs).by_module_and_operator() == theirs.by_module_and_operator()


@pytest.fixture(scope="module")
def indented(fvcore_package):
    """fvcore's tables with the indentation that it asks tabulate for in a way that tabulate 0.10 ignores."""
    tabulate = pytest.importorskip("tabulate")
    with pytest.MonkeyPatch.context() as patch:
        if "preserve_whitespace" in inspect.signature(tabulate.tabulate).parameters:
            patch.setattr(tabulate, "tabulate", partial(tabulate.tabulate, preserve_whitespace=True))
        yield fvcore_package


def assert_equal_text(package, model, inputs):
    theirs, mine = analyses(package, model, inputs)
    acts = quiet(package.ActivationCountAnalysis(model, inputs)), ours.ActivationCountAnalysis(model, inputs)
    assert ours.flop_count_str(mine) == package.flop_count_str(theirs)
    assert ours.flop_count_str(mine, acts[1]) == package.flop_count_str(theirs, acts[0])
    assert ours.flop_count_table(mine) == package.flop_count_table(theirs)
    assert ours.flop_count_table(mine, 1, acts[1], False) == package.flop_count_table(theirs, 1, acts[0], False)
    assert ours.parameter_count(model) == package.parameter_count(model)
    if ours.parameter_count(model):  # fvcore raises without parameters
        for depth in (0, 1, 3):
            assert ours.parameter_count_table(model, depth) == package.parameter_count_table(model, depth)


@pytest.mark.parametrize("name", NETS)
def test_text(indented, name):
    build, inputs = NETS[name]
    assert_equal_text(indented, build(), inputs)


LAYERS = {
    "linear": lambda: nn.Linear(6, 6), "bare": lambda: nn.Linear(6, 6, bias=False), "norm": lambda: nn.LayerNorm(6),
    "plain_norm": lambda: nn.LayerNorm(6, elementwise_affine=False), "relu": nn.ReLU, "gelu": nn.GELU,
    "nothing": nn.Identity, "codec": Codec, "big": lambda: nn.Sequential(nn.Linear(6, 500), nn.Linear(500, 6))}
TREES = st.recursive(st.sampled_from(sorted(LAYERS)), lambda below: st.lists(below, min_size=1, max_size=3),
                     max_leaves=6)


def built(tree, shared):
    """A name is a layer, a list is a sequence; equal names are the same layer where layers are shared."""
    if isinstance(tree, list):
        parts = [built(part, shared) for part in tree]
        return Onion(parts[0]) if len(parts) == 1 else nn.Sequential(*parts)
    if shared is None:
        return LAYERS[tree]()
    return shared.setdefault(tree, LAYERS[tree]())


@settings(max_examples=15, deadline=None)
@given(TREES, st.booleans())
def test_any_tree_of_modules(indented, tree, is_shared):
    model = Onion(built(tree, {} if is_shared else None))
    for mode in ("owner", "caller"):
        theirs, mine = analyses(indented, model, ROWS)
        assert_equal_numbers(theirs.ancestor_mode(mode), mine.ancestor_mode(mode))
    assert_equal_text(indented, model, ROWS)


def test_fused_attention_is_lost(fvcore_package):
    model, x = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True).eval(), torch.randn(3, 5, 24)
    plain = ours.FlopCountAnalysis(model, x).total()
    with torch.no_grad():
        theirs, mine = analyses(fvcore_package, model, x)
        assert mine.by_module_and_operator() == theirs.by_module_and_operator()
        assert mine.unsupported_ops() == theirs.unsupported_ops() == {
            "aten::_native_multi_head_attention": 1, "aten::add": 2}
        assert plain - mine.total() == 4 * 24 * 24 * 15  # the projections
        crossed = nn.MultiheadAttention(24, 4, batch_first=True).eval()
        for attention, inputs in ((crossed, (x, x.clone(), x)), (nn.MultiheadAttention(24, 4).eval(), (x, x, x))):
            theirs, mine = analyses(fvcore_package, attention, inputs)
            assert mine.total() == theirs.total() > 0


@pytest.mark.parametrize("frozen", ["all of it", "all but the attention", "the attention alone"])
def test_frozen_attention_is_fused_with_gradients_on(fvcore_package, frozen):
    model, x = nn.TransformerEncoderLayer(24, 4, 40, batch_first=True).eval(), torch.randn(3, 5, 24)
    model.requires_grad_(frozen == "the attention alone")
    model.self_attn.requires_grad_(frozen == "all but the attention")
    theirs, mine = analyses(fvcore_package, nn.Sequential(model), x)
    assert mine.by_module_and_operator() == theirs.by_module_and_operator()
    lost = "aten::_native_multi_head_attention" in mine.unsupported_ops()
    assert lost == (frozen != "all but the attention")


def test_distributed_data_parallel(fvcore_package):
    build, inputs = NETS["Ladder"]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        theirs, mine = analyses(fvcore_package, nn.parallel.DistributedDataParallel(build()), inputs)
        assert mine.by_module() == theirs.by_module()
        assert mine.total("module.rungs.1") == 1056
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["Imaging", "Ladder", "LSTMCell", "TwoHeads", "GELU"])
def test_handles_written_for_fvcore(fvcore_package, name):
    build, inputs = NETS[name]
    theirs, mine = analyses(fvcore_package, build(), inputs)
    handles = importlib.import_module("fvcore.nn.flop_count")._DEFAULT_SUPPORTED_OPS
    elementwise = importlib.import_module("fvcore.nn.jit_handles").elementwise_flop_counter(1, 2)
    extra = dict.fromkeys(("aten::add", "aten::tanh", "aten::gelu", "aten::amax", "aten::hardswish"), elementwise)
    assert mine.clear_op_handles().total() == 0
    assert mine.set_op_handle(**handles, **extra).by_operator() == theirs.set_op_handle(**extra).by_operator()


def test_an_operator_can_be_made_free_here_only(fvcore_package):
    theirs, mine = analyses(fvcore_package, nn.BatchNorm1d(6).eval(), ROWS)
    assert theirs.set_op_handle("aten::batch_norm", None).total() == 48  # although its documentation says 0
    assert mine.set_op_handle("aten::batch_norm", None).total() == 0


def test_what_the_package_cannot_trace(fvcore_package):
    class Product(nn.Module):
        def forward(self, a, b):
            return torch.matmul(a, b)

    theirs, mine = analyses(fvcore_package, Product(), (ROWS, torch.randn(6)))
    assert mine.total() == 24
    with pytest.raises(IndexError):
        theirs.total()


def test_functions(fvcore_package):
    model, inputs = TwoHeads(), NETS["TwoHeads"][1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ours.flop_count(model, inputs) == fvcore_package.flop_count(model, inputs)
        assert ours.activation_count(model, inputs) == fvcore_package.activation_count(model, inputs)
