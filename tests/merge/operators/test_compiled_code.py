"""FLOPs of operators where the count pass saw other ones, as it does of compiled code: by the shapes in the trace."""

from __future__ import annotations

import json
import shutil

import polars as pl

from distprof.contract.tables import OPS
from support.jobs import called

PRODUCTS = ("aten::addmm", "aten::mm")


def flops(run, *more: str) -> tuple[dict[str, int], dict[str, object], str]:
    """Of matrix products by operator; where they come from; what is printed."""
    told = json.loads(called("ops", run, "--json", *more).stdout)
    return ({row["op"]: row["flops"] for row in told["ops"] if row["op"] in PRODUCTS}, told["coverage"],
            called("ops", run, *more).stdout)


def test_where_other_operators_were_counted_shapes_tell_the_same(ddp, tmp_path):
    counted, source, _ = flops(ddp)
    run = shutil.copytree(ddp, tmp_path / "run", ignore=shutil.ignore_patterns("merged"))
    for path in run.glob(f"rank*/{OPS.file}"):
        table = pl.read_parquet(path)
        table.with_columns(op=pl.lit("aten::fused_by_a_compiler").cast(table["op"].dtype)).write_parquet(path)
    found, by_shapes, text = flops(run)
    assert source["source"] != "shapes" and by_shapes["source"] == "shapes"
    assert found == counted and all(found.values()) and len(found) == 2
    assert "not from the count pass: only 0.0 % of its FLOPs" in text
