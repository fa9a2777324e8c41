"""Results that nothing uses: fvcore's trace drops them, so the drop-in and the reconciliation do, by name."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import distprof
import distprof.compat.fvcore as ours
from distprof.counting.count import count_with_unused
from distprof.peers.fvcore import UNUSED
from support.zoo import transformers_model

WIDTH, ROWS = 4, 3


class Program(nn.Module):
    """Steps on a growing list of tensors; some of them are returned."""

    def __init__(self, steps, returned) -> None:
        super().__init__()
        self.steps, self.returned = steps, returned
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in steps)
        self.register_buffer("state", torch.zeros(ROWS, WIDTH))

    def forward(self, x):
        made = [x.clone(), x + 1]
        for (kind, *operands), layer in zip(self.steps, self.layers, strict=True):
            first, second = (made[index % len(made)] for index in operands)
            made.append(getattr(self, kind)(first, second, layer))
        return tuple(made[index % len(made)] for index in self.returned)

    def product(self, first, second, layer):
        return layer(first) + second

    def alone(self, first, second, layer):
        return first.matmul(layer.weight)

    def view(self, first, second, layer):
        return first.view(-1)[:ROWS * WIDTH].view(ROWS, WIDTH)

    def changed(self, first, second, layer):
        first.add_(layer(second))
        return second * 2

    def part(self, first, second, layer):
        first[0] = layer(second)[1]
        return second - 1

    def buffer(self, first, second, layer):
        self.state.copy_(layer(first))
        return second.relu()

    def read(self, first, second, layer):
        return layer(self.state) + first


STEP = st.tuples(st.sampled_from(["product", "alone", "view", "changed", "part", "buffer", "read"]),
                 st.integers(0, 20), st.integers(0, 20))


@pytest.mark.long
@settings(max_examples=60)
@given(st.lists(STEP, min_size=1, max_size=7), st.lists(st.integers(0, 20), min_size=1, max_size=3))
def test_what_is_dropped_is_what_the_package_drops(fvcore_package, steps, returned):
    model, x = Program(steps, returned), torch.rand(ROWS, WIDTH)
    with torch.no_grad():
        theirs = fvcore_package.FlopCountAnalysis(model, x)
        theirs.tracer_warnings("none").unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        mine = ours.FlopCountAnalysis(model, x).quiet()
        assert mine.by_module_and_operator() == theirs.by_module_and_operator()
        assert mine.uncalled_modules() == theirs.uncalled_modules()
        assert distprof.reconcile(model, x, peer="fvcore").theirs == theirs.total()


class Auxiliary(nn.Module):
    """A second head, of which nothing is returned unless it is asked for."""

    def __init__(self, give) -> None:
        super().__init__()
        self.body, self.head, self.more = nn.Linear(4, 6), nn.Linear(6, 2), nn.Sequential(nn.Linear(6, 5), nn.ReLU())
        self.give = give

    def forward(self, x):
        x = self.body(x)
        return self.give(self.head(x), self.more(x))


class Held:
    """Torch does not look into it."""

    def __init__(self, **kept) -> None:
        self.kept = kept


@pytest.mark.parametrize(("give", "is_used"), [
    (lambda first, second: first, False), (lambda first, second: (first, second.shape), False),
    (lambda first, second: (first, second), True), (lambda first, second: {"a": first, "b": [second.t()[1:]]}, True),
    (lambda first, second: first + second.sum(), True), (lambda first, second: (first, Held(second=second)), True),
    (lambda first, second: Held(first=first, second=second), True), (lambda first, second: None, True),
])
def test_the_reconciliation_names_what_a_trace_drops(give, is_used):
    found = distprof.reconcile(Auxiliary(give), torch.rand(3, 4), peer="fvcore")
    lines = [] if is_used else [("torch.nn.functional.linear", -3 * 6 * 5, UNUSED)]
    assert [(line.function, line.difference, line.reason) for line in found.differences] == lines
    assert (found.ours, found.theirs) == (3 * (24 + 12 + 30), 3 * (24 + 12 + 30 * is_used))


def test_a_count_does_not_look_for_what_is_unused():
    model = Auxiliary(lambda first, second: first)
    assert distprof.count(model, torch.rand(3, 4)).unused == {}
    assert count_with_unused(model, torch.rand(3, 4)).macs == distprof.count(model, torch.rand(3, 4)).macs


def test_memory_without_a_storage_counts_as_used():
    def sparse(x):
        (x @ x).to_sparse()
        return x + 1

    assert not count_with_unused(sparse, torch.rand(3, 3)).unused
    unused = {call.name for call in count_with_unused(lambda x: ((x @ x).relu(), x + 1)[1], torch.rand(3, 3)).unused}
    assert unused == {"torch.Tensor.matmul", "torch.Tensor.relu"}


VISION = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
          "num_attention_heads": 2, "image_size": 16, "patch_size": 8, "projection_dim": 16}
DECODER = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
           "num_key_value_heads": 2, "use_cache": False}
WASTEFUL = {
    # its auxiliary head serves the loss alone
    "DPTForSemanticSegmentation": ("DPTConfig", {
        "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 32,
        "patch_size": 8, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8,
        "num_labels": 3}, (torch.rand(1, 3, 32, 32),)),
    # its linear attention multiplies more than it uses
    "Qwen3NextForCausalLM": ("Qwen3NextConfig", DECODER | {
        "num_hidden_layers": 4, "head_dim": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16, "num_experts_per_tok": 2, "num_experts": 4},
        (torch.arange(12)[None],)),
    # the last layer of its vision tower comes after the features that it takes
    "LlavaForConditionalGeneration": ("LlavaConfig", {
        "vision_config": VISION, "text_config": DECODER | {"model_type": "llama", "num_hidden_layers": 2},
        "image_token_index": 5}, (torch.tensor([[1, 2, 5, 5, 5, 5, 3, 4]]), torch.rand(1, 3, 16, 16))),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of tracing and of transformers
@pytest.mark.parametrize("name", WASTEFUL)
def test_models_that_compute_more_than_they_use(fvcore_package, name):
    config, settings_of_it, inputs = WASTEFUL[name]
    model = transformers_model(name, config, "cpu", **settings_of_it)
    with torch.no_grad():
        theirs = fvcore_package.FlopCountAnalysis(model, inputs)
        theirs.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        mine = ours.FlopCountAnalysis(model, inputs).quiet()
        assert mine.by_module_and_operator() == theirs.by_module_and_operator()
        assert mine.uncalled_modules() == theirs.uncalled_modules()
        found = distprof.reconcile(model, *inputs, peer="fvcore")
    assert found.theirs == theirs.total() and UNUSED in {line.reason for line in found.differences}
