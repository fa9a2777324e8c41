"""The data of `distprof memory --json`; docs/memory.md describes the keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import polars as pl

from distprof.contract.paths import FORMAT
from distprof.contract.problems import MemoryEndedEarly
from distprof.merge.memory.run_memory import Peak, RunMemory
from distprof.merge.run.run_model import Run
from distprof.merge.snapshot.run_snapshots import OneDevice, RunSnapshots
from distprof.merge.text.memory import TENSORS_SHOWN

OF_A_TENSOR = ("size_bytes", "category", "op", "shapes", "module_path", "class_name", "phase", "name", "shape", "dtype",
               "made_ns", "freed_ns", "last_used_ns", "used_by", "unused_ns", "address")


def memory_data(run: Run, found: RunMemory, table: pl.DataFrame, top: int | None) -> dict[str, Any]:
    """What was found.

    Args:
        run: The run.
        found: Its allocations.
        table: `grouped` of them.
        top: Rows, and tensors of a peak; all, and `TENSORS_SHOWN`, without.
    """
    return {
        "format": FORMAT, "kind": "memory", "ranks": sorted({peak.rank for peak in found.peaks}),
        "world_size": run.world_size, "peaks": [_peak(peak, top or TENSORS_SHOWN) for peak in found.peaks],
        "held_before": found.held.to_dicts(), "left_out": {"events_without_size": found.num_bad},
        "ended_early": [{"rank": one.rank, "step": one.step} for one in found.problems
                        if isinstance(one, MemoryEndedEarly)],
        "groups": table.rename({"module_path": "module", "class_name": "class"}, strict=False).head(
            top or len(table)).to_dicts()}


def _peak(peak: Peak, top: int) -> dict[str, Any]:
    return {"rank": peak.rank, "device": peak.device, "time_ns": peak.time_ns, "peak_bytes": peak.peak_bytes,
            "before_bytes": peak.before_bytes, "unknown_bytes": peak.unknown_bytes, "unused_bytes": peak.unused_bytes,
            "reserved_bytes": peak.reserved_bytes, "num_tensors": len(peak.alive),
            "tensors": peak.alive.select(OF_A_TENSOR).head(top).to_dicts()}


def snapshots_data(found: RunSnapshots, top: int | None) -> dict[str, Any]:
    """The same of snapshots of torch.cuda.memory; `top` groups, or all."""
    return {"format": FORMAT, "kind": "memory_snapshot",
            "ranks": sorted({one.memory.rank for one in found.devices}),
            "devices": [_device(one) for one in found.devices],
            "groups": found.groups.head(top or len(found.groups)).to_dicts()}


def _device(one: OneDevice) -> dict[str, Any]:
    memory = one.memory
    plain = {name: getattr(memory, name) for name in (
        "rank", "device", "peak_bytes", "peak_us", "peak_reserved_bytes", "before_bytes", "entries", "unseen")}
    return {**plain, "num_tensors": one.num_alive, "now": asdict(memory.division),
            "failures": [asdict(failure) for failure in memory.failures], "settings": one.settings,
            "unknown_entries": one.num_other, "timeline": memory.timeline.to_dicts(),
            "tensors": one.largest.drop("is_at_peak", "is_alive").to_dicts()}
