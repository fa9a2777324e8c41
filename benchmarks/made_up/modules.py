"""Generates data parallel ranks of a large model: the tables that totals need, with different times on each rank."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from distprof.contract import rank_json
from distprof.contract.parquet import write_table
from distprof.contract.paths import RANK_JSON, RUN_JSON, rank_folder
from distprof.contract.rank_json import ParamCount, RankJson
from distprof.contract.run_json import RunJson
from distprof.contract.tables import MODULES, OPS, PARAMETERS, STEPS, TIME_COLUMNS, Table

PASSES = ("wait", "count", "time", "time", "time", *("trace",) * 4, *("arrivals",) * 4)
NOW_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Data parallel ranks of one model."""

    num_ranks: int
    num_modules: int

    def write(self, run: Path) -> None:
        """Writes all ranks, and run.json."""
        run.mkdir(parents=True)
        rank_json.write(run / RUN_JSON, RunJson(run_id="made-up", world_size=self.num_ranks, start_ns=NOW_NS))
        tags = {"rank": 0, "mp_size": 1, "dp_size": self.num_ranks}
        for table in (MODULES, OPS, PARAMETERS, STEPS):
            write_table(run, table, self._rows(table).to_dicts(), tags=tags, metadata={"distprof.format": "1"})
        alike = {table: pl.read_parquet(run / table.file) for table in (MODULES, OPS, PARAMETERS, STEPS)}
        for table in alike:
            (run / table.file).unlink()
        for rank in range(self.num_ranks):
            self._write_rank(run / rank_folder(rank), rank, alike)

    def _write_rank(self, folder: Path, rank: int, alike: dict[Table, pl.DataFrame]) -> None:
        folder.mkdir()
        rank_json.write(folder / RANK_JSON, RankJson(
            run_id="made-up", status="complete", rank=rank, local_rank=rank % 8, world_size=self.num_ranks,
            host=f"host{rank // 8}", topology={"dp": self.num_ranks}, coordinates={"dp": rank}, mp_size=1,
            dp_size=self.num_ranks, topology_source="made up", topology_basis="mesh", num_steps=len(PASSES),
            params=ParamCount(params=2**20, stored_params=2**20, unique_params=2**20),
            device_name="NVIDIA H100 80GB HBM3"))
        for table, rows in alike.items():
            own = self._times(rank) if table is MODULES else []
            rows.with_columns(*own, rank=pl.lit(rank, pl.Int64)).write_parquet(folder / table.file)

    def _times(self, rank: int) -> list[pl.Series]:
        """Returns columns of random module times of a rank."""
        drawn = np.random.default_rng(rank).lognormal(14, 1, (len(TIME_COLUMNS), self.num_modules))
        return [pl.Series(column.name, times) for column, times in zip(TIME_COLUMNS, drawn, strict=True)]

    def _rows(self, table: Table) -> pl.DataFrame:
        """Returns the rows that are equal on all ranks, without the columns of tags."""
        paths = [f"model.layers.{number // 10}.block{number % 10}.projection" for number in range(self.num_modules)]
        if table is MODULES:
            return pl.DataFrame({
                "module_path": ["", *paths[1:]], "class_name": "Linear", "depth": 4, "dtype": "bfloat16",
                **dict.fromkeys(("params", "own_params", "stored_params", "trainable_params"), 2**20),
                **dict.fromkeys(("param_bytes", "buffers", "buffer_bytes"), 2**21), "calls": 4.0,
                **dict.fromkeys(("fwd_macs", "fwd_flops", "bwd_flops"), 2**40), "recompute_flops": 0,
                "evaluation_flops": 0})
        if table is PARAMETERS:
            return pl.DataFrame({
                "module_path": paths, "name": "weight", "shape": "[1024, 1024]", "dtype": "bfloat16",
                "params": 2**20, "stored_params": 2**20, "trainable": True,
                "checksum": np.arange(self.num_modules) * 7919 + 1})
        if table is OPS:
            return pl.DataFrame([{
                "module_path": path, "op": f"aten::op{number % 40}", "phase": phase, "shapes": "[[1024, 1024]]",
                "dtype": "bfloat16", "calls": 1.0, "macs": 2.0**40, "flops": 2.0**41, "causal_macs": 0.0,
                "recompute_macs": 0.0, "elements": 0.0, "estimate_flops": 0.0, "io_bytes": 1e6, "read_bytes": 6e5,
                "write_bytes": 4e5, "kind": "contraction", "counted": number % 40 > 1, "view": False}
                for number, path in enumerate(paths) for phase in ("forward", "backward")])
        begin = [NOW_NS + 10**9 * step for step in range(len(PASSES))]
        return pl.DataFrame({
            "step": range(len(PASSES)), "pass": PASSES, "start_ns": begin, "end_ns": [at + 10**9 for at in begin],
            "duration_ns": 10**9, "before_forward_ns": 10**7, "fwd_ns": 3 * 10**8, "bwd_ns": 6 * 10**8,
            "optimizer_ns": 9 * 10**7, "evaluation_ns": None, "forward_calls": 1, "evaluation_calls": 0, "samples": 8,
            "cpu_ns": 10**9, "switched_out": 3, "run_queue_ns": 10**5})
