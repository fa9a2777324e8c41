"""Lines of `stats` on what a step is, and on evaluation in it."""

from __future__ import annotations

import msgspec
import pytest

from distprof.contract.problems import StepsUnsure
from distprof.contract.rank_json import OptimizerSteps, RankJson, StepsFound
from distprof.merge.run.recorded import unsure
from distprof.merge.text.phrases import evaluation_line, step_line
from distprof.merge.text.problems import sentence

CRITIC, GENERATOR = OptimizerSteps(name="Critic's Adam", steps=5), OptimizerSteps(name="Generator's Adam")


@pytest.mark.parametrize(("found", "line"), [
    (StepsFound(rule="pattern", optimizers=[CRITIC, GENERATOR]),
     "step = 1 iteration: 5 x Critic's Adam, 1 x Generator's Adam"),
    (StepsFound(rule="optimizer", optimizers=[GENERATOR], skipped=2),
     "step = 1 iteration: 1 x Generator's Adam; 2 optimizer steps left out by a gradient scaler"),
    (StepsFound(rule="backward", optimizers=[OptimizerSteps(name="SGD", steps=4)]),
     "step = 1 iteration: 4 x SGD, which step while backward runs"),
    (StepsFound(rule="irregular", optimizers=[GENERATOR]),
     "step = 1 x Generator's Adam: optimizers step in no pattern"),
    (StepsFound(rule="forward", module="Net"), "step = 1 forward call of Net: no optimizer was alive"),
    (StepsFound(rule="explicit"), "step = from one rec.step() to the next"),
    (StepsFound(rule="given", given="6"), "step = every 6 optimizer steps, as given"),
    (StepsFound(rule="given", given="Adam"), "step = every step of Adam, as given"),
])
def test_what_ends_a_step_is_one_line(found, line):
    assert step_line(msgspec.to_builtins(found)) == line


def test_evaluation_is_one_line_with_what_is_known():
    assert step_line(None) is None and evaluation_line(None) is None
    line = evaluation_line({"calls": 1.25, "flops": 2e6, "time_ns": None})
    assert line is not None and line.endswith(
        "in no total), per GPU: 1.25 forward calls per step, 2.00 M FLOPs in the counted step")


def ranks(*found: StepsFound) -> list[RankJson]:
    return [RankJson(run_id="a", status="complete", rank=rank, world_size=len(found), steps_found=one)
            for rank, one in enumerate(found)]


SURE = StepsFound(rule="pattern", optimizers=[CRITIC, GENERATOR], looked_at=12)
DIFFER = [StepsUnsure(what="differ", ranks=(1,))]


@pytest.mark.parametrize(("second", "expected"), [
    (SURE, []),
    # a stage of a pipeline has other modules
    (StepsFound(rule="pattern", optimizers=[OptimizerSteps(name="a", steps=5), OptimizerSteps(name="b")],
                looked_at=12), []),
    (StepsFound(rule="pattern", optimizers=[CRITIC, GENERATOR], looked_at=18), DIFFER),
    (StepsFound(rule="optimizer", optimizers=[CRITIC]), DIFFER),
])
def test_ranks_that_found_different_steps_are_named(second, expected):
    assert list(unsure(ranks(SURE, second))) == expected


@pytest.mark.parametrize(("found", "words"), [
    (StepsFound(rule="irregular", optimizers=[CRITIC], looked_at=64),
     "Critic's Adam step in no regular pattern (64 steps"),
    (StepsFound(rule="optimizer", optimizers=[CRITIC], silent=["Adam"], looked_at=12), "Adam had not stepped after 12"),
    (StepsFound(rule="pattern", optimizers=[CRITIC], left_in=7),
     "from step 7 on, optimizers no longer followed the pattern"),
    (StepsFound(rule="forward", left_in=7), "stepped in step 7, after the job had been taken for inference"),
    (StepsFound(rule="explicit", left_in=7), "rec.step() was first called in step 7"),
])
def test_what_is_not_certain_is_said_once_with_the_remedy(found, words):
    told = [sentence(one) for one in unsure(ranks(found, found))]
    assert len(told) == 1 and words in told[0] and "--step" in told[0]
