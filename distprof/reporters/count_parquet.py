"""Counts as Parquet files with documented columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.contract.parquet import write_table
from distprof.errors import OutputError
from distprof.reporters.count_dict import flat, module_row, op_row, totals
from distprof.reporters.count_schema import COUNT_MODULES, COUNT_OPS

if TYPE_CHECKING:
    from distprof.counting.counts import Counts


def write_counts(counts: Counts, folder: Path) -> None:
    """Writes both tables, each atomically; `distprof.totals` in their schema holds the totals as JSON."""
    metadata = {"distprof.totals": json.dumps(totals(counts))}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table, rows in ((COUNT_MODULES, [module_row(counts, module) for module in counts.modules]),
                            (COUNT_OPS, [op_row(op) for op in counts.ops])):
            write_table(folder, table, [flat(row) for row in rows], tags={}, metadata=metadata)
    except OSError as error:
        raise OutputError(f"cannot write {folder}: {error.strerror or error}") from error
