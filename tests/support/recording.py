"""Records a small training loop in the process of the test, and reads its tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import torch

import distprof


class Recorded:
    """Tables of rank 0."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "rank00000"
        self.info = json.loads((self.folder / "rank.json").read_text())

    def table(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.folder / f"{name}.parquet")

    def modules(self) -> dict[str, dict]:
        return {row["module_path"]: row for row in self.table("modules").to_dicts()}

    def flops(self, phase: str) -> dict[str | None, int]:
        """Returns module path -> FLOPs, without submodules."""
        rows = self.table("ops").filter((pl.col("phase") == phase) & (pl.col("flops") > 0))
        return dict(rows.group_by("module_path").agg(pl.col("flops").sum()).iter_rows())


def train(run: Path, model: torch.nn.Module, make_input: Callable[[], torch.Tensor], *,
          steps: str = "wait=1,count=1,time=1,trace=1", num_steps: int = 4) -> Recorded:
    """Records plain SGD on the sum of squares of the model's output."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with distprof.record(run, steps=steps):
        for _ in range(num_steps):
            out = model(make_input())
            out = out["out"] if isinstance(out, dict) else out
            optimizer.zero_grad()
            out.square().sum().backward()
            optimizer.step()
    return Recorded(run)
