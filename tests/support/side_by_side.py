"""Small models by name with their inputs, and the report of DeepSpeed's profiler or its drop-in."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from support.zoo import torchvision_model, transformers_model

IMAGE = (1, 3, 64, 64)


@dataclass
class Case:
    """A model and its inputs."""

    make: Callable[[], nn.Module]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    training: bool = False

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make().train(self.training)

    def call(self, model: nn.Module) -> Any:
        torch.manual_seed(0)
        return model(*self.args, **self.kwargs)


class Sensors(nn.Module):
    """Takes series of three sensors; returns four logits and their probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(3, 8, 4, stride=2), nn.ELU(), nn.MaxPool1d(2), nn.Conv1d(8, 12, 3, groups=4), nn.SiLU())
        self.head = nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.features(x).mean(-1))
        return logits, nn.functional.softmax(logits, dim=-1)


class Shared(nn.Module):
    """One layer that two parents call."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(8, 8)
        self.first = nn.Sequential(layer, nn.ReLU())
        self.second = nn.Sequential(layer, nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def decoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1, groups=4), nn.InstanceNorm2d(8, affine=True), nn.PReLU(),
        nn.ConvTranspose2d(8, 3, 3, output_padding=1, stride=2, bias=False), nn.Upsample(scale_factor=2))


IDS = torch.arange(32).reshape(2, 16)

LARGE = ("bert", "convnext_tiny", "efficientnet_b0", "gpt2", "llama", "swin_t", "vit_b_16")
"""Cases that take at least a second."""
CASES: dict[str, Case] = {
    "sensors": Case(Sensors, (torch.ones(4, 3, 22),)),
    "lstm": Case(lambda: nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), (torch.ones(2, 5, 3),)),
    "gru_head": Case(lambda: Recurrent(nn.GRU(3, 4)), (torch.ones(5, 2, 3),)),
    "transformer_encoder": Case(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
        (torch.ones(2, 5, 16),), training=True),
    "decoder": Case(decoder, (torch.ones(2, 3, 16, 16),)),
    "shared": Case(Shared, (torch.ones(4, 8),)),
    "batch_norm_training": Case(lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ELU()),
                                (torch.ones(3, 2, 9),), training=True),
    "bert": Case(lambda: transformers_model(
        "BertModel", "BertConfig", "cpu", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, vocab_size=100), (IDS,)),
    "gpt2": Case(lambda: transformers_model(
        "GPT2LMHeadModel", "GPT2Config", "cpu", n_embd=32, n_layer=2, n_head=4, vocab_size=100, bos_token_id=0,
        eos_token_id=0), (IDS,)),
    "llama": Case(lambda: transformers_model(
        "LlamaForCausalLM", "LlamaConfig", "cpu", hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=64, vocab_size=100), kwargs={"input_ids": IDS}),
    **{name: Case(lambda name=name: torchvision_model(name, "cpu"), (torch.ones(IMAGE),))
       for name in (
        "resnet18", "mobilenet_v2", "efficientnet_b0", "squeezenet1_0", "convnext_tiny", "swin_t",
        "shufflenet_v2_x1_0")},
    "vit_b_16": Case(lambda: torchvision_model("vit_b_16", "cpu", image_size=64), (torch.ones(IMAGE),)),
}


class Recurrent(nn.Module):
    """A recurrent layer and a head on its last step."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][-1])


class Calls(nn.Module):
    """A module that calls a function of a test."""

    def __init__(self, function, **held) -> None:
        super().__init__()
        self.function = function
        vars(self).update(held)

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def profile(library, case: Case, **settings):
    """Returns totals, numbers by module and the report of one forward call."""
    model = case.model()
    profiler = library.FlopsProfiler(model, **settings)
    profiler.start_profile()
    try:
        case.call(model)
        profiler.stop_profile()
        text = printed(profiler.print_model_profile, top_modules=2)
        totals = profiler.get_total_flops(), profiler.get_total_macs(), profiler.get_total_params()
        modules = {name: (library.get_module_flops(module), library.get_module_macs(module))
                   for name, module in model.named_modules()}
    finally:
        profiler.end_profile()
    return totals, modules, text


def printed(function, *args, **kwargs) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function(*args, **kwargs)
    return out.getvalue()


def rand(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def warned_of(function, *args, **kwargs):
    """Calls a function and ignores torch's warnings, which distprof does not cause."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        return function(*args, **kwargs)
