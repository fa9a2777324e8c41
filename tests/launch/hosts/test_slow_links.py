"""Of 28 pairs of hosts one becomes slow, one after the other in a job that runs: the watch names it, and no other."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest

from distprof.contract.watch_state import WatchFinding, read_state
from support.jobs import PATIENCE_S, SCRIPTS, clean_environ
from support.several_hosts import Host, delayed, hosts_on_a_switch, narrowed, why_not, widened

pytestmark = [pytest.mark.stress, pytest.mark.job,
              pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]
NUM_HOSTS, TRIALS = 8, int(os.environ.get("DISTPROF_LINKS", "10"))
NAMED_WITHIN_S, CALM_S = 90.0, 45.0
DELAY_S = 0.002


@contextmanager
def running(hosts: list[Host], folder: Path, kind: str, port: int) -> Iterator[Path]:
    """A job without end; the run directory of its first host."""
    files = [(folder / f"{host.name}.txt").open("w") for host in hosts]
    jobs = [subprocess.Popen(
        host.command(sys.executable, "-m", "distprof", "run", "--no-merge", "--passes", "off", "--window-every", "off",
                     "--out", folder / host.name, "--nnodes", len(hosts), "--node-rank", node, "--nproc-per-node", 1,
                     "--master-addr", hosts[0].address, "--master-port", port, SCRIPTS / "linked.py", kind, 10**9,
                     100_000, 0.05),
        env=clean_environ() | host.environ(), stderr=files[node], start_new_session=True)
        for node, host in enumerate(hosts)]
    run = folder / hosts[0].name
    try:
        until = time.monotonic() + PATIENCE_S
        while (state := read_state(run)) is None or len(state.ranks) < len(hosts):
            assert time.monotonic() < until and not any(job.poll() for job in jobs)
            time.sleep(0.5)
        yield run
    finally:
        for job in jobs:
            job.terminate()
        for job in jobs:
            job.wait(PATIENCE_S)
        for file in files:
            file.close()


def named(run: Path) -> list[WatchFinding]:
    """Links that are slow by now."""
    state = read_state(run)
    return [one for one in state.findings if one.kind == "slow_link" and one.until_step is None] if state else []


def until(holds, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


@contextmanager
def slow(one: Host, other: Host, how: str) -> Iterator[None]:
    if how == "delay":
        with delayed(one, other, DELAY_S):
            yield
        return
    narrowed(one, other, how)
    try:
        yield
    finally:
        widened(one, other)


@pytest.mark.parametrize("how", ["delay", "100mbit"])
@pytest.mark.parametrize("kind", ["all_to_all", "pairs"])
def test_a_slow_pair_of_hosts_is_named(tmp_path, kind, how):
    pairs = random.Random(f"{kind} {how}").sample(list(combinations(range(NUM_HOSTS), 2)), TRIALS)
    right, wrong, took = 0, 0, []
    with hosts_on_a_switch(*[0.0] * NUM_HOSTS) as hosts, running(hosts, tmp_path, kind, 29551) as run:
        assert not until(lambda: named(run), CALM_S), named(run)  # a healthy job
        for low, high in pairs:
            began_s = time.monotonic()
            with slow(hosts[low], hosts[high], how):
                until(lambda: named(run), NAMED_WITHIN_S)
            took.append(time.monotonic() - began_s)
            found = [one.hosts for one in named(run)]
            is_right = found == [[hosts[low].name, hosts[high].name]]
            right, wrong = right + is_right, wrong + (bool(found) and not is_right)
            print(f"{hosts[low].name} {hosts[high].name}: {found} after {took[-1]:.0f} s", flush=True)
            until(lambda: not named(run), CALM_S)
    print(f"{kind}, {how}: {right} of {TRIALS} named, {wrong} wrong, after {sorted(took)[TRIALS // 2]:.0f} s (median)")
    assert right >= 0.95 * TRIALS and not wrong
