"""Troubles planted in made-up jobs of 1,500 steps of 0.4 s: who is named, from which step on, and what is not said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from distprof.contract.watch import StepRows
from distprof.contract.watch_state import WatchFinding, WatchState
from distprof.merge.text.watch import sentence
from distprof.merge.watch import job_watch
from distprof.merge.watch.job_growth import UNSAMPLED, still_longer
from distprof.merge.watch.job_watch import JobWatch, watched_pieces
from distprof.merge.watch.sampled_steps import SampledSteps
from distprof.merge.watch.state import Register
from distprof.recording.watch.thinning import _halved
from support.watched_jobs.job import MS, Job, Link, Trouble
from support.watched_jobs.judged import Watched, judged, watch_live
from support.watched_jobs.pieces import BEGAN_NS, Ranks
from support.watched_jobs.play import play

STEPS = 1_500
SLOW = 400.0 * MS
pytestmark = pytest.mark.long


def seen(**changes: object) -> Watched:
    """A quiet job of four ranks with these changes."""
    defaults: dict[str, object] = {"num_steps": STEPS, "step_ns": SLOW, "load": 0.003, "tail_rate": 0.0}
    return watch_live(Job(**{**defaults, **changes}), every_s=40)  # type: ignore[arg-type]


def only(watched: Watched) -> WatchFinding:
    """The one thing that was found."""
    assert len(watched.findings) == 1, watched.findings
    return watched.findings[0]


@pytest.mark.parametrize("layout", ["dp", "tp", "pp"])
def test_nothing_is_found_where_nothing_is(layout: str) -> None:
    assert seen(layout=layout).findings == []


@pytest.mark.parametrize("changes", [{"common_lengths": 0.25}, {"own_lengths": 0.1}, {"load": 0.02, "tail_rate": 1e-3},
                                     {"world": 1}, {"world": 2}])
def test_steps_that_differ_in_work_are_no_trouble(changes: dict[str, float]) -> None:
    assert seen(**changes).findings == []


@pytest.mark.parametrize("phase", ["data", "forward", "backward", "optimizer"])
def test_a_rank_that_becomes_slow_is_named_with_step_phase_and_cost(phase: str) -> None:
    found = only(seen(troubles=(Trouble(ranks=(2,), onset=700, extra_ns=40 * MS, phase=phase),)))
    assert (found.kind, found.ranks, found.phase, found.until_step) == ("slow_rank", [2], phase, None)
    assert found.onset_step == pytest.approx(700, abs=3)
    assert found.per_step_ns == pytest.approx(40 * MS, rel=0.25)
    assert found.cost_ns == pytest.approx(40 * MS * (STEPS - 700), rel=0.25)


@pytest.mark.parametrize(("step_ns", "phase"), [(SLOW, "data"), (3000.0 * MS, "forward")])
def test_steps_that_become_much_longer_are_no_single_long_ones_besides(step_ns: float, phase: str) -> None:
    trouble = Trouble(ranks=(2,), onset=200, until=400, extra_ns=1.5 * step_ns, phase=phase)
    found = only(watch_live(Job(num_steps=600, step_ns=step_ns, load=0.01, seed=3, troubles=(trouble,))))
    assert (found.kind, found.ranks, found.onset_step) == ("slow_rank", [2], 200)


@pytest.mark.parametrize("onset", [700, 705, 1000])
def test_it_is_named_too_where_steps_became_shorter_meanwhile(onset: int) -> None:
    """As when another job on the same device ends: what it costs is what steps would take less without it."""
    troubles = (Trouble(ranks=(0, 1, 2, 3), onset=700, extra_ns=-100 * MS),
                Trouble(ranks=(2,), onset=onset, extra_ns=40 * MS))
    found = only(seen(troubles=troubles))
    assert (found.kind, found.ranks) == ("slow_rank", [2])
    assert found.onset_step == pytest.approx(onset, abs=8)
    assert found.per_step_ns == pytest.approx(40 * MS, rel=0.25)
    assert seen(troubles=troubles[:1]).findings == []


@pytest.mark.parametrize("layout", ["tp", "pp"])
def test_it_is_named_too_where_groups_wait_for_groups(layout: str) -> None:
    found = only(seen(layout=layout, troubles=(Trouble(ranks=(1,), onset=700, extra_ns=60 * MS),)))
    assert (found.kind, found.ranks) == ("slow_rank", [1])
    assert found.onset_step == pytest.approx(700, abs=10)


def test_trouble_that_ends_has_an_end() -> None:
    found = only(seen(troubles=(Trouble(ranks=(3,), onset=600, until=999, extra_ns=40 * MS),)))
    assert found.ranks == [3]
    assert (found.onset_step, found.until_step) == (pytest.approx(600, abs=3), pytest.approx(999, abs=3))


def test_a_rank_that_is_slow_from_the_begin_is_compared_with_its_peers() -> None:
    found = only(seen(troubles=(Trouble(ranks=(0,), onset=0, extra_ns=40 * MS),)))
    assert (found.kind, found.ranks, found.onset_step) == ("slow_rank", [0], 0)
    assert found.before_ns is None


def test_all_ranks_of_a_host_are_a_host() -> None:
    trouble = Trouble(ranks=(2, 3), onset=700, extra_ns=40 * MS)
    found = only(seen(world=8, per_host=2, troubles=(trouble,)))
    assert (found.kind, found.ranks, found.hosts) == ("slow_host", [2, 3], ["host1"])


def test_all_ranks_are_a_regression() -> None:
    found = only(seen(troubles=(Trouble(ranks=(0, 1, 2, 3), onset=700, extra_ns=40 * MS),)))
    assert (found.kind, found.ranks, found.phase) == ("regression", [], "forward")
    assert found.onset_step == pytest.approx(700, abs=3)
    assert found.before_ns is not None
    assert found.after_ns == pytest.approx(found.before_ns + 40 * MS, rel=0.02)


def test_steps_that_became_longer_soon_are_a_regression_too() -> None:
    found = only(seen(num_steps=4_000, step_ns=12 * MS, load=0.02,
                      troubles=(Trouble(ranks=(0, 1, 2, 3), onset=300, extra_ns=2 * MS),)))
    assert (found.kind, found.phase) == ("regression", "forward")
    assert found.onset_step == pytest.approx(300, abs=10)


@pytest.mark.parametrize("world", [1, 2])
def test_a_host_that_is_ahead_of_its_device_neither_pauses_nor_moves_the_onset(world: int) -> None:
    trouble = Trouble(ranks=tuple(range(world)), onset=1_000, extra_ns=1.3 * MS)
    job = {"num_steps": 4_000, "step_ns": 12 * MS, "world": world, "layout": "dp", "ahead": 4.0}
    found = only(seen(**job, troubles=(trouble,)))
    assert (found.kind, found.phase) == ("regression", "forward")
    assert found.onset_step == pytest.approx(1_000, abs=3)
    assert found.per_step_ns == pytest.approx(1.3 * MS, rel=0.1)
    assert seen(**job).findings == []


def test_pauses_of_a_device_are_told() -> None:
    found = only(seen(num_steps=4_000, step_ns=12 * MS, ahead=4.0, pause_every=250, pause_ns=300 * MS))
    assert (found.kind, found.period_steps) == ("pauses", 250)
    assert found.cost_ns == pytest.approx(15 * 300 * MS, rel=0.15)


def test_beside_a_rank_that_became_slow_the_other_was_not_slow_before() -> None:
    """Two ranks, each of which can only be compared with the other; the slow one seems normal to itself by then."""
    trouble = Trouble(ranks=(1,), onset=800, extra_ns=4 * MS)
    watched = seen(world=2, num_steps=4_500, step_ns=14 * MS, load=0.05, load_s=0.2, seed=2, troubles=(trouble,))
    assert [one.ranks for one in watched.findings if one.kind != "pauses"] == [[1]]


def test_longer_steps_without_a_known_reason_are_not_denied() -> None:
    job = Job(num_steps=STEPS, step_ns=SLOW, load=0.003, tail_rate=0.0, troubles=(
        Trouble(ranks=(2,), onset=700, extra_ns=40 * MS),))
    ranks = Ranks(play(job))
    pieces = {rank: ranks.new(rank, ranks.end_ns) for rank in range(job.world)}
    found = watched_pieces(pieces, job.hosts)
    assert found.state(0, run_id="x", running=False).unexplained is None, "the rank explains them"
    found._register.findings.clear()
    longer = found.state(0, run_id="x", running=False).unexplained
    assert longer is not None and longer.until_step is None
    assert longer.from_step == pytest.approx(700, abs=10)
    assert longer.after_ns - longer.before_ns == pytest.approx(40 * MS, rel=0.25)


def test_a_link_is_the_pair_of_hosts_whose_calls_move_longer() -> None:
    link = Link(hosts=("host1", "host2"), onset=700, extra_ns=10 * MS)
    found = only(seen(layout="pp", per_host=1, links=(link,)))
    assert (found.kind, found.hosts, found.phase) == ("slow_link", ["host1", "host2"], "communication")
    assert found.onset_step == pytest.approx(700, abs=5)


def test_a_rank_that_is_slow_in_every_fifth_step() -> None:
    trouble = Trouble(ranks=(1,), onset=300, extra_ns=150 * MS, every=5, phase="backward")
    found = only(seen(troubles=(trouble,)))
    assert (found.kind, found.ranks, found.period_steps) == ("intermittent", [1], 5)
    assert found.share == pytest.approx(0.2, abs=0.06)


@pytest.mark.parametrize(("every", "steps", "step_ns", "num_steps"), [
    (3, 1, 150 * MS, 1_500), (10, 1, 20 * MS, 9_000), (50, 1, 150 * MS, 2_000), (50, 5, 20 * MS, 6_000)])
def test_what_comes_and_goes_is_one_finding_with_its_rhythm_and_cost(
        every: int, steps: int, step_ns: float, num_steps: int) -> None:
    """In single steps or bursts, several in a row of the watch or one in many."""
    extra = step_ns / 2 if every < 50 else step_ns
    trouble = Trouble(ranks=(2,), onset=245, extra_ns=extra, every=every, steps=steps)
    found = only(seen(num_steps=num_steps, step_ns=step_ns, troubles=(trouble,)))
    assert (found.kind, found.ranks, found.period_steps) == ("intermittent", [2], every)
    assert found.per_step_ns == pytest.approx(extra * steps / every, rel=0.2)


def test_two_ranks_that_are_slow_now_and_then_are_two_findings() -> None:
    troubles = tuple(Trouble(ranks=(rank,), onset=300, extra_ns=SLOW / 2, every=every)
                     for rank, every in ((0, 7), (2, 10)))
    found = seen(world=8, troubles=troubles).findings
    assert sorted((one.kind, one.ranks, one.period_steps) for one in found) == [
        ("intermittent", [0], 7), ("intermittent", [2], 10)]


def test_in_a_pipeline_it_costs_what_steps_grow_by() -> None:
    """There the work of all ranks adds up, whoever has most of it."""
    trouble = Trouble(ranks=(1,), onset=300, extra_ns=SLOW / 2, every=4)
    watched = seen(layout="pp", troubles=(trouble,))
    took = np.diff(watched.step_ends_ns)
    grown = took[400:].mean() - took[100:290].mean()
    assert only(watched).per_step_ns == pytest.approx(grown, rel=0.2)


def test_without_sampled_steps_it_is_said_that_who_works_longer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in FSDP on GPUs; in backward, each rank also waits for the others."""
    monkeypatch.setattr(SampledSteps, "add", lambda *_: None)
    found = only(seen(troubles=(Trouble(ranks=(2,), onset=700, extra_ns=40 * MS, phase="backward"),)))
    assert found.kind == "regression" and not found.ranks and found.why == [UNSAMPLED]
    assert sentence(found).endswith("which ranks work longer is unknown: no step was sampled")


def test_rare_long_waits_for_data_are_stalls() -> None:
    trouble = Trouble(ranks=(3,), onset=100, extra_ns=3000 * MS, phase="data", every=137)
    found = only(seen(troubles=(trouble,)))
    assert (found.kind, found.ranks, found.phase, found.period_steps) == ("data_stall", [3], "data", 137)
    assert found.cost_ns == pytest.approx(11 * 3000 * MS, rel=0.15)


@pytest.mark.parametrize("ranks", [None, (0,)])
def test_pauses_are_told_without_blame(ranks: tuple[int, ...] | None) -> None:
    found = only(seen(pause_every=100, pause_ns=4000 * MS, pause_ranks=ranks, evaluation=ranks is None))
    assert (found.kind, found.period_steps) == ("pauses", 100)
    assert found.why == (["evaluation"] if ranks is None else [])


def test_pauses_of_several_steps_in_a_row_have_their_whole_cost() -> None:
    """Of slow steps in a row only the longest of each row is known."""
    trouble = Trouble(ranks=(0,), onset=400, extra_ns=40 * MS, every=50, steps=5)
    found = seen(num_steps=6_000, step_ns=20.0 * MS, troubles=(trouble,)).findings
    found = [one for one in found if one.kind == "pauses" and one.ranks == [0]]
    assert len(found) == 1 and found[0].period_steps == 50
    assert found[0].per_step_ns == pytest.approx(4 * MS, rel=0.25)


@pytest.mark.parametrize(("every", "extra_ms"), [(5, 40), (40, 158)])
def test_what_a_rank_that_was_late_now_and_then_cost_is_not_spread_over_the_time_after_it(every: int,
                                                                                         extra_ms: int) -> None:
    trouble = Trouble(ranks=(1,), onset=1_000, until=4_000, extra_ns=extra_ms * MS, every=every, phase="data")
    found = only(seen(num_steps=9_000, step_ns=20.0 * MS, troubles=(trouble,)))
    assert found.ranks == [1] and found.until_step == pytest.approx(4_000, abs=30)
    assert found.per_step_ns == pytest.approx(extra_ms / every * MS, rel=0.15)


def test_a_stage_that_only_waits_less_is_not_slow() -> None:
    trouble = Trouble(ranks=(2,), onset=0, extra_ns=SLOW / 10, phase="data")
    watched = seen(layout="pp", troubles=(trouble,))
    assert watched.step_ends_ns[-1] < 1.005 * seen(layout="pp").step_ends_ns[-1]
    assert watched.findings == []


def test_memory_that_grows_and_a_warm_up_that_does_not() -> None:
    found = only(seen(leak_bytes=(1, 1e6)))
    hours = STEPS * SLOW / 3600e9
    assert (found.kind, found.ranks) == ("memory_growth", [1])
    assert found.bytes_per_hour == pytest.approx(1e6 * STEPS / hours, rel=0.1)


def test_memory_that_begins_to_grow_late() -> None:
    found = only(seen(leak_bytes=(1, 1e6), leaks_from=1_100))
    assert (found.kind, found.ranks) == ("memory_growth", [1])
    assert abs(found.onset_step - 1_100) <= 40
    assert found.bytes_per_hour == pytest.approx(1e6 * 3600e9 / SLOW, rel=0.1)


def looked_at(job: Job, clocks: Callable[[int, Any], Any] = lambda rank, end_ns: end_ns) -> WatchState:
    """The last state of a job that is looked at every 4 s, whose ranks write down times of their own clocks."""
    ranks, watch, now = Ranks(play(job)), JobWatch(job.hosts), 0.0
    while now < ranks.end_ns:
        now = min(now + 4e9, ranks.end_ns)
        for rank in range(job.world):
            piece = ranks.new(rank, now)
            watch.add(rank, replace(piece, columns={**piece.columns, "end_ns": clocks(rank, piece.columns["end_ns"])}))
        state = watch.state(int(BEGAN_NS + now), run_id="x", running=True)
    return state


def test_a_rank_that_is_silent_has_stopped_while_the_job_runs() -> None:
    state = looked_at(Job(num_steps=400, step_ns=SLOW, stops=(2, 200)))
    assert [(one.kind, one.ranks, one.onset_step) for one in state.findings] == [("stopped", [2], 200)]
    assert state.num_steps == 200
    assert state.elapsed_ns == pytest.approx(200 * SLOW, rel=0.05)  # the steps that are counted


@pytest.mark.parametrize("set_by_s", [-3600, -60, 60, 3600])
@pytest.mark.parametrize("at_s", [0, 80])
def test_a_clock_that_is_set_is_no_silence_and_takes_no_time(set_by_s: int, at_s: int) -> None:
    def clocks(rank: int, end_ns: Any) -> Any:
        return np.where((rank == 2) & (end_ns >= BEGAN_NS + at_s * 10**9), end_ns + set_by_s * 10**9, end_ns)

    state = looked_at(Job(num_steps=400, step_ns=SLOW), clocks)
    assert state.findings == []
    assert state.elapsed_ns == pytest.approx(400 * SLOW, rel=0.05)


def test_steps_that_only_some_ranks_took_are_told_at_the_end() -> None:
    ranks = Ranks(play(Job(num_steps=400, step_ns=SLOW, stops=(2, 200))))
    pieces = {rank: ranks.new(rank, ranks.end_ns) for rank in range(4)}
    state = watched_pieces(pieces, dict.fromkeys(range(4), "a")).state(BEGAN_NS, run_id="x", running=False)
    assert state.notes == ["only 3 of 4 ranks noted steps 200 to 399: these are not compared"]
    assert seen(num_steps=300).watch.state(BEGAN_NS, run_id="x", running=False).notes == []


def test_where_nobody_looked_for_a_while_all_ranks_have_time_again() -> None:
    ranks = Ranks(play(Job(num_steps=400, step_ns=SLOW)))
    watch = JobWatch(dict.fromkeys(range(4), "a"))
    for now_s, of in ((4, range(4)), (124, range(2)), (128, range(2, 4))):
        for rank in of:
            watch.add(rank, ranks.new(rank, now_s * 1e9))
        assert watch.state(int(BEGAN_NS + now_s * 1e9), run_id="x", running=True).findings == []


def test_live_and_afterwards_say_the_same() -> None:
    job = Job(num_steps=STEPS, step_ns=SLOW, load=0.003, troubles=(Trouble(ranks=(1,), onset=700, extra_ns=40 * MS),))
    ranks = Ranks(play(job))
    pieces = {rank: ranks.new(rank, ranks.end_ns) for rank in range(4)}
    live, after = only(watch_live(job, every_s=20)), watched_pieces(pieces, job.hosts).findings()
    assert [(one.kind, one.ranks, one.onset_step) for one in after] == [(live.kind, live.ranks, live.onset_step)]
    assert after[0].per_step_ns == pytest.approx(live.per_step_ns, rel=0.05)


def test_the_state_shows_each_rank_and_is_written_as_json() -> None:
    watched = seen(num_steps=300)
    state = watched.watch.state(BEGAN_NS, run_id="x", running=False)
    assert msgspec.json.decode(msgspec.json.encode(state), type=WatchState) == state
    assert (state.world_size, state.num_steps, state.first_watched) == (4, 300, 0)
    assert state.step_ns == pytest.approx(SLOW, rel=0.1)
    assert [one.rank for one in state.ranks] == [0, 1, 2, 3]
    first = state.ranks[0]
    phases = (first.data_ns, first.forward_ns, first.backward_ns, first.optimizer_ns)
    assert sum(value or 0 for value in phases) == pytest.approx(first.step_ns, rel=0.01)
    assert first.waiting_ratio is not None
    assert 0 < first.waiting_ratio < 0.3
    assert len(first.recent_ns) == 60


def test_a_finding_keeps_its_id_and_its_settled_onset() -> None:
    job = Job(num_steps=STEPS, step_ns=SLOW, load=0.003, troubles=(Trouble(ranks=(1,), onset=500, extra_ns=40 * MS),))
    ranks, watch, told = Ranks(play(job)), JobWatch(job.hosts), set()
    for now in np.arange(200e9, ranks.end_ns + 1, 40e9):
        for rank in range(4):
            watch.add(rank, ranks.new(rank, now))
        if now > ranks.end_ns / 2:
            told |= {(one.id, one.onset_step) for one in watch.findings()}
    assert len(told) == 1


@pytest.mark.parametrize(("kind", "cost_ns", "told"), [("intermittent", 9e9, []), ("slow_rank", 9e9, []),
                                                       ("slow_rank", 2e9, [4e9])])
def test_stalls_of_a_rank_that_is_slow_are_told_once_unless_they_cost_more(kind: str, cost_ns: float,
                                                                           told: list[float]) -> None:
    def one(kind: Any, cost_ns: float, rank: int = 2) -> WatchFinding:
        return WatchFinding(id="", kind=kind, ranks=[rank], hosts=["a"], onset_step=100, onset_ns=0, cost_ns=cost_ns,
                            phase="data")

    register = Register()
    for now, found in enumerate([[one("data_stall", 3e9)], [one(kind, cost_ns)], [one("data_stall", 4e9)],
                                 [one("data_stall", 2e9, rank=1)]]):
        register.update(found, now * 1e9, 200, 10)
    assert sorted((found.kind, found.ranks, found.cost_ns) for found in register.findings) == sorted([
        (kind, [2], cost_ns), *(("data_stall", [2], ns) for ns in told), ("data_stall", [1], 2e9)])
    together = Register()
    together.update([one("data_stall", 4e9), one("slow_rank", 9e9)], 1e9, 200, 10)
    assert [found.kind for found in together.findings] == ["slow_rank"]


def test_a_known_regression_stays_what_it_was_when_steps_become_longer_again() -> None:
    def one(onset: int) -> WatchFinding:
        return WatchFinding(id="", kind="regression", ranks=[], hosts=[], onset_step=onset, onset_ns=0)

    register = Register()
    register.update([one(876)], 0, 2_000, 100)
    register.update([one(3_717), one(880)], 1e12, 7_000, 100)
    assert [(found.id, found.onset_step) for found in register.findings] == [
        ("regression-1", 876), ("regression-2", 3_717)]


def test_a_rank_may_join_later() -> None:
    ranks, watch = Ranks(play(Job(num_steps=600, step_ns=SLOW, world=2))), JobWatch({0: "a"})
    watch.add(0, ranks.new(0, 100e9))
    watch.findings()
    watch.add_rank(1, "b")
    for rank in (0, 1):
        watch.add(rank, ranks.new(rank, ranks.end_ns))
    assert watch.findings() == []
    assert [one.host for one in watch.state(BEGAN_NS, run_id="x", running=False).ranks] == ["a", "b"]


def test_afterwards_no_row_is_lost_where_ranks_were_not_thinned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_watch, "AT_ONCE", 64)
    ranks = Ranks(play(Job(num_steps=600, step_ns=SLOW)))
    pieces = {rank: ranks.new(rank, ranks.end_ns) for rank in range(4)}
    rows = StepRows(**{name: values.tolist() for name, values in pieces[2].columns.items()})
    pieces[2].columns = {name: np.array(values) for name, values in msgspec.structs.asdict(_halved(rows)).items()}
    watch = watched_pieces(pieces, dict.fromkeys(range(4), "a"))
    assert len(watch._grid.first) == 600
    assert not np.isnan(watch._grid.rows[:, :, 0]).any()
    assert len(watch._sampled.step) > 60


def test_what_is_not_found_again_ends_while_the_job_runs() -> None:
    ranks, watch = Ranks(play(Job(num_steps=400, step_ns=SLOW))), JobWatch(dict.fromkeys(range(4), "a"))
    ends = []
    for now_s in range(4, 120, 4):
        for rank in range(4):
            watch.add(rank, ranks.new(rank, now_s * 1e9))
        if now_s == 60:
            once = WatchFinding(id="", kind="slow_rank", ranks=[1], onset_step=100, onset_ns=int(BEGAN_NS + 40e9))
            watch._note([once], SLOW)
        state = watch.state(int(BEGAN_NS + now_s * 1e9), run_id="x", running=True)
        ends += [(now_s, one.until_step) for one in state.findings]
    assert dict(ends)[88] is None
    assert dict(ends)[100] == dict(ends)[116] == pytest.approx(60 / 0.4, abs=12)


@pytest.mark.parametrize("until", [None, 1_200])
def test_longer_steps_have_not_ended_as_long_as_they_are_longer(until: int | None) -> None:
    """Even if a search is no longer certain whose work grew."""
    job = Job(num_steps=STEPS, step_ns=SLOW, load=0.003, troubles=(
        Trouble(ranks=(0, 1, 2, 3), onset=700, until=until, extra_ns=40 * MS),))
    ranks = Ranks(play(job))
    watch = watched_pieces({rank: ranks.new(rank, ranks.end_ns) for rank in range(job.world)}, job.hosts)
    view = watch._view()
    (known,) = (one for one in watch.findings() if one.kind == "regression")
    before = msgspec.structs.replace(known, until_step=None, cost_ns=1.0)
    assert [*still_longer(view, [before], [known])] == []
    again = [(one.onset_step, one.phase, one.cost_ns) for one in still_longer(view, [before], [])]
    assert again == ([] if until else [(known.onset_step, "forward", known.cost_ns)])


def test_what_is_over_ended_with_a_step_that_all_ranks_took() -> None:
    """Rank 3, whose rows came 40 s late, had stopped; `num_steps` is the number of the step after that one."""
    ranks, watch = Ranks(play(Job(num_steps=400, step_ns=SLOW))), JobWatch(dict.fromkeys(range(4), "a"))
    for now_s in range(4, 160, 4):
        for rank in range(3 if 40 < now_s < 80 else 4):
            watch.add(rank, ranks.new(rank, now_s * 1e9))
        state = watch.state(int(BEGAN_NS + now_s * 1e9), run_id="x", running=True)
        if state.findings and state.findings[0].until_step is not None:
            break
    assert [(one.kind, one.ranks, one.until_step) for one in state.findings] == [("stopped", [3], state.num_steps - 1)]


def test_a_slow_backward_is_named_in_time_while_other_programs_run() -> None:
    """The load shows in forward too, which all rows have, and is taken out of what only sampled steps show."""
    job = Job(world=8, num_steps=13_000, load=0.02, seed=130, troubles=(
        Trouble(ranks=(4,), onset=2_265, extra_ns=1 * MS, phase="backward"),))
    found = judged(watch_live(job), 4, 2_265)
    assert found.rank_right and found.in_time and not found.false
