"""The state of a job as time series: one list, which `--metrics`, `--otlp` and `--log-to` export.

Names and units follow OpenTelemetry (UCUM). For Prometheus they are converted by the rules of both: dots become
underscores, and the unit becomes a suffix. Experiment trackers get the gauges by step, of some ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from distprof import __version__
from distprof.contract.watch_state import RankState, WatchFinding, WatchState

PHASES = ("data", "forward", "backward", "optimizer", "device")
MEMORY = ("host", "device")
SECONDS, BYTES, RATIO = "s", "By", "1"
SUFFIXES = {"": "", SECONDS: "_seconds", BYTES: "_bytes", RATIO: "_ratio"}
"""Unit -> suffix of a Prometheus name."""
EVERY_S, SHARE = 10.0, 1 / 200
"""Minimum time between two points of a series by step: in seconds, and as a fraction of the time since the first
one."""
MOST_RANKS = 32
"""Maximum number of ranks with series by step: those with findings, then the first ones."""
NOT_BY_STEP = ("distprof.running", "distprof.ranks", "distprof.steps", "distprof.job.steps", "distprof.state_timestamp",
               "distprof.last_step_timestamp")
"""Gauges that make no sense as a function of the step."""
Point = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Series with the same name."""

    name: str
    text: str
    kind: Literal["gauge", "counter", "info"] = "gauge"
    """counter: only grows; info: the value is 1, and the labels are the information."""
    unit: str = ""
    labels: tuple[str, ...] = ()
    points: tuple[Point, ...]
    """Values of the labels, and the number."""


def families(state: WatchState | None) -> Iterator[Family]:
    """Yields all families: at most 12 series per rank, and two per rank and kind of finding.

    Args:
        state: State of the job; None if nothing was observed yet.
    """
    yield Family(name="distprof.build", text="The distprof that watches.", kind="info", labels=("version",),
                 points=(((__version__,), 1.0),))
    if state is not None:
        yield from _job(state)
        yield from _ranks(state.ranks)
        yield from _findings(state.findings)


def by_step(state: WatchState) -> Iterator[tuple[Family, str, float]]:
    """Yields a point of each series by step: family, series (`rank 1 forward`, `job`), and the number."""
    late = {rank for finding in state.findings for rank in finding.ranks}
    ranks = sorted((one.rank for one in state.ranks), key=lambda rank: (rank not in late, rank))
    shown = {"", *map(str, ranks[:MOST_RANKS])}
    for family in families(state):
        for key, value in family.points if family.kind == "gauge" and family.name not in NOT_BY_STEP else ():
            of = dict(zip(family.labels, key, strict=True))
            if of.get("rank", "") in shown:
                yield family, " ".join(f"rank {text}" if label == "rank" else text
                                       for label, text in of.items() if text) or "job", value


def _job(state: WatchState) -> Iterator[Family]:
    yield Family(name="distprof.run", text="The job.", kind="info", labels=("run_id",),
                 points=(((state.run_id,), 1.0),))
    yield _gauge("distprof.running", "1 while the job runs.", "", (), [((), float(state.running))])
    yield _gauge("distprof.ranks", "Ranks that are watched.", "", (), [((), float(len(state.ranks)))])
    yield _gauge("distprof.state_timestamp", "When the ranks were last looked at.", SECONDS, (),
                 [((), state.time_ns / 1e9)])
    yield _gauge("distprof.job.step", "Median time of a step over the watched job.", SECONDS, (),
                 [((), _seconds(state.step_ns))])
    yield Family(name="distprof.job.steps", text="Steps that all ranks have ended.", kind="counter",
                 points=(((), float(state.num_steps)),))


def _ranks(ranks: Iterable[RankState]) -> Iterator[Family]:
    every = [(str(one.rank), one) for one in ranks]
    yield Family(name="distprof.rank", text="Where a rank runs.", kind="info", labels=("rank", "host"),
                 points=tuple(((rank, one.host), 1.0) for rank, one in every))
    yield Family(name="distprof.steps", text="Steps that a rank has ended.", kind="counter", labels=("rank",),
                 points=tuple(((rank,), one.step + 1.0) for rank, one in every))
    yield _gauge("distprof.step", "Mean time of the steps of the last 10 s.", SECONDS, ("rank",),
                 (((rank,), _seconds(one.step_ns)) for rank, one in every))
    yield _gauge("distprof.waiting", "Share of a step in which a rank waits for others.", RATIO, ("rank",),
                 (((rank,), one.waiting_ratio) for rank, one in every))
    yield _gauge("distprof.phase", "Time of a part of a step, mean of the last 10 s.", SECONDS, ("rank", "phase"),
                 (((rank, phase), _seconds(getattr(one, f"{phase}_ns"))) for rank, one in every for phase in PHASES))
    yield _gauge("distprof.memory", "Memory of a rank's process, and of tensors on its device.", BYTES,
                 ("rank", "where"), (((rank, where), getattr(one, f"{where}_bytes")) for rank, one in every
                                     for where in MEMORY))
    yield _gauge("distprof.last_step_timestamp", "When a rank's last step ended, by its host's clock.", SECONDS,
                 ("rank",), (((rank,), one.time_ns / 1e9) for rank, one in every))


def _findings(findings: Iterable[WatchFinding]) -> Iterator[Family]:
    active, cost = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
    for finding in findings:
        for rank in map(str, finding.ranks) if finding.ranks else ("",):
            key = (finding.kind, rank)
            active[key] = max(active.get(key, 0.0), float(finding.until_step is None))
            if finding.cost_ns is not None:
                cost[key] = cost.get(key, 0.0) + finding.cost_ns / 1e9
    yield _gauge("distprof.finding.active", "1 while it goes on, 0 once it has ended.", "", ("kind", "rank"),
                 active.items())
    yield _gauge("distprof.finding.cost", "Time that the job has lost by it.", SECONDS, ("kind", "rank"), cost.items())


def _gauge(name: str, text: str, unit: str, labels: tuple[str, ...],
           values: Iterable[tuple[tuple[str, ...], float | None]]) -> Family:
    """Returns a gauge without unknown values."""
    return Family(name=name, text=text, unit=unit, labels=labels,
                  points=tuple((key, float(value)) for key, value in values if value is not None))


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9
