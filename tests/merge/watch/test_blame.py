"""What is said of long steps: who they are blamed on, and what is not told twice."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distprof.contract.watch_state import WatchFinding
from distprof.merge.watch import everybody, now_and_then
from distprof.merge.watch.everybody import Growth, who_grew
from support.watched_jobs.job import Job, Trouble
from support.watched_jobs.judged import watch_live

MS = 1_000_000


@pytest.mark.parametrize(("size_ms", "who"), [(11, ("rank", [0])), (19, None)])
def test_a_rank_is_not_blamed_for_more_than_its_own_change(monkeypatch, size_ms, who):
    monkeypatch.setattr(everybody, "compared", lambda *_: (np.array([10.0, 0, 0]) * MS, np.full(3, 0.5 * MS)))
    growth = Growth(begin=100, end=None, slack=1, before_ns=50 * MS, after_ns=(50 + size_ms) * MS, error_ns=MS,
                    strength=20)
    view = SimpleNamespace(ranks=[0, 1, 2], sampled_own=object())
    assert who_grew(view, growth) == who


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(("every", "extra_ms"), [(3, 30), (4, 40), (5, 30)])
def test_beside_a_rank_that_is_late_now_and_then_no_other_is_blamed(world, every, extra_ms):
    """With so few ranks, each is compared with little more than the late one."""
    blamed = set[tuple[int, ...]]()
    for seed in (1, 5):
        for onset in (250, 330, 410):
            late = Trouble(ranks=(1,), onset=onset, extra_ns=extra_ms * MS, phase="data", every=every)
            job = Job(num_steps=1_700, step_ns=20 * MS, load=0.01, world=world, seed=seed, troubles=(late,))
            blamed |= {tuple(one.ranks) for one in watch_live(job, every_s=3).findings}
    assert blamed == {(1,)}


def test_a_sample_that_one_rank_lacks_leaves_the_others():
    sampled = SimpleNamespace(weight=np.ones(3), step=np.arange(3), own=np.array([[1.0, 2], [np.nan, 2], [3, 4]]))
    step, _, own = now_and_then._in_samples(SimpleNamespace(ranks=[0, 1], sampled=sampled))
    assert step.tolist() == [0, 2] and own.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(("cost_s", "kinds"), [(60, ["pauses"]), (200, ["pauses", "intermittent"])])
def test_an_evaluation_on_one_rank_is_told_once(monkeypatch, cost_s, kinds):
    """Unless the rank is slow in many more steps than those."""
    evaluation = WatchFinding(id="", kind="pauses", onset_step=100, onset_ns=0, cost_ns=60e9, why=["evaluation"])
    slow = WatchFinding(id="", kind="intermittent", ranks=[0], onset_step=100, onset_ns=0, cost_ns=cost_s * 1e9)
    often = now_and_then._Often(finding=slow, rows=np.arange(100, 1000, 100), size=1)
    monkeypatch.setattr(now_and_then, "intermittent", lambda *_: [often])
    monkeypatch.setattr(now_and_then, "long_steps", lambda *_: [(range(100, 1000, 100), evaluation)])
    assert [one.kind for one in now_and_then.now_and_then(None, [], [], None)] == kinds
