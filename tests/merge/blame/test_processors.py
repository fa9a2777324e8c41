"""Ranks on hosts with too few processors: late by turns, which is no habit; or alone, which is a cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from distprof.merge.activity.activities import Activity
from distprof.merge.blame.culprits import Culprit
from distprof.merge.blame.processors import CrowdedHost
from distprof.merge.text.communication.culprits import culprit_lines
from support.simulated_job import Job

DATA, MLP, REST = Activity("data"), Activity("forward", "layers.1.mlp"), Activity("backward", "layers.0")
RUNS = {DATA: 500, MLP: 4_000, REST: 16_000}
"""Processor time a step, in ns."""
STEPS = 24
SPREAD = 0.12
"""By how much waits of ranks differ over a whole run; those of real jobs on 2 busy cores differed by 0.05 to 0.12."""


def shared(seed: int, queued: float, *, num_ranks: int = 4, lacking: Mapping[int, float] | None = None,
           more: Mapping[int, float] | None = None, naps_ns: Mapping[int, int] | None = None, tells: bool = True,
           hosts: Mapping[int, str] | None = None, once_ns: Mapping[int, int] | None = None,
           now_and_then_ns: Mapping[int, int] | None = None) -> Job:
    """A job whose threads wait for processors.

    Args:
        seed: Of luck: over the whole run one rank fares better than another, and so in a step.
        queued: Time without a processor, by the time with one.
        num_ranks: All meet in each step.
        lacking: So many times as long, by rank.
        more: So many times the work in `MLP`, by rank.
        naps_ns: Sleep in `MLP`, by rank.
        tells: Whether the kernel does.
        hosts: By rank.
        once_ns: For how long it has no processor in a single step, by rank.
        now_and_then_ns: The same, in each fifth step.
    """
    random, job = np.random.default_rng(seed), Job(num_ranks, hosts=hosts or {})
    luck = np.clip(1 + SPREAD * random.standard_normal(num_ranks), 0.5, 1.5)
    for job.step in range(STEPS + 1):
        for rank in range(num_ranks):
            for what, ns in RUNS.items():
                ran = ns * (more or {}).get(rank, 1) if what is MLP else ns
                rate = queued * luck[rank] * (lacking or {}).get(rank, 1)
                waited = ran * rate * random.gamma(60, 1 / 60)
                (job.runs if tells else _silently(job))(rank, what, round(ran), round(waited))
            if rank in (naps_ns or {}):
                job.works(rank, MLP, naps_ns[rank])
            if rank in (once_ns or {}) and job.step == STEPS // 2:
                job.runs(rank, REST, 0, once_ns[rank])
            if rank in (now_and_then_ns or {}) and job.step % 5 == 2:
                job.runs(rank, REST, 0, now_and_then_ns[rank])
        job.meet(*range(num_ranks))
    return job


def _silently(job: Job):
    return lambda rank, what, ran, queued: job.works(rank, what, ran + queued)


def named(culprits: Iterable[Culprit]) -> list[tuple[int, str, str | None]]:
    return [(one.rank, one.causes[0].kind, one.causes[0].where) for one in culprits if one.certain]


@pytest.mark.long
def test_ranks_that_take_turns_are_late_by_chance():
    """Without what the kernel tells, many of the same jobs have a rank that is late again and again."""
    told, untold = ([bool(named(shared(seed, 1.5, tells=tells).culprits())) for seed in range(16)]
                    for tells in (True, False))
    assert sum(told) <= 1 and sum(untold) >= 6


@pytest.mark.long
@pytest.mark.parametrize("queued", [0.0, 0.5, 1.5])
def test_a_rank_that_sleeps_or_computes_more_stays_a_culprit(queued):
    ran = sum(RUNS.values())
    for seed in range(5):
        nap = shared(seed, queued, naps_ns={2: round(0.4 * ran * (1 + queued))})
        assert named(nap.culprits()) == [(2, "forward", "layers.1.mlp")]
        work = shared(seed, queued, more={1: 4.0})
        assert named(work.culprits()) == [(1, "forward", "layers.1.mlp")], "it waits longer, as it has more to do"


@pytest.mark.long
@pytest.mark.parametrize("queued", [0.02, 0.5, 1.5])
def test_a_rank_that_alone_lacks_a_processor_stays_a_culprit(queued):
    for seed in range(5):
        job = shared(seed, queued, lacking={3: 30 if queued < 0.1 else 7})
        first = job.culprits()[0]
        assert (first.rank, first.certain, [one.kind for one in first.causes]) == (3, True, ["core"])


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_step_without_a_processor_is_not_why_a_rank_that_sleeps_is_late(num_ranks):
    job = shared(1, 0.02, num_ranks=num_ranks, naps_ns={1: 8_000}, once_ns={1: 120_000})
    assert named(job.culprits()) == [(1, "forward", "layers.1.mlp")]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_rank_that_lacks_a_processor_now_and_then_is_no_culprit(num_ranks):
    """Nor behind another rank that is late."""
    job = shared(1, 0.02, num_ranks=num_ranks, naps_ns={1: 60_000}, now_and_then_ns={0: 12_000})
    assert named(job.culprits()) == [(1, "forward", "layers.1.mlp")]


def test_a_rank_behind_another_is_late_by_its_excess_and_not_by_what_fixing_it_alone_gains():
    """Which is less than what it lacks of a processor now and then."""
    job = shared(1, 0.02, num_ranks=6, naps_ns={1: 60_000, 2: 59_000}, now_and_then_ns={1: 12_000})
    assert sorted(named(job.culprits())) == [(1, "forward", "layers.1.mlp"), (2, "forward", "layers.1.mlp")]


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_on_a_crowded_host_a_rank_that_lacks_a_processor_somewhat_more_is_no_culprit(num_ranks):
    """What else ran there hit it: another rank the next time."""
    for seed in range(5):
        culprits = shared(seed, 0.6, num_ranks=num_ranks, lacking={1: 2}).culprits()
        assert not named(culprits)


def test_the_host_is_named_instead_of_a_rank():
    job = shared(1, 1.5, lacking={1: 1.3})
    culprits, crowded = job.culprits(), job.processors().crowded()
    assert culprits[0].is_due_to_turns and not any(one.certain for one in culprits)
    lines = list(culprit_lines(culprits, range(4), crowded=crowded))
    assert "ranks that compete for the CPUs of its host differ by up to" in lines[0]
    assert lines[1].startswith("CPU oversubscribed on host : ranks were runnable but not running 5") and lines[
        1].endswith("% of the time, so lateness may be noise")


def test_many_hosts_share_a_line():
    hosts = [CrowdedHost(host=f"node{number}", ranks=[2 * number, 2 * number + 1], queued_ratio=0.1 + number / 100)
             for number in range(40)]
    lines = list(culprit_lines([], range(80), crowded=hosts))
    assert lines[1:] == ["CPU oversubscribed on 40 hosts: ranks were runnable but not running 10.0 % to 49.0 % of the "
                         "time, so lateness may be noise"]


def test_a_host_is_crowded_where_all_of_its_ranks_wait():
    hosts = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c"}
    job = shared(1, 0.4, num_ranks=5, lacking={2: 0.01, 4: 3}, hosts=hosts)
    found, = job.processors().crowded()
    assert (found.host, found.ranks) == ("a", [0, 1]), "on b one rank has what it needs, on c there is one alone"
    queued = sum(queued for (rank, step), (_, queued) in job.ran.items() if rank < 2 and step)
    took = sum(end - start for (rank, step), (start, end) in job.windows.items() if rank < 2 and step)
    assert found.queued_ratio == pytest.approx(queued / took, rel=0.01)


def test_a_rank_alone_on_its_host_is_compared_with_all_and_takes_no_turns():
    job = shared(1, 0.2, num_ranks=4, lacking={3: 4}, hosts={0: "a", 1: "a", 2: "a", 3: "b"})
    assert named(job.culprits()) == [(3, "core", None)]
    assert job.processors().by_turns_part(3) == 0 and job.processors().lacked_ns(3) > 0


def test_kernels_that_do_not_tell_change_nothing():
    job = shared(0, 1.5, tells=False, naps_ns={2: 20_000})
    assert named(job.culprits()) == [(2, "forward", "layers.1.mlp")]
    assert not job.processors().crowded() and all(one.by_turns_ns == 0 for one in job.culprits())
