"""One model, called in many ways: what does not change the work does not change the count."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import distprof
from support.two_layers import BACKWARD, FIRST, FORWARD, ROWS, SECOND, WIDTH, model, rows


def fake() -> distprof.Counts:
    with FakeTensorMode():
        return distprof.count(model(), rows(), backward=True)


def made_fake() -> distprof.Counts:
    with FakeTensorMode():
        network, x = model(), rows()
    return distprof.count(network, x, backward=True)


def autocast() -> distprof.Counts:
    with torch.autocast("cpu", torch.bfloat16):
        return distprof.count(model(), rows(), backward=True)


def functional() -> distprof.Counts:
    network = model()
    weights = dict(network.named_parameters())
    return distprof.count(lambda x: torch.func.functional_call(network, weights, (x,)), rows(), backward=True)


def compiled_function() -> distprof.Counts:
    network = model()
    return distprof.count(torch.compile(lambda x: network(x), backend="eager"), rows(), backward=True)


def on_threads() -> distprof.Counts:
    network = model()
    with ThreadPoolExecutor(1) as pool:
        return distprof.count(lambda x: pool.submit(network, x).result(), rows(), backward=True)


def scripted() -> distprof.Counts:
    return distprof.count(torch.jit.script(model()), rows(), backward=True)


def offloaded() -> distprof.Counts:
    with torch.autograd.graph.save_on_cpu():
        return distprof.count(model(), rows(), backward=True)


def gradients_of_a_function() -> distprof.Counts:
    network = model()
    weights = {name: weight.detach() for name, weight in network.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(network, weights, (x,)).sum()

    return distprof.count(lambda x: torch.func.grad(loss)(weights, x), rows())


def gradients_per_sample() -> distprof.Counts:
    network = model()
    weights = {name: weight.detach() for name, weight in network.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(network, weights, (x,)).sum()

    return distprof.count(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0)), weights, rows())


WAYS: dict[str, Callable[[], distprof.Counts]] = {
    "plainly": lambda: distprof.count(model(), rows(), backward=True),
    "under FakeTensorMode": fake,
    "of fake tensors": made_fake,
    "on meta": lambda: distprof.count(model().to("meta"), rows(), backward=True),
    "under autocast": autocast,
    "in bfloat16": lambda: distprof.count(model().bfloat16(), rows().bfloat16(), backward=True),
    "in float64": lambda: distprof.count(model().double(), rows().double(), backward=True),
    "compiled": lambda: distprof.count(torch.compile(model(), backend="eager"), rows(), backward=True),
    "compiled ahead of time": lambda: distprof.count(torch.compile(model(), backend="aot_eager"), rows(),
                                                     backward=True),
    "in a compiled function": compiled_function,
    "DataParallel": lambda: distprof.count(nn.DataParallel(model()), rows(), backward=True),
    "functional_call": functional,
    "on another thread": on_threads,
    "scripted": scripted,
    "traced": lambda: distprof.count(torch.jit.trace(model(), rows()), rows(), backward=True),
    "symbolically traced": lambda: distprof.count(torch.fx.symbolic_trace(model()), rows(), backward=True),
    "exported": lambda: distprof.count(torch.export.export(model(), (rows(),)).module(), rows(), backward=True),
    "saved on the CPU": offloaded,
    "torch.func.grad": gradients_of_a_function,
    "gradients per sample": gradients_per_sample,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("way", WAYS)
def test_forward_and_backward_do_not_depend_on_the_way(way):
    counts = WAYS[way]()
    assert (counts.forward_flops, counts.backward_flops, counts.recompute_flops) == (FORWARD, BACKWARD, 0)
    assert counts.by_module()[""] == counts.flops == counts.model_flops
    assert not counts.uncounted


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_forward_does_not_depend_on_gradients(context):
    with context():
        counts = distprof.count(model(), rows())
    assert counts.by_module() == {"": FORWARD, "0": FIRST, "1": 0, "2": SECOND} and counts.flops == FORWARD


@pytest.mark.parametrize("depth", [1, 2])
def test_mapped_calls_count_every_element(depth):
    mapped = functools.reduce(lambda function, _: torch.func.vmap(function), range(depth), model())
    assert distprof.count(mapped, torch.randn(5, ROWS, WIDTH)).flops == 5 * FORWARD


def keep_products(_, op, *args, **kwargs):
    products = (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


def checkpointed(network: nn.Module, **options) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: checkpoint(network, x, **options)


def to_the_end(network: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        with set_checkpoint_early_stop(False):
            return checkpoint(network, x, use_reentrant=False)

    return run


SELECTIVE = functools.partial(create_selective_checkpoint_contexts, keep_products)


@pytest.mark.parametrize(("wrap", "recompute"), [
    (lambda network: checkpointed(network, use_reentrant=True), FORWARD),
    (lambda network: checkpointed(network, use_reentrant=False), FIRST),  # stops where nothing more is needed
    (to_the_end, FORWARD),
    (lambda network: checkpointed(network, use_reentrant=False, context_fn=SELECTIVE), 0),
    (checkpoint_wrapper, FIRST),
])
def test_checkpointing_adds_recomputation_and_nothing_else(wrap, recompute):
    counts = distprof.count(wrap(model()), rows(grad=True), backward=True)
    assert (counts.forward_flops, counts.backward_flops) == (FORWARD, 2 * FORWARD)
    assert (counts.recompute_flops, counts.model_flops) == (recompute, 3 * FORWARD)


def attention(device: str, backends: list[SDPBackend]) -> distprof.Counts:
    query, key, value = (torch.randn(2, 4, 16, 8, requires_grad=True, device=device) for _ in range(3))
    with sdpa_kernel(backends):
        return distprof.count(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), query, key,
                              value, backward=True)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_attention_needs_the_same_whatever_kernel_runs(device, backend):
    counts = attention(device, [backend])
    forward = 2 * 2 * 8 * 16 * 16 * 8
    assert (counts.forward_flops, counts.model_flops) == (forward, 3 * forward)
    fused = device == "cpu" and backend is SDPBackend.FLASH_ATTENTION
    assert counts.flops - counts.model_flops == (forward // 2 if fused else 0)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_an_encoder_counts_padding_like_data(padded, grad, training):
    # watched functions keep torch from dropping the padding, which it does in eval mode without gradients
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).train(training)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if padded else None
    with torch.set_grad_enabled(grad):
        counts = distprof.count(encoder, torch.randn(2, 5, 16), src_key_padding_mask=mask)
    layer = 10 * (4 * 16 * 16 + 2 * 16 * 32) + 2 * 5 * 5 * 16 * 2
    assert counts.macs == counts.by_module("macs")["layers"] == 2 * layer


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_convolutions_do_not_depend_on_the_layout(layout, device):
    network = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4))
    x = torch.randn(2, 4, 8, 8, requires_grad=True).to(memory_format=layout)
    counts = distprof.count(network.to(device, memory_format=layout), x, backward=True)
    forward = 2 * 2 * (36 * 8 * 4 * 9 + 16 * 8 * 2 * 9)
    assert (counts.forward_flops, counts.backward_flops) == (forward, 2 * forward)


def test_accumulation_counts_every_part():
    network = model()

    def step() -> None:
        for _ in range(4):
            network(rows()).sum().backward()

    counts = distprof.count(step)
    assert (counts.forward_flops, counts.backward_flops) == (4 * FORWARD, 4 * BACKWARD)
    assert all(parameter.grad is None for parameter in network.parameters()), "as it was before the call"
