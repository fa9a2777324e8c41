"""Work counts once and where it runs: experts, tied and computed weights, recursion, gradients of every kind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import distprof
from support.recording import Recorded
from support.two_layers import FIRST, FORWARD, HIDDEN, OUT, ROWS, WIDTH, model, rows


class Experts(nn.Module):
    """Each row goes to two of four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleDict({f"expert{index}": nn.Linear(WIDTH, WIDTH, bias=False) for index in range(4)})

    def forward(self, x):
        chosen, out = self.router(x).topk(2, -1).indices, torch.zeros_like(x)
        for index, expert in enumerate(self.experts.values()):
            mine, _ = (chosen == index).nonzero(as_tuple=True)
            if len(mine):
                out = out.index_add(0, mine, expert(x[mine]))
        return out


def test_experts_count_the_rows_they_get():
    network, x = Experts(), torch.randn(10, WIDTH)
    chosen = network.router(x).topk(2, -1).indices
    flops = distprof.count(network, x).by_module()
    assert flops[""] == 2 * 10 * WIDTH * 4 + 2 * 20 * WIDTH * WIDTH
    for index in range(4):
        assert flops[f"experts.expert{index}"] == 2 * int((chosen == index).sum()) * WIDTH * WIDTH


@pytest.mark.parametrize(("wrap", "extra"), [
    (nn.utils.parametrizations.weight_norm, 0),
    # one turn of power iteration, then u W v
    (nn.utils.parametrizations.spectral_norm, 2 * (2 * OUT * WIDTH + OUT * WIDTH + OUT)),
])
def test_parametrizations_count_what_they_compute(wrap, extra):
    counts = distprof.count(wrap(nn.Linear(WIDTH, OUT)), rows())
    assert counts.forward_flops == 2 * ROWS * WIDTH * OUT + extra
    assert counts.by_module()["parametrizations.weight.0"] == extra


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def test_tied_weights_are_held_once_and_count_where_they_multiply():
    counts = distprof.count(Tied(), torch.tensor([1, 2, 3]), backward=True)
    assert counts.params.params == 11 * WIDTH
    assert counts.by_module() == {"": 3 * 2 * 3 * WIDTH * 11, "embedding": 0, "head": 3 * 2 * 3 * WIDTH * 11}


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, deeper=3):
        return self(self.layer(x), deeper - 1) if deeper else self.layer(x)


def test_a_module_that_calls_itself_counts_once():
    counts = distprof.count(Recursive(), rows(grad=True), backward=True)
    once = 2 * ROWS * WIDTH * WIDTH
    assert counts.by_module() == {"": 12 * once, "layer": 12 * once}


def test_gradients_of_gradients_count():
    first, second = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(HIDDEN, 1, bias=False)

    def penalty() -> None:
        x = rows(grad=True)
        (gradient,) = torch.autograd.grad(second(first(x).tanh()).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()

    one, two = FIRST, 2 * ROWS * HIDDEN
    counts = distprof.count(penalty)
    assert counts.forward_flops == one + two
    # the gradient: both; its own: two of one, one of two (ones need none), and by tanh both of one
    assert counts.backward_flops == (one + two) + (2 * one + two) + 2 * one


def test_the_gradient_of_inputs_alone():
    def saliency() -> None:
        x, network = rows(grad=True), model().requires_grad_(False)
        torch.autograd.grad(network(x).sum(), x)

    counts = distprof.count(saliency)
    assert (counts.forward_flops, counts.backward_flops) == (FORWARD, FORWARD)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, left, right):
        ctx.save_for_backward(left, right)
        return left @ right

    @staticmethod
    def backward(ctx, grad):
        left, right = ctx.saved_tensors
        return grad @ right.t(), left.t() @ grad


class Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, OUT))

    def forward(self, x):
        return Product.apply(x, self.weight)


def test_a_written_function_belongs_to_its_module_in_backward_too():
    counts = distprof.count(nn.Sequential(Written(), nn.Tanh()), rows(grad=True), backward=True)
    assert counts.by_module() == {"": 3 * 2 * ROWS * WIDTH * OUT, "0": 3 * 2 * ROWS * WIDTH * OUT, "1": 0}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*quant.*:UserWarning")
def test_dynamically_quantized_layers_count_like_plain_ones():
    quantized = torch.ao.quantization.quantize_dynamic(model(), {nn.Linear}, dtype=torch.qint8)
    counts = distprof.count(quantized, rows())
    assert counts.flops == FORWARD and not counts.uncounted


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_forward_gradients_count_the_products_that_run():
    from torch.utils.flop_counter import FlopCounterMode

    network, x = model(), rows()
    with FlopCounterMode(display=False) as counter:
        torch.func.jvp(network, (x,), (torch.ones_like(x),))
    counts = distprof.count(lambda y: torch.func.jvp(network, (y,), (torch.ones_like(y),)), x)
    assert counts.flops == counter.get_total_flops() >= 2 * FORWARD


class Norm(nn.Module):
    def forward(self, x):
        return F.normalize(x)


def test_work_without_contractions_is_no_flop():
    counts = distprof.count(nn.Sequential(Norm(), nn.Softmax(-1)), rows(grad=True), backward=True)
    assert counts.flops == 0 < counts.total("elements") and not counts.uncounted


class InBackward(torch.autograd.Function):
    """Calls a module in its backward alone."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.module(gradient), None


class ByFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Sequential(nn.Linear(HIDDEN, HIDDEN))

    def forward(self, x):
        return InBackward.apply(self.first(x), self.second)


class ByHook(ByFunction):
    def forward(self, x):
        out = self.first(x)
        out.register_hook(self.second)
        return out


class Repeated(ByFunction):
    """Of the two modules that a checkpoint calls in backward one ran forward."""

    def forward(self, x):
        return checkpoint(self.both, x, use_reentrant=False)

    def both(self, x):
        out = self.first(x).tanh()
        out.register_hook(self.second)
        return out


@pytest.mark.parametrize(("kind", "backward", "recompute"), [(ByFunction, 1, 0), (ByHook, 1, 0), (Repeated, 1, 1)])
def test_a_module_that_runs_in_backward_alone_repeats_nothing(kind, backward, recompute):
    counts = distprof.count(kind(), rows(grad=True), backward=True)
    second = 2 * ROWS * HIDDEN * HIDDEN
    assert (counts.forward_flops, counts.backward_flops, counts.recompute_flops) == (
        FIRST, 2 * FIRST + backward * second, recompute * FIRST)
    assert counts.model_flops == 3 * FIRST + second
    assert counts.by_module()["second.0"] == second


def test_each_step_has_its_own_repetitions(tmp_path, monkeypatch):
    """What ran forward in another step is repeated in none."""
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    network, second = ByHook(), 2 * ROWS * HIDDEN * HIDDEN
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with distprof.record(tmp_path, steps="wait=1,count=1,time=1,trace=0"):
        for step in range(3):
            if not step:
                network.second(torch.randn(ROWS, HIDDEN))
            network(rows()).sum().backward()
            optimizer.step()
    seen = Recorded(tmp_path)
    assert seen.flops("backward") == {"first": FIRST, "second.0": second} and seen.flops("recompute") == {}
    times = seen.modules()["second"]
    assert times["bwd_time_ns"] > 0 and not times["recompute_time_ns"]


class Hooked(nn.Linear):
    """Its forward hook multiplies once more; so does that of the module inside."""

    def __init__(self) -> None:
        super().__init__(WIDTH, HIDDEN)
        self.register_forward_hook(lambda _module, _args, out: out @ self.weight)
        self.register_forward_pre_hook(lambda _module, args: (args[0] @ torch.ones(WIDTH, WIDTH),))


def test_hooks_of_the_root_are_work_of_the_root():
    network, before, behind = Hooked(), 2 * ROWS * WIDTH * WIDTH, FIRST
    counts = distprof.count(network, rows(grad=True), backward=True)
    assert counts.forward_flops == FIRST + before + behind
    assert counts.by_module()[""] == counts.flops == 3 * counts.forward_flops - before
    assert {op.module_path for op in counts.ops} <= {"", None} and not any(
        op.macs for op in counts.ops if op.module_path is None)
    with torch.no_grad():
        inside = distprof.count(nn.Sequential(network), rows())
    assert inside.by_module()[""] == inside.flops == FIRST + before + behind


def test_hooks_of_the_root_are_its_work_in_a_job(tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    network, before = Hooked(), 2 * ROWS * WIDTH * WIDTH
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with distprof.record(tmp_path, steps="wait=1,count=1,time=0,trace=0"):
        for _ in range(2):
            (network(rows()) @ torch.ones(WIDTH, 1)).sum().backward()
            optimizer.step()
    seen, script = Recorded(tmp_path), 2 * ROWS * WIDTH
    assert seen.flops("forward") == {"": 2 * FIRST + before, None: script}
    assert seen.flops("backward") == {"": 3 * FIRST, None: script}


class Generating(nn.Module):
    """Its work runs when results are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)

    def forward(self, x):
        for _ in range(2):
            yield self.first(x) @ torch.ones(HIDDEN, OUT)


def test_a_forward_that_is_a_generator_is_work_of_its_module():
    network = Generating()
    counts = distprof.count(lambda x: sum(network(x)), rows())
    both = 2 * (FIRST + 2 * ROWS * HIDDEN * OUT)
    assert counts.by_module() == {"": both, "first": 2 * FIRST} and counts.flops == both
