"""When a rank waits for which op, in a job whose rank 1 comes late to communication of every kind, and at the end of a
backward pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import torch

from distprof.recording.communication.backward_end import BUCKETS, BackwardEnd
from distprof.recording.communication.collective_call import CollectiveCall
from distprof.recording.communication.waits import MOST_WRITES, WaitWatch
from support.attempts import most_hold
from support.jobs import SCRIPTS, distprof, merged, record_run

LATE_NS = 60_000_000
PLAN = ("--steps", "wait=2,count=0,time=0,trace=2")
KINDS = ("ddp", "buckets", "static", "unused", "buffers", "hooked", "accumulated", "twice", "tp", "fsdp", "plain",
         "async", "functional", "pairs", "kinds")


def record(out: Path) -> None:
    record_run(out, 2, SCRIPTS / "waits.py", LATE_NS // 1_000_000, 7, flags=PLAN)


def table(run: Path) -> pl.DataFrame:
    """All calls, with the name of their kind."""
    rows = pl.concat([pl.read_parquet(path).with_columns(pl.col(pl.Categorical).cast(pl.String))
                      for path in sorted(run.glob("rank*/collectives.parquet"))])
    return rows.with_columns(kind=pl.col("group_description"))


@pytest.fixture(scope="module")
def run(recordings) -> Path:
    return recordings.get("waits", record)


@pytest.fixture(scope="module")
def rows(run) -> pl.DataFrame:
    return table(run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_waits_until_the_late_one_is_there(rows, kind):
    """The first call of its kind in each step: rank 0 waits from before rank 1 calls until after."""
    first = rows.filter(pl.col("kind") == kind).group_by("rank", "step").agg(
        pl.all().sort_by("enqueue_ns").first()).sort("step")
    early, late = (first.filter(pl.col("rank") == rank) for rank in (0, 1))
    assert early["step"].to_list() == late["step"].to_list() == [2, 3, 4, 5, 6]
    # in one of five a busy machine may let it have no processor all the while
    assert (early["wait_start_ns"] < late["enqueue_ns"]).sum() >= 4
    assert (early["wait_end_ns"] > late["enqueue_ns"]).all()
    # what rank 0 does before it waits it does while rank 1 sleeps
    assert (early["wait_end_ns"] - early["wait_start_ns"]).median() > LATE_NS / 2


def test_every_op_that_somebody_waited_for_says_so(rows):
    silent = rows.filter(pl.col("wait_start_ns").is_null() | pl.col("wait_end_ns").is_null())
    assert silent.is_empty() and rows["end_ns"].null_count() == 0
    assert (rows["enqueue_ns"] <= rows["wait_start_ns"]).all()
    assert (rows["wait_start_ns"] <= rows["wait_end_ns"]).all()
    assert rows.filter(pl.col("wait_end_ns") < pl.col("start_ns")).is_empty()
    # the script waits for these when all steps are over
    unasked = pl.col("kind") == "unasked"
    each = rows.group_by("rank").agg(first=pl.col("wait_start_ns").filter(unasked).min(),
                                     last=pl.col("wait_end_ns").filter(~unasked).max())
    assert len(each) == 2 and (each["first"] > each["last"]).all()


def test_what_is_over_when_backward_ends_was_not_waited_for(rows):
    """Of DDP: the wait begins when backward has no more to do, and is empty for what had come by then."""
    of_ddp = rows.filter(pl.col("kind") == "buckets", pl.col("op") == "all_reduce")
    begins = of_ddp.group_by("rank", "step").agg(pl.col("wait_start_ns").n_unique(), pl.col("enqueue_ns").max(),
                                                 pl.col("wait_start_ns").min().alias("begin_ns"), pl.len())
    assert (begins["len"] > 1).all() and (begins["wait_start_ns"] == 1).all()
    assert (begins["begin_ns"] > begins["enqueue_ns"]).all()
    over = of_ddp.filter(pl.col("wait_start_ns") == pl.col("wait_end_ns"), pl.col("start_ns").is_null())
    assert (over["end_ns"] <= over["wait_start_ns"]).all()


def test_the_arrivals_pass_goes_on_where_the_trace_pass_ends(run, rows):
    steps = pl.read_parquet(run / "rank00000" / "steps.parquet")
    assert steps["pass"].to_list() == ["wait"] * 2 + ["trace"] * 2 + ["arrivals"] * 3
    known = steps.select("cpu_ns", "switched_out").filter(steps["pass"].is_in(["trace", "arrivals"]))
    assert known.null_count().row(0) == (0, 0) and (known["cpu_ns"] > 0).all()
    assert (steps["cpu_ns"].drop_nulls() <= steps["duration_ns"].tail(5) * 1.1 + 1_000_000).all()
    for _, calls in rows.filter(~pl.col("op").is_in(["send", "recv"])).group_by("rank", "group"):
        assert sorted(calls["sequence"]) == list(range(calls.height)), "neither a gap nor a restart"
    later = rows.filter(pl.col("step") >= 4)
    assert later["start_ns"].null_count() == later.height and set(later["timed_by"]) == {"future", "wait"}
    per_step = rows.filter(pl.col("step") > 2).group_by("step").len()  # DDP builds its buckets anew once
    assert per_step["len"].n_unique() == 1, "as many calls as in a traced step"
    assert set(rows["step"]) == {2, 3, 4, 5, 6}, "a barrier behind the last step is in none"


def test_a_job_that_ends_in_the_arrivals_pass_is_complete(run):
    for rank in (0, 1):
        info = json.loads((run / f"rank{rank:05d}" / "rank.json").read_text())
        assert (info["status"], info["why"], info["notes"]) == ("complete", None, [])
        assert info["plan"] == "wait=2,count=0,time=0,trace=2,arrivals=32" and info["num_steps"] == 7
    assert json.loads(distprof("stats", "--json", merged(run)).stdout)["problems"] == []


@pytest.mark.stress
def test_waits_end_when_the_op_does(tmp_path):
    def attempt(folder: Path) -> None:
        record(folder / "run")
        waited = table(folder / "run").filter(pl.col("wait_start_ns") < pl.col("end_ns"))
        assert ((waited["wait_end_ns"] - waited["end_ns"]) < 20_000_000).all()

    most_hold(attempt, tmp_path, of=3, at_least=2)


def bucket() -> CollectiveCall:
    """A call that has returned at once."""
    known = dict.fromkeys(CollectiveCall.__struct_fields__[:-len(CollectiveCall.__struct_defaults__)])
    return CollectiveCall(**known)


def work(answers: Sequence[bool]) -> SimpleNamespace:
    """One whose future says these when it is asked whether it is done, one after the other."""
    left = list(answers)
    return SimpleNamespace(get_future=lambda: SimpleNamespace(done=lambda: left.pop(0)))


def issued_in_backward(calls: Sequence[tuple[CollectiveCall, SimpleNamespace]], operator: str) -> None:
    ends = BackwardEnd(lambda function: function)

    def issue(_gradient):
        for call, one in calls:
            ends.issued(call, operator, one, None)

    x = torch.ones(2, requires_grad=True)
    doubled = x * 2
    doubled.register_hook(issue)
    doubled.sum().backward()


def test_a_bucket_that_is_over_when_backward_has_no_more_to_do_is_not_waited_for():
    over, late = bucket(), bucket()
    issued_in_backward([(over, work([True])), (late, work([False, True]))], BUCKETS)
    assert over.wait_start_ns == over.wait_end_ns == late.wait_start_ns and not over.waits_for_several
    assert late.wait_end_ns > late.wait_start_ns and late.waits_for_several


@pytest.mark.parametrize(("answers", "operator"), [([False, False], BUCKETS), ([], "broadcast_")])
def test_what_goes_on_behind_backward_and_what_is_not_of_ddp_has_no_wait(answers, operator):
    call = bucket()
    issued_in_backward([(call, work(answers))], operator)
    assert call.wait_start_ns is None and call.wait_end_ns is None


def test_a_tensor_that_is_reduced_again_and_again_is_waited_for_in_its_last_calls():
    """A script that never waits through the tensor, so that every call could still be the one."""
    tensor, calls = torch.ones(4), [bucket() for _ in range(1000)]
    waits = WaitWatch(lambda function: function, calls)
    for call in calls:
        waits.issued(call, "allreduce_", None, [tensor], None)
    waits._on_tensor(tensor, 5, 9)
    waited = [number for number, call in enumerate(calls) if call.wait_end_ns == 9]
    assert waited == [*range(1000 - MOST_WRITES, 1000)]
