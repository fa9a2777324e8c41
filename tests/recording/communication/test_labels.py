"""Every collective of real jobs is labelled: groups, counts and bytes are those that the job must have, by arithmetic.

The tables of the ranks are read as they were recorded.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
import torch

from distprof.contract.collective_ops import OP_OF_C10D, ranks_of
from support.attempts import most_hold
from support.jobs import EXAMPLES, SCRIPTS, record_run

ONE_STEP = ("--steps", "wait=1,count=0,time=1,trace=1,arrivals=0")
WAIT_FOR_ALL = ("all_reduce", "barrier", "all_gather", "reduce_scatter", "all_to_all")


def recorded(out: Path, nproc: int, script: Path) -> pl.DataFrame:
    record_run(out, nproc, script, flags=ONE_STEP)
    return tables(out)


def tables(out: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path).with_columns(
        pl.col("op", "group", "group_description", "dtype", "phase", "module_path", "timed_by").cast(pl.String))
        for path in sorted(out.glob("rank*/collectives.parquet"))])


def are_timed(rows: pl.DataFrame) -> None:
    """All begin after they are called, and no rank leaves a synchronising op before the last one entered."""
    assert rows.filter(pl.any_horizontal(pl.col("start_ns", "end_ns", "timed_by").is_null())).rows() == []
    assert (rows["enqueue_ns"] <= rows["start_ns"]).all() and (rows["start_ns"] <= rows["end_ns"]).all()
    together = rows.filter(pl.col("op").is_in(WAIT_FOR_ALL) & (pl.col("size_bytes") > 0))
    for _, one in together.group_by("group", "group_ranks", "sequence"):
        assert one.height == one["group_size"][0] == len(ranks_of(one["group_ranks"][0])), "a rank is missing"
        assert one["op"].n_unique() == one["group_sequence"].n_unique() == 1
        assert one["end_ns"].min() >= one["start_ns"].max(), one["op"][0]


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(scope="module", autouse=True)
def _examples():
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(EXAMPLES)
    yield
    patch.undo()


def test_every_operator_of_torch_is_listened_to():
    """`check_for_nan` communicates nothing."""
    known = {schema.name.removeprefix("c10d::") for schema in torch._C._jit_get_all_schemas()
             if schema.name.startswith("c10d::")}
    assert known - {"check_for_nan"} <= set(OP_OF_C10D) <= known | {"gather_into_tensor_"}  # torch 2.15 has that


def test_ddp_reduces_every_gradient_once_a_step(ddp):
    from train_ddp import Transformer

    rows = tables(ddp)
    gradients = 4 * parameters(Transformer())
    assert set(rows["op"]) == {"all_reduce"} and set(rows["phase"]) == {"backward"}
    assert set(rows["group_ranks"].to_list()) == {"0-3"}
    sums = rows.group_by("rank", "step").agg(pl.col("size_bytes").sum(), pl.len())
    assert sums.height == 4 * 2 and set(sums["size_bytes"]) == {gradients} and sums["len"].n_unique() == 1
    are_timed(rows)


def test_fsdp2_gathers_shards_and_scatters_gradients(sharded):
    from train_ddp import Transformer

    rows = tables(sharded)
    model = Transformer(vocabulary=50, width=32, heads=4, depth=2, length=16)

    def shard(named) -> int:
        """Bytes of a half of each parameter, along its first dimension, rounded up."""
        return sum(4 * math.ceil(parameter.shape[0] / 2) * math.prod(parameter.shape[1:]) for parameter in named)

    layers = [shard(layer.parameters()) for layer in model.layers]
    rest = shard(parameter for name, parameter in model.named_parameters() if not name.startswith("layers."))
    for rank in range(2):
        mine = rows.filter(pl.col("rank") == rank)
        gathered = mine.filter(pl.col("op") == "all_gather")
        scattered = mine.filter(pl.col("op") == "reduce_scatter")
        assert gathered.filter(pl.col("phase") == "forward").select("module_path", "size_bytes").rows() == [
            ("", rest), ("layers.0", layers[0]), ("layers.1", layers[1])]
        # the root keeps its parameters until backward
        assert sorted(gathered.filter(pl.col("phase") == "backward")["size_bytes"]) == sorted(layers)
        assert sorted(scattered["size_bytes"]) == sorted(2 * part for part in (*layers, rest))
        assert mine.height == gathered.height + scattered.height
    are_timed(rows)


def test_tensor_and_data_parallel_groups_carry_what_they_must(tp):
    from train_tp import build

    rows = tables(tp).filter(pl.col("step") == pl.col("step").max())
    model, batch, length, width, vocabulary, depth = build(128), 8, 64, 128, 1000, 4
    activation = 4 * batch * length * width
    split = sum(parameter.numel() for name, parameter in model.named_parameters() if "head" in name or any(
        part in name for part in ("query", "key", "value", "mlp.0", "attention.proj.weight", "mlp.2.weight")))
    stored = parameters(model) - split // 2
    for rank in range(4):
        tp = rows.filter((pl.col("rank") == rank) & (pl.col("group_description") == "mesh_tp"))
        dp = rows.filter((pl.col("rank") == rank) & (pl.col("group_description") == "mesh_dp"))
        assert tp.height + dp.height == rows.filter(pl.col("rank") == rank).height
        assert set(map(ranks_of, tp["group_ranks"].to_list())) == {(rank // 2 * 2, rank // 2 * 2 + 1)}
        assert set(map(ranks_of, dp["group_ranks"].to_list())) == {(rank % 2, rank % 2 + 2)}
        # proj and mlp.2 add up their parts; the gradients of what query, key, value, mlp.0 and the head take do so too
        forward = tp.filter(pl.col("phase") == "forward")
        assert Counter(forward.select("op", "size_bytes").rows()) == {
            ("all_reduce", activation): 2 * depth, ("all_gather", 4 * batch * length * vocabulary // 2): 1}
        # a hook on proj, mlp.2 and head does it when they have returned
        assert {path.split(".", 2)[-1] for path in forward["module_path"]} == {"attention", "mlp", ""}
        backward = tp.filter(pl.col("phase") == "backward").filter(pl.col("op") == "all_reduce")
        assert set(backward["size_bytes"]) == {activation} and backward.height == 4 * depth + 1
        assert dp["size_bytes"].sum() == 4 * stored and dp.height == len(list(model.parameters()))
    are_timed(rows)


@pytest.mark.job
def test_a_1f1b_pipeline_sends_each_microbatch_on_and_its_gradient_back(tmp_path):
    rows = recorded(tmp_path / "run", 4, SCRIPTS / "pipeline_schedule.py")
    size = 4 * 2 * 10
    assert set(rows["op"]) == {"send", "recv"} and set(rows["size_bytes"]) == {size}
    found = Counter(rows.select("op", "rank", "peer").rows())
    neighbours = [pair for low in range(3) for pair in ((low, low + 1), (low + 1, low))]
    assert found == {**{("send", *pair): 8 for pair in neighbours}, **{("recv", *pair): 8 for pair in neighbours}}
    are_timed(rows)
    # what is sent first is received first: no receive is over before its send began
    for sender, receiver in neighbours:
        sent = rows.filter((pl.col("op") == "send") & (pl.col("rank") == sender) & (pl.col("peer") == receiver))
        got = rows.filter((pl.col("op") == "recv") & (pl.col("rank") == receiver) & (pl.col("peer") == sender))
        assert (got["end_ns"] >= sent["start_ns"]).all()


@pytest.fixture(scope="module")
def odd(recordings) -> pl.DataFrame:
    return tables(recordings.get("odd", lambda out: record_run(out, 2, SCRIPTS / "odd_collectives.py", flags=ONE_STEP)))


def test_an_all_to_all_says_what_goes_to_whom(odd):
    splits = {rank: odd.filter((pl.col("rank") == rank) & (pl.col("op") == "all_to_all"))["split_bytes"].to_list()
              for rank in (0, 1)}
    assert splits == {0: [[60, 20], [8, 8], [12, 12], [0, 0]], 1: [[40, 40], [8, 8], [12, 12], [0, 0]]}
    assert odd.filter(pl.col("op") != "all_to_all")["split_bytes"].null_count() == odd.height - 8


def test_tags_and_peers_are_known_even_of_a_receive_from_anywhere(odd):
    point_to_point = odd.filter(pl.col("tag").is_not_null()).select("rank", "op", "peer", "tag", "size_bytes")
    assert sorted(point_to_point.rows()) == [(0, "recv", 1, 1, 44), (0, "send", 1, 1, 44), (0, "send", 1, 7, 36),
                                             (1, "recv", 0, 1, 44), (1, "recv", 0, 7, 36), (1, "send", 0, 1, 44)]


def test_rarer_kinds_are_labelled_and_timed(odd):
    mine = odd.filter((pl.col("rank") == 0) & ~pl.col("op").is_in(["all_to_all", "send", "recv"]))
    assert mine.select("op", "num_elements", "dtype").rows() == [
        ("all_reduce", 0, "float32"), ("all_reduce", 6, "float32"), ("broadcast", 3, "float32"),
        ("scatter", 4, "float32"), ("gather", 2, "float32"), ("reduce_scatter", 14, "float32"),
        ("reduce_scatter", 10, "float32"), ("all_reduce", 9, "float32"), ("barrier", 0, None),
        *[("all_reduce", 1000, "float32")] * 12]
    alone = odd.filter(pl.col("group_description") == "alone")
    assert alone.select("rank", "group_ranks", "sequence", "op", "peer").rows() == [
        (0, "0", 0, "all_reduce", None), (0, "0", 1, "broadcast", 0),
        (1, "1", 0, "all_reduce", None), (1, "1", 1, "broadcast", 1)], "a root is known by its global rank"
    are_timed(odd.filter(pl.col("group_description") != "alone"))
    are_timed(alone)
    burst = in_flight_together(odd)
    assert burst["sequence"].is_sorted() and burst.height == 12


def in_flight_together(odd: pl.DataFrame) -> pl.DataFrame:
    return odd.filter((pl.col("rank") == 0) & (pl.col("op") == "all_reduce") & (pl.col("num_elements") == 1000))


@pytest.mark.stress
def test_those_in_flight_together_keep_the_order_of_the_queue(tmp_path):
    """On each of the two threads of the group, within 200 microseconds."""
    def attempt(folder: Path) -> None:
        burst = in_flight_together(recorded(folder / "run", 2, SCRIPTS / "odd_collectives.py"))
        for queued in range(2, 12):
            assert burst["start_ns"][queued] >= burst["end_ns"][:queued].sort()[queued - 2] - 200_000

    most_hold(attempt, tmp_path, of=5, at_least=4)


def test_the_events_join_forward_with_backward(ddp):
    events = pl.read_parquet(ddp / "rank00000" / "events.parquet").with_columns(
        pl.col("name", "category").cast(pl.String)).filter(pl.col("category") == "cpu_op")
    forward = events.filter((pl.col("forward_thread") == 0) & (pl.col("name") == "aten::addmm"))
    backward = events.filter((pl.col("forward_thread") > 0) & (pl.col("name") == "AddmmBackward0"))
    assert forward.height == backward.height > 2 and events["external_id"].null_count() == 0
    assert set(forward["sequence_number"]) == set(backward["sequence_number"])
    pairs = forward.join(backward, on="sequence_number", suffix="_of_backward")
    assert pairs.height == forward.height and (pairs["start_ns"] < pairs["start_ns_of_backward"]).all()
