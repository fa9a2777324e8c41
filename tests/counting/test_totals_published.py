"""Published totals of training and of language models, to the last unit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import distprof
from support.zoo import EVERY_MODEL, TOTALS, image, torchvision_counts, torchvision_model, transformers_model

MORE_FLOPS = {
    "vit_b_32": 8_818_372_608, "vit_l_16": 123_109_425_152, "swin_t": 8_981_133_312, "swin_v2_t": 9_876_928_512,
    "maxvit_t": 11_116_093_440, "regnet_y_1_6gf": 3_224_152_320, "mnasnet1_0": 628_831_744,
    "googlenet": 2_996_752_384, "wide_resnet50_2": 22_796_042_240, "mobilenet_v3_large": 433_179_520,
    "efficientnet_v2_m": 10_724_414_400,
}
NO_INPUT_GRADIENT = {"swin_v2_t": 5_529_600}
"""FLOPs of layers whose input is a constant of the model, where backward stops: a table of 225 x 2 coordinates in 12
blocks, linear to 512."""
LARGER_SIBLINGS = {
    "convnext_base", "densenet169", "efficientnet_v2_m", "efficientnet_v2_s", "googlenet", "mnasnet1_0",
    "mobilenet_v3_large", "regnet_y_1_6gf", "resnet34", "resnet50", "swin_t", "vgg16", "vit_b_32", "vit_l_16",
    "wide_resnet50_2"}
"""Models of the same layers as others here, mostly with more of them."""
ROWS = torch.randn(8, 2, 64)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.stress if name in LARGER_SIBLINGS or
                                               name in TOTALS else pytest.mark.long) for name in MORE_FLOPS])
def test_more_forward(name):
    assert torchvision_counts(name).flops == MORE_FLOPS[name]


@pytest.mark.long
@pytest.mark.parametrize("name", [
    pytest.param(*model.values, marks=pytest.mark.stress if model.values[0] in LARGER_SIBLINGS else model.marks)
    for model in EVERY_MODEL])
def test_training_is_three_times_forward(name):
    counts = distprof.count(torchvision_model(name), image(name, grad=True), backward=True)
    assert counts.forward_flops == 2 * TOTALS[name]["core_macs"]
    assert counts.model_flops == 3 * counts.forward_flops - NO_INPUT_GRADIENT.get(name, 0)
    assert counts.recompute_flops == 0


@pytest.mark.long
@pytest.mark.parametrize(("name", "first", "total"), [
    ("alexnet", "features.0", 4_144_577_280), ("resnet18", "conv1", 10_648_412_160),
    ("resnet50", "conv1", 24_299_077_632), ("vgg16", "features.0", 92_648_177_664),
    ("squeezenet1_0", "features.0", None),
    *(pytest.param(name, "features.0.0", None, marks=pytest.mark.stress)
      for name in ("mobilenet_v2", "efficientnet_b0")),
])
def test_an_image_needs_no_gradient(name, first, total):
    counts = distprof.count(torchvision_model(name), image(name), backward=True)
    saved = counts.by_module("macs")[first] / 2  # forward and the gradient of the weights are left
    assert counts.flops == 6 * TOTALS[name]["core_macs"] - 2 * saved
    assert counts.flops == (total or counts.flops)


@pytest.mark.long
def test_vit_in_training():
    counts = distprof.count(torchvision_model("vit_b_16").train(), image("vit_b_16"), backward=True)
    assert (counts.forward_flops, counts.model_flops) == (35_127_656_448, 105_151_758_336)


def tokens(size: int = 1) -> torch.Tensor:
    return torch.ones(size, 128, dtype=torch.long)


EXPLICIT = {"position_ids": torch.arange(128)[None], "attention_mask": torch.zeros(1, 1, 128, 128), "use_cache": False}
"""What decoders would otherwise look into tensors for, which have no values on meta."""


@pytest.mark.long
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bert(attention):
    model = transformers_model("BertModel", "BertConfig", attn_implementation=attention)
    counts = distprof.count(lambda ids: model(ids).last_hidden_state, tokens().to("meta"), backward=True)
    assert counts.params.params == 109_482_240
    assert (counts.forward_flops, counts.model_flops) == (22_348_431_360, 67_042_934_784)


@pytest.mark.long
@pytest.mark.parametrize(("model", "config", "kwargs", "size", "params", "forward"), [
    ("BertForSequenceClassification", "BertConfig", {}, 2, 109_483_778, 44_696_868_864),
    ("GPT2LMHeadModel", "GPT2Config", EXPLICIT, 1, 124_439_808, 32_228_179_968),
    ("LlamaForCausalLM", "LlamaConfig", EXPLICIT, 1, 6_738_415_616, 1_700_001_742_848),
])
def test_language_models(model, config, kwargs, size, params, forward):
    network = transformers_model(model, config, attn_implementation="sdpa" if "GPT" in model else "eager")
    counts = distprof.count(network, tokens(size), backward=True, **kwargs)
    assert counts.params.params == params
    assert (counts.forward_flops, counts.model_flops) == (forward, 3 * forward)


@pytest.mark.parametrize(("model", "inputs", "expected"), [
    (lambda: nn.MultiheadAttention(64, 4), (ROWS, ROWS, ROWS), 557_056),
    (lambda: nn.TransformerEncoderLayer(64, 4, 128), (ROWS,), 1_081_344),
    (lambda: nn.Transformer(64, 4, 2, 2, 128, batch_first=True), (ROWS.transpose(0, 1),) * 2, 5_439_488),
    (lambda: nn.RNN(10, 20), (torch.randn(5, 3, 10),), 18_000),
    (lambda: nn.GRU(10, 20), (torch.randn(5, 3, 10),), 54_000),
    (lambda: nn.LSTM(10, 20), (torch.randn(5, 3, 10),), 72_000),
    (lambda: nn.LSTMCell(10, 20), (torch.randn(3, 10),), 14_400),
])
def test_small_layers(model, inputs, expected):
    layer = model()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert distprof.count(layer.train(), *inputs).flops == expected
            assert distprof.count(layer.eval(), *inputs).flops == expected
    inputs = tuple(tensor.clone().requires_grad_() for tensor in inputs)
    if not isinstance(layer, nn.RNNBase | nn.LSTMCell):  # the first hidden state is zeros and needs no gradient
        assert distprof.count(layer.train(), *inputs, backward=True).model_flops == 3 * expected
