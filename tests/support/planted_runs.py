"""Runs with one planted fault, or none, and what `distprof mcp` should report about them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path

from msgspec.structs import replace

from distprof.contract.watch_state import window_folder, write_state
from distprof.merge.text.watch import with_texts
from support.simulator.cases import random_case
from support.simulator.plant import Plant
from support.watched_jobs.job import MS, Job, Link, Trouble
from support.watched_jobs.judged import watch_live
from support.watched_jobs.pieces import BEGAN_NS
from support.watched_ranks import make_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The planted fault, which must be reported, and nothing else."""

    kind: str
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] | None = None
    phase: str | None = None
    phase_may_be_unknown: bool = False
    """Whether the phase may be unknown, because neither phases nor modules show it."""
    module: str | None = None
    since_step: int | None = None
    within: int = 20
    """Tolerance of `since_step` in steps."""


Writes = Callable[[Path], object]


def watched(run: Path, job: Job) -> Path:
    """Writes the run directory of a simulated job with the findings of its watch."""
    seen = watch_live(job)
    seen.watch.state(BEGAN_NS + int(seen.step_ends_ns[-1]), run_id="made-up", running=True)
    state = seen.watch.state(time.time_ns(), run_id="made-up", running=False)
    write_state(make_run(run), replace(state, findings=with_texts(state.findings)))
    return run


def recorded(run: Path, *plants: Plant, seed: int = 3) -> Path:
    """Writes the run directory of a simulated job of 8 ranks with recorded steps."""
    case = random_case(seed, (8, 8), "ddp")
    clean = changed(case.recorder, clock_error_ns={}, clock_off_ns={}, late_end_ns=0, records_waits=True,
                    hides_waits=frozenset(), misses_waits=frozenset())
    changed(case, plants=plants, background=(), jitter=0.01, jitter_kind="normal", slowdown=0.0, num_steps=12,
            recorder=clean, _run={}).write(make_run(run, end_ns=1))
    return run


def _of(*plants: Plant) -> Writes:
    return lambda run: recorded(run, *plants)


def _job(num_steps: int, *troubles: Trouble, **fields: object) -> Writes:
    return lambda run: watched(run, Job(**{"num_steps": num_steps, "load": 0.003, "troubles": troubles, **fields}))


def _looked_closer(run: Path) -> None:
    """Writes a run in which a rank became slow, and the watch then recorded some steps."""
    watched(run, Job(num_steps=3000, world=8, load=0.003, seed=5,
                     troubles=(Trouble(ranks=(5,), onset=1400, extra_ns=2 * MS, phase="forward"),)))
    recorded(window_folder(run, 1), Plant(5, "forward", "layers.1", 20 * MS))


EVERY = tuple(range(4))
RUNS: dict[str, tuple[Writes, Truth | None]] = {
    "a late forward": (_of(Plant(5, "forward", "layers.1", 20 * MS)),
                       Truth(kind="slow_rank", ranks=(5,), phase="forward", module="layers.1")),
    "a late backward": (_of(Plant(2, "backward", "layers.2", 20 * MS)),
                        Truth(kind="slow_rank", ranks=(2,), phase="backward", module="layers.2")),
    "a late optimizer": (_of(Plant(0, "optimizer", None, 20 * MS)),
                         Truth(kind="slow_rank", ranks=(0,), phase="optimizer")),
    "late data": (_of(Plant(7, "data", None, 20 * MS)), Truth(kind="slow_rank", ranks=(7,), phase="data")),
    "data that become late": (_job(3000, Trouble(ranks=(1,), onset=1200, extra_ns=1.5 * MS, phase="data")),
                              Truth(kind="slow_rank", ranks=(1,), phase="data", since_step=1200)),
    "a forward that becomes late": (_job(4000, Trouble(ranks=(3,), onset=2200, extra_ns=1.5 * MS), seed=2),
                                    Truth(kind="slow_rank", ranks=(3,), phase="forward", since_step=2200)),
    "a backward that becomes late": (
        _job(4000, Trouble(ranks=(2,), onset=1700, extra_ns=2 * MS, phase="backward"), seed=3),
        Truth(kind="slow_rank", ranks=(2,), phase="backward", phase_may_be_unknown=True, since_step=1700)),
    "an optimizer that becomes late": (
        _job(4000, Trouble(ranks=(0,), onset=1500, extra_ns=2 * MS, phase="optimizer"), seed=4),
        Truth(kind="slow_rank", ranks=(0,), phase="optimizer", phase_may_be_unknown=True, since_step=1500)),
    "a rank that is late for a while": (
        _job(5000, Trouble(ranks=(1,), onset=1500, until=3200, extra_ns=2 * MS), seed=6),
        Truth(kind="slow_rank", ranks=(1,), phase="forward", since_step=1500)),
    "a rank that was looked at closer": (
        _looked_closer, Truth(kind="slow_rank", ranks=(5,), phase="forward", module="layers.1", since_step=1400)),
    "a stage of a pipeline": (
        _job(3000, Trouble(ranks=(2,), onset=1300, extra_ns=3 * MS), layout="pp", seed=7),
        Truth(kind="slow_rank", ranks=(2,), phase="forward", phase_may_be_unknown=True, since_step=1300)),
    "a slow host": (
        _job(3000, Trouble(ranks=(4, 5, 6, 7), onset=1300, extra_ns=2 * MS), world=8, per_host=4, seed=8),
        Truth(kind="slow_host", ranks=(4, 5, 6, 7), hosts=("host1",), phase="forward", since_step=1300)),
    "a slow link": (
        _job(2400, layout="pp", per_host=1, links=(Link(hosts=("host1", "host2"), onset=700, extra_ns=10 * MS),)),
        Truth(kind="slow_link", ranks=(1, 2), hosts=("host1", "host2"), phase="communication", since_step=700)),
    "a slow group": (
        _job(3000, world=8, layout="tp", per_host=1, seed=9,
             links=(Link(hosts=("host0", "host2"), onset=1200, extra_ns=4 * MS),)),
        Truth(kind="slow_group", ranks=(0, 2, 4, 6), phase="communication", since_step=1200)),
    "a slow network": (
        _job(3000, per_host=1, seed=9, links=(Link(hosts=("host0", "host1"), onset=1200, extra_ns=2 * MS),)),
        Truth(kind="regression", phase="communication", since_step=1200)),
    "a regression": (_job(3000, Trouble(ranks=EVERY, onset=1500, extra_ns=4 * MS), seed=2),
                     Truth(kind="regression", phase="forward", since_step=1500)),
    "a rank that is slow now and then": (
        _job(8000, Trouble(ranks=(2,), onset=1000, every=60, steps=3, extra_ns=30 * MS), seed=10),
        Truth(kind="intermittent", ranks=(2,), phase="forward", since_step=1000, within=200)),
    "data that do not come": (
        _job(8000, Trouble(ranks=(2,), onset=800, every=700, extra_ns=900 * MS, phase="data"), seed=11),
        Truth(kind="data_stall", ranks=(2,), phase="data", since_step=800, within=5)),
    "memory that grows": (_job(12_000, leak_bytes=(3, 60_000.0), seed=12), Truth(kind="memory_growth", ranks=(3,))),
    "a rank that stops": (_job(6000, stops=(1, 3000), seed=13),
                          Truth(kind="stopped", ranks=(1,), since_step=3000, within=15)),
    "nothing": (_job(3000), None),
    "nothing, with lengths and evaluations": (
        _job(6000, common_lengths=0.2, pause_every=900, pause_ns=800 * MS, evaluation=True, seed=14), None),
    "nothing, in recorded steps": (_of(), None),
}
