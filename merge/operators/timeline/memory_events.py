"""Reads allocations and frees as torch.profiler writes them into a trace (`profile_memory=True`)."""

from __future__ import annotations

import numpy as np
import polars as pl

from distprof.merge.scan.engine import Scanner
from distprof.merge.scan.scanned_columns import NONE

EVENT = b"[memory]"
KEYS = {"bytes": "Bytes", "address": "Addr", "allocated": "Total Allocated", "reserved": "Total Reserved",
        "device_type": "Device Type", "device_id": "Device Id", "order": "Ev Idx"}
"""Column -> key in `args`."""
MAYBE = ("allocated", "reserved", "device_id", "order")
"""Columns that may be missing."""
DEVICES = {0: "cpu", 1: "cuda", 9: "xla", 12: "xpu", 13: "mps", 14: "meta", 15: "hpu", 19: "mtia", 20: "device"}
"""torch's numbers of device types."""


class MemoryEvents:
    """Collects memory events while a trace is scanned."""

    keys = tuple(KEYS.values())

    def __init__(self) -> None:
        self.num_bad = 0
        """Number of events without size, address or time."""
        self._parts: list[pl.DataFrame] = []
        self._known = 0
        self._name: int | None = None

    def take(self, scanner: Scanner) -> None:
        """Adds the events in the last scan."""
        new = scanner.names.texts(self._known)
        self._known += len(new)
        if self._name is None and EVENT in new:
            self._name = self._known - len(new) + new.index(EVENT)
        rows = np.flatnonzero(scanner.column("name") == (-1 if self._name is None else self._name))
        if not len(rows):
            return
        found = {"time_ns": scanner.column("ts_ns")[rows], "thread": scanner.column("thread")[rows].astype(np.int64),
                 **{name: scanner.integers[key][rows] for name, key in KEYS.items()}}
        good = np.all([found[name] != NONE for name in ("time_ns", "bytes", "address", "device_type")], axis=0)
        self.num_bad += int(np.count_nonzero(~good))
        good &= found["bytes"] != 0  # for tensors without elements
        self._parts.append(pl.DataFrame({name: values[good] for name, values in found.items()}))

    def frame(self, base_ns: int) -> pl.DataFrame:
        """Returns one row per event, in the order in which they happened; `device` is like cpu or cuda:0."""
        empty = pl.DataFrame(schema=dict.fromkeys(("time_ns", "thread", *KEYS), pl.Int64()))
        rows = pl.concat([empty, *self._parts]).with_columns(
            *(pl.when(pl.col(name) != NONE).then(pl.col(name)).alias(name) for name in MAYBE),
            time_ns=pl.col("time_ns") + base_ns)
        rows = rows.sort("time_ns", "order", nulls_last=True, maintain_order=True)
        return rows.with_columns(_device(rows).alias("device"))


def _device(rows: pl.DataFrame) -> pl.Series:
    names = [DEVICES.get(kind, f"device{kind}") + (f":{number}" if number is not None and number >= 0 else "")
             for kind, number in rows.select("device_type", "device_id").iter_rows()]
    return pl.Series(names, dtype=pl.String)
