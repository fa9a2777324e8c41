"""Makes the text of `distprof memory` for snapshots of torch.cuda.memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distprof.contract.paths import FORMAT
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.commands.table_files import write_parquet
from distprof.merge.snapshot.find_snapshots import ranks_of
from distprof.merge.snapshot.run_snapshots import TENSORS, OneDevice, RunSnapshots, run_snapshots
from distprof.merge.text.snapshots import SnapshotsShown, render
from distprof.reporters.page import Page


def snapshots(files: Sequence[Path], *, by: Sequence[str], ranks: Sequence[int], top: int | None, as_json: bool,
              parquet: Path | None, strict: bool) -> str:
    """Memory snapshots as text.

    Raises:
        DataError: None can be read.
        UsageError: There is no such rank or key.
        OutputError: The Parquet file cannot be written.
        IncompleteError: One cannot be read, and `strict` is set.
    """
    by = tuple(dict.fromkeys(by)) or ("line",)
    of_rank, named = ranks_of(files)
    found = run_snapshots(of_rank, by=by, ranks=ranks, top=top or TENSORS, with_rows=parquet is not None)
    fail_if_incomplete(list(found.problems), strict=strict)
    if parquet is not None and found.rows is not None:
        write_parquet(found.rows, parquet)
    if as_json:
        return json.dumps(_data(found, top), indent=1)
    return render(SnapshotsShown(found=found, by=by, top=top, named=named, files=of_rank), Page())


def _data(found: RunSnapshots, top: int | None) -> dict[str, Any]:
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
