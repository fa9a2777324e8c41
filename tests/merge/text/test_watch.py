"""Sentences about the watch of a whole job."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from distprof.contract.watch_state import FindingKind, LongerSteps, WatchFinding, WatchState, data_of, state_of
from distprof.merge.text.watch import end_lines, job_line, job_lines, long_time, sentence, with_texts

MS = 1e6
S = 1e9


def finding(kind: FindingKind, **more: Any) -> WatchFinding:
    """Of rank 1 from step 6204 on."""
    return WatchFinding(**{"id": f"{kind}-1", "kind": kind, "ranks": [1], "hosts": ["a"], "onset_step": 6204,
                           "onset_ns": 0, **more})


def state(*findings: WatchFinding) -> WatchState:
    """10,000 steps in 200 s."""
    return WatchState(format=1, run_id="x", time_ns=0, running=False, world_size=2, num_steps=10_000, first_watched=0,
                      elapsed_ns=200 * 10**9, step_ns=20.1 * MS, ranks=[], findings=list(findings))


SENTENCES = [
    (finding("slow_rank", per_step_ns=18 * MS, cost_ns=68 * S, phase="forward", module="encoder.1", line="train.py:33"),
     "rank 1 slow from step 6,204 on: +18.0 ms per step, 68 s lost; `encoder.1` forward, train.py:33"),
    (finding("slow_rank", until_step=7000, per_step_ns=18 * MS, cost_ns=14 * S, why=["GPU 3 of a is hot"]),
     "rank 1 slow from step 6,204 to 7,000: +18.0 ms per step, 14 s lost; GPU 3 of a is hot"),
    (finding("slow_host", ranks=[2, 3], hosts=["b"], per_step_ns=MS, cost_ns=4 * S),
     "host b (ranks 2 and 3) slow from step 6,204 on: +1.00 ms per step, 4.0 s lost"),
    (finding("slow_link", hosts=["a", "b"], per_step_ns=MS, cost_ns=4 * S, phase="communication"),
     "communication between a and b slow from step 6,204 on: +1.00 ms per step, 4.0 s lost"),
    (finding("regression", ranks=[], before_ns=20 * MS, after_ns=25 * MS, per_step_ns=5 * MS, cost_ns=19 * S),
     "steps of all ranks longer from step 6,204 on: +5.00 ms per step, 19 s lost (20.0 ms before, 25.0 ms since)"),
    (finding("intermittent", per_step_ns=MS, cost_ns=4 * S, share=0.125, period_steps=8.0),
     "rank 1 slow every 8 steps, 12.5 % of the steps, from step 6,204 on: +1.00 ms per step on average, 4.0 s lost"),
    (finding("data_stall", per_step_ns=MS, cost_ns=4 * S, share=0.001, phase="data"),
     "rank 1 delayed before forward calls now and then, from step 6,204 on: +1.00 ms per step on average, 4.0 s lost"),
    (finding("memory_growth", bytes_per_hour=1.5e9), "memory of rank 1 grows from step 6,204 on: 1.50 GB per hour"),
    (finding("pauses", ranks=[], why=["evaluation"], period_steps=500.0, cost_ns=4000 * S),
     "evaluation every 500 steps, first in step 6,204: 66 min 40 s in all"),
    (finding("stopped"), "rank 1 has reported nothing since step 6,204, while others continue"),
    (finding("stopped", until_step=7000),
     "rank 1 reported nothing for a while, from step 6,204 on, while others continued"),
    (finding("hang", why=["rank 1: main (a.py:3)"]), "rank 1 has hung since step 6,204; rank 1: main (a.py:3)"),
    (finding("hang", until_step=6204, cost_ns=90 * S, why=["rank 1: main (a.py:3)"], line="a.py:3"),
     "rank 1 hung in step 6,204 for 90 s, then the job continued; a.py:3"),
    (finding("hang", ranks=[], until_step=6204),
     "all ranks hung in step 6,204 for a while, then the job continued"),
]


@pytest.mark.parametrize(("one", "text"), SENTENCES)
def test_a_finding_in_a_sentence(one: WatchFinding, text: str) -> None:
    assert sentence(one) == text
    assert [other.text for other in with_texts([one])] == [text]


@pytest.mark.parametrize("kind", get_args(FindingKind))
def test_every_kind_has_one_even_where_nothing_else_is_known(kind: FindingKind) -> None:
    assert "6,204" in sentence(finding(kind))
    assert "None" not in sentence(finding(kind, ranks=[]))


@pytest.mark.parametrize(("seconds", "text"), [(200, "3 min 20 s"), (68, "68 s"), (4.2, "4.2 s"), (0.5, "500 ms"),
                                               (7500, "2 h 5 min"), (120, "2 min"), (119.6, "2 min"), (7200, "2 h")])
def test_long_times(seconds: float, text: str) -> None:
    assert long_time(seconds * S) == text


def test_the_job_in_one_line() -> None:
    assert job_line(state()) == "10,000 steps watched in 3 min 20 s, 20.1 ms per step"


def test_the_dearest_comes_first_and_pauses_last() -> None:
    pauses = finding("pauses", cost_ns=90 * S)
    cheap, dear = finding("slow_rank", cost_ns=S), finding("regression", cost_ns=60 * S)
    lines = job_lines(state(pauses, cheap, dear))
    assert lines[1:] == [f"  {sentence(one)}" for one in (dear, cheap, pauses)]


def test_that_nothing_was_noticed_is_said() -> None:
    nothing = "  no rank was found to slow the job down, nor any lasting growth of step times"
    assert job_lines(state(finding("pauses")))[1] == nothing
    short = msgspec.structs.replace(state(), is_short=True)
    assert job_lines(short)[1] == "  too little was watched to find who or what slows the job down"
    assert len(end_lines(short)) == 1
    assert state_of(data_of(short)) == msgspec.structs.replace(short, run_id="", world_size=0), "as in summary.json"
    longer = LongerSteps(from_step=1_200, until_step=None, before_ns=13.6e6, after_ns=16.6e6)
    assert job_lines(msgspec.structs.replace(state(), unexplained=longer))[1] == (
        "  no rank was found to slow the job down, and it is not certain why steps took longer from about step 1,200 "
        "on (13.6 ms before, 16.6 ms then)")
