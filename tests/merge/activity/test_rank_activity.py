"""What a rank was doing, told from events that a profiler would write."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from distprof.contract.tables import CLOSURE_SLICE, EVALUATION_SLICE, WAIT_SLICE
from distprof.merge.activity.activities import Activities, Activity
from distprof.merge.activity.breakdown import SCHEMA as BREAKDOWN
from distprof.merge.activity.breakdown import mean_steps
from distprof.merge.activity.intervals import Intervals
from distprof.merge.activity.rank_activity import RankCollectives, rank_activity
from distprof.merge.activity.rank_slices import SCHEMA

US = 1000


def events(*rows: tuple) -> pl.DataFrame:
    """From (name, category, start, end[, sequence number[, correlation]]) in us."""
    return pl.DataFrame([
        {"name": name, "category": category, "start_ns": start * US, "duration_ns": (end - start) * US, "thread": "1",
         "sequence_number": more[0] if more else None, "correlation": more[1] if len(more) > 1 else None}
        for name, category, start, end, *more in rows], schema=SCHEMA)


def seen(found: pl.DataFrame, *, in_flight: tuple = (), waits_drawn: bool = True):
    """Activities by us, those with a name of their own, and what else was found."""
    activities = Activities()
    times = np.array(in_flight, np.int64).reshape(-1, 2) * US
    calls = RankCollectives(collective=np.arange(len(times)), step=np.zeros(len(times), np.int64),
                            enqueue_ns=times[:, 0],
                            arrival_ns=times[:, 0], end_ns=times[:, 1], last_arrival_ns=times[:, 0],
                            together=np.ones(len(times), bool))
    did = rank_activity(found, calls, activities, waits_drawn=waits_drawn)
    lane = [(int(start / US), int(end / US), activities.known[label]) for start, end, label in zip(
        did.lane.starts, did.lane.ends, did.lane.labels.tolist(), strict=True)]
    return did, joined(lane)


def joined(lane: list[tuple[int, int, Activity]]) -> list[tuple[int, int, Activity]]:
    """Neighbours of one activity as one."""
    found: list[tuple[int, int, Activity]] = []
    for start, end, what in lane:
        if found and found[-1][1:] == (start, what):
            found[-1] = (found[-1][0], end, what)
        else:
            found.append((start, end, what))
    return found


def pairs(spans: Intervals) -> list[tuple[int, int]]:
    return [(int(start / US), int(end / US)) for start, end in zip(spans.starts, spans.ends, strict=True)]


SCOPE, OP = "user_annotation", "cpu_op"
STEP = (
    ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", SCOPE, 0, 10),
    ("model [Net]", SCOPE, 20, 60), ("layers.0 [Block]", SCOPE, 25, 40), ("aten::mm", OP, 30, 35, 7),
    ("head [Linear]", SCOPE, 45, 55), ("aten::addmm", OP, 46, 50, 8),
    ("autograd::engine::evaluate_function: AddmmBackward0", OP, 70, 80, 8),
    ("AddmmBackward0", OP, 71, 79, 8),
    ("autograd::engine::evaluate_function: MmBackward0", OP, 82, 95, 7),
    ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", OP, 96, 98),
    ("Optimizer.step#SGD.step", SCOPE, 110, 120),
)


def test_each_instant_has_one_activity():
    _, lane = seen(events(*STEP))
    root, layer, head = (Activity("forward", path) for path in ("", "layers.0", "head"))
    assert lane == [
        (0, 10, Activity("data")), (10, 20, Activity("host", "between data and forward")),
        (20, 25, root), (25, 40, layer), (40, 45, root), (45, 55, head), (55, 60, root),
        (60, 70, Activity("host", "between forward and backward")),
        (70, 80, Activity("backward", "head")), (80, 82, Activity("backward")),
        (82, 95, Activity("backward", "layers.0")), (95, 98, Activity("backward")),
        (98, 110, Activity("host", "between backward and optimizer")), (110, 120, Activity("optimizer"))]


def test_modules_called_in_backward_are_recomputed():
    _, lane = seen(events(
        ("model [Net]", SCOPE, 0, 10), ("aten::mm", OP, 1, 2, 1),
        ("autograd::engine::evaluate_function: CheckpointBackward", OP, 20, 50, 1),
        ("layers.0 [Block]", SCOPE, 25, 35)))
    assert (25, 35, Activity("recompute", "layers.0")) in lane
    assert (20, 25, Activity("backward", "")) in lane and (35, 50, Activity("backward", "")) in lane


ZERO_GRAD = Activity("optimizer", "zero_grad")


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_gradients_that_are_set_to_zero_tell_no_place(name):
    """Most loops do it in front of forward, where no optimizer steps."""
    _, lane = seen(events(
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", SCOPE, 0, 10),
        (f"Optimizer.zero_grad#{name}.zero_grad", SCOPE, 20, 22), ("model [Net]", SCOPE, 30, 40)))
    gap = Activity("host", "between data and forward")
    assert lane == [(0, 10, Activity("data")), (10, 20, gap), (20, 22, ZERO_GRAD), (22, 30, gap),
                    (30, 40, Activity("forward", ""))]


def plain_step(start: int, *forward: tuple) -> list[tuple]:
    """A step of 100 as torch.profiler draws it, with what it draws of forward."""
    return [(f"ProfilerStep#{start // 100}", SCOPE, start, start + 100),
            ("Optimizer.zero_grad#SGD.zero_grad", SCOPE, start + 2, start + 4),
            *((name, kind, start + begin, start + end) for name, kind, begin, end in forward),
            ("autograd::engine::evaluate_function: MmBackward0", OP, start + 60, start + 70),
            ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", OP, start + 75, start + 80),
            ("Optimizer.step#SGD.step", SCOPE, start + 85, start + 95)]


@pytest.mark.parametrize("name", ["DistributedDataParallel.forward", "## forward ##", "forward",
                                  "[pl][profile][Strategy]DDPStrategy.training_step"])
def test_annotations_of_whole_phases_are_phases(name):
    _, lane = seen(events(*plain_step(0, (name, SCOPE, 10, 50)), *plain_step(100, (name, SCOPE, 10, 50))))
    forward = [(start, end) for start, end, what in lane if what == Activity("forward")]
    assert forward == [(10, 50), (110, 150)]
    assert (50, 60, Activity("host", "between forward and backward")) in lane


def test_modules_that_torch_draws_are_modules():
    _, lane = seen(events(*plain_step(0, ("nn.Module: Net_0", "python_function", 10, 50), (
        "nn.Module: Linear_3", "python_function", 20, 30))))
    assert (10, 20, Activity("forward", "Net_0")) in lane and (20, 30, Activity("forward", "Net_0.Linear_3")) in lane


def test_backward_ends_with_its_step_where_nothing_shows_forward():
    _, lane = seen(events(*plain_step(0), *plain_step(100)))
    assert [(start, end) for start, end, what in lane if what.kind == "backward"] == [(60, 80), (160, 180)]
    where = "between optimizer and backward (forward included)"
    assert {what.where for start, end, what in lane if (start, end) in ((4, 60), (104, 160))} == {where}


def test_what_a_closure_runs_is_no_part_of_the_optimizer():
    _, lane = seen(events(
        ("Optimizer.step#LBFGS.step", SCOPE, 0, 100), (CLOSURE_SLICE, SCOPE, 10, 90),
        ("Optimizer.zero_grad#LBFGS.zero_grad", SCOPE, 12, 14), ("metrics", SCOPE, 15, 18),
        ("model [Net]", SCOPE, 20, 40), ("head [Linear]", SCOPE, 25, 30), ("aten::mm", OP, 26, 27, 1),
        ("autograd::engine::evaluate_function: MmBackward0", OP, 50, 80, 1)))
    assert lane == [
        (0, 10, Activity("optimizer")), (10, 12, Activity("host", "between optimizer and `metrics`")),
        (12, 14, ZERO_GRAD), (14, 15, Activity("host", "between optimizer and `metrics`")),
        (15, 18, Activity("annotation", "metrics")), (18, 20, Activity("host", "between `metrics` and forward")),
        (20, 25, Activity("forward", "")), (25, 30, Activity("forward", "head")), (30, 40, Activity("forward", "")),
        (40, 50, Activity("host", "between forward and backward")), (50, 80, Activity("backward", "head")),
        (80, 90, Activity("host", "between backward and optimizer")), (90, 100, Activity("optimizer"))]


def test_modules_called_without_gradient_are_evaluated():
    _, lane = seen(events((EVALUATION_SLICE, SCOPE, 0, 31), ("model [Net]", SCOPE, 1, 30),
                          ("head [Linear]", SCOPE, 5, 9), ("model [Net]", SCOPE, 40, 50)))
    assert lane == [
        (0, 1, Activity("evaluation")), (1, 5, Activity("evaluation", "")), (5, 9, Activity("evaluation", "head")),
        (9, 30, Activity("evaluation", "")), (30, 31, Activity("evaluation")),
        (31, 40, Activity("host", "between evaluation and forward")), (40, 50, Activity("forward", ""))]


def test_forward_between_two_backward_passes_is_no_backward():
    _, lane = seen(events(
        ("model [Net]", SCOPE, 0, 10), ("autograd::engine::evaluate_function: A", OP, 10, 20),
        ("autograd::engine::evaluate_function: B", OP, 30, 40),
        ("model [Net]", SCOPE, 50, 60), ("autograd::engine::evaluate_function: A", OP, 60, 70)))
    assert [(start, end, what.kind) for start, end, what in lane] == [
        (0, 10, "forward"), (10, 40, "backward"), (40, 50, "host"), (50, 60, "forward"), (60, 70, "backward")]


def test_an_annotation_of_the_script_tells_what_nothing_else_does():
    _, lane = seen(events(("evaluate", SCOPE, 0, 30), ("model [Net]", SCOPE, 5, 20), ("inner", SCOPE, 6, 8)))
    assert lane == [(0, 5, Activity("annotation", "evaluate")), (5, 20, Activity("forward", "")),
                    (20, 30, Activity("annotation", "evaluate"))]


def test_computing_is_what_operators_do_that_are_no_communication():
    did, _ = seen(events(("aten::mm", OP, 0, 10), ("aten::t", OP, 2, 4), ("c10d::allreduce_", OP, 12, 14),
                         (WAIT_SLICE, OP, 14, 30), ("aten::add", OP, 31, 33)))
    assert pairs(did.computing) == [(0, 10), (31, 33)]
    assert pairs(did.blocked) == [(14, 30)], "as the slice says, whatever collective it was for"


def test_ddp_waits_behind_the_last_function_of_backward():
    """85 to 98 hide behind computation; gloo says a microsecond late that it is done."""
    waited = (*STEP[:-1], ("aten::mul", OP, 86, 87), ("aten::copy_", OP, 105, 106), *STEP[-1:])
    did, _ = seen(events(*waited), in_flight=((85, 106),))
    assert pairs(did.blocked) == [(98, 105)]


def test_a_slow_interpreter_waits_for_nothing():
    did, _ = seen(events(*STEP), in_flight=((65, 90),))
    assert pairs(did.blocked) == [], "not in the pauses of 65 to 70 and 80 to 82, which it did not end"
    in_module = seen(events(*STEP), in_flight=((22, 29),))[0]
    assert pairs(in_module.blocked) == [], "a module that sleeps does not wait for what ends meanwhile"


def test_traces_of_others_wait_where_no_operator_runs_until_communication_ends():
    did, _ = seen(events(("aten::mm", OP, 0, 10), ("aten::add", OP, 40, 45)), in_flight=((5, 39),), waits_drawn=False)
    assert pairs(did.blocked) == [(10, 39)]


def test_with_a_gpu_kernels_are_what_is_done():
    did, lane = seen(events(
        ("model [Net]", SCOPE, 0, 20), ("head [Linear]", SCOPE, 10, 15),
        ("cudaLaunchKernel", "cuda_runtime", 2, 3, None, 1), ("cudaLaunchKernel", "cuda_runtime", 11, 12, None, 2),
        ("gemm", "kernel", 30, 50, None, 1), ("gemm", "kernel", 50, 70, None, 2),
        ("ncclDevKernel_AllReduce", "kernel", 60, 90, None, 3)), in_flight=((60, 90),))
    assert pairs(did.computing) == [(30, 70)] and pairs(did.blocked) == [(70, 90)]
    assert lane[-2:] == [(30, 50, Activity("forward", "")), (50, 70, Activity("forward", "head"))]


def test_a_rank_of_which_nothing_is_known():
    did, lane = seen(events(), in_flight=((5, 9),))
    assert lane == [] and pairs(did.computing) == [] and pairs(did.blocked) == [(5, 9)]


def test_collectives_that_take_no_time_pause_nothing():
    did, lane = seen(events(*STEP), in_flight=((65, 65), (99, 99)))
    assert not pairs(did.pauses) and lane == seen(events(*STEP))[1]


def test_of_all_communication_is_told_which_part_is_hidden():
    """A step with little of it counts for little. A rank without any has no such part."""
    steps = [(0, 10, 10), (0, 0, 90), (1, 0, 0), (1, 0, 0)]
    rows = [{"rank": rank, "step": number % 2, "duration_ns": 100, "overlapped_ns": hidden, "communication_ns": of,
             "overlap_ratio": hidden / of if of else None} for number, (rank, hidden, of) in enumerate(steps)]
    found = mean_steps(pl.DataFrame(rows, schema=BREAKDOWN))
    assert [(one["rank"], one["overlapped_ns"], one["overlap_ratio"]) for one in found] == [(0, 5, 0.1), (1, 0, None)]


def test_what_autograd_recomputes_with_the_number_of_a_node_did_not_make_it():
    """Its thread numbers operators by itself: both threads have a number 7."""
    engine = "autograd::engine::evaluate_function: "
    rows = events(
        ("nn.Module: Net_0", "python_function", 0, 25), ("nn.Module: Block_0", "python_function", 5, 20),
        ("aten::mm", OP, 10, 15, 7), (f"{engine}CheckpointBackward", OP, 30, 50, 9),
        ("nn.Module: Block_1", "python_function", 32, 48), ("aten::mm", OP, 35, 40, 7),
        (f"{engine}MmBackward0", OP, 60, 70, 7))
    found = rows.with_columns(thread=pl.when(pl.col("start_ns") < 30 * US).then(pl.lit("1")).otherwise(pl.lit("2")))
    _, lane = seen(found)
    assert (60, 70, Activity("backward", "Net_0.Block_0")) in lane
