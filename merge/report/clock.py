"""How the ranks were brought to one clock."""

from __future__ import annotations

from typing import Any

from distprof.merge.report.columns import columns_of_rows
from distprof.merge.report.sampling import Sample
from distprof.merge.report.sources import Sources
from distprof.merge.text.phrases import clock_line


def clock(sources: Sources, sample: Sample) -> dict[str, Any]:
    """The clock as `comms` has it, with a row for each rank that is shown."""
    known = sources.comms.clock.to_json()
    hosts = {rank.number: rank.host or None for rank in sources.run.ranks}
    rows = [{**one, "host": hosts.get(one["rank"])} for one in known["ranks"] if one["rank"] in set(sample.ranks)]
    names = ("rank", "host", "clock", "offset_ns", "drift_ppm", "drift_uncertainty_ppm", "uncertainty_ns")
    return {**known, "sentence": clock_line(known), "ranks": columns_of_rows(rows, names),
            "pair_uncertainty_ns": sources.comms.clock.pair_uncertainty_ns()}
