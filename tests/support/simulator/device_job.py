"""A data-parallel job on GPUs, by arithmetic alone: hosts launch, streams work, and collectives wait in kernels.

Each rank has a host, a stream of computing and one of NCCL. The host runs ahead of its streams until the end of the
step, where it waits for them. A collective begins on a rank when it was called, the one before is over, and what it
moves is there, and ends on all ranks some time after the last one has begun. Gradients of a layer are reduced when they
are made; sharded layers are gathered one layer ahead. Nothing of distprof decides what happens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from distprof.contract.collective_ops import text_of
from distprof.contract.paths import RANK_JSON, rank_folder
from distprof.contract.rank_json import RankJson
from distprof.contract.tables import COLLECTIVES, EVENTS, STEPS
from support.simulator.run_folder import BEGAN_NS, steps, write_table
from support.simulator.timeline import integers

LAUNCH_NS, GAP_NS = 6_000, 4_000
"""How long a host takes to launch a kernel; and until that can begin."""
NCCL = "ncclDevKernel_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Slow(NamedTuple):
    """What makes a rank late: kernels of a layer, or its host."""

    rank: int
    phase: str
    """forward, backward, data or optimizer."""
    layer: int | None
    ns: int
    """A step."""


class Event(NamedTuple):
    """Of a timeline."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    thread: str
    correlation: int | None = None
    sequence_number: int | None = None


class Moved(NamedTuple):
    """A collective on a rank."""

    op: str
    step: int
    called_ns: int
    ready_ns: int
    """When the stream had come to it."""
    began_ns: int
    ended_ns: int


@dataclass(slots=True)
class _Rank:
    """Where it is."""

    number: int
    host_ns: int = 0
    compute_ns: int = 0
    """When its stream of computing is free; likewise `nccl_ns`."""
    nccl_ns: int = 0
    events: list[Event] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)
    launches: int = 0

    def launch(self, name: str, work_ns: int, thread: str = "main") -> int:
        """A kernel on the stream of computing; returns its end."""
        self.launches += 1
        began = max(self.host_ns + GAP_NS, self.compute_ns)
        self.events += [
            Event("cudaLaunchKernel", "cuda_runtime", self.host_ns, self.host_ns + LAUNCH_NS, thread, self.launches),
            Event(name, "kernel", began, began + work_ns, "stream 7", self.launches)]
        self.host_ns += LAUNCH_NS
        self.compute_ns = began + work_ns
        return self.compute_ns

    def around(self, name: str, category: str, start_ns: int, thread: str = "main",
               sequence: int | None = None) -> None:
        """A slice of the host until now."""
        self.events.append(Event(name, category, start_ns, self.host_ns, thread, sequence_number=sequence))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceJob:
    """What the job does."""

    num_ranks: int
    layers: int = 4
    steps: int = 8
    untraced: int = 0
    """The last of these steps, of the arrivals pass: their kernels are not noted, and collectives begin as streams come
    to them."""
    kernel_ns: int = 1_500_000
    """Forward of a layer; backward takes twice as long."""
    move_ns: int = 400_000
    """How long a layer moves."""
    sharded: bool = False
    """FSDP: layers are gathered for forward and backward, and gradients scattered."""
    overlaps: bool = True
    """False: the stream of computing waits for each all_reduce before it goes on."""
    noise: float = 0.01
    """Of each kernel, as a part of its time; its tail is heavy."""
    slow: Sequence[Slow] = ()
    seed: int = 0

    def run(self) -> list[_Rank]:
        """What happens."""
        ranks = [_Rank(number) for number in range(self.num_ranks)]
        chance = np.random.default_rng(self.seed)
        for step in range(self.steps):
            scale = 1 + self.noise * chance.exponential(size=(self.num_ranks, 2 * self.layers + 1))
            self._step(ranks, step, scale)
        return ranks

    def step_ns(self) -> float:
        """Mean over steps but the first, of the last rank to end."""
        ends = np.max([one.step_ends for one in self.run()], axis=0)
        return float(np.diff(ends).mean())

    def _extra(self, rank: int, phase: str, layer: int | None = None) -> int:
        return sum(one.ns for one in self.slow if (one.rank, one.phase, one.layer) == (rank, phase, layer))

    def _step(self, ranks: Sequence[_Rank], step: int, scale: np.ndarray) -> None:
        began = [one.host_ns for one in ranks]
        for one, since in zip(ranks, began, strict=True):
            one.host_ns += 200_000 + self._extra(one.number, "data")
            one.around("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation", since)
        began = [one.host_ns for one in ranks]
        order = [*range(self.layers), *reversed(range(self.layers))]
        gathered = [0] * len(order)
        for place, layer in enumerate(order):
            for ahead in (0, 1) if place == 0 else (place + 1,):
                # the last layer is there still when backward begins
                if self.sharded and ahead < len(order) and ahead != self.layers:
                    gathered[ahead] = self._move(ranks, step, "all_gather", [0] * len(ranks))
            for one in ranks:
                one.compute_ns = max(one.compute_ns, gathered[place])
            if place < self.layers:
                for one in ranks:
                    self._forward(one, step, layer, scale[one.number])
            else:
                ready = [self._backward(one, step, layer, scale[one.number]) for one in ranks]
                ended = self._move(ranks, step, "reduce_scatter" if self.sharded else "all_reduce", ready)
                for one in ranks:
                    one.compute_ns = one.compute_ns if self.overlaps else max(one.compute_ns, ended)
            if place == self.layers - 1:
                for one, since in zip(ranks, began, strict=True):
                    one.host_ns += 2_000
                    one.around("model [Net]", "user_annotation", since)
        for one in ranks:
            self._optimize(one)

    def _forward(self, one: _Rank, step: int, layer: int, scale: np.ndarray) -> None:
        began = one.host_ns
        one.launch(f"gemm_{layer}", int(self.kernel_ns * scale[layer]) + self._extra(one.number, "forward", layer))
        one.around("aten::linear", "cpu_op", began, sequence=self._sequence(step, layer))
        one.host_ns += 3_000
        one.around(f"layers.{layer} [Linear]", "user_annotation", began)

    def _sequence(self, step: int, layer: int) -> int:
        return 1 + step * self.layers + layer

    def _backward(self, one: _Rank, step: int, layer: int, scale: np.ndarray) -> int:
        began = one.host_ns
        work = int(2 * self.kernel_ns * scale[self.layers + layer]) + self._extra(one.number, "backward", layer)
        ready = one.launch(f"gemm_grad_{layer}", work, "backward")
        one.around("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op", began, "backward",
                   self._sequence(step, layer))
        return ready

    def _move(self, ranks: Sequence[_Rank], step: int, op: str, ready: Sequence[int]) -> int:
        """A collective, once each rank has made what it takes; returns when it is over."""
        begins = [max(one.nccl_ns, one.host_ns, there) + GAP_NS for one, there in zip(ranks, ready, strict=True)]
        ended = max(begins) + self.move_ns
        for one, began, there in zip(ranks, begins, ready, strict=True):
            one.launches += 1
            one.moved.append(Moved(op, step, one.host_ns, max(one.host_ns, there), began, ended))
            one.events += [
                Event("cudaLaunchKernelExC", "cuda_runtime", one.host_ns, one.host_ns + 2_000, "main", one.launches),
                Event(NCCL, "kernel", began, ended, "stream 20", one.launches)]
            one.host_ns += LAUNCH_NS
            one.nccl_ns = ended
        return ended

    def _optimize(self, one: _Rank) -> None:
        began = one.host_ns
        one.compute_ns = max(one.compute_ns, one.nccl_ns)
        one.launch("multi_tensor_apply", 300_000 + self._extra(one.number, "optimizer"))
        one.around("Optimizer.step#SGD.step", "user_annotation", began)
        began = one.host_ns  # loss.item()
        one.host_ns = max(one.host_ns, one.compute_ns) + 2_000
        one.around("cudaStreamSynchronize", "cuda_runtime", began)
        one.host_ns += 18_000
        one.step_ends.append(one.host_ns)

    def write(self, folder: Path) -> Path:
        """The run directory of it."""
        for one in self.run():
            self._write_rank(one, folder / rank_folder(one.number))
        return folder

    def _write_rank(self, one: _Rank, folder: Path) -> None:
        folder.mkdir(parents=True)
        tags = {"rank": one.number, "mp_size": 1, "dp_size": self.num_ranks}
        files = {table.file: write_table(folder, table, columns, tags) for table, columns in (
            (COLLECTIVES, self._collectives(one.moved)), (EVENTS, self._events(one)),
            (STEPS, steps(one.step_ends, BEGAN_NS, self.steps - self.untraced)))}
        (folder / RANK_JSON).write_bytes(msgspec.json.encode(RankJson(
            device_type="cuda", device_name="NVIDIA H100 80GB HBM3", run_id="simulated", status="complete",
            rank=one.number, world_size=self.num_ranks, host="host", boot_id="host", topology={"dp": self.num_ranks},
            coordinates={"dp": one.number}, topology_source="simulated", mp_size=1, dp_size=self.num_ranks,
            num_steps=self.steps, passes={"trace": self.steps - self.untraced, "arrivals": self.untraced},
            files=files)))

    def _collectives(self, moved: Sequence[Moved]) -> Mapping[str, pa.Array]:
        number = len(moved)
        texts = {"group": "0", "group_description": "default_pg", "dtype": "float32",
                 "group_ranks": text_of(range(self.num_ranks)),
                 "timed_by": "timeline", "phase": "backward"}
        traced = self.steps - self.untraced
        starts = [one.began_ns if one.step < traced else one.ready_ns for one in moved]
        return {
            "step": integers([one.step for one in moved]), "sequence": integers(range(number)),
            "group_sequence": integers(range(number)), "size_bytes": integers([1 << 26] * number),
            "num_elements": integers([1 << 24] * number), "asynchronous": pa.array([True] * number),
            "op": pa.array([one.op for one in moved], pa.string()),
            "group_size": integers([self.num_ranks] * number),
            **{name: pa.array([text] * number, pa.string()) for name, text in texts.items()},
            "enqueue_ns": integers([BEGAN_NS + one.called_ns for one in moved]),
            "start_ns": integers([BEGAN_NS + start_ns for start_ns in starts]),
            "end_ns": integers([BEGAN_NS + one.ended_ns for one in moved])}

    def _events(self, one: _Rank) -> Mapping[str, pa.Array]:
        until_ns = [0, *one.step_ends][self.steps - self.untraced]
        return _columns(one, [event for event in one.events if event.start_ns < until_ns])


def _columns(one: _Rank, unordered: Sequence[Event]) -> Mapping[str, pa.Array]:
    events = sorted(unordered, key=lambda event: (event.start_ns, -event.end_ns))
    return {
        "name": pa.array([event.name for event in events], pa.string()),
        "category": pa.array([event.category for event in events], pa.string()),
        "start_ns": integers([BEGAN_NS + event.start_ns for event in events]),
        "duration_ns": integers([event.end_ns - event.start_ns for event in events]),
        "process": pa.array(["0" if event.category == "kernel" else "1" for event in events], pa.string()),
        "thread": pa.array([event.thread for event in events], pa.string()),
        "step": integers(np.minimum(np.searchsorted(one.step_ends, [event.start_ns for event in events], "right"),
                                    len(one.step_ends) - 1)),
        "correlation": integers([event.correlation for event in events]),
        "sequence_number": integers([event.sequence_number for event in events])}
