"""Sizes that frameworks keep about their own groups, from jobs of the frameworks themselves."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from support import forked
from support.jobs import SCRIPTS, distprof, record_run

SHORT = ("--steps", "wait=1,count=1,time=0,trace=1,arrivals=0")
pytestmark = pytest.mark.job


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


def summary(out) -> dict:
    found = json.loads(distprof("stats", "--json", out).stdout)
    assert found["topology_certain"], found["problems"]
    return found


def above_one(found: dict) -> dict[str, int]:
    return {axis: size for axis, size in found["topology"].items() if size > 1}


@needs("megatron")
def test_megatron_says_its_sizes(tmp_path):
    record_run(tmp_path / "run", 4, SCRIPTS / "megatron_mesh.py", flags=SHORT)
    found = summary(tmp_path / "run")
    assert above_one(found) == {"dp": 2, "tp": 2} and found["topology_source"] == "Megatron parallel_state"
    weights, norm = 2 * 8 * 32, 2 * 8
    assert found["per_gpu"]["params"]["mean"] == weights // 2 + norm
    assert (found["model"]["params"], found["model"]["unique_params"]) == (weights + 2 * norm, weights + norm)
    assert found["model"]["fwd_macs"] == 3 * 2 * weights


@needs("deepspeed")
def test_deepspeed_says_how_experts_are_divided(tmp_path):
    with forked.server_that_loads("deepspeed"):
        record_run(tmp_path / "run", 4, SCRIPTS / "deepspeed_experts.py", flags=SHORT)
    found = summary(tmp_path / "run")
    assert above_one(found) == {"dp": 2, "ep": 2} and found["topology_source"] == "DeepSpeed process groups"
    first, gate, expert = 8 * 8 + 8, 8 * 4, 8 * 8 + 8
    assert found["per_gpu"]["params"]["mean"] == first + gate + 2 * expert
    assert found["model"]["unique_params"] == first + gate + 4 * expert
    assert found["model"]["active_params"] == first + gate + expert


@pytest.mark.stress
@pytest.mark.parametrize(("strategy", "use_orig_params"), [
    ("FULL_SHARD", True), ("HYBRID_SHARD", False), ("SHARD_GRAD_OP", False), ("NO_SHARD", True)])
def test_fsdp_counts_the_parameters_of_the_model(tmp_path, strategy, use_orig_params):
    ranks = 4 if strategy == "HYBRID_SHARD" else 2
    record_run(tmp_path / "run", ranks, SCRIPTS / "fsdp1.py", strategy, use_orig_params, flags=SHORT)
    found = summary(tmp_path / "run")
    assert above_one(found) == ({"dp_replicate": 2, "dp_shard": 2} if ranks == 4 else {"dp": 2})
    width, heads, vocabulary, length = 32, 4, 50, 16
    block = 4 * width * width + 4 * width + 2 * 4 * width * width + 5 * width + 2 * 2 * width
    model = vocabulary * width + length * width + 2 * block + 2 * width
    assert (found["mp_size"], heads) == (1, 4)
    for quantity in ("params", "unique_params", "stored_params"):
        assert found["model"][quantity] == model, quantity
    assert found["per_gpu"]["params"]["mean"] == model
    assert found["per_gpu"]["stored_params"]["mean"] == model / (1 if strategy == "NO_SHARD" else 2)
