"""What the instruments saw as rows of the tables: passes come in, rows go out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from distprof.contract.rank_json import ParamCount
from distprof.contract.tables import COLLECTIVES, TAGS
from distprof.counting.count_pass import CountPass
from distprof.model.modules import ModuleMap, Site
from distprof.model.params import count_params
from distprof.process.topology import Topology
from distprof.recording.communication.labels import CollectiveCall
from distprof.timing.chains import Latency
from distprof.timing.time_pass import TimePass

Row = dict[str, Any]
OP_QUANTITIES = ("calls", "macs", "flops", "causal_macs", "recompute_macs", "elements", "estimate_flops", "io_bytes",
                 "read_bytes", "write_bytes")
FLOP_COLUMNS = {"forward": "fwd_flops", "backward": "bwd_flops", "recompute": "recompute_flops"}
TIME_COLUMNS = {f"{phase}{own}_time_ns": f"{phase}{own}_ns" for phase in ("fwd", "bwd", "recompute")
                for own in ("", "_self")}


def params_of(modules: ModuleMap, topology: Topology) -> tuple[ParamCount, dict[Site, ParamCount]]:
    """Parameters of the rank and of each module with and without its submodules (the latter under `own`)."""
    roots = modules.roots()
    total = count_params((p for root in roots for p in root.parameters()), topology,
                         (b for root in roots for b in root.buffers()))
    each = {}
    for site in modules.sites():
        module = site.module()
        if module is not None:
            each[site] = count_params(module.parameters(), topology, module.buffers())
    return total, each


def own_params(site: Site, topology: Topology) -> int:
    """Parameters of a module without those of its submodules."""
    module = site.module()
    return 0 if module is None else count_params(module.parameters(recurse=False), topology).params


def module_rows(modules: ModuleMap, params: dict[Site, ParamCount], own: dict[Site, int],
                count: CountPass | None, time: TimePass | None) -> list[Row]:
    """One row per module that was found, called or not."""
    flops = _inclusive_flops(count) if count is not None else {}
    times = time.latencies() if time is not None else {}
    calls = _calls(count, times, time)
    rows = []
    for site in modules.sites():
        numbers = params.get(site, ParamCount())
        row = {
            "module_path": site.path,
            "class_name": site.class_name,
            "depth": site.depth,
            "params": numbers.params,
            "own_params": own.get(site, 0),
            "stored_params": numbers.stored_params,
            "trainable_params": numbers.trainable_params,
            "param_bytes": numbers.param_bytes,
            "buffers": numbers.buffers,
            "buffer_bytes": numbers.buffer_bytes,
            "dtype": max(numbers.dtypes, key=numbers.dtypes.__getitem__, default=None),
            "calls": None if count is None and time is None else calls.get(site, 0),
        }
        if count is not None:
            row |= {name: round(value / count.num_steps) for name, value in flops.get(site, _no_flops()).items()}
        if time is not None:
            latency = times.get(site, Latency())
            row |= {column: getattr(latency, name) for column, name in TIME_COLUMNS.items()}
        rows.append(row)
    return rows


def _calls(count: CountPass | None, times: Mapping[Site, Latency], time: TimePass | None) -> Mapping[Site, float]:
    """Forward calls a step."""
    if time is not None:
        return {site: latency.calls for site, latency in times.items()}
    return {} if count is None else {site: calls / count.num_steps for site, calls in count.calls.items()}


def _no_flops() -> dict[str, int]:
    return dict.fromkeys(("fwd_macs", *FLOP_COLUMNS.values()), 0)


def _inclusive_flops(count: CountPass) -> dict[Site, dict[str, int]]:
    total: dict[Site, dict[str, int]] = defaultdict(_no_flops)
    for key, entry in count.sums.items():
        column = FLOP_COLUMNS.get(key.phase)
        for site in key.path.sites() if column else ():
            total[site][column or ""] += entry.flops
            total[site]["fwd_macs"] += entry.macs if key.phase == "forward" else 0
    return total


def op_rows(count: CountPass) -> list[Row]:
    """One row per (module path, op, phase, shapes); call paths that end in the same module are one."""
    sums: dict[tuple[Any, ...], Row] = {}
    for key, entry in count.sums.items():
        path = key.path.site.path if key.path.site is not None else None
        row = sums.setdefault((path, key.op, key.phase, key.shapes, key.dtype), {
            "module_path": path, "op": key.op, "phase": key.phase, "shapes": key.shapes, "dtype": key.dtype,
            **dict.fromkeys(OP_QUANTITIES, 0.0),
            "kind": entry.kind, "counted": entry.counted, "view": entry.kind == "view", "note": entry.note or None,
        })
        for name in OP_QUANTITIES:
            row[name] += getattr(entry, name) / count.num_steps
    return list(sums.values())


def collective_rows(calls: Iterable[CollectiveCall]) -> list[Row]:
    """One row per communication op."""
    names = [column.name for column in COLLECTIVES.columns if column not in TAGS]
    return [{name: getattr(call, name) for name in names} for call in calls]


def with_steps(events: list[Row], steps: list[Row]) -> list[Row]:
    """Adds to each event the step in which it starts."""
    windows = [(step["start_ns"], step["end_ns"], step["step"]) for step in steps if step["pass"] == "trace"]
    for event in events:
        event["step"] = next((step for start, end, step in windows if start <= event["start_ns"] < end), None)
    return events
