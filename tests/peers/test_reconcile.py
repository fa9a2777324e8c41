"""distprof.reconcile: our total, the total of the peer, and the differences that lead from one to the other."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import distprof
from distprof.errors import UsageError
from distprof.peers.reconcile import PEERS
from support.jobs import distprof as command


class Mixed(nn.Module):
    """Something of everything that counters disagree on."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=groups)
        self.norm = nn.BatchNorm2d(width)
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = self.up(F.relu(self.norm(self.conv(x))))
        x = F.interpolate(x, size=(4, 4)) + x.mean()
        sequence = self.rnn(x.flatten(2).transpose(1, 2))[0]
        attended = F.scaled_dot_product_attention(sequence, sequence, sequence)
        scores = torch.einsum("bsw,btw->bst", attended, sequence).softmax(-1)
        return self.head(torch.matmul(scores, attended))


@pytest.mark.long
@settings(max_examples=15)
@given(width=st.sampled_from([2, 4, 6]), groups=st.sampled_from([1, 2]), size=st.integers(3, 6),
       peer=st.sampled_from(sorted(PEERS)))
def test_the_lines_add_up_to_the_last_unit(width, groups, size, peer):
    model, x = Mixed(width, groups).eval(), torch.randn(2, width, size, size)
    found = distprof.reconcile(model, x, peer=peer)
    counts = distprof.count(model, x)
    assert found.ours == (counts.flops if found.unit == "flops" else counts.macs)
    assert found.ours + sum(line.difference for line in found.differences) == found.theirs
    assert all(line.difference == line.theirs - line.ours != 0 and line.reason for line in found.differences)


def their_total(peer: str, model: nn.Module, x: torch.Tensor) -> int:
    if peer == "fvcore":
        nn_flops = pytest.importorskip("fvcore.nn")
        analysis = nn_flops.FlopCountAnalysis(model, x)
        return analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False).total()
    profiler = pytest.importorskip("deepspeed.profiling.flops_profiler.profiler")
    return profiler.get_model_profile(model, args=[x], print_profile=False, as_string=False, warm_up=0)[0]


@pytest.mark.filterwarnings("ignore")  # the peers' own: not what our users see
@pytest.mark.parametrize("peer", ["deepspeed", "fvcore"])
def test_the_peers_total_is_what_the_real_package_says(peer):
    model, x = Mixed(4, 2).eval(), torch.randn(2, 4, 5, 5)
    assert distprof.reconcile(model, x, peer=peer).theirs == their_total(peer, model, x)


def test_where_both_agree_there_are_no_lines():
    found = distprof.reconcile(nn.Linear(4, 4), torch.randn(2, 4), peer="fvcore")
    assert found.differences == () and found.ours == found.theirs == 32


class Distances(nn.Module):
    """From four points, by products as there are more than 25 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.rand(4, 7))

    def forward(self, x):
        return torch.cdist(x, self.points)


class Scores(nn.Module):
    """An Einstein sum, with its operands in one argument."""

    def __init__(self, together: type) -> None:
        super().__init__()
        self.together = together

    def forward(self, x):
        return torch.einsum("bsw,btw->bst", self.together((x, x)))


@pytest.mark.parametrize("together", [tuple, list])
@pytest.mark.parametrize("peer", sorted(PEERS))
def test_the_operands_of_an_einsum_may_come_in_one_argument(peer, together):
    found = distprof.reconcile(Scores(together), torch.ones(2, 3, 4), peer=peer)
    assert found.differences == () and found.theirs == (144 if found.unit == "flops" else 72)


@pytest.mark.parametrize("peer", sorted(PEERS))
def test_products_inside_kernels_are_ours_alone(peer):
    found = distprof.reconcile(nn.Sequential(Distances(), nn.Linear(4, 2, bias=False)), torch.ones(30, 7), peer=peer)
    scale = 2 if found.unit == "flops" else 1
    assert (found.ours, found.theirs) == (scale * (30 * 4 * (7 + 2) + 30 * 4 * 2), scale * 30 * 4 * 2)
    assert [(line.function, line.theirs) for line in found.differences] == [("torch.cdist", 0)]


def test_an_unknown_peer_is_refused_before_the_model_runs():
    with pytest.raises(UsageError, match="'thop'") as caught:
        distprof.reconcile(lambda: 1 / 0, peer="thop")
    assert caught.value.hint == "one of deepspeed, fvcore, ptflops"


@pytest.mark.job
def test_from_the_command_line(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn, ones\ndef make(): return nn.Sequential(nn.Linear(4, 2), nn.ReLU()), ones(3, 4)\n")
    text = command("reconcile", "net.py:make", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[:2] for line in text] == [
        ["distprof", "48"], ["torch.nn.functional.relu", "+6"], ["deepspeed", "54"]]
    data = json.loads(command("reconcile", "net.py:make", "--peer", "fvcore", "--json", cwd=tmp_path).stdout)
    assert (data["ours"], data["theirs"], data["unit"], data["differences"]) == (24, 24, "macs", [])


PRINTED = {"fvcore": (44160, 23680), "ptflops": (42240, 21440)}
"""What the packages print for the layer below, of two sequences: trained, and frozen or without gradients."""


@pytest.mark.parametrize("peer", ["deepspeed", "fvcore", "ptflops"])
def test_frozen_attention_in_eval_mode_is_lost_as_without_gradients(peer):
    """Its kernel is fused where no gradient flows, whatever the mode is."""
    model, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), torch.randn(2, 10, 16)
    trained = distprof.reconcile(model, x, peer=peer)
    with torch.no_grad():
        without = distprof.reconcile(model, x, peer=peer)
    frozen = distprof.reconcile(model.requires_grad_(False), x, peer=peer)
    assert (frozen.ours, frozen.theirs) == (without.ours, without.theirs)
    assert frozen.theirs < trained.theirs and frozen.ours == trained.ours
    assert peer not in PRINTED or (trained.theirs, frozen.theirs) == PRINTED[peer]
