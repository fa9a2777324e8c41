"""Published totals of torchvision models, ours and those of other counters, to the last unit from one count of each."""

from __future__ import annotations

from collections import Counter

import pytest

from distprof.peers import deepspeed, fvcore, ptflops
from support.fvcore_sums import sums
from support.zoo import EVERY_MODEL, TOTALS, torchvision_counts

FUSED = ("vit_b_16",)
"""Without gradients its attention is one kernel that torch's counter does not know."""
SIZES = {
    "vit_b_16": Counter({"aten::mul": 1}),
    "swin_t": Counter({"aten::rsub": 24, "aten::mul": 24, "aten::pow": 12}),
    "swin_v2_t": Counter({"aten::mul": 36, "aten::rsub": 24, "aten::numel": 12}),
    "maxvit_t": Counter({"aten::mul": 22}),
}
"""Arithmetic on sizes, which a trace takes for operators."""


@pytest.fixture(scope="module", params=EVERY_MODEL)
def name(request) -> str:
    """Tests of a model are run one after the other: it is counted once."""
    return request.param


@pytest.mark.long
def test_forward(name):
    counts = torchvision_counts(name)
    assert (counts.macs, counts.params.params) == (TOTALS[name]["core_macs"], TOTALS[name]["params"])
    assert counts.flops == counts.forward_flops == 2 * counts.macs
    assert counts.by_module()[""] == counts.flops
    assert not counts.uncounted


def test_torch_and_ptflops(name):
    counts, published = torchvision_counts(name), TOTALS[name]
    assert counts.forward_flops == published["torch_flops"] or name in FUSED
    assert sum(line.flops for line in ptflops.peer_lines(counts)) == published["ptflops_aten"]


def test_deepspeed_and_fvcore(name):
    counts, published = torchvision_counts(name), TOTALS[name]
    lines = deepspeed.peer_lines(counts)
    assert sum(line.flops for line in lines) == published["deepspeed_flops"]
    assert sum(line.macs for line in lines) == published["deepspeed_macs"]
    assert sum(line.flops for line in fvcore.peer_lines(counts)) == published["fvcore"]


def test_fvcore_by_operator(name):
    counts, published = torchvision_counts(name), TOTALS[name]
    by_operator, unsupported = sums(counts)
    assert by_operator == published["fvcore_by_operator"]
    assert sum(line.flops for line in fvcore.peer_lines(counts)) == published["fvcore"]
    assert unsupported + SIZES.get(name, Counter()) == published["fvcore_unsupported"]


def test_the_convention_has_every_contraction(name):
    counts = torchvision_counts(name)
    right, exact = fvcore.peer_lines(counts, exact=False), fvcore.peer_lines(counts)
    assert sum(line.macs for line in right) == TOTALS[name]["core_macs"] == counts.macs
    assert sum(line.flops - line.macs for line in right) == sum(line.flops - line.macs for line in exact)
    assert not any(line.reason for line in right)
    differs = sum(line.macs for line in exact) != counts.macs
    assert differs == any(line.reason for line in exact) == (name in ("vit_b_16", "maxvit_t"))
