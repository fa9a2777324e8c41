"""Models with the totals that other counters publish of them, from contractions and what each adds to those."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import distprof
from distprof.peers import deepspeed, ptflops
from support.zoo import image, torchvision_counts, torchvision_model, transformers_model

pytestmark = pytest.mark.long

TOKENS = torch.ones(1, 128, dtype=torch.long)


def decoder(length: int) -> dict[str, Any]:
    """What decoders would otherwise look into tensors for, which have no values on meta."""
    return {"position_ids": torch.arange(length)[None], "attention_mask": torch.zeros(1, 1, length, length),
            "use_cache": False}


def counted(name: str, config: str, tokens: torch.Tensor, given: dict[str, Any], **sizes: int) -> distprof.Counts:
    with torch.no_grad():
        return distprof.count(transformers_model(name, config, attn_implementation="eager", **sizes), tokens, **given)


PYTHIA = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 8192,
          "vocab_size": 50_304}
BLOOM = {"hidden_size": 2048, "n_layer": 24, "n_head": 16, "vocab_size": 250_880}


@pytest.mark.parametrize(("name", "config", "sizes", "params", "giga_macs"), [
    pytest.param("LlamaForCausalLM", "LlamaConfig", {}, 6_738_415_616, 850.00, marks=pytest.mark.stress),
    pytest.param("LlamaForCausalLM", "LlamaConfig", {"vocab_size": 49_953}, 6_885_486_592, 859.41,
                 marks=pytest.mark.stress),
    ("GPTNeoXModel", "GPTNeoXConfig", PYTHIA, 1_311_625_216, 156.23),
    ("GPTNeoXModel", "GPTNeoXConfig", PYTHIA | {
        "hidden_size": 5120, "num_hidden_layers": 36, "num_attention_heads": 40, "intermediate_size": 20_480,
        "vocab_size": 50_688}, 11_586_549_760, 1455.59),
    ("BloomModel", "BloomConfig", BLOOM, 1_722_408_960, 155.42),
    ("BloomModel", "BloomConfig", BLOOM | {"hidden_size": 4096, "n_layer": 30, "n_head": 32}, 7_069_016_064, 775.11),
    ("BertModel", "BertConfig", {"vocab_size": 21_128}, 102_267_648, 11.174),
])
def test_calflops(name, config, sizes, params, giga_macs):
    given = {"LlamaForCausalLM": decoder(128), "GPTNeoXModel": decoder(128), "BloomModel": {"use_cache": False}}
    counts = counted(name, config, TOKENS, given.get(name, {}), **sizes)
    assert counts.params.params == params
    # its rules are DeepSpeed's, and of those Bloom's torch.Tensor.baddbmm is none
    lost = counts.by_op("macs").get("aten::baddbmm", 0)
    assert bool(lost) == (name == "BloomModel")
    assert sum(line.macs for line in deepspeed.peer_lines(counts)) == counts.macs - lost
    assert round((counts.macs - lost) / 1e9, 2) == pytest.approx(giga_macs, abs=0.005)


@pytest.mark.parametrize(("name", "config", "length", "sizes", "giga_macs"), [
    ("GPT2Model", "GPT2Config", 128, {}, 11.195),
    ("BertModel", "BertConfig", 128, {}, 11.177),
    ("LlamaModel", "LlamaConfig", 64, {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
                                       "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000}, 0.622),
])
def test_torchprofile_language_models(name, config, length, sizes, giga_macs):
    counts = counted(name, config, TOKENS[:, :length], {} if name == "BertModel" else decoder(length), **sizes)
    # it adds one for each element of norms, and more of GPT-2
    assert counts.macs / 1e9 == pytest.approx(giga_macs, rel=0.002 if name != "LlamaModel" else 0.003)
    assert counts.macs / 1e9 < giga_macs


@pytest.mark.parametrize(("name", "giga_macs"), [("resnet18", 1.817), ("mobilenet_v2", 0.3075), ("vit_b_16", 17.57)])
def test_torchprofile_adds_the_elements_of_norms(name, giga_macs):
    counts = torchvision_counts(name)
    published = counts.macs + counts.by_kind()["norm"]
    assert published / 1e9 == pytest.approx(giga_macs, abs=0.5 * 10.0 ** -len(str(giga_macs).partition(".")[2]))


def test_thop_adds_norms_and_the_last_pooling():
    counts = torchvision_counts("resnet50")
    pooled = 2048 * 7 * 7 + 2048
    assert counts.macs + 4 * counts.by_kind()["norm"] + pooled == 4_133_742_592
    assert counts.params.params == 25_557_032


def test_thop_adds_activations_with_a_rule():
    model, x = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.SiLU()), torch.randn(1, 3, 224, 224)
    counts = distprof.count(model, x)
    assert (counts.macs + counts.by_kind()["activation"], counts.params.params) == (89_915_392, 1_792)
    assert counts.flops == 173_408_256
    assert distprof.count(nn.ReLU(), x).flops == 0
    assert distprof.count(nn.Conv2d(3, 12, 5, padding=1, bias=False), torch.randn(1, 3, 32, 32)).macs == 810_000


@pytest.mark.parametrize(("layer", "shape", "total", "params"), [
    (lambda: nn.Conv2d(3, 2, 3), (1, 3, 224, 224), 2_759_904, 56),
    (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), (1, 3, 224, 224), 3_112_706, 56),
    (lambda: nn.Linear(3, 2), (1, 3), 8, 8),
    (lambda: nn.Linear(3, 2, bias=False), (4, 5, 3), 120, 6),
])
def test_ptflops_adds_biases(layer, shape, total, params):
    counts = distprof.count(layer(), torch.randn(shape))
    assert (sum(line.flops for line in ptflops.peer_lines(counts)), counts.params.params) == (total, params)


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv2(F.relu(F.max_pool2d(self.conv1(x), 2))), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def test_torchinfo_multiplies_weights_and_biases():
    counts = distprof.count(Digits(), torch.randn(7, 1, 28, 28))
    assert counts.params.params == 21_840
    added = {path: macs + 7 * bias for (path, macs), bias in zip(
        list(counts.by_module("macs").items())[1:], (10 * 24 * 24, 20 * 8 * 8, 50, 10), strict=True)}
    assert added == {"conv1": 1_048_320, "conv2": 2_248_960, "fc1": 112_350, "fc2": 3_570}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(20, 300), nn.Linear(512, 20)
        self.encoder = nn.LSTM(300, 512, num_layers=2, batch_first=True)

    def forward(self, tokens):
        return self.decoder(self.encoder(self.embedding(tokens))[0])


def test_torchinfo_of_an_lstm():
    counts = distprof.count(Words(), torch.ones(1, 100, dtype=torch.long))
    assert counts.params.params == 3_784_580
    biases = 100 * 2 * 2 * 4 * 512
    assert counts.by_module("macs")["encoder"] + biases == 376_832_000


@pytest.mark.parametrize(("name", "size", "params", "mult_adds", "digits"), [
    ("resnet18", (1, 3, 224, 224), 11_689_512, 1.81e9, 7), ("resnet50", (2, 3, 224, 224), 25_557_032, 8.18e9, 7),
    ("resnet152", (1, 3, 224, 224), 60_192_808, 11.51e9, 7), ("googlenet", (1, 3, 112, 112), 13_004_888, 384.08e6, 4),
])
def test_torchinfo_of_images(name, size, params, mult_adds, digits):
    counts = distprof.count(torchvision_model(name), torch.rand(size, device="meta"))
    # it takes each parameter of a norm for one more per image
    small = sum(module.own_params for module in counts.modules if "Norm" in module.class_name) + 1000
    published = counts.macs + size[0] * small
    assert counts.params.params == params
    assert round(published, -digits) == pytest.approx(mult_adds, rel=1e-12)


def test_resnet18_layer_by_layer():
    counts = distprof.count(torchvision_model("resnet18"), image("resnet18", grad=True), backward=True)
    assert counts.model_flops == 10_884_440_064
    layer = next(module for module in counts.modules if module.path == "layer1")
    assert (layer.flops["forward"], layer.flops["backward"]) == (924_844_032, 1_849_688_064)


@pytest.mark.parametrize(("products", "flops"), [(1, 6_000), (2, 12_000)])
def test_torch_of_dicts(products, flops):
    weights = {name: torch.randn(10, 10, requires_grad=True) for name in "ab"[:products]}
    x = torch.randn(10, 10, requires_grad=True)

    def products_of(given: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {name: x @ weight for name, weight in given["weights"].items()}

    assert distprof.count(products_of, {"weights": weights}, backward=True).flops == flops
