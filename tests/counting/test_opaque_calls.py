"""Code that no dispatch mode sees into: it runs as it would without one, and is listed as not counted."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
import torch
from torch import nn

import distprof
from distprof.counting.opaque_calls import OPAQUE, is_on, without
from distprof.counting.torch_functions import FunctionPass
from support.recording import Recorded
from support.two_layers import FIRST, FORWARD, HIDDEN, OUT, ROWS, WIDTH, model, rows

AOT = "compiled::aot_compile"
PACKAGE = "compiled::aot_inductor_package"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Around(nn.Module):
    """A layer, then code that is no module."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.first, self.relu, self.inner = nn.Linear(WIDTH, HIDDEN), nn.ReLU(), [inner]

    def forward(self, x):
        return self.inner[0](self.relu(self.first(x)))


def compiled_ahead() -> nn.Module:
    """Its guards refuse tensors under a dispatch mode."""
    last = nn.Linear(HIDDEN, OUT).eval()
    with torch.no_grad():
        return Around(torch.compile(last, fullgraph=True, backend="eager").forward.aot_compile(
            ((torch.randn(ROWS, HIDDEN),), {}))).eval()


def listed(counts) -> dict[str, int]:
    return {one.op: one.calls for one in counts.uncounted}


@pytest.mark.long
@torch.no_grad()
def test_what_was_compiled_ahead_runs_and_is_listed():
    network, x = compiled_ahead(), rows()
    expected = network(x)
    counts = distprof.count(network, x)
    assert counts.forward_flops == FIRST and listed(counts) == {AOT: 1}
    moved = 4 * ROWS * (HIDDEN + OUT)
    one, = counts.uncounted
    assert one.io_bytes == moved and counts.coverage_ratio == 1 - moved / counts.total("io_bytes")
    torch.testing.assert_close(network(x), expected, rtol=0, atol=0)


@pytest.mark.long
@torch.no_grad()
def test_what_was_compiled_ahead_runs_in_drop_ins_and_profiles():
    from distprof.compat.deepspeed import get_model_profile
    from distprof.compat.fvcore import FlopCountAnalysis

    network, macs = compiled_ahead(), FIRST // 2
    assert get_model_profile(network, args=[rows()], print_profile=False, as_string=False)[1] == macs
    assert FlopCountAnalysis(network, rows()).total() == macs
    assert listed(distprof.profile(network, rows())) == {AOT: 1}
    assert distprof.reconcile(network, rows(), peer="ptflops").ours == macs


def test_function_modes_of_the_script_stay_on_while_ours_is_off():
    from torch.overrides import TorchFunctionMode

    class Plain(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def stack() -> list:
        return [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]

    below, ours, above = Plain(), FunctionPass(lambda: None), Plain()
    with below, ours, above:
        with ours.aside():
            assert stack() == [below, above]
        assert stack() == [below, ours, above]
    with ours.aside():
        assert stack() == []


@pytest.mark.long
@torch.no_grad()
def test_a_job_of_what_was_compiled_ahead_goes_on(tmp_path):
    network, x = compiled_ahead(), rows()
    kinds = {kind for module, name, method in OPAQUE if method == "__call__"
             and (kind := getattr(sys.modules.get(module), name, None)) is not None}
    before = {kind: kind.__call__ for kind in kinds}
    expected = network(x)
    with distprof.record(tmp_path, steps="wait=1,count=1,time=1,trace=0") as rec:
        while rec.recording:
            torch.testing.assert_close(network(x), expected, rtol=0, atol=0)
    seen = Recorded(tmp_path)
    assert seen.info["status"] == "complete" and seen.flops("forward") == {"first": FIRST}
    note, = seen.info["notes"]
    assert AOT in note and "not counted" in note
    assert seen.table("ops").filter(op=AOT).select("calls", "counted").rows() == [(1.0, False)]
    assert kinds and {kind: kind.__call__ for kind in kinds} == before


@torch.no_grad()
def test_a_package_is_listed(monkeypatch):
    """As one of AOTInductor, whose kernels no operator calls; making a real one takes a compiler and minutes."""
    from torch.export.pt2_archive import _package

    class Package:
        def __call__(self, x):
            return torch.from_numpy(x.numpy() @ np.ones((HIDDEN, OUT), np.float32))

    monkeypatch.setattr(_package, "AOTICompiledModel", Package)
    package = Package()
    counts = distprof.count(Around(package), rows())
    assert counts.forward_flops == FIRST and listed(counts) == {PACKAGE: 1}
    assert listed(distprof.count(package, torch.randn(ROWS, HIDDEN))) == {PACKAGE: 1}
    assert "__wrapped__" not in vars(Package.__call__)


def test_replays_of_a_cuda_graph_are_listed(monkeypatch):
    """As on a GPU, where no operator is called again."""
    from torch.cuda import graphs

    class Graph:
        def replay(self) -> None:
            return None

    monkeypatch.setattr(graphs, "CUDAGraph", Graph)
    counts = distprof.count(Around(lambda x: (Graph().replay(), Graph().replay(), x)[-1]), rows())
    assert listed(counts) == {"cuda::graph_replay": 2} and counts.forward_flops == FIRST
    assert "at least" in str(counts)


class InNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, OUT))

    def forward(self, x):
        return torch.from_numpy(x.detach().numpy() @ self.weight.detach().numpy())


class InAKernel(nn.Module):
    """Fills what `torch.empty` made, as a Triton kernel does."""

    def forward(self, x):
        out = torch.empty_like(x)
        np.tanh(x.detach().numpy(), out=out.numpy())
        return out


@pytest.fixture
def thawed():
    """The suite freezes what it has imported."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.parametrize(("kind", "width"), [(InNumpy, OUT), (InAKernel, WIDTH)])
def test_a_module_without_operators_that_returns_something_new_is_listed(kind, width, thawed):
    counts = distprof.count(nn.Sequential(kind(), nn.Linear(width, OUT)), rows())
    assert listed(counts) == {f"opaque::{kind.__name__}": 1} and counts.coverage_ratio < 1
    assert counts.forward_flops == 2 * ROWS * width * OUT
    one, = (op for op in counts.ops if not op.counted)
    assert one.module_path == "0" and one.read_bytes == 4 * ROWS * WIDTH and one.write_bytes == 4 * ROWS * width


TABLE = {"positions": torch.randn(ROWS, WIDTH)}


class Kept(nn.Module):
    """Returns what was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inside = torch.randn(ROWS, WIDTH), [torch.randn(ROWS, WIDTH)]
        self.cached = nn.Buffer(torch.randn(ROWS, WIDTH))

    def forward(self, x):
        return x[:2], self.table, self.inside[0], self.cached[1:], TABLE["positions"], TABLE["positions"][:1], None


class Constant(nn.Module):
    def forward(self, x):
        return torch.tensor([1.0, 2.0])


@pytest.mark.parametrize("module", [nn.Identity(), nn.Flatten(), nn.Dropout().eval(), Kept(), Constant()])
def test_a_module_that_computes_nothing_hides_nothing(module, thawed):
    counts = distprof.count(nn.Sequential(nn.Linear(WIDTH, WIDTH), module), rows())
    assert not counts.uncounted and counts.coverage_ratio == 1


def test_all_other_models_hide_nothing():
    counts = distprof.count(model(), rows(grad=True), backward=True)
    assert counts.forward_flops == FORWARD and not counts.uncounted


def test_modes_of_the_script_stay_on_while_ours_is_off():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Plain(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    below, ours, above = Plain(), Plain(), Plain()
    with below, ours, above:
        with without(ours):
            assert (is_on(below), is_on(ours), is_on(above)) == (True, False, True)
        assert [torch._C._get_dispatch_stack_at(place) for place in range(3)] == [below, ours, above]
    with without(ours):
        assert not is_on(ours)
