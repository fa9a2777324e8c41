"""Conditions that go along with a finding are named, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.merge.watch.conditions import explained
from support.machines import PER_HOST, PLANTS, Machines, finding, network, pinned, throttling

KINDS = ("slow_rank", "slow_host", "regression", "data_stall", "intermittent")


def told(machines: Machines, ranks: list[int], onset_s: float, kind: str = "slow_rank",
         until_s: float | None = None) -> list[str]:
    found = finding(machines, ranks, onset_s, kind)
    until_ns = None
    if until_s is not None:
        found.until_step, until_ns = 2000, found.onset_ns + int((until_s - onset_s) * 1e9)
    return explained(found, machines.conditions(), machines.rank_host, machines.rank_device, until_ns)


def machines_of(seed: int, num_seconds: int = 700, num_hosts: int = 2) -> Machines:
    return Machines(rng=np.random.default_rng(seed), num_hosts=num_hosts, num_seconds=num_seconds)


@pytest.mark.parametrize("name", PLANTS)
def test_what_is_planted_is_named(name):
    machines = machines_of(20)
    plant, words = PLANTS[name]
    plant(machines, 5, slice(600, None))
    sentences = told(machines, [5], 600.5)
    assert len(sentences) == 1
    assert any(word in sentences[0] for word in words)
    assert "host1" in sentences[0]


def test_sentences_say_how_much():
    machines = machines_of(3)
    throttling(machines, 7, slice(600, None))
    machines.columns["host1"]["gpu_mhz/3"][600:] = 1095
    pinned(machines, 6, slice(600, None))
    machines.columns["host1"]["rank_others/6"][600:] = 0.52
    assert told(machines, [7], 600) == ["GPU 3 of host1 runs at 1,095 of 1,980 MHz: thermal"]
    assert told(machines, [6], 600) == [
        "rank 6 is limited to 1 CPU of host1, and other processes use 52 % of it: python"]


def test_a_host_that_others_use_is_named_with_them():
    machines = machines_of(4)
    machines.columns["host0"]["others"][600:] = 2.1
    machines.columns["host0"]["runnable"][600:] = 3.1
    machines.others["host0"][600:] = ["python, make"] * 60 + ["python"] * 40
    sentence, = told(machines, [0, 1, 2, 3], 600, "slow_host")
    assert sentence.startswith("host0: 3.1 runnable processes per CPU since ")
    assert sentence.endswith(" (python, not part of this job)")


def test_what_began_at_another_time_is_not_named():
    for begin in (560, 630):
        machines = machines_of(8)
        throttling(machines, 5, slice(begin, None))
        assert told(machines, [5], 600) == []


@pytest.mark.long
def test_what_does_not_last_as_long_is_not_named():
    machines = machines_of(9)
    throttling(machines, 5, slice(600, 630))
    assert told(machines, [5], 600) == []
    assert told(machines, [5], 600, until_s=630) != []
    machines = machines_of(9)
    throttling(machines, 5, slice(600, None))
    assert told(machines, [5], 600, until_s=640) == []


def test_what_others_have_as_well_is_not_named():
    machines = machines_of(10, num_hosts=3)
    for host in range(3):
        network(machines, host * PER_HOST, slice(600, None))
    assert told(machines, [1], 600) == []


def test_of_the_whole_job_any_host_may_be_the_reason():
    machines = machines_of(11)
    network(machines, 0, slice(600, None))
    assert any("host0: eth0 carries" in sentence for sentence in told(machines, [], 600, "regression"))


def test_what_comes_and_goes_by_itself_is_not_named():
    machines = machines_of(12)
    for begin in range(30, 600, 90):
        throttling(machines, 5, slice(begin, begin + 40))
    throttling(machines, 5, slice(600, None))
    assert told(machines, [5], 600) == []


def test_a_slow_drift_is_not_named():
    machines = machines_of(13, 1500)
    machines.columns["host1"]["psi_memory"] = np.linspace(0, 0.5, 1500)
    assert told(machines, [5], 1200) == []


def test_a_gpu_that_has_nothing_to_do_is_not_slow():
    machines = machines_of(14)
    machines.columns["host1"]["gpu_mhz/1"][600:] = 800
    machines.columns["host1"]["gpu_busy/1"][600:] = 0.1
    assert told(machines, [5], 600) == []


def test_little_history_tells_nothing():
    machines = machines_of(15, 140)
    throttling(machines, 5, slice(30, None))
    assert told(machines, [5], 30) == []


@pytest.mark.stress
def test_planted_conditions_are_named_in_nine_of_ten():
    right, many, spare = dict.fromkeys(PLANTS, 0), 100, 0
    for name, (plant, words) in PLANTS.items():
        for seed in range(many):
            rng = np.random.default_rng(seed)
            onset, lasts = int(rng.integers(400, 900)), int(rng.integers(20, 300))
            over = bool(rng.random() < 0.3) and lasts > 40
            machines = machines_of(1000 + seed, onset + lasts + 40 * over, int(rng.integers(1, 5)))
            rank = int(rng.integers(0, machines.num_hosts * PER_HOST))
            plant(machines, rank, slice(onset, onset + lasts if over else None))
            noticed = onset + rng.uniform(-1.5, 1.5)
            sentences = told(machines, [rank], noticed, until_s=onset + lasts + rng.uniform(-2, 2) if over else None)
            hit = [sentence for sentence in sentences if any(word in sentence for word in words)]
            right[name] += bool(hit)
            spare += len(sentences) - len(hit)
    print(f"named, of {many} each: {right}; others beside them: {spare}")
    assert min(right.values()) >= 0.9 * many
    assert spare <= 6


@pytest.mark.stress
def test_nothing_is_invented():
    invented, many = [], 600
    for seed in range(many):
        rng = np.random.default_rng(50_000 + seed)
        onset, lasts = int(rng.integers(400, 900)), int(rng.integers(20, 300))
        machines = machines_of(90_000 + seed, onset + lasts, int(rng.integers(1, 5)))
        plant = list(PLANTS.values())[int(rng.integers(len(PLANTS)))][0]
        rank = int(rng.integers(0, machines.num_hosts * PER_HOST))
        ranks = [] if rng.random() < 0.2 else [rank]
        _distract(machines, rng, plant, rank, onset, elsewhere=bool(ranks) and machines.num_hosts > 1)
        sentences = told(machines, ranks, onset, str(rng.choice(KINDS)))
        invented += [(seed, sentences)] if sentences else []
    print(f"invented: {len(invented)} of {many}", invented)
    assert len(invented) <= 1  # one of 1,800 by chance


def _distract(machines, rng, plant, rank, onset, elsewhere):
    """Something real that has nothing to do with it: earlier, too short, everywhere, on another host, or a drift."""
    kind = rng.integers(6 if elsewhere else 4)
    if kind == 0:  # ended before, or began long before
        begin = int(rng.integers(100, onset - 30))
        plant(machines, rank, slice(begin, min(begin + int(rng.integers(20, 400)), onset - 12)))
    elif kind == 1:  # begins at about the time, and is over soon
        plant(machines, rank, slice(onset, onset + int(rng.integers(3, 12))))
    elif kind == 4:
        for other in machines.rank_host:
            plant(machines, other, slice(onset, None))
    elif kind == 5:
        plant(machines, (rank + PER_HOST) % len(machines.rank_host), slice(onset, None))
    elif kind == 2:  # slowly more of it
        columns = machines.columns[machines.rank_host[rank]]
        for name in ("psi_io", "psi_cpu", "others", "psi_memory"):
            columns[name] = columns[name] + np.linspace(0, rng.uniform(0, 0.3), machines.num_seconds)
