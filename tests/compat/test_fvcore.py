"""fvcore's interface on our counts, beside the real package: same numbers, same text; better where it fails."""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distprof.compat.fvcore as ours
from distprof.errors import UsageError
from support import peer_nets

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the real package's own imports
    fvcore = pytest.importorskip("fvcore.nn")
    from fvcore.nn import jit_handles

ROW = torch.randn(1, 10)
IMAGE = torch.randn(2, 8, 6, 6)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(), nn.Linear(4, 10, bias=False))


MODELS = {
    "Nested": (peer_nets.Nested, torch.randn(1, 16)),
    "Unused": (peer_nets.Unused, ROW),
    "Repeated": (peer_nets.Repeated, ROW),
    "NonForward": (peer_nets.NonForward, ROW),
    "SharedTwice": (peer_nets.SharedTwice, ROW),
    "Recursive": (peer_nets.Recursive, ROW),
    "ThreeNet": (peer_nets.ThreeNet, torch.randn(4, 2, 10, 10)),
    "LeNet": (peer_nets.LeNet, torch.randn(1, 1, 32, 32)),
    "Chain": (peer_nets.Chain, ROW),
    "Images": (peer_nets.Images, IMAGE),
    "Images.eval": (lambda: peer_nets.Images().eval(), IMAGE),
    "DataParallel": (lambda: nn.DataParallel(nn.Linear(10, 10)), torch.randn(10, 10)),
    "mlp": (mlp, ROW),
    "LSTM": (lambda: nn.LSTM(4, 5, 2), torch.randn(3, 2, 4)),
    "LSTMCell": (lambda: peer_nets.Holder(nn.LSTMCell(10, 5)), ROW),
    "GRUCell": (lambda: peer_nets.Holder(nn.GRUCell(10, 5)), ROW),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)),
}
SIZES = {"encoder": Counter({"aten::div": 1, "aten::mul": 4})}
"""Arithmetic on sizes, which a trace takes for operators."""


def real(model, inputs):
    """The peer's analysis, quiet."""
    return (fvcore.FlopCountAnalysis(model, inputs).tracer_warnings("none").unsupported_ops_warnings(False)
            .uncalled_modules_warnings(False))


def both(name):
    build, inputs = MODELS[name]
    model = build()
    return real(model, inputs), ours.FlopCountAnalysis(model, inputs)


@pytest.mark.parametrize("mode", ["owner", "caller"])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_equal(name, mode):
    theirs, mine = both(name)
    theirs.ancestor_mode(mode)
    mine.ancestor_mode(mode)
    assert mine.total() == theirs.total()
    assert mine.by_operator() == theirs.by_operator()
    assert mine.by_module() == theirs.by_module()
    assert mine.by_module_and_operator() == theirs.by_module_and_operator()
    assert mine.uncalled_modules() == theirs.uncalled_modules()
    assert mine.unsupported_ops() + SIZES.get(name, Counter()) == theirs.unsupported_ops()


@pytest.mark.parametrize("name", MODELS)
def test_activations_equal(name):
    build, inputs = MODELS[name]
    model = build()
    theirs = fvcore.ActivationCountAnalysis(model, inputs).tracer_warnings("none")
    mine = ours.ActivationCountAnalysis(model, inputs)
    assert mine.by_module_and_operator() == theirs.by_module_and_operator()


@pytest.fixture
def indented(monkeypatch):
    """fvcore asks tabulate to keep its indentation in a way that tabulate 0.10 no longer hears."""
    tabulate = pytest.importorskip("tabulate")
    if "preserve_whitespace" in inspect.signature(tabulate.tabulate).parameters:
        monkeypatch.setattr(tabulate, "tabulate", partial(tabulate.tabulate, preserve_whitespace=True))


@pytest.mark.usefixtures("indented")
@pytest.mark.parametrize("name", MODELS)
def test_text_equal(name):
    theirs, mine = both(name)
    model, inputs = theirs._model, theirs._inputs
    acts = fvcore.ActivationCountAnalysis(model, inputs), ours.ActivationCountAnalysis(model, inputs)
    assert ours.flop_count_str(mine) == fvcore.flop_count_str(theirs)
    assert ours.flop_count_str(mine, acts[1]) == fvcore.flop_count_str(theirs, acts[0])
    assert ours.flop_count_table(mine) == fvcore.flop_count_table(theirs)
    assert ours.flop_count_table(mine, 1, acts[1], False) == fvcore.flop_count_table(theirs, 1, acts[0], False)
    for depth in (0, 1, 3):
        assert ours.parameter_count_table(model, depth) == fvcore.parameter_count_table(model, depth)
    assert ours.parameter_count(model) == fvcore.parameter_count(model)


@pytest.mark.parametrize(("name", "expected"), [
    ("Nested", {"": 560, "conv": 240, "fc": 200, "submod": 120, "submod.conv": 20, "submod.fc": 100}),
    ("Unused", {"": 110, "fc1": 100, "fc2": 0, "fc3": 10}),
    ("Repeated", {"": 500, "fc1": 300, "fc2": 200}),
    ("NonForward", {"": 110, "submod": 100, "submod.fc": 100, "fc": 10}),
    ("SharedTwice", {"": 220, "submod1": 200, "submod1.submod": 200, "submod2": 0, "multiname1": 20}),
    ("Recursive", {"": 10, "fc": 10}),
    ("DataParallel", {"": 1000, "module": 1000}),
    ("LeNet", {"": 274_656, "conv1": 48_600, "conv2": 146_016, "fc1": 69_120, "fc2": 10_080, "fc3": 840}),
])
def test_published_numbers(name, expected):
    build, inputs = MODELS[name]
    by_module = ours.FlopCountAnalysis(build(), inputs).unsupported_ops_warnings(False).by_module()
    assert {path: by_module[path] for path in expected} == expected


def test_fused_attention_is_lost_as_there():
    model, x = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(), torch.randn(2, 7, 64)
    plain = ours.FlopCountAnalysis(model, x).total()
    with torch.no_grad():
        theirs, mine = real(model, x), ours.FlopCountAnalysis(model, x)
        assert mine.by_module_and_operator() == theirs.by_module_and_operator()
        assert mine.unsupported_ops() == theirs.unsupported_ops() == {
            "aten::_native_multi_head_attention": 1, "aten::add": 2}
        assert plain - mine.total() == 4 * 64 * 64 * 14  # the projections
        cross = nn.MultiheadAttention(64, 4, batch_first=True).eval()
        for attention, inputs in ((cross, (x, x.clone(), x)), (nn.MultiheadAttention(64, 4).eval(), (x, x, x))):
            assert ours.FlopCountAnalysis(attention, inputs).total() == real(attention, inputs).total() > 0


def test_distributed_data_parallel():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(peer_nets.Nested())
        theirs, mine = real(model, torch.randn(1, 16)), ours.FlopCountAnalysis(model, torch.randn(1, 16))
        assert mine.by_module() == theirs.by_module()
        assert (mine.total(), mine.total("module.submod")) == (560, 120)
    finally:
        torch.distributed.destroy_process_group()


def test_shared_modules_by_caller():
    mine = both("SharedTwice")[1].ancestor_mode("caller")
    assert [mine.total(name) for name in ("submod1", "submod1.submod", "submod2", "multiname2")] == [100, 200, 100, 20]
    assert mine.canonical_module_name("submod2.submod") == "submod1.submod"
    assert mine.total("submod2.submod") == 200
    with pytest.raises(KeyError, match="nothing"):
        mine.total("nothing")


def test_runs_when_asked_and_once():
    calls = []
    model = nn.Linear(10, 10)
    model.register_forward_hook(lambda *_: calls.append(1))
    analysis = ours.FlopCountAnalysis(model, ROW)
    assert not calls
    assert (analysis.total(), analysis.by_operator(), analysis.uncalled_modules()) == (100, {"linear": 100}, set())
    assert len(calls) == 1
    analysis.set_op_handle("aten::linear", lambda _inputs, _outputs: 7)
    assert (analysis.total(), len(calls)) == (7, 2)


@pytest.mark.parametrize("name", ["Images", "Nested", "LSTMCell", "ThreeNet", "mlp"])
def test_handles_written_for_fvcore_work_unchanged(name):
    theirs, mine = both(name)
    handles = importlib.import_module("fvcore.nn.flop_count")._DEFAULT_SUPPORTED_OPS
    extra = dict.fromkeys(("aten::add", "aten::tanh", "aten::gelu", "aten::sum", "aten::mean", "aten::hardswish_"),
                          jit_handles.elementwise_flop_counter(1, 2))
    assert mine.clear_op_handles().total() == 0
    assert mine.set_op_handle(**handles, **extra).by_operator() == theirs.set_op_handle(**extra).by_operator()


def test_handles():
    analysis = ours.FlopCountAnalysis(nn.Sequential(nn.Linear(10, 4), nn.BatchNorm1d(4), nn.GELU()).eval(), ROW)

    def gelu(inputs, outputs):
        assert ours.get_shape(inputs[0]) == inputs[0].type().sizes()
        return Counter(activation=3 * ours.get_shape(outputs[0])[1])

    assert analysis.by_operator() == {"linear": 40, "batch_norm": 8}
    assert analysis.set_op_handle("aten::gelu", gelu, "aten::linear", None).by_operator() == {
        "batch_norm": 8, "activation": 12}
    assert analysis.unsupported_ops() == {}
    twin = analysis.copy(new_inputs=torch.randn(5, 10)).ancestor_mode("caller")
    assert (type(twin), twin.total(), analysis.total()) == (type(analysis), 52, 20)
    with pytest.raises(TypeError, match="pairs"):
        analysis.set_op_handle("aten::gelu")
    with pytest.raises(ValueError, match="overflow"):
        analysis.set_op_handle("aten::gelu", lambda *_: np.int32(1)).total()
    with pytest.raises(ValueError, match="owner, caller"):
        analysis.ancestor_mode("nobody")
    with pytest.raises(ValueError, match="no_tracer_warning"):
        analysis.tracer_warnings("some")


def test_ignoring_an_operator_works_here_and_not_there():
    model = nn.BatchNorm1d(10).eval()
    assert real(model, ROW).set_op_handle("aten::batch_norm", None).total() == 20  # although its documentation says 0
    assert ours.FlopCountAnalysis(model, ROW).set_op_handle("aten::batch_norm", None).total() == 0


def test_arguments_that_cannot_be_traced():
    model = peer_nets.Modern()
    inputs = {"x": ROW, "scale": torch.ones(10)}
    assert ours.FlopCountAnalysis(model, inputs).total() == 30
    assert ours.FlopCountAnalysis(model, ROW, {"scale": torch.ones(10)}).total() == 30
    with pytest.raises((TypeError, RuntimeError)):
        real(model, (ROW, torch.ones(10))).total()

    class Batched(nn.Module):
        def forward(self, batch):
            return batch["a"] @ batch["a"].T

    assert ours.FlopCountAnalysis(Batched(), {"a": torch.ones(3, 4)}).total() == 36


def test_compiled_models():
    model = peer_nets.Nested()
    whole = ours.FlopCountAnalysis(torch.compile(model, backend="eager"), torch.randn(1, 16))
    assert whole.by_module() == ours.FlopCountAnalysis(model, torch.randn(1, 16)).by_module()
    model.submod = torch.compile(model.submod, backend="eager")
    for mode in ("owner", "caller"):
        part = ours.FlopCountAnalysis(model, torch.randn(1, 16)).ancestor_mode(mode)
        part = part.tracer_warnings("none").by_module()  # torch warns of the hooks that watch the modules
        assert (part[""], part["submod"], part["submod._orig_mod"], part["submod._orig_mod.fc"]) == (560, 120, 120, 100)


def test_scripted_submodules_are_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        scripted = torch.jit.script(nn.Linear(10, 10))
    analysis = ours.FlopCountAnalysis(nn.Sequential(scripted, nn.Linear(10, 2)), ROW)
    assert (analysis.total(), analysis.unsupported_ops()) == (20, {"aten::addmm": 1})


def test_products_with_vectors():
    class Vector(nn.Module):
        def forward(self, a, b):
            return torch.matmul(a, b)

    inputs = torch.randn(3, 4), torch.randn(4)
    assert ours.FlopCountAnalysis(Vector(), inputs).total() == 12
    with pytest.raises(IndexError):
        real(Vector(), inputs).total()


def test_warnings_in_the_log(caplog):
    build, inputs = MODELS["Unused"]
    model = nn.Sequential(build(), nn.GELU())
    with caplog.at_level(logging.WARNING):
        ours.FlopCountAnalysis(model, inputs).unsupported_ops_warnings(False).uncalled_modules_warnings(False).total()
        assert not caplog.records
        ours.FlopCountAnalysis(model, inputs).total()
    told = [record.getMessage() for record in caplog.records]
    assert any("aten::gelu" in line for line in told)
    assert any(line.endswith("0.bag.unused, 0.bag.unused.0, 0.fc2") for line in told)


def test_warnings_of_the_model():
    class Warns(nn.Module):
        def forward(self, x):
            warnings.warn("careful", UserWarning, stacklevel=1)
            return F.relu(x)

    ours.FlopCountAnalysis(Warns(), ROW).tracer_warnings("none").total()
    with pytest.raises(UserWarning, match="careful"):
        ours.FlopCountAnalysis(Warns(), ROW).total()


def test_functions():
    model, inputs = peer_nets.ThreeNet(), torch.randn(4, 2, 10, 10)
    assert ours.flop_count(model, inputs) == fvcore.flop_count(model, inputs)
    assert ours.activation_count(model, inputs) == fvcore.activation_count(model, inputs)
    assert ours.flop_count(model, inputs)[0] == {"conv": 4e-6, "linear": 72e-9, "adaptive_avg_pool2d": 2e-6}
    assert ours.flop_count(model, inputs, {"aten::linear": lambda *_: 1e9})[0]["linear"] == 2


@pytest.mark.parametrize(("model", "inputs", "expected"), [
    (lambda: nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3, 2, 1), nn.ReLU(),
                           nn.Conv2d(16, 8, 3, 2, 1)), torch.randn(1, 3, 32, 32), 8_192 + 1_024 + 128),
    (lambda: nn.Linear(10, 20), ROW, 20),
])
def test_published_activations(model, inputs, expected):
    assert ours.ActivationCountAnalysis(model(), inputs).total() == expected


def test_not_a_model() -> None:
    with pytest.raises(UsageError, match=r"expected a torch\.nn\.Module, found int"):
        ours.FlopCountAnalysis(3, torch.ones(2))
