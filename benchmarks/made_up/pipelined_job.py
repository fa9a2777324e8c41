"""Simulates a job with tensor, pipeline and data parallel groups: the times of all calls of each rank.

Times of all ranks are computed together, as arrays: work with random jitter, planted delays, and collectives that no
rank leaves before the last one has arrived. It does not depend on the code that reads the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

NOW_NS = 1_795_273_665_086_560_780
NONE = -(2**63)
"""Value of unknown times."""
TIMES = ("enqueue", "start", "end", "wait_start", "wait_end")
BYTES = {"tp": 8 << 20, "dp": 64 << 20, "pp": 4 << 20}


class Plant(NamedTuple):
    """A planted delay of a rank in each step."""

    rank: int
    kind: str
    """forward, backward, data or optimizer."""
    layer: int
    """For forward and backward: layer of its stage, in whose module `mlp` the rank is delayed."""
    ns: int


class SlowLink(NamedTuple):
    """A data parallel group, given by stage and tp coordinate, whose gradients take `ns` longer in each layer."""

    stage: int
    tp: int
    ns: int


class Call(NamedTuple):
    """A call that all ranks of a stage make at one point of a step."""

    channel: str
    """`tp`, `dp`, or the relative stage that is sent to or received from, such as `send+1`."""
    op: str
    phase: str
    module: str
    asynchronous: bool


class Stage(NamedTuple):
    """A step of the ranks of a stage; the last axis of arrays is these ranks, ordered by dp and tp."""

    calls: Sequence[Call]
    times: Any
    """Shape (calls, `TIMES`, ranks)."""
    start: Any
    end: Any
    data_ns: Any
    forward_ns: Any
    backward_ns: Any
    optimizer_ns: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinedJob:
    """The simulated job. Ranks are numbered by pp, dp and tp coordinates; tp varies fastest."""

    pp: int = 8
    dp: int = 256
    tp: int = 8
    layers: int = 4
    """Number of layers per stage."""
    microbatches: int = 4
    work_ns: int = 2_000_000
    """Duration of a layer in forward without jitter, which only adds to it; backward takes twice as long."""
    jitter: float = 0.02
    plants: Sequence[Plant] = ()
    slow: Sequence[SlowLink] = ()
    seed: int = 0
    chance: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chance", np.random.default_rng(self.seed))

    @property
    def num_ranks(self) -> int:
        return self.pp * self.dp * self.tp

    def place(self, rank: int) -> tuple[int, int, int]:
        """Returns the pp, dp and tp coordinates of a rank."""
        return rank // (self.dp * self.tp), rank // self.tp % self.dp, rank % self.tp

    def steps(self, number: int) -> Iterator[list[Stage]]:
        """Yields `number` steps, each as a list of stages."""
        now = np.full((self.pp, self.dp, self.tp), NOW_NS, np.int64)
        for _ in range(number):
            step = _Step(self, now)
            yield step.stages()
            now = step.now


class _Step:
    """Simulates one step, call by call. `now` is the current time of each rank; shape (pp, dp, tp)."""

    def __init__(self, job: PipelinedJob, now: Any) -> None:
        self.job, self.now, self.begun = job, now.copy(), now.copy()
        self._calls: list[list[Call]] = [[] for _ in range(job.pp)]
        self._times: list[list[Any]] = [[] for _ in range(job.pp)]
        self._spent = {kind: np.zeros(now.shape, np.int64) for kind in ("data", "forward", "backward", "optimizer")}
        self._sent: dict[tuple[str, int, int], Any] = {}
        self._reduced: list[list[tuple[int, Any]]] = [[] for _ in range(job.pp)]

    def stages(self) -> list[Stage]:
        """Runs the step and returns its stages."""
        job = self.job
        for stage in range(job.pp):
            self._work(stage, "data", 0, job.work_ns // 4)
        for batch in range(job.microbatches):
            for stage in range(job.pp):
                self._forward(stage, batch)
        for batch in range(job.microbatches):
            for stage in reversed(range(job.pp)):
                self._backward(stage, batch)
        for stage in range(job.pp):
            self._wait_for_gradients(stage)
            self._work(stage, "optimizer", 0, job.work_ns // 2)
        flat = {kind: spent.reshape(job.pp, -1) for kind, spent in self._spent.items()}
        return [Stage(self._calls[stage], np.stack(self._times[stage]).reshape(len(self._calls[stage]), 5, -1),
                      self.begun[stage].reshape(-1), self.now[stage].reshape(-1),
                      *(flat[kind][stage] for kind in ("data", "forward", "backward", "optimizer")))
                for stage in range(job.pp)]

    def _forward(self, stage: int, batch: int) -> None:
        if stage:
            self._receive(stage, stage - 1, batch, "forward")
        for layer in range(self.job.layers):
            self._work(stage, "forward", layer, self.job.work_ns)
            self._meet(stage, "tp", "forward", layer)
        if stage < self.job.pp - 1:
            self._send(stage, stage + 1, batch, "forward")

    def _backward(self, stage: int, batch: int) -> None:
        if stage < self.job.pp - 1:
            self._receive(stage, stage + 1, batch, "backward")
        for layer in reversed(range(self.job.layers)):
            self._work(stage, "backward", layer, 2 * self.job.work_ns)
            self._meet(stage, "tp", "backward", layer)
            if batch == self.job.microbatches - 1:
                self._reduce(stage, layer)
        if stage:
            self._send(stage, stage - 1, batch, "backward")

    def _work(self, stage: int, kind: str, layer: int, mean_ns: int) -> None:
        chance = self.job.chance.standard_normal(self.now.shape[1:], np.float32)
        ns = (mean_ns * (1 + self.job.jitter * np.abs(chance))).astype(np.int64)
        for plant in self.job.plants:
            at, dp, tp = self.job.place(plant.rank)
            if (at, kind) == (stage, plant.kind) and (plant.layer == layer or kind in ("data", "optimizer")):
                ns[dp, tp] += plant.ns // (self.job.microbatches if kind in ("forward", "backward") else 1)
        self.now[stage] += ns
        self._spent[kind][stage] += ns

    def _note(self, stage: int, call: Call, enqueue: Any, end: Any, wait: Any | None) -> int:
        none = np.full(enqueue.shape, NONE, np.int64)
        begun, over = (none, none) if wait is None else wait
        self._calls[stage].append(call)
        self._times[stage].append(np.stack((enqueue, enqueue + 3_000, end, begun, over)))
        return len(self._times[stage]) - 1

    def _meet(self, stage: int, channel: str, phase: str, layer: int) -> None:
        came = self.now[stage].copy()
        end = came.max(axis=1, keepdims=True) + 150_000 + self._leaving(came.shape)
        self._note(stage, Call(channel, "all_reduce", phase, f"layers.{layer}.mlp", False), came, end,
                   (came + 1_000, end))
        self.now[stage] = end

    def _leaving(self, shape: Any) -> Any:
        return self.job.chance.integers(0, 4_000, shape, np.int64)

    def _reduce(self, stage: int, layer: int) -> None:
        """Starts the all_reduce of a layer's gradients; no rank waits yet."""
        came = self.now[stage].copy()
        moving = np.full((1, came.shape[1]), 800_000)
        for link in self.job.slow:
            moving[0, link.tp] += link.ns if link.stage == stage else 0
        end = np.maximum(came.max(axis=0, keepdims=True) + moving, 0) + self._leaving(came.shape)
        call = Call("dp", "all_reduce", "backward", f"layers.{layer}", True)
        self._reduced[stage].append((self._note(stage, call, came, end, None), end))
        self.now[stage] += 5_000

    def _wait_for_gradients(self, stage: int) -> None:
        for number, end in self._reduced[stage]:
            over = np.maximum(self.now[stage], end)
            self._times[stage][number][3:] = np.stack((self.now[stage], over))
            self.now[stage] = over + 1_000

    def _send(self, stage: int, other: int, batch: int, phase: str) -> None:
        came = self.now[stage].copy()
        self._sent[phase, other, batch] = came + 60_000
        self._note(stage, Call(f"send{other - stage:+d}", "send", phase, f"layers.{self.job.layers - 1}", True), came,
                   came + 60_000 + self._leaving(came.shape), None)
        self.now[stage] += 4_000

    def _receive(self, stage: int, other: int, batch: int, phase: str) -> None:
        came = self.now[stage].copy()
        end = np.maximum(came + 10_000, self._sent.pop((phase, stage, batch))) + self._leaving(came.shape)
        self._note(stage, Call(f"recv{other - stage:+d}", "recv", phase, "layers.0", False), came, end,
                   (came + 1_000, end))
        self.now[stage] = end
