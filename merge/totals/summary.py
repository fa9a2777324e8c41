"""Makes the content of `summary.json`: totals, times, communication and modules of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import polars as pl

from distprof.contract.merged import QUANTITIES, SUMMARY_KEYS, TIMES, MfuBasis
from distprof.contract.passes import TIME
from distprof.contract.problems import CountedUnlike, ModulesUncounted, Problem, RecordedLightly, StepsUneven
from distprof.merge.activity.device.mean_steps import mean_device_steps
from distprof.merge.blame.analysis import Analysis, analyse
from distprof.merge.cost.measured_run import MeasuredRun
from distprof.merge.run.representatives import are_few
from distprof.merge.run.run_model import Run
from distprof.merge.totals.description import described
from distprof.merge.totals.later_steps import steps_data
from distprof.merge.totals.operator_sums import FLOPS_OF_PHASE, OperatorSums
from distprof.merge.totals.recorded_tables import RecordedTables
from distprof.merge.totals.step_time import StepTime, on_device, passes_of
from distprof.merge.totals.totals import (
    evaluation,
    model_totals,
    per_rank,
    pipeline_of,
    spread,
    steps_found,
    utilisation,
)
from distprof.merge.totals.workload import Workload, workload

TOP_MODULES = 50
"""Number of modules that summary.json lists; all are in modules.parquet."""
EXPOSED = ("waiting", "moving")
"""Parts of a step in which nothing is computed."""
NAMED = 5
"""Number of ranks or modules that a summary names."""


def reduce(found: MeasuredRun, tables: RecordedTables, *, peak: float | None = None,
           analysis: Analysis | None = None) -> tuple[dict[str, Any], pl.DataFrame]:
    """Reduces the tables of all ranks to the summary and the modules.

    Args:
        found: The run with its clock and collectives; its problems are part of the summary.
        tables: What its ranks recorded.
        peak: Peak FLOP/s of each rank's device, instead of the published one.
        analysis: Analysis of its communication, if it was already made.
    """
    communicated, damaged = _communicated(found, tables, analysis)
    modules = tables.modules
    found = found.noting([*damaged, *uncounted_modules(found.run, modules)])
    run = found.run
    ranks = per_rank(run, tables)
    coverage, uncounted = _coverage(tables.operators)
    about = described(run, found.clock)
    usual = tables.step_time
    work = None if usual is None else workload(tables.steps, usual)
    values = {
        **about,
        "remarks": [*about["remarks"], *msgspec.to_builtins([*_unsteady(tables.steps), *_unlike(work)])],
        "per_gpu": {name: spread(ranks, name) for name in (*QUANTITIES, *TIMES)},
        "model": model_totals(run, ranks, tables.parameters),
        "step": _step(run, ranks, tables, work, peak),
        "evaluation": evaluation(tables),
        "slowest_rank": _slowest(ranks),
        "passes": passes_of(tables.steps, usual),
        "steps": steps_data(run, tables.steps),
        "communication": communicated,
        "modules": _top_modules(modules),
        "coverage_ratio": coverage,
        "uncounted_ops": uncounted,
    }
    return {key: values[key] for key in SUMMARY_KEYS}, modules


def _communicated(found: MeasuredRun, tables: RecordedTables,
                  analysis: Analysis | None) -> tuple[dict[str, Any] | None, Sequence[Problem]]:
    if found.pieces is not None:
        return communication(found, tables.steps if found.run.kind == "distprof" else None, analysis)
    # a run of many ranks
    return (None, ()) if analysis is None or analysis.breakdown.is_empty() else (
        described_communication(found.run, analysis), analysis.problems)


def _unsteady(steps: pl.DataFrame) -> list[StepsUneven]:
    """Notes a timed step that took several times the others: a compilation, or warm-up that is not over."""
    timed = on_device(steps).filter(pl.col("pass") == "time")["duration_ns"]
    longest, median = timed.max(), timed.median()
    if len(timed) < 2 or not isinstance(longest, int) or not isinstance(median, float) or longest < 5 * median:
        return []
    return [StepsUneven(ratio=longest / median)]


def _unlike(work: Workload | None) -> list[CountedUnlike]:
    """Notes a counted step with more or less data than the others."""
    if work is None or work.counted is None or not work.is_unlike:
        return []
    return [CountedUnlike(unit=work.unit, counted=work.counted, usual=work.usual)]


def _step(run: Run, ranks: pl.DataFrame, tables: RecordedTables, work: Workload | None,
          peak: float | None) -> dict[str, Any]:
    """Returns the step time and its parts, and rates of the whole job: counted work / time that it usually takes."""
    usual = tables.step_time
    mean: dict[str, Any] = {name: ranks[name].mean() for name in (*TIMES, *FLOPS_OF_PHASE)}
    counted_ns = work.counted_ns if work is not None else None if usual is None else usual.time_ns
    flops = [mean[name] for name in FLOPS_OF_PHASE]
    mixed = any(isinstance(one, ModulesUncounted) for one in run.problems)
    known = counted_ns and None not in flops and not _lacks_parts(run) and not mixed
    samples = None if usual is None else samples_of_step(run, tables.steps, usual)
    mfu, basis = (None, MfuBasis(code="uncounted")) if mixed else utilisation(
        run, tables.operators.model_flops, counted_ns, peak)
    return {
        **(dict.fromkeys(StepTime.__dataclass_fields__) if usual is None else asdict(usual)),
        "measured_ns": on_device(tables.steps).filter(pl.col("pass") == TIME)["duration_ns"].mean(),
        **{name: mean[name] for name in TIMES if name != "step_ns"},
        "samples": samples,
        "samples_per_second": samples / work.usual_ns * 1e9 if work is not None and samples else None,
        "flops_per_second": sum(flops) * run.world_size / counted_ns * 1e9 if known and counted_ns else None,
        "mfu": mfu,
        "mfu_basis": msgspec.to_builtins(basis),
        "found": steps_found(run),
    }


def samples_of_step(run: Run, steps: pl.DataFrame, usual: StepTime) -> float | None:
    """Returns the samples that the whole job processes per step; None if unknown."""
    batches = workload(steps, usual, "samples") if run.topology_certain else None
    return None if batches is None else batches.usual * _num_batches(run)


def uncounted_modules(run: Run, modules: pl.DataFrame) -> list[ModulesUncounted]:
    """Finds modules with times whose FLOPs no rank knows, although there was a count pass."""
    counted = pl.col("fwd_flops_mean").is_not_null()
    if _lacks_parts(run) or not modules.select(counted.any()).item():
        return []
    paths = modules.filter(~counted, pl.col("fwd_time_ns_mean").is_not_null())["module_path"].unique(
        maintain_order=True).to_list()
    outermost = [path for path in paths if not any(_is_inside(path, other) for other in paths)]
    return [ModulesUncounted(modules=tuple(outermost[:NAMED]), num_modules=len(paths))] if paths else []


def _is_inside(path: str, other: str) -> bool:
    """Returns whether a module is inside another one, judging by their paths."""
    (model, _, name), (other_model, _, above) = path.rpartition(":"), other.rpartition(":")
    return model == other_model and name != above and (not above or name.startswith(f"{above}."))


def _lacks_parts(run: Run) -> bool:
    """Returns whether some part of the model was only recorded lightly, so that it was counted nowhere."""
    return any(isinstance(one, RecordedLightly) and not one.parts_counted for one in run.remarks)


def _num_batches(run: Run) -> int:
    """Returns the number of ranks with their own batch: stages and shards share one, experts do not."""
    return run.dp_size * run.topology.get("ep", 1)


def _slowest(ranks: pl.DataFrame) -> dict[str, Any] | None:
    """Finds the rank with the most time in forward and backward, including waits inside them."""
    work = pl.col("fwd_ns") + pl.col("bwd_ns").fill_null(0)  # inference has no backward
    timed = ranks.with_columns(work.alias("work_ns")).drop_nulls("work_ns")
    if timed.is_empty():
        return None
    last = timed.sort("work_ns", "rank").row(-1, named=True)
    median: Any = timed["work_ns"].median()
    return {"rank": last["rank"], "fwd_bwd_ns": last["work_ns"], "median_fwd_bwd_ns": median,
            "ratio_to_median": last["work_ns"] / median if median else None}


def _top_modules(modules: pl.DataFrame) -> list[dict[str, Any]]:
    """Returns the modules with the most measured time, or else FLOPs."""
    by = (pl.sum_horizontal("fwd_time_ns_mean", "bwd_time_ns_mean", "recompute_time_ns_mean"),
          pl.col("fwd_flops_mean").fill_null(0))
    columns = ("stage", "module_path", "class_name", "depth", "params_mean", "fwd_macs_mean", "fwd_flops_mean",
               "bwd_flops_mean", "fwd_time_ns_mean", "fwd_time_ns_min", "fwd_time_ns_max", "bwd_time_ns_mean",
               "recompute_time_ns_mean", "fwd_self_time_ns_mean", "bwd_self_time_ns_mean",
               "recompute_self_time_ns_mean", "slowest_rank", "model_params", "model_fwd_flops")
    return modules.sort(by, descending=True).head(TOP_MODULES).select(columns).to_dicts()


def _coverage(operators: OperatorSums) -> tuple[float | None, list[dict[str, Any]]]:
    """Returns the share of bytes moved by known ops; and the unknown ops, per step and rank."""
    work = operators.of_ops.filter(~pl.col("view"))
    total = float(work["io_bytes"].sum())
    num_ranks = max(operators.num_working, 1)
    uncounted = (
        work.filter(~pl.col("counted")).group_by("op")
        .agg(pl.col("calls").sum() / num_ranks, pl.col("io_bytes").sum() / num_ranks)
        .sort("io_bytes", "op", descending=[True, False])
    )
    covered = float(work.filter(pl.col("counted"))["io_bytes"].sum())
    return (covered / total if total else None), uncounted.to_dicts()


def communication(measured: MeasuredRun, steps: pl.DataFrame | None, analysis: Analysis | None = None) -> tuple[
        dict[str, Any] | None, Sequence[Problem]]:
    """Returns the analysed steps, the mean share of waiting and moving in them, and culprits.

    Args:
        measured: The run with its clock and collectives.
        steps: Its `STEPS`; None for traces of other programs.
        analysis: Its analysis, if it was already made.

    Returns:
        `communication` of `summary.json`, None without collectives, and if there is no analysis yet and tables or
        timelines
        are too large for one; and problems with timelines.
    """
    run, pieces = measured.run, measured.pieces
    if pieces is None or not pieces.num_rows or (analysis is None and not are_few(run)):
        return None, ()
    found = analysis or analyse(run, measured.clock, pieces.whole(), steps)
    return described_communication(run, found), found.problems


def described_communication(run: Run, found: Analysis) -> dict[str, Any]:
    """Returns `communication` of `summary.json`."""
    split = found.exposure.filter(pl.col("waiting_ns").is_not_null())  # unknown for a rank without calls
    total = int(split["duration_ns"].sum())
    spent = [int(split[f"{part}_ns"].sum()) for part in EXPOSED]
    return {
        "steps": found.steps, "of_device": not found.devices.steps.is_empty(),
        "devices": mean_device_steps(found.devices).to_dicts(),
        "pipeline": asdict(pipeline) if (pipeline := pipeline_of(run, split)) is not None else None,
        "exposed_ratio": sum(spent) / total if total else None,
        # waiting for a rank without data, or in a call that is not matched with another rank's, looks like moving data
        **{f"{part}_ratio": ns / total if total and not run.missing and found.blind != "no collective" else None
           for part, ns in zip(EXPOSED, spent, strict=True)},
        "culprits": [{**asdict(one), "share": one.share, "certain": one.certain} for one in found.culprits[:NAMED]],
        "passes": list(found.passes),
        "blind": found.blind, "crowded": [asdict(one) for one in found.crowded],
        "shifting": None if found.shifting is None else asdict(found.shifting),
        "slow_groups": [asdict(one) for one in found.slow_groups],
    }
