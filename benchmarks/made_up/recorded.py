"""Writes rank folders of a made-up job, as its ranks would have recorded them; each host has 8 ranks and a clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from distprof.contract import rank_json
from distprof.contract.collective_ops import text_of
from distprof.contract.parquet import write_table
from distprof.contract.paths import RANK_JSON, RUN_JSON, rank_folder
from distprof.contract.rank_json import ClockPair, ClockSample, ParamCount, RankJson
from distprof.contract.run_json import RunJson
from distprof.contract.tables import COLLECTIVES, MODULES, OPS, PARAMETERS, STEPS, Table, TableRow
from made_up.pipelined_job import BYTES, NONE, NOW_NS, Call, PipelinedJob, Stage

PASSES = ("wait", "count", "time", "time", "time", *("trace",) * 4, *("arrivals",) * 20)
LABELLED = ("trace", "arrivals")
ON_A_HOST = 8
HIDDEN = 1024
SAMPLES = 8
"""Number of samples per step."""
RUN_ID = "made-up"
OPS_OF_LAYER = ("aten::addmm", "aten::_softmax", "aten::native_layer_norm", "aten::gelu", "aten::frobnicate")
CALL_TIMES = ("enqueue_ns", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


@dataclass(kw_only=True)
class Recorded:
    """What the ranks of a job recorded."""

    job: PipelinedJob
    passes: Sequence[str] = PASSES
    clocks_ns: int = 2_000_000
    """Largest difference of a host's clock from that of the first host; 0: all ranks are on one host."""
    is_known: bool = True
    """Whether the topology is recorded; else all ranks are assumed to be data parallel."""
    are_compared: bool = True
    """Whether hosts compared their clocks."""
    kept: Collection[int] = ()
    """Ranks whose calls are all kept."""
    lost: int = 0
    """Number of missing rows of collectives, distributed randomly over ranks."""
    programs: list[Sequence[Call]] = field(default_factory=list)
    """Calls of a step, per stage."""
    calls: dict[int, list[Any]] = field(default_factory=dict)
    """Kept rank -> times of each step, shape (calls, 5)."""
    windows: list[Any] = field(default_factory=list)
    """Per step: start, end, and time in data, forward, backward and optimizer; shape (6, ranks)."""

    def __post_init__(self) -> None:
        chance, hosts = np.random.default_rng(self.job.seed + 1), -(-self.job.num_ranks // ON_A_HOST)
        self.offset_ns = chance.integers(-self.clocks_ns, self.clocks_ns + 1, hosts)
        self.drift = chance.uniform(-2e-6, 2e-6, hosts) * bool(self.clocks_ns)
        self.offset_ns[0], self.drift[0] = 0, 0.0
        self.module_noise = chance.uniform(0, self.job.jitter, self.job.num_ranks)
        self._losses = chance.multinomial(self.lost, np.full(self.job.num_ranks, 1 / self.job.num_ranks))

    def own(self, times: Any, first: int = 0) -> Any:
        """Returns times on the clocks of the ranks; the last axis is ranks from `first` on."""
        host = (first + np.arange(times.shape[-1])) // ON_A_HOST
        shifted = times + self.offset_ns[host] + np.rint((times - NOW_NS) * self.drift[host]).astype(np.int64)
        return np.where(times == NONE, NONE, shifted)

    def add(self, stages: Sequence[Stage]) -> list[Any]:
        """Adds a step.

        Returns:
            The times of each stage on the clocks of its ranks; see `Stage.times`.
        """
        per_stage = self.job.dp * self.job.tp
        self.programs = [stage.calls for stage in stages]
        self.windows.append(np.concatenate([np.stack((
            self.own(stage.start, index * per_stage), self.own(stage.end, index * per_stage), stage.data_ns,
            stage.forward_ns, stage.backward_ns, stage.optimizer_ns)) for index, stage in enumerate(stages)], axis=1))
        found = [self.own(stage.times, index * per_stage) for index, stage in enumerate(stages)]
        for rank in self.kept:
            self.calls.setdefault(rank, []).append(found[rank // per_stage][:, :, rank % per_stage])
        return found

    def groups(self, rank: int) -> dict[str, tuple[str, str, list[int]]]:
        """Returns the groups of a rank: tp, dp and pp -> name, description and ranks."""
        (pp, dp, tp), job = self.job.place(rank), self.job
        first = rank - tp
        return {"tp": (f"tp{first}", "mesh_tp", list(range(first, first + job.tp))),
                "dp": (f"dp{pp}_{tp}", "mesh_dp", [(pp * job.dp + at) * job.tp + tp for at in range(job.dp)]),
                "pp": (f"pp{dp}_{tp}", "mesh_pp", [(at * job.dp + dp) * job.tp + tp for at in range(job.pp)])}

    def about(self, rank: int) -> RankJson:
        """Returns the rank.json of a rank."""
        job, host = self.job, rank // ON_A_HOST if self.clocks_ns else 0
        params = sum(row["params"] for row in self.parameters(rank))
        return RankJson(
            run_id=RUN_ID, status="complete", rank=rank, local_rank=rank % ON_A_HOST, world_size=job.num_ranks,
            pid=1000 + rank, host=f"host{host:05d}", boot_id=f"{host:08x}", topology=self.topology,
            coordinates=self.coordinates(rank), topology_source="made up" if self.is_known else "assumed",
            topology_basis="mesh" if self.is_known else "assumed", mp_size=job.pp * job.tp if self.is_known else 1,
            dp_size=job.dp if self.is_known else job.num_ranks, num_steps=len(self.passes),
            plan=",".join(f"{name}={self.passes.count(name)}" for name in dict.fromkeys(self.passes)),
            passes={name: self.passes.count(name) for name in dict.fromkeys(self.passes)},
            params=ParamCount(params=params, stored_params=params, trainable_params=params, unique_params=None,
                              param_bytes=2 * params),
            device_name="NVIDIA H100 80GB HBM3", clock=self._pairs(rank), clock_sync=self._samples(rank),
            versions={"distprof": "0.1.0"}, files=dict.fromkeys(
                (table.file for table in (STEPS, MODULES, OPS, PARAMETERS, COLLECTIVES)), 0))

    @property
    def topology(self) -> dict[str, int]:
        """Sizes of the axes, as far as ranks know them."""
        if not self.is_known:
            return {"dp": self.job.num_ranks}
        return {"pp": self.job.pp, "dp": self.job.dp, "tp": self.job.tp}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Returns the coordinates of a rank, as far as ranks know them."""
        return dict(zip(("pp", "dp", "tp"), self.job.place(rank), strict=True)) if self.is_known else {"dp": rank}

    def _pairs(self, rank: int) -> list[ClockPair]:
        edges = np.array([self.windows[0][0, rank], self.windows[-1][1, rank]])
        return [ClockPair(realtime_ns=int(at), monotonic_ns=int(at) - NOW_NS) for at in edges]

    def _samples(self, rank: int) -> list[ClockSample]:
        """Returns clock comparisons: of the first rank of a host with rank 0, of others with the first rank."""
        host, first = rank // ON_A_HOST, rank // ON_A_HOST * ON_A_HOST
        peer = 0 if rank == first else first
        if rank == peer or not self.clocks_ns or not self.are_compared:
            return []
        times = np.array([self.windows[step][0, rank] for step in (0, len(self.windows) // 2, -1)])
        drifted = self.offset_ns[host] + (times - self.offset_ns[host] - NOW_NS) * self.drift[host]
        off = 0 * drifted if peer else drifted
        return [ClockSample(peer=peer, at_ns=int(at), offset_ns=-round(ns), bound_ns=20_000, rounds=9)
                for at, ns in zip(times.tolist(), off.tolist(), strict=True)]

    # --- rows of tables ----------------------------------------------------------------------------------------

    def steps(self, rank: int) -> list[TableRow]:
        rows = []
        for number, (name, window) in enumerate(zip(self.passes, self.windows, strict=True)):
            start, end, data, forward, backward, optimizer = window[:, rank].tolist()
            parts = {"before_forward_ns": data, "fwd_ns": forward, "bwd_ns": backward, "optimizer_ns": optimizer}
            rows.append({"step": number, "pass": name, "start_ns": start, "end_ns": end, "duration_ns": end - start,
                         "forward_calls": 1, "samples": None if name == "wait" else SAMPLES,
                         **(parts if name == "time" else {})})
        return rows

    def modules(self, rank: int) -> list[TableRow]:
        """Returns rows of the root, the layers and their submodules; `mlp` has all planted delays of a layer."""
        job, rows = self.job, []
        count = 12 * HIDDEN * HIDDEN // job.tp
        for path in ("", "layers", *(f"layers.{layer}{name}" for layer in range(job.layers)
                                     for name in ("", ".attention", ".mlp"))):
            share = job.layers if path in ("", "layers") else 1
            times = {f"{part}_time_ns": float(ns) for part, ns in self._module_ns(rank, path).items()}
            flops = 2 * count * share * SAMPLES
            rows.append({
                "module_path": path, "class_name": (path.rpartition(".")[2] or "Model").title(),
                "depth": path.count(".") + bool(path), "params": count * share, "own_params": 0,
                "stored_params": count * share, "trainable_params": count * share, "param_bytes": 2 * count * share,
                "buffers": 0, "buffer_bytes": 0, "dtype": "bfloat16", "calls": float(job.microbatches),
                "fwd_macs": flops // 2, "fwd_flops": flops, "bwd_flops": 2 * flops, "recompute_flops": 0, **times})
        return rows

    def _module_ns(self, rank: int, path: str) -> dict[str, float]:
        job = self.job
        layers = range(job.layers) if path in ("", "layers") else [int(path.split(".")[1])]
        share = 0.4 if path.endswith("attention") else 0.6 if path.endswith("mlp") else 1.0
        found = {}
        for part, kind, times in (("fwd", "forward", 1), ("bwd", "backward", 2)):
            ns = times * job.work_ns * job.microbatches * len(layers) * (share + self.module_noise[rank])
            ns += sum(plant.ns for plant in job.plants if plant.rank == rank and plant.kind == kind
                      and plant.layer in layers and not path.endswith("attention"))
            found[part] = ns
        return found

    def ops(self, _: int) -> list[TableRow]:
        numbers = {"causal_macs": 0.0, "recompute_macs": 0.0, "elements": 1e5, "estimate_flops": 0.0}
        found = []
        for layer in range(self.job.layers):
            for op in OPS_OF_LAYER:
                for phase, times in (("forward", 1), ("backward", 2)):
                    macs = 1e9 * times if op == "aten::addmm" else 0.0
                    found.append({
                        "module_path": f"layers.{layer}.mlp", "op": op, "phase": phase, "shapes": "[[1024, 1024]]",
                        "dtype": "bfloat16", "kind": "contraction" if macs else "other", "calls": 4.0, "macs": macs,
                        "flops": 2 * macs, "io_bytes": 1e6, "read_bytes": 6e5, "write_bytes": 4e5,
                        "counted": op != "aten::frobnicate", "view": False, **numbers})
        return found

    def parameters(self, rank: int) -> list[TableRow]:
        """Returns rows of matrices that are sharded over tp, and of norms that are replicated."""
        stage, _, tp = self.job.place(rank)
        rows = []
        for layer in range(self.job.layers):
            for name, size, shape in (("attention.weight", 4 * HIDDEN * HIDDEN // self.job.tp, [4 * HIDDEN, HIDDEN]),
                                      ("mlp.weight", 8 * HIDDEN * HIDDEN // self.job.tp, [8 * HIDDEN, HIDDEN]),
                                      ("norm.weight", HIDDEN, [HIDDEN])):
                module, _, which = name.rpartition(".")
                shared = module == "norm"
                rows.append({"module_path": f"layers.{layer}.{module}", "name": which, "shape": str(shape),
                             "dtype": "bfloat16", "params": size, "stored_params": size, "trainable": True,
                             "checksum": crc32(repr((stage, layer, module, 0 if shared else tp)).encode())})
        return rows

    def collectives(self, rank: int) -> list[TableRow]:
        """Returns rows of all calls of a kept rank, without lost ones."""
        program, sequence = self.programs[rank // (self.job.dp * self.job.tp)], dict[str, int]()
        of_channel = {channel: self._of_channel(rank, channel) for channel in {call.channel for call in program}}
        of_calls = [of_channel[call.channel] | {
            "op": call.op, "asynchronous": call.asynchronous, "module_path": call.module, "phase": call.phase}
            for call in program]
        labelled, rows = [step for step, name in enumerate(self.passes) if name in LABELLED], list[dict[str, Any]]()
        for step, times in zip(labelled, (self.calls[rank][step] for step in labelled), strict=True):
            for call, known, at in zip(program, of_calls, times.tolist(), strict=True):
                number = sequence[call.channel] = sequence.get(call.channel, -1) + 1
                rows.append(known | {"step": step, "sequence": number, "group_sequence": number} | {
                    name: None if one == NONE else one for name, one in zip(CALL_TIMES, at, strict=True)})
        rows.sort(key=lambda row: row["enqueue_ns"])
        lost = {*np.random.default_rng(rank).permutation(len(rows))[:self._losses[rank]].tolist()}
        return [row for place, row in enumerate(rows) if place not in lost]

    def _of_channel(self, rank: int, channel: str) -> dict[str, Any]:
        """Returns the values that all calls of a channel share."""
        groups = self.groups(rank)
        name, description, ranks = groups.get(channel, groups["pp"])
        size = BYTES.get(channel, BYTES["pp"])
        return {"group": name, "group_description": description, "group_ranks": text_of(ranks),
                "group_size": len(ranks), "num_elements": size // 2, "size_bytes": size, "dtype": "bfloat16",
                "peer": self.peer(rank, channel), "timed_by": "timeline"}

    def peer(self, rank: int, channel: str) -> int | None:
        """Returns the other rank of a send or receive; None for collectives."""
        if not channel.startswith(("send", "recv")):
            return None
        return rank + int(channel[4:]) * self.job.dp * self.job.tp

    def write_rank(self, run: Path, rank: int) -> Path:
        """Writes the folder of a kept rank and returns its path."""
        folder, about = run / rank_folder(rank), self.about(rank)
        folder.mkdir(parents=True)
        tables: dict[Table, list[TableRow]] = {
            STEPS: self.steps(rank), MODULES: self.modules(rank), OPS: self.ops(rank),
            PARAMETERS: self.parameters(rank), COLLECTIVES: self.collectives(rank)}
        tags = {"rank": rank, "mp_size": about.mp_size or 1, "dp_size": about.dp_size or 1}
        for table, rows in tables.items():
            write_table(folder, table, rows, tags=tags, metadata={"distprof.format": "1"})
        rank_json.write(folder / RANK_JSON, about)
        return folder

    def write_run_json(self, run: Path) -> None:
        run.mkdir(parents=True, exist_ok=True)
        rank_json.write(run / RUN_JSON, RunJson(run_id=RUN_ID, world_size=self.job.num_ranks, start_ns=NOW_NS))
