"""Predictions for real jobs: steps without the naps of one rank, and a module that takes half as long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.merge.critical.replayable import Replayable, open_replayable
from distprof.merge.whatif.changes import Changes, scale_of
from distprof.merge.whatif.prediction import Prediction, predict
from support.attempts import most_hold
from support.jobs import SCRIPTS, record_run

pytestmark = pytest.mark.job

CLOSE = 0.05
JOBS, ENOUGH = 10, 8


def recorded(out: Path, plan: str, *arguments: int) -> Replayable:
    """Two ranks of one thread; `arguments` are those of the script."""
    record_run(out, 2, SCRIPTS / "napping.py", *arguments, flags=("--steps", plan), OMP_NUM_THREADS="1")
    return open_replayable(out)


def predicted(found: Replayable, changes: Changes, steps: Sequence[int]) -> Prediction:
    return predict(found.program, found.job, changes, steps, coordinates={}, clock_ns=0)


def times(found: Prediction, what: str) -> Any:
    return found.of_steps[f"{what}_ns"].to_numpy()


def test_naps_are_mended_and_the_time_of_a_module_is_known(tmp_path):
    """Rank 1 sleeps a quarter of a second in steps 3, 5 and 7: a busy machine makes that longer, but not shorter."""
    found = recorded(tmp_path / "run", "wait=1,count=0,time=0,trace=8", 9, 1, 250, 2, 1)
    naps, between = [3, 5, 7], [2, 4, 6, 8]
    without = predicted(found, Changes(no_stragglers=True), naps)
    (first, *_) = without.work.iter_rows(named=True)
    assert (first["rank"], first["phase"], first["module_path"], first["steps"]) == (1, "forward", "layers.1.mlp", 3)
    assert first["less_ns"] >= 3 * 125e6 and without.gain_ns >= 100e6
    half = predicted(found, Changes(scales=[scale_of("rank=1,module=layers.1: 0.5")]), naps)
    assert half.scaled_ns[0][1] >= 3 * 250e6 and half.gain_ns >= 100e6
    nothing = predicted(found, Changes(scales=[scale_of("rank=1,module=layers.1.mlp: 1")]), between)
    assert nothing.gain_ns == 0 and nothing.replay_error_ns < 1000


def assert_close(prediction: Any, real: Any) -> None:
    """Within 5 %, or within what steps scatter by, predicted or real, where that is more."""
    own, scatter = (float(steps.std(ddof=1)) for steps in (prediction, real))
    print(f"predicted {prediction.mean() / 1e6:.2f} +- {own / 1e6:.2f} ms, real {real.mean() / 1e6:.2f} "
          f"+- {scatter / 1e6:.2f} ms")
    off = abs(float(prediction.mean() - real.mean()))
    assert off <= max(CLOSE * float(real.mean()), own, scatter), "by more than steps scatter"


@pytest.mark.stress
@pytest.mark.parametrize("which", ["traced", "arrivals"])
def test_without_naps_steps_take_what_those_between_take(tmp_path, which):
    def attempt(folder: Path) -> None:
        found = recorded(folder / "run", "wait=2,count=0,time=0,trace=13,arrivals=24", 39, 10, 20, 2, 1)
        steps = getattr(found.program, which)[:-1]
        naps, between = ([step for step in steps if step % 2 == rest] for rest in (1, 0))
        assert_close(times(predicted(found, Changes(no_stragglers=True), naps), "predicted"),
                     times(predicted(found, Changes(no_stragglers=True), between), "measured"))

    most_hold(attempt, tmp_path, of=JOBS, at_least=ENOUGH)


HALF = Changes(scales=[scale_of("module=layers.1.mlp: 0.5")])


@pytest.mark.stress
def test_a_module_at_half_its_time_is_the_job_in_which_it_does_half_as_much(tmp_path):
    """The module does all that it does twice, or once: what surrounds a nap is halved with it.

    The truth is recorded before and after, so that its steps scatter by what else the machine does, too.
    """
    def attempt(folder: Path) -> None:
        plan = "wait=2,count=0,time=0,trace=13"
        before, found, after = (recorded(folder / name, plan, 15, 10, 10, 1, -1, how_often) for name, how_often in (
            ("before", 1), ("now", 2), ("after", 1)))
        real = [times(predicted(one, HALF, one.program.traced), "measured") for one in (before, after)]
        assert_close(times(predicted(found, HALF, found.program.traced), "predicted"), np.concatenate(real))

    most_hold(attempt, tmp_path, of=JOBS, at_least=ENOUGH)


@pytest.mark.stress
def test_a_module_at_half_its_time_is_the_steps_between_in_which_it_does_half_as_much(tmp_path):
    """As above, in one job, on a machine that is as busy in the steps that are compared."""
    def attempt(folder: Path) -> None:
        found = recorded(folder / "run", "wait=2,count=0,time=0,trace=25", 27, 10, 10, 2, -1, 2)
        twice, once = ([step for step in found.program.traced if step % 2 == rest] for rest in (1, 0))
        assert_close(times(predicted(found, HALF, twice), "predicted"),
                     times(predicted(found, HALF, once), "measured"))

    most_hold(attempt, tmp_path, of=JOBS, at_least=ENOUGH)
