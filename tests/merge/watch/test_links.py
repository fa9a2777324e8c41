"""A pair of hosts between which data is slow is named; noise, slow hosts and networks with levels are not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations

import numpy as np
import pytest

from distprof.contract.watch_state import FORMAT, RankState, WatchFinding, WatchState
from distprof.merge.watch.links import LinkSearch, slow_pair
from distprof.merge.watch.machines import Conditions

NUM_HOSTS, SECONDS, NS = 8, 200, 1_000_000_000
PAIRS = list(combinations(range(NUM_HOSTS), 2))
AHEAD_S = (0, 3, -5, 0, 7, 0, -2, 1)
"""Clocks of hosts differ."""
Slow = Callable[[int, int, int], float]


def conditions(slow: Slow, seed: int = 0, *, num_hosts: int = NUM_HOSTS, until: int = SECONDS) -> Conditions:
    """What kernels count: pairs in a ring wait for acknowledgements, all have noise; `slow` adds to a pair."""
    random, found = np.random.default_rng(seed), Conditions()
    usual = {(a, b): 0.12 if (a - b) % num_hosts in (1, num_hosts - 1) else 0.01
             for a, b in permutations(range(num_hosts), 2)}
    for second in range(until):
        load = 1 + 0.3 * np.sin(second / 17)
        for a in range(num_hosts):
            values = {}
            for b in set(range(num_hosts)) - {a}:
                busy = usual[a, b] * load * random.lognormal(0, 0.25) + slow(*sorted((a, b)), second)
                values[f"link_busy/10.0.0.{a}-10.0.0.{b}"] = min(busy, 1.0)
                values[f"link_bytes/10.0.0.{a}-10.0.0.{b}"] = 3e6 * random.lognormal(0, 0.1)
            found.add(f"host{a}", 8, (second + AHEAD_S[a] + 1000) * NS, values)
    return found


def pair_since(pair: tuple[int, int], since: int, more: float, until: int = SECONDS) -> Slow:
    return lambda a, b, second: more if (a, b) == pair and since <= second < until else 0.0


@pytest.mark.long
@pytest.mark.parametrize("pair", [(0, 1), (2, 6), (0, 7), (3, 5)])
@pytest.mark.parametrize(("since", "more"), [(0, 0.4), (150, 0.12), (170, 0.3)])
def test_a_slow_pair_is_named_from_the_begin_and_later(pair, since, more) -> None:
    found = slow_pair(conditions(pair_since(pair, since, more), seed=since))
    assert found is not None and found.hosts == tuple(f"host{one}" for one in pair)
    began_s = found.began_ns / NS - 1000 - AHEAD_S[pair[0]]
    assert abs(began_s - since) <= (30 if more < 0.2 else 5)  # a small one, while load grows


@pytest.mark.long
@pytest.mark.parametrize("slow", [
    lambda *_: 0.0,
    lambda a, b, second: 0.4 * (second > 160 and 3 in (a, b)),  # a host
    lambda a, b, second: 0.3 * (second > 160),  # all of the network
    lambda a, b, second: 0.2 * ((a < 4) != (b < 4)),  # two switches
    lambda a, b, second: 0.5 * ((a, b) == (1, 5) and second % 40 < 8),  # bursts
    lambda a, b, second: 0.3 * (second > 160 and (a, b) in ((0, 1), (4, 6))),  # more than one
], ids=["healthy", "host", "network", "levels", "bursts", "two"])
def test_nothing_else_is_taken_for_a_link(slow) -> None:
    for seed in range(3):
        assert slow_pair(conditions(slow, seed)) is None


@pytest.mark.stress
def test_healthy_networks_have_no_slow_pair() -> None:
    looks = wrong = 0
    for seed in range(40):
        for until in (30, 90, SECONDS):
            looks, wrong = looks + 1, wrong + (slow_pair(conditions(lambda *_: 0.0, seed, until=until)) is not None)
    print(f"{wrong} of {looks} looks")
    assert not wrong


def test_of_few_pairs_none_is_the_unusual_one() -> None:
    assert slow_pair(conditions(pair_since((0, 1), 0, 0.8), num_hosts=3)) is None


def a_state(now_s: int, *findings: WatchFinding) -> WatchState:
    ranks = [RankState(rank=number, host=f"host{number}", step=10 * now_s, time_ns=now_s * NS, step_ns=1e8,
                       waiting_ratio=None, data_ns=None, forward_ns=None, backward_ns=None, optimizer_ns=None,
                       device_ns=None, host_bytes=None, device_bytes=None) for number in range(NUM_HOSTS)]
    return WatchState(format=FORMAT, run_id="r", time_ns=(1000 + now_s) * NS, running=True, world_size=NUM_HOSTS,
                      num_steps=10 * now_s, first_watched=0, elapsed_ns=now_s * NS, step_ns=1e8, ranks=ranks,
                      findings=list(findings))


@pytest.mark.long
def test_a_link_has_a_begin_an_end_and_the_cost_of_the_steps_that_it_explains() -> None:
    search, slow = LinkSearch(), pair_since((2, 6), 100, 0.3, until=150)
    for now_s in (90, 130, 160, 190, 195, 199):
        longer = WatchFinding(id="regression-1", kind="regression", onset_step=1010, onset_ns=1103 * NS, cost_ns=5e9)
        other = WatchFinding(id="slow_rank-1", kind="slow_rank", ranks=[5], onset_step=1010, onset_ns=1103 * NS)
        state = a_state(now_s, *([longer, other] if now_s > 110 else []))
        search.add(state, conditions(slow, until=now_s))
        links = [one for one in state.findings if one.kind == "slow_link"]
        if now_s == 90:
            assert not links
        if now_s == 130:
            link, = links
            assert link.id == "regression-1" and link.cost_ns == 5e9 and link.hosts == ["host2", "host6"]
            assert link.ranks == [2, 6] and "% before" in link.why[0]
            assert longer.kind == "regression" and other in state.findings
    alone = a_state(199)
    search.add(alone, conditions(slow, until=199))
    link, = alone.findings
    assert link.until_step is not None and abs(link.onset_step - 1000) <= 60


def test_a_link_that_a_collective_told_of_is_not_said_twice() -> None:
    known = WatchFinding(id="slow_link-1", kind="slow_link", hosts=["host2", "host6"], onset_step=1, onset_ns=1000 * NS)
    state = a_state(100, known)
    search = LinkSearch()
    search.add(state, conditions(pair_since((2, 6), 0, 0.5), until=100))
    assert state.findings == [known]
    without = a_state(101)
    search.add(without, Conditions())
    assert [one.hosts for one in without.findings] == [["host2", "host6"]]


@pytest.mark.parametrize(("most", "notes"), [(NUM_HOSTS * (NUM_HOSTS - 1), 0), (NUM_HOSTS * (NUM_HOSTS - 1) - 1, 1)])
def test_hosts_with_too_many_connections_are_said_not_to_be_searched(monkeypatch: pytest.MonkeyPatch, most: int,
                                                                     notes: int) -> None:
    monkeypatch.setattr("distprof.merge.watch.links.MOST_COLUMNS", most)
    search = LinkSearch()
    for now_s in (60, 61):
        state = a_state(now_s)
        search.add(state, conditions(pair_since((2, 6), 0, 0.5), until=60))
        assert len(state.findings) == 1 - notes and len(state.notes) == notes
    assert not notes or "56 connections" in state.notes[0]
