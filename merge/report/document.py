"""Makes the document of a report: sections with numbers that other commands print; see docs/report.md for its keys."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distprof.contract.paths import RUN_JSON
from distprof.contract.problems import Problem, Remark, from_json
from distprof.contract.rank_json import read
from distprof.contract.run_json import RunJson, job_command
from distprof.errors import DataError
from distprof.merge.report.communication import (
    NO_COLLECTIVE,
    RECORD_THEM,
    bandwidths,
    blame,
    clock,
    collective_kinds,
    collectives,
    hang,
)
from distprof.merge.report.findings import findings
from distprof.merge.report.model import memory, modules, operators, peak_memory
from distprof.merge.report.section import AbsentError, Sample
from distprof.merge.report.sources import MEASURED, Given, Sources
from distprof.merge.report.steps import critical_path, heat_map, pipeline, script_lines, step_parts, waits
from distprof.merge.report.whole_job import whole_job
from distprof.merge.run.run_model import Run
from distprof.merge.text.phrases import step_line
from distprof.merge.text.problems import sentences
from distprof.merge.text.rates import mfu
from distprof.merge.totals.description import problems_of
from distprof.merge.totals.step_time import step_time_data
from distprof.threads import thread_pool
from distprof.units import counted

SIZES = ("world_size", "mp_size", "dp_size", "topology", "topology_source", "topology_certain", "ranks",
         "missing_ranks")
FORMAT = 1
"""Format version of the document."""
SECTIONS: Mapping[str, Callable[[Sources, Sample], Any]] = {
    "whole_job": whole_job, "step_parts": step_parts, "heat_map": heat_map, "collectives": collectives,
    "collective_kinds": lambda sources, _: collective_kinds(sources),
    "bandwidths": lambda sources, _: bandwidths(sources),
    "blame": lambda sources, _: blame(sources), "hang": lambda sources, _: hang(sources), "clock": clock,
    "critical_path": lambda sources, _: critical_path(sources), "pipeline": lambda sources, _: pipeline(sources),
    "script_lines": lambda sources, _: script_lines(sources), "memory": memory, "modules": modules,
    "operators": operators, "waits": waits}
"""Sections that a run may lack; last those that need timelines, which are read concurrently with the others."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def about(sources: Sources) -> dict[str, Any]:
    """Describes the run and its ranks."""
    run = sources.run
    launch = _launch(run)
    recorded = [rank.recorded for rank in run.ranks if rank.recorded is not None]
    versions: Mapping[str, str] = recorded[0].versions if recorded else {}
    return {
        "title": run.path.resolve().name, "run_id": run.run_id,
        "command": None if launch is None or not launch.argv else shlex.join(_script(job_command(launch.argv))),
        "started_ns": None if launch is None or not launch.start_ns else launch.start_ns,
        "ended_ns": None if launch is None else launch.end_ns,
        "git_commit": None if launch is None or not launch.git_commit else launch.git_commit,
        "hosts": _hosts(run), "versions": dict(versions),
        "devices": sorted({rank.device_name for rank in run.ranks if rank.device_name is not None}),
        "foreign": not sources.is_recorded,
        "attempts": max((one.attempt for one in recorded), default=0) + 1}


def _launch(run: Run) -> RunJson | None:
    try:
        return read(run.path / RUN_JSON, RunJson) if (run.path / RUN_JSON).is_file() else None
    except DataError:
        return None  # opening the run has reported it


def _script(argv: Sequence[str]) -> Sequence[str]:
    """Returns the script and its arguments, without what started it."""
    begin = next((place for place, word in enumerate(argv) if word.endswith(".py")), 0)
    return argv[begin:]


def _hosts(run: Run) -> list[dict[str, Any]]:
    found: dict[str, list[int]] = {}
    for rank in run.ranks:
        if rank.host:
            found.setdefault(rank.host, []).append(rank.number)
    return [{"name": name, "ranks": ranks} for name, ranks in found.items()]


def document(path: Path, *more: Path, given: Given = MEASURED) -> dict[str, Any]:
    """Returns everything that a report shows.

    Args:
        path: A run directory or traces of other programs; the merge of one.
        *more: Further run directories of the same job.
        given: What the user knows better than the run.

    Raises:
        DataError: The run cannot be read.
        UsageError: The product of the given sizes is not the world size.
    """
    sources = Sources(path, *more, given=given)
    with thread_pool(1) as beside:
        sources.read_timelines(beside)
        return _document(sources)


def _document(sources: Sources) -> dict[str, Any]:
    sample, absent = Sample(sources), dict[str, str]()
    sections = {name: _section(build, name, sources, sample, absent) for name, build in SECTIONS.items()}
    summary = sources.summary
    found: dict[str, Any] = {
        "format": FORMAT, "kind": "report", "run": about(sources), **{name: summary[name] for name in SIZES},
        "totals": _totals(sources, absent), "step": _step(sources), "steps": summary.get("steps"),
        "peak_memory": peak_memory(sources), "communication": _communication(summary, absent),
        **sections}
    found["findings"] = findings(found, sources)
    if len(sources.in_detail.ranks) < len(sources.opened.ranks):
        number = counted(len(sources.in_detail.ranks), "rank")
        sample.left_out.append(f"operators, memory and host waits cover only {number}: those that delay the job, the "
                               "slowest, median and fastest ranks, and others from different parts of the model")
    return _clean({**found, "absent": absent, "left_out": sample.left_out, "missing": _missing(sources)})


def _section(build: Callable[[Sources, Sample], Any], name: str, sources: Sources, sample: Sample,
             absent: dict[str, str]) -> Any:
    try:
        return build(sources, sample)
    except AbsentError as error:
        absent[name] = error.sentence(recorded=sources.is_recorded)
        return None


def _totals(sources: Sources, absent: dict[str, str]) -> dict[str, Any] | None:
    summary = sources.summary
    if not sources.is_recorded:
        absent["totals"] = "foreign traces have no parameters or FLOPs; record them with distprof run"
        return None
    return {name: summary[name] for name in ("per_gpu", "model", "coverage_ratio", "uncounted_ops", "evaluation",
                                             "slowest_rank")}


def _step(sources: Sources) -> dict[str, Any]:
    summary = sources.summary
    step = {**summary["step"], **(step_time_data(sources.comms.step_time) or {})}  # foreign traces have no totals
    return {**step, "mfu_reason": None if step["mfu_basis"] is None else mfu(
        step, at_least=bool(summary["uncounted_ops"])),
            "sentence": step_line(step["found"])}


def _communication(summary: Mapping[str, Any], absent: dict[str, str]) -> dict[str, Any] | None:
    found = summary["communication"]
    if found is None:
        absent["communication"] = AbsentError(NO_COLLECTIVE, remedy=RECORD_THEM).sentence(
            recorded=summary["kind"] == "distprof")
        return None
    return {name: found.get(name) for name in ("steps", "of_device", "exposed_ratio", "waiting_ratio", "moving_ratio")}


def _missing(sources: Sources) -> list[str]:
    """Returns what is incomplete or has to be kept in mind, in the words of the other commands, each once."""
    found, summary = sources.comms, sources.summary
    remarks = [*found.run.remarks, *(found.analysis.remarks if found.analysis is not None else ()),
               *from_json(Remark, summary["remarks"])]
    problems = [*problems_of(found.run, found.clock), *from_json(Problem, summary["problems"]), *sources.unreadable]
    return list(dict.fromkeys([*sentences(problems), *sentences(remarks)]))


def _clean(found: dict[str, Any]) -> dict[str, Any]:
    """Makes the document acceptable to any JSON reader: without NaN, and without unpaired surrogates in names."""
    try:
        text = json.dumps(found, allow_nan=False, ensure_ascii=False)
        text.encode()
    except ValueError:
        cleaned: dict[str, Any] = _cleaned(found)
        return cleaned
    return found


def _cleaned(value: object) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub(lambda half: f"\\u{ord(half.group()):04x}", value)
    if isinstance(value, Mapping):
        return {_cleaned(key): _cleaned(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(inner) for inner in value]
    return None if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))) else value
