"""Which ranks `--ranks` names; and what is recorded on those and on the others."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import polars as pl
import pytest

import distprof
from distprof.errors import UsageError
from distprof.process.identity import Identity
from distprof.process.topology import Topology, from_sizes
from distprof.recording.chosen_ranks import ChosenRanks, spread
from distprof.recording.passes.registry import LIGHT_CLASSES, PASS_CLASSES
from support.jobs import SCRIPTS, record_run

STEPS = "wait=1,count=1,time=2,trace=2,memory=1,arrivals=3"


def chosen(text: str, *, ranks: int, per_host: int = 8, sizes: dict[str, int] | None = None) -> list[int]:
    choice = ChosenRanks.parse(text)
    return [rank for rank in range(ranks) if choice.are_with(own(rank, ranks, per_host), place(rank, ranks, sizes))]


def own(rank: int, ranks: int, per_host: int) -> Identity:
    return Identity(rank=rank, local_rank=rank % per_host, world_size=ranks, attempt=0, pid=1, host="h", boot_id="")


def place(rank: int, ranks: int, sizes: dict[str, int] | None) -> Topology | None:
    return None if sizes is None else from_sizes(sizes, rank=rank, world_size=ranks)


@pytest.mark.parametrize(("text", "ranks"), [
    ("0-2,7", [0, 1, 2, 7]), ("sample:4", [0, 4, 8, 12]), ("sample:99", list(range(16))), ("all", list(range(16))),
    ("leaders", [0, 8]), ("3, sample:2", [0, 3, 8]), ("40-50", [])])
def test_which_ranks_are_named(text, ranks):
    assert chosen(text, ranks=16) == ranks


@pytest.mark.parametrize("sizes", [{"tp": 2, "pp": 2}, {"tp": 4}, {"pp": 8, "tp": 2}, {"ep": 2}])
def test_leaders_hold_each_part_of_the_model_once(sizes):
    leaders = chosen("leaders", ranks=32, sizes=sizes)
    parts = {rank: tuple(number for axis, number in from_sizes(sizes, rank=rank, world_size=32).coordinates.items()
                         if axis != "dp") for rank in range(32)}
    assert sorted(parts[rank] for rank in leaders) == sorted(set(parts.values()))


def test_a_job_with_hybrid_sharding_has_one_leader_per_part():
    choice, sizes = ChosenRanks.parse("leaders"), {"dp_replicate": 2, "dp_shard": 2, "tp": 2}
    places = [{"dp_replicate": rank // 4, "dp_shard": rank // 2 % 2, "tp": rank % 2} for rank in range(8)]
    assert [rank for rank, coordinates in enumerate(places) if choice.are_with(own(rank, 8, 8), Topology(
        sizes=sizes, coordinates=coordinates, source="mesh", basis="mesh"))] == [0, 1]


def test_leaders_of_a_job_whose_parts_nothing_tells_are_one_of_each_host():
    assert chosen("leaders", ranks=32, per_host=4, sizes={}) == list(range(0, 32, 4)), "taken for data parallel only"


@pytest.mark.parametrize(("number", "of"), [(32, 1000), (7, 16384), (3, 3), (1, 5)])
def test_a_sample_is_spread_evenly(number, of):
    ranks = sorted(spread(number, of))
    gaps = {after - before for before, after in pairwise(ranks)}
    assert len(ranks) == number and ranks[0] == 0 and ranks[-1] < of and len(gaps) <= 2
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("text", ["", ",", "a", "3-1", "sample:0", "sample", "-1", "1;2"])
def test_what_names_no_ranks(text):
    with pytest.raises(UsageError, match="takes ranks like"):
        ChosenRanks.parse(text)
    if text:
        with pytest.raises(UsageError, match="DISTPROF_RANKS"):
            ChosenRanks.requested({"DISTPROF_RANKS": text})


def test_light_passes_are_those_of_all_ranks_by_name_and_order():
    assert [one.name for one in LIGHT_CLASSES] == [one.name for one in PASS_CLASSES]


def test_record_takes_ranks(tmp_path):
    with pytest.raises(UsageError, match="or all, not 'x'"), distprof.record(tmp_path / "run", ranks="x"):
        pass


@pytest.mark.job
def test_the_same_steps_everywhere_and_less_in_them(tmp_path):
    out = tmp_path / "run"
    record_run(out, 3, SCRIPTS / "job.py", "fine", flags=("--steps", STEPS, "--ranks", "1", "--no-merge"))
    about = [json.loads((out / f"rank0000{rank}" / "rank.json").read_text()) for rank in range(3)]
    assert [one["light"] for one in about] == [True, False, True]
    assert len({json.dumps(one["passes"]) for one in about}) == 1 and {one["status"] for one in about} == {"complete"}
    assert {"trace.json.gz", "ops.parquet", "events.parquet", "memory.json.gz"} <= set(about[1]["files"])
    assert set(about[0]["files"]) == {
        "collectives.parquet", "lines.parquet", "modules.parquet", "parameters.parquet", "steps.parquet"}

    steps = [pl.read_parquet(out / f"rank0000{rank}" / "steps.parquet") for rank in range(2)]
    assert steps[0].select("step", "pass").equals(steps[1].select("step", "pass"))
    timed = steps[0].filter(pl.col("pass") == "time")
    parts = timed.select("fwd_ns", "bwd_ns", "optimizer_ns")
    assert len(timed) == 2 and parts.null_count().row(0) == (0, 0, 0)
    calls = [pl.read_parquet(out / f"rank0000{rank}" / "collectives.parquet") for rank in range(2)]
    assert calls[0].select("step", "op").equals(calls[1].select("step", "op"))
    assert calls[0]["enqueue_ns"].null_count() == 0 and set(calls[0]["step"]) == {4, 5, 7, 8, 9}
    modules = pl.read_parquet(out / "rank00000" / "modules.parquet")
    assert modules["fwd_time_ns"].null_count() == 0 and modules["fwd_flops"].null_count() == len(modules)


@pytest.mark.job
def test_leaders_of_a_job_with_a_mesh(tmp_path):
    out = tmp_path / "run"
    record_run(out, 4, SCRIPTS / "named_mesh.py", flags=(
        "--steps", "wait=1,count=1,time=1,trace=1,arrivals=1", "--ranks", "leaders", "--no-merge"))
    about = [json.loads((out / f"rank0000{rank}" / "rank.json").read_text()) for rank in range(4)]
    assert [one["light"] for one in about] == [one["coordinates"]["dp"] > 0 for one in about]
    assert [one["coordinates"]["tp"] for one in about if not one["light"]] == [0, 1]


COMPILED = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.compile(DistributedDataParallel(nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    loss = model(torch.ones(2, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item()!r}")
dist.destroy_process_group()
"""


@pytest.mark.job
def test_a_compiled_job_with_ranks_of_both_kinds_trains_as_without_us(tmp_path):
    script = tmp_path / "compiled.py"
    script.write_text(COMPILED)
    flags = ("--steps", "wait=1,count=1,time=1,trace=2,arrivals=2", "--no-merge", "--ranks")
    printed = [record_run(tmp_path / ranks, 2, script, flags=(*flags, ranks)).stdout for ranks in ("all", "0")]
    losses = [re.findall(r"loss \d\.\d+", text) for text in printed]  # ranks may print into one another's line
    assert losses[0] == losses[1] and len(losses[0]) == 2
    about = [json.loads((tmp_path / "0" / f"rank0000{rank}" / "rank.json").read_text()) for rank in range(2)]
    assert [(one["status"], one["light"]) for one in about] == [("complete", False), ("complete", True)]
