"""Operators by name and class of module, and the rates that bound them."""

from __future__ import annotations

from typing import Any

import msgspec
import polars as pl

from distprof.contract.merged import MfuBasis
from distprof.errors import DataError
from distprof.merge.operators.grouping import grouped_sums
from distprof.merge.report.absent import AbsentError
from distprof.merge.report.sampling import Sample
from distprof.merge.report.sources import OPERATORS_BY, Sources
from distprof.merge.text.documents.ops_json import ops_data
from distprof.merge.text.stats import mfu, peak_words
from distprof.peaks.published import device_peaks

MOST_ROWS = 300
COLUMNS = ("op", "class", "type", "phase", "dtypes", "calls", "self_host_ns", "host_ns", "self_device_ns", "device_ns",
           "mean_ns", "min_ns", "max_ns", "share", "flops", "bytes", "flops_per_second", "bytes_per_second",
           "flops_per_byte", "roofline_ratio", "bound", "num_ranks", "slowest_rank", "slowest_ratio", "slowest_p_value")


def operators(sources: Sources, sample: Sample) -> dict[str, Any]:
    """Those with most self time: on devices where anything ran on one, else on hosts.

    Raises:
        AbsentError: No rank has a timeline.
    """
    try:
        found = sources.operators
    except DataError as error:
        raise AbsentError("no timeline was recorded", remedy="record one with --steps trace=6") from error
    table = grouped_sums(found.sums)
    if len(table) > MOST_ROWS:
        sample.left_out.append(f"{MOST_ROWS} of {len(table)} rows of operators are shown: those with the most self "
                               "time")
    data = ops_data(sources.in_detail, found, table.head(MOST_ROWS))
    return {"by": list(OPERATORS_BY), "ranks": data["ranks"], "steps": data["steps"], "columns": list(COLUMNS),
            "rows": [[row[name] for name in COLUMNS] for row in data["ops"]],
            "totals": data["totals"], "coverage": data["coverage"], **_rates(sources, found.sums.groups)}


def _rates(sources: Sources, chosen: pl.DataFrame) -> dict[str, Any]:
    """The peak that MFU rests on, and the bandwidth of that device."""
    step = sources.summary["step"]
    unknown: dict[str, Any] = {"peak_flops_per_second": None, "peak_bytes_per_second": None}
    if step["mfu_basis"] is None or chosen["flops"].is_null().all():
        return {**unknown, "peak_basis": "FLOPs of operators are unknown" if step["mfu_basis"] else None}
    basis = msgspec.convert(step["mfu_basis"], MfuBasis)
    if len(basis.peaks) != 1:
        why = mfu(step) if not basis.peaks else "operators ran in several dtypes, each with its own peak"
        return {**unknown, "peak_basis": why}
    one = basis.peaks[0]
    device = None if one.device is None else device_peaks(one.device)
    bandwidth = sources.given.bandwidth or (None if device is None else device.bytes_per_second)
    return {"peak_flops_per_second": one.flops_per_second, "peak_bytes_per_second": bandwidth,
            "peak_basis": peak_words(one)}
