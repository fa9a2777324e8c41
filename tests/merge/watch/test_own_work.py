"""Steps that a recording later in a job makes longer are no trouble of the job."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.contract.watch import Note, StepRows
from distprof.merge.watch.job_watch import JobWatch
from distprof.merge.watch.pieces import Piece

STEPS, STEP_NS = 10, 20_000_000


def rows(first: int, number: int, begin_ns: int, extra_ns: int = 0) -> tuple[dict[str, np.ndarray], int]:
    """So many rows of ten steps."""
    span = (STEPS * (STEP_NS + extra_ns) * np.random.default_rng(first).normal(1, 0.02, number)).astype(np.int64)
    ends = begin_ns + np.cumsum(span)
    found = {name: np.full(number, -1) for name in StepRows.__struct_fields__}
    found |= {"first_step": first + STEPS * np.arange(number), "num_steps": np.full(number, STEPS), "end_ns": ends,
              "span_ns": span, "longest_ns": span // STEPS,
              "longest_step": first + STEPS * np.arange(number), "forward_ns": span // 2}
    return found, int(ends[-1])


@pytest.mark.parametrize("told", [True, False])
def test_steps_that_we_make_longer_are_no_finding_and_others_are(told):
    watch = JobWatch({0: "a", 1: "a"})
    for rank in (0, 1):
        before, now_ns = rows(100, 300, 10**18)
        asked, began_ns = rows(3100, 40, now_ns, STEP_NS)
        notes = [Note(time_ns=now_ns, step=3100, kind="window_asked"),
                 Note(time_ns=began_ns, step=3500, kind="window_began"),
                 Note(time_ns=began_ns + 10**9, step=3520, kind="window_ended")]
        writing, until_ns = rows(3520, 10, began_ns + 10**9, STEP_NS)
        after, _ = rows(3620, 300, max(until_ns, began_ns + 7 * 10**9))
        every = (before, asked, writing, after)
        columns = {name: np.concatenate([one[name] for one in every]) for name in before}
        watch.add(rank, Piece(columns=columns, notes=notes if told else []))
    watch.look()
    assert watch.state(10**18, run_id="", running=False).ranks[0].step == 6619
    assert ("regression" in {one.kind for one in watch.findings()}) == (not told)


def test_a_window_whose_end_is_not_known_does_not_hide_the_rest_of_the_job():
    watch = JobWatch({0: "a", 1: "a"})
    for rank in (0, 1):
        before, now_ns = rows(100, 300, 10**18)
        after, _ = rows(3100, 900, now_ns, STEP_NS)
        columns = {name: np.concatenate([before[name], after[name]]) for name in before}
        watch.add(rank, Piece(columns=columns, notes=[Note(time_ns=now_ns, step=3100, kind="window_asked")]))
    watch.look()
    assert "regression" in {one.kind for one in watch.findings()}


def test_what_is_lost_counts_steps_that_are_not_analysed_because_ranks_record():
    """So that it is the cost per step times the number of steps that are said."""
    watch = JobWatch({0: "a", 1: "a"})
    for rank in (0, 1):
        before, slow_ns = rows(100, 300, 10**18)
        slow, asked_ns = rows(3100, 300, slow_ns, STEP_NS)
        rest, _ = rows(6100, 40, asked_ns, STEP_NS)
        columns = {name: np.concatenate([one[name] for one in (before, slow, rest)]) for name in before}
        watch.add(rank, Piece(columns=columns, notes=[Note(time_ns=asked_ns, step=6100, kind="window_asked")]))
    findings = watch.state(10**18, run_id="", running=False).findings
    found, = (one for one in findings if one.kind == "regression")
    assert found.per_step_ns == pytest.approx(STEP_NS, rel=0.05)
    assert found.cost_ns == pytest.approx((6500 - 3100) * found.per_step_ns)
