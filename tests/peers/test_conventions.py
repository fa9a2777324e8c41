"""Totals that other counters print for torchvision models, reproduced to the last unit from one count of each."""

from __future__ import annotations

import pytest

from distprof.peers import deepspeed, fvcore, ptflops
from support.zoo import EVERY_MODEL, TOTALS, torchvision_counts

FUSED = ("vit_b_16",)
"""Without gradients its attention is one kernel that these counters do not know."""


@pytest.mark.parametrize("name", [name for name in EVERY_MODEL if name.values[0] not in FUSED])
def test_torch_and_ptflops(name):
    counts, published = torchvision_counts(name), TOTALS[name]
    assert counts.forward_flops == published["torch_flops"]
    assert sum(line.flops for line in ptflops.peer_lines(counts)) == published["ptflops_aten"]


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_deepspeed_and_fvcore(name):
    counts, published = torchvision_counts(name), TOTALS[name]
    lines = deepspeed.peer_lines(counts)
    assert sum(line.flops for line in lines) == published["deepspeed_flops"]
    assert sum(line.macs for line in lines) == published["deepspeed_macs"]
    assert sum(line.flops for line in fvcore.peer_lines(counts)) == published["fvcore"]
