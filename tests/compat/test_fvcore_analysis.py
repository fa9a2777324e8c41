"""fvcore's drop-in by itself: what an analysis counts, takes and warns of."""

from __future__ import annotations

import logging
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distprof.compat.fvcore as ours
from distprof.errors import UsageError
from support.peer_nets import NETS, ROWS, Gauge


def analysis_of(name):
    build, inputs = NETS[name]
    return ours.FlopCountAnalysis(build(), inputs)


@pytest.mark.parametrize(("name", "expected"), [
    ("Ladder", {"": 2304, "rungs": 1920, "rungs.0": 864, "rungs.0.along": 288, "rungs.0.across": 576, "rungs.1": 1056,
                "out": 384}),
    ("Routes", {"": 132, "routes": 72, "routes.near": 72, "routes.far": 0, "scale": 60}),
    ("Halving", {"": 1050, "merge": 1050}),
    ("Towers", {"": 840, "left": 560, "left.own": 240, "left.space": 320, "right": 240, "score": 40}),
    ("Denoiser", {"": 84, "codec": 72, "codec.pack": 36, "clean": 12}),
    ("DataParallel", {"": 72, "module": 72}),
    ("TwoHeads", {"": 968, "body": 864, "pool": 48, "kind": 40, "place": 16}),
])
def test_numbers_by_hand(name, expected):
    by_module = analysis_of(name).by_module()
    assert {path: by_module[path] for path in expected} == expected


def test_shared_modules_by_caller():
    analysis = analysis_of("Towers").ancestor_mode("caller")
    assert [analysis.total(name) for name in ("left", "left.space", "right", "rank")] == [400, 320, 400, 40]
    assert analysis.canonical_module_name("right.space") == "left.space"
    assert analysis.total("right.space") == 320
    with pytest.raises(KeyError, match="nothing"):
        analysis.total("nothing")


def test_runs_when_asked_and_once():
    calls = []
    model = nn.Linear(6, 3)
    model.register_forward_hook(lambda *_: calls.append(1))
    analysis = ours.FlopCountAnalysis(model, ROWS)
    assert not calls
    assert (analysis.total(), analysis.by_operator(), analysis.uncalled_modules()) == (72, {"linear": 72}, set())
    assert len(calls) == 1
    analysis.set_op_handle("aten::linear", lambda _inputs, _outputs: 7)
    assert (analysis.total(), len(calls)) == (7, 2)


def test_handles():
    analysis = ours.FlopCountAnalysis(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.GELU()).eval(), ROWS)

    def gelu(inputs, outputs):
        assert ours.get_shape(inputs[0]) == inputs[0].type().sizes()
        return Counter(activation=5 * ours.get_shape(outputs[0])[1])

    assert analysis.by_operator() == {"linear": 72, "batch_norm": 24}
    assert analysis.set_op_handle("aten::gelu", gelu, "aten::linear", None).by_operator() == {
        "batch_norm": 24, "activation": 15}
    assert analysis.unsupported_ops() == {}
    assert analysis.clear_op_handles().unsupported_ops().keys() == {"aten::linear", "aten::batch_norm", "aten::gelu"}


@pytest.mark.parametrize(("change", "error", "match"), [
    (lambda analysis: analysis.set_op_handle("aten::gelu"), TypeError, "pairs"),
    (lambda analysis: analysis.set_op_handle("aten::linear", lambda *_: np.int32(1)).total(), ValueError, "overflow"),
    (lambda analysis: analysis.set_op_handle("aten::linear", lambda *_: "1").total(), ValueError, "is not a number"),
    (lambda analysis: analysis.ancestor_mode("nobody"), ValueError, "owner, caller"),
    (lambda analysis: analysis.tracer_warnings("some"), ValueError, "no_tracer_warning"),
])
def test_wrong_settings(change, error, match):
    with pytest.raises(error, match=match):
        change(ours.FlopCountAnalysis(nn.Linear(6, 3), ROWS))


def test_a_copy_keeps_all_settings(caplog):
    class Counted(ours.FlopCountAnalysis):
        pass

    settings = {"aten::linear": None, "aten::layer_norm": lambda *_: 11}
    first = Counted(NETS["Towers"][0](), ROWS).set_op_handle(**settings).ancestor_mode("caller")
    first.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    other = first.copy(NETS["Routes"][0](), torch.randn(9, 6))
    assert (type(other), other.total(), first.total()) == (Counted, 11, 0)
    assert other.unsupported_ops() == {}
    assert first.copy().by_module().keys() == first.by_module().keys()
    assert not caplog.records
    other.set_op_handle("aten::layer_norm", None)
    assert (other.total(), first.copy(NETS["Routes"][0]()).total()) == (0, 11)


def test_arguments_of_every_kind():
    given = {"x": ROWS, "weights": torch.ones(6)}
    assert ours.FlopCountAnalysis(Gauge(), given).total() == 72
    assert ours.FlopCountAnalysis(Gauge(), ROWS, {"weights": torch.ones(6)}).total() == 72

    class Batch(nn.Module):
        def forward(self, batch):
            return batch["a"] @ batch["a"].T

    assert ours.FlopCountAnalysis(Batch(), {"a": torch.ones(3, 4)}).total() == 36


def test_compiled_models():
    build, inputs = NETS["Ladder"]
    model = build()
    whole = ours.FlopCountAnalysis(torch.compile(model, backend="eager"), inputs)
    assert whole.by_module() == ours.FlopCountAnalysis(model, inputs).by_module()
    model.rungs[0] = torch.compile(model.rungs[0], backend="eager")
    for mode in ("owner", "caller"):
        part = ours.FlopCountAnalysis(model, inputs).ancestor_mode(mode)
        part = part.tracer_warnings("none").by_module()  # torch warns of the hooks that watch the modules
        names = ("", "rungs.0", "rungs.0._orig_mod", "rungs.0._orig_mod.across")
        assert [part[name] for name in names] == [2304, 864, 864, 576]


def test_scripted_submodules_are_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        scripted = torch.jit.script(nn.Linear(6, 5))
    analysis = ours.FlopCountAnalysis(nn.Sequential(scripted, nn.Linear(5, 2)), ROWS)
    assert (analysis.total(), analysis.unsupported_ops()) == (40, {"aten::addmm": 1})


def test_warnings_in_the_log(caplog):
    model = nn.Sequential(NETS["Routes"][0](), nn.GELU())
    with caplog.at_level(logging.WARNING):
        ours.FlopCountAnalysis(model, ROWS).unsupported_ops_warnings(False).uncalled_modules_warnings(False).total()
        assert not caplog.records
        ours.FlopCountAnalysis(model, ROWS).total()
    lines = [record.getMessage() for record in caplog.records]
    assert any("aten::gelu" in line for line in lines)
    assert any(line.endswith("0.routes.far, 0.routes.far.0, 0.routes.far.1") for line in lines)


def test_warnings_of_the_model():
    class Warns(nn.Module):
        def forward(self, x):
            warnings.warn("careful", UserWarning, stacklevel=1)
            return F.relu(x)

    ours.FlopCountAnalysis(Warns(), ROWS).tracer_warnings("none").total()
    with pytest.raises(UserWarning, match="careful"):
        ours.FlopCountAnalysis(Warns(), ROWS).total()


def test_functions():
    build, inputs = NETS["TwoHeads"]
    assert ours.flop_count(build(), inputs)[0] == {
        "conv": 864 / 1e9, "linear": 56 / 1e9, "adaptive_avg_pool2d": 48 / 1e9}
    assert ours.activation_count(build(), inputs)[0] == {"conv": 96 / 1e6, "linear": 14 / 1e6}
    assert ours.flop_count(build(), inputs, {"aten::linear": lambda *_: 1e9})[0]["linear"] == 2


def test_not_a_model() -> None:
    with pytest.raises(UsageError, match=r"expected a torch\.nn\.Module, not int"):
        ours.FlopCountAnalysis(3, torch.ones(2))
    with pytest.raises(UsageError, match="not str"):
        ours.FlopCountAnalysis(nn.Linear(6, 3), ROWS).copy("model")
