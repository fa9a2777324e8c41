"""distprof.count: right numbers for every way to call a model, and everything left as it was."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distprof
from distprof.errors import UsageError
from support.isolated import Raises, state
from support.models import Checkpointed, Inplace, Residual, Shared
from support.operators import meta_takes_grouped_floats, needs_grouped_product


class Twice(nn.Module):
    """One layer below two parents."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(4, 4, bias=False)
        self.first, self.second = nn.Sequential(layer), nn.Sequential(layer)

    def forward(self, x):
        return self.second(self.first(x))


class Named(nn.Module):
    """Takes keywords, dicts and lists, gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)

    def forward(self, *, batch, extra):
        return {"out": self.inner(batch["x"]) + extra[0]}


class Generator(nn.Module):
    """Calls itself as often as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.layer(x)

    @torch.no_grad()
    def generate(self, x, steps: int):
        for _ in range(steps):
            x = self(x)
        return x


def test_a_call_is_counted_by_module_operator_and_phase():
    counts = distprof.count(nn.Sequential(Residual(8), nn.Tanh(), Residual(8)), torch.randn(3, 8), backward=True)
    product = 2 * 3 * 8 * 8
    assert (counts.forward_flops, counts.backward_flops, counts.recompute_flops) == (4 * product, 7 * product, 0)
    assert counts.flops == 2 * counts.macs == 11 * product
    assert counts.by_module() == {"": 11 * product, "0": 5 * product, "0.inner": 3 * product, "1": 0,
                                  "2": 6 * product, "2.inner": 3 * product}
    assert counts.by_op() == {"aten::mm": 11 * product}
    assert counts.by_module_and_op()["2.inner"] == {"aten::mm": 3 * product}
    assert sum(counts.by_module_and_op("calls")["1"].values()) >= 2
    assert (counts.params.params, counts.params.param_bytes) == (256, 1024)
    (root, *_), last = counts.modules, counts.modules[-1]
    assert (root.path, root.calls, root.input_shapes, last.path) == ("", 1, ((3, 8),), "2.inner")


def test_a_shared_layer_counts_where_it_is_called():
    counts = distprof.count(Twice(), torch.randn(2, 4), backward=True)
    forward, backward = 2 * 2 * 16, 2 * 2 * 16 * 2
    assert counts.by_module() == {
        "": 2 * (forward + backward) - forward, "first": forward + backward - forward,
        "first.0": forward + backward - forward, "second": forward + backward, "second.0": forward + backward}
    assert counts.params.params == 16
    assert distprof.count(Shared(), torch.randn(2, 4)).by_module() == {"": 3 * 64, "first": 3 * 64}


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_a_phase_of_its_own(reentrant):
    model = nn.Sequential(nn.Linear(8, 8, bias=False), Checkpointed(Residual(8), reentrant=reentrant))
    plain = nn.Sequential(nn.Linear(8, 8, bias=False), Residual(8))
    counts = distprof.count(model, torch.randn(3, 8), backward=True)
    expected = distprof.count(plain, torch.randn(3, 8), backward=True)
    assert counts.recompute_flops > 0 == expected.recompute_flops
    assert (counts.forward_flops, counts.backward_flops) == (expected.forward_flops, expected.backward_flops)
    assert counts.model_flops == expected.model_flops == expected.flops


def test_keywords_dicts_lists_in_place_changes_and_generation():
    named = distprof.count(Named(), batch={"x": torch.randn(2, 4)}, extra=[torch.ones(1)])
    assert named.by_module() == {"": 64, "inner": 64}
    assert distprof.count(Inplace(), torch.randn(3, 4), backward=True).by_module()["linear"] == 2 * 2 * 3 * 16
    generated = distprof.count(Generator().generate, torch.randn(2, 4), steps=3)
    assert generated.by_module() == {"": 3 * 64, "layer": 3 * 64} and generated.modules[0].calls == 3


class Listed(nn.Module):
    """Holds layers in a list; a part of one is called from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 4)])
        self.other = Borrower(self.layers[0])

    def forward(self, x):
        return self.other(self.layers[1](x))


class Borrower(nn.Module):
    """Calls a part of a module that is not its own."""

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self.owner = (owner,)

    def forward(self, x):
        return self.owner[0][0](x)


def test_a_list_has_what_its_layers_do_when_their_owner_calls_them():
    assert distprof.count(Listed(), torch.randn(2, 4)).by_module() == {
        "": 128, "layers": 64, "layers.0": 0, "layers.0.0": 64, "layers.1": 64, "other": 64}


def test_a_function_counts_too():
    layer = nn.Linear(4, 4, bias=False)
    counts = distprof.count(lambda x: layer(x) @ x.t(), torch.randn(2, 4))
    assert counts.flops == 64 + 32 and counts.by_module() == {"": 64}


def test_modules_that_a_function_calls_are_left_as_they_were():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Random())
    x = torch.randn(4, 4)
    model(x).sum().backward()
    before = state(model)
    counts = distprof.count(lambda: model(x), backward=True)
    assert state(model) == before
    # the copies that are kept meanwhile are nobody's work
    assert counts.by_op("calls") == distprof.count(model, x, backward=True).by_op("calls")
    assert {call.name for call in counts.functions} == {
        call.name for call in distprof.count(model, x, backward=True).functions}


def test_a_model_on_the_meta_device_needs_no_memory():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(100_000, 100_000), nn.ReLU())
    counts = distprof.count(model, torch.randn(3, 100_000), backward=True)
    assert counts.forward_flops == 2 * 3 * 10**10 == counts.backward_flops


@pytest.mark.long
def test_a_compiled_model_is_counted_whole_and_not_compiled_again():
    from torch._dynamo.utils import counters

    model = torch.compile(nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU()), backend="eager")
    model(torch.randn(2, 4))
    graphs = counters["stats"]["unique_graphs"]
    assert distprof.count(model, torch.randn(2, 4)).by_module() == {"": 64, "0": 64, "1": 0}
    model(torch.randn(2, 4))
    assert counters["stats"]["unique_graphs"] == graphs
    assert distprof.count(torch.compile(nn.Linear(4, 4), backend="eager"), torch.randn(2, 4)).flops == 64


class Random(nn.Module):
    def forward(self, x):
        random.random()
        numpy.random.rand()
        return nn.functional.dropout(x)


@pytest.mark.parametrize("bad", [False, True])
def test_model_and_process_are_left_as_they_were(bad):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Random(), *([Raises()] if bad else []))
    if not bad:
        model(torch.randn(4, 4)).sum().backward()
    x = torch.randn(4, 4)
    before = state(model)
    if bad:
        with pytest.raises(KeyError, match="inside") as caught:
            distprof.count(model, x, backward=True)
        assert caught.value.__notes__ == ["distprof: raised in 3 (Raises)"]
    else:
        distprof.count(model, x, backward=True)
    assert state(model) == before


def test_wrong_shapes_raise_what_the_model_raises():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        distprof.count(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4)), torch.randn(2, 4))
    assert caught.value.__notes__ == ["distprof: raised in 1 (Linear)"]


@pytest.mark.parametrize(("model", "message"), [
    (nn.Linear, "the class Linear"), (3, "'int'"), (None, "'NoneType'")])
def test_what_cannot_be_called_is_refused(model, message):
    with pytest.raises(UsageError, match=message):
        distprof.count(model, torch.randn(1))


class Returns(nn.Module):
    def __init__(self, what) -> None:
        super().__init__()
        self.inner, self.what = nn.Linear(4, 4), what

    def forward(self, x):
        return self.what(self.inner(x))


@pytest.mark.parametrize(("model", "found", "hint"), [
    (nn.Linear(4, 4).requires_grad_(requires_grad=False), "tensors of float32 without one", "requires gradients"),
    (Returns(lambda x: x.argmax()), "tensors of int64 without one", "floating-point"),
    (Returns(lambda x: None), "found NoneType", "return a tensor, or a tuple, list, dict or dataclass"),
])
def test_backward_without_gradients_is_refused_with_the_reason(model, found, hint):
    with pytest.raises(UsageError, match="output with a gradient") as caught:
        distprof.count(model, torch.randn(1, 4), backward=True)
    assert found in str(caught.value) and hint in caught.value.hint
    with torch.no_grad(), pytest.raises(UsageError, match="gradients are off"):
        distprof.count(nn.Linear(4, 4), torch.randn(1, 4), backward=True)


class Threads(nn.Module):
    """Calls its layers on threads of its own."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))
        self.pool = pool

    def forward(self, x):
        return sum(self.pool.map(lambda layer: layer(x), self.layers))


def test_modules_that_other_threads_call_count_and_nothing_stays_on_those():
    with ThreadPoolExecutor(2) as pool:
        model = Threads(pool)
        model(torch.randn(2, 4))
        for _ in range(5):
            counts = distprof.count(model, torch.randn(2, 4), backward=True)
            assert (counts.forward_flops, counts.backward_flops) == (4 * 64, 4 * 64)
            assert counts.by_module() == {"": 512, "layers": 512} | {f"layers.{index}": 128 for index in range(4)}
            assert [call.path.site.path for call in counts.functions if call.name.endswith("linear")]
        depths = pool.map(lambda _: (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
                          range(8))
        assert set(depths) == {(0, 0)}


class Forked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        waiting = torch.jit.fork(self.layer, x)
        return self.layer(x) + torch.jit.wait(waiting)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.randn(2, 4)),
                                  lambda model: torch.jit.freeze(torch.jit.script(model.eval()))])
def test_scripted_modules_count_for_the_module_that_is_called(make):
    counts = distprof.count(nn.Sequential(make(Forked()), nn.Linear(4, 4)), torch.randn(2, 4))
    assert (counts.flops, counts.by_module()["0"], counts.by_module()["1"]) == (3 * 64, 2 * 64, 64)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_what_a_script_hides_is_listed():
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    script = torch.jit.optimize_for_inference(torch.jit.script(layers))
    with torch.no_grad():
        counts = distprof.count(nn.Sequential(script, nn.Conv2d(8, 8, 3)), torch.randn(2, 3, 12, 12))
    hidden = {one.op: one.calls for one in counts.uncounted}
    plain = distprof.count(nn.Sequential(layers), torch.randn(2, 3, 12, 12))
    assert not plain.uncounted and plain.flops == 2 * 2 * (100 * 8 * 3 * 9 + 64 * 8 * 8 * 9)
    known = torch.backends.mkldnn.is_available()  # without it torch leaves the convolutions as they are
    assert hidden == ({"prim::mkldnn_convolution": 2} if known else {})
    assert (counts.coverage_ratio < 1) == known
    assert counts.by_module()["1"] == 2 * 2 * 36 * 8 * 8 * 9
    assert any("TorchScript" in op.note for op in counts.ops) == known


@pytest.mark.parametrize(("model", "inputs", "flops", "params"), [
    (lambda: nn.LazyLinear(4), torch.randn(3, 8), 192, 36),
    (lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()), torch.randn(3, 8), 192, 44),
    (lambda: nn.LazyConv2d(4, 3), torch.randn(2, 3, 8, 8), 15_552, 112),
])
def test_a_lazy_model_counts_and_stays_lazy(model, inputs, flops, params):
    lazy = model()
    counts = distprof.count(lazy, inputs, backward=True)
    assert (counts.forward_flops, counts.backward_flops, counts.params.params) == (flops, flops, params)
    assert counts.by_module()[""] == 2 * flops
    assert lazy.has_uninitialized_params() if hasattr(lazy, "has_uninitialized_params") else \
        all(layer.has_uninitialized_params() for layer in lazy)
    assert distprof.count(lazy.__call__, inputs).flops == flops
    assert distprof.count(lambda x: lazy(x), inputs).flops == flops


def nested(*lengths: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(2, length, 8) for length in lengths], requires_grad=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("inference", [False, True])
def test_nested_tensors_count_their_own_lengths(inference):
    macs = 2 * 8 * (3 * 3 + 5 * 5)
    with torch.inference_mode(inference):
        given = nested(3, 5)
        product = distprof.count(lambda x: x @ x.transpose(-1, -2), given, backward=not inference)
        attention = distprof.count(lambda x: F.scaled_dot_product_attention(x, x, x), given)
    assert (product.macs, attention.macs) == (macs * (1 if inference else 3), 2 * macs)
    assert not product.uncounted and not attention.uncounted


def test_coverage_names_what_nobody_knows():
    with torch.library._scoped_library("distprof_test", "DEF") as library:
        library.define("mystery(Tensor x) -> Tensor")
        library.impl("mystery", lambda x: x * 2, "CompositeExplicitAutograd")
        counts = distprof.count(lambda x: torch.ops.distprof_test.mystery(x @ x), torch.randn(4, 4))
    (unknown,) = [one for one in counts.uncounted if one.op == "distprof_test::mystery"]
    assert (unknown.calls, unknown.io_bytes) == (1, 2 * 64)
    assert 0 < counts.coverage_ratio < 1


class ReadsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) if x.sum().item() > 0 else x


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 8, 16))

    def forward(self, x):
        return torch._grouped_mm(x, self.weight, offs=torch.tensor([2, 4, 6], dtype=torch.int32, device=x.device))


@pytest.mark.parametrize(("model", "shape", "words"), [
    (ReadsValues, (2, 4), "reads tensor values, which do not exist on the meta device"),
    pytest.param(Grouped, (6, 8), "does not support float32 on the meta device", marks=needs_grouped_product),
])
def test_what_the_meta_device_cannot_do_is_said(model, shape, words):
    if model is Grouped and meta_takes_grouped_floats():
        pytest.skip("in this torch grouped products run on meta in any precision")
    with pytest.raises(RuntimeError) as caught:
        distprof.count(model().to("meta"), torch.ones(shape))
    assert any(words in note and "count it on the CPU" in note for note in caught.value.__notes__)
    assert distprof.count(model(), torch.ones(shape)).coverage_ratio == 1


def test_layers_that_are_still_lazy_hold_nothing():
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LazyLinear(4), nn.LazyBatchNorm1d()

        def forward(self, x):
            return self.first(x)

    counts = distprof.count(Half(), torch.ones(2, 3))
    assert (counts.macs, counts.params.params, counts.params.buffers) == (24, 16, 1)  # a number of batches is there
    assert [module.params.params for module in counts.modules] == [16, 16, 0]
