"""Claims about the job on two ranks: counts, bytes, sleeps, collectives and the late rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from statistics import fmean, median
from typing import Any

import polars as pl

from distprof.contract.passes import TIME, TRACE
from distprof.launch.selftest.evidence import RATIO, SAMPLE_NS, Claim, Evidence, Judged, at_most, exact, near, same
from distprof.launch.selftest.jobs.planted import WHOLE
from distprof.units import duration

PASS_LIMITS = {TIME: (3, 20e6), TRACE: (5, 40e6)}
"""Pass -> limit for the rest of its steps, without the parts of known duration: a multiple of the rest of plain steps,
plus ns. Generous, because other programs may use the machine."""


def module_flops(path: str, phase: str, fact: Callable[[Evidence], float]) -> Callable[[Evidence], Judged]:
    """Returns a check of the FLOPs of a module, which must be equal on all ranks."""
    def judge(evidence: Evidence) -> Judged:
        row = evidence.module(path)
        least, most = (row[f"{phase}_flops_{what}"] for what in ("min", "max"))
        found = exact(fact(evidence), most, "FLOPs")
        return found if least == most else Judged(found.expected, f"{least:,.0f} to {most:,.0f} FLOPs", False)

    return judge


def product_flops(evidence: Evidence) -> float:
    """Returns the FLOPs of the product: two for each multiply-accumulate."""
    rows, inner, columns = (int(evidence.facts[name]) for name in ("rows", "inner", "columns"))
    return 2 * rows * inner * columns


def _all_flops(evidence: Evidence) -> Judged:
    model = evidence.summary["per_gpu"]
    return exact(2 * product_flops(evidence), sum(model[f"{phase}_flops"]["mean"] for phase in ("fwd", "bwd")), "FLOPs")


def _params(evidence: Evidence) -> Judged:
    found = evidence.summary["model"]["params"]
    return exact(evidence.facts["inner"] * evidence.facts["columns"], found, "parameters")


def product_calls(evidence: Evidence) -> Judged:
    """Checks the number of products: one in forward and one in backward, per step and rank."""
    found = evidence.ops.filter(pl.col("type") == "operator", pl.col("op") == "aten::mm",
                                pl.col("module_path") == "product")
    return exact(2 * evidence.num_traced * len(evidence.planted), int(found["calls"].sum()), "calls")


def _copied(evidence: Evidence) -> Judged:
    """Checks the bytes read and written by the copy of a module."""
    shape = f"[{evidence.facts['copy_bytes'] // 4}]"
    rows = evidence.ops.filter(pl.col("op") == "aten::copy_", pl.col("module_path") == "copies",
                               pl.col("shapes").str.starts_with(f"[{shape}"))
    calls = int(rows["calls"].sum())
    return exact(2 * evidence.facts["copy_bytes"] * evidence.num_traced * len(evidence.planted),
                 int(rows["bytes"].sum()) if calls else None, "B")


def collective(op: str, number: str, size: str) -> Callable[[Evidence], Judged]:
    """Returns a check of the number and size of a collective in each step and rank.

    Args:
        op: Name of the collective.
        number: Fact with the number of calls per step; '' for one call.
        size: Fact with the bytes of each call.
    """
    def judge(evidence: Evidence) -> Judged:
        per_step = evidence.facts[number] if number else 1
        rows = evidence.collectives.filter(pl.col("op") == op, pl.col("step").is_in(evidence.steps_of(TRACE)))
        counts = rows.group_by("rank", "step").agg(pl.len())
        whole = len(counts) == evidence.num_traced * len(evidence.planted)
        numbers = {*counts["len"].to_list(), *([] if whole else [0])}
        matched = "" if rows["complete"].all() else ", not all matched"
        found = _calls(numbers, {*rows["size_bytes"].to_list()})
        return same(_calls({per_step}, {evidence.facts[size]}), found + matched)

    return judge


def _calls(numbers: set[int], sizes: set[int]) -> str:
    return (f"{' or '.join(map(str, sorted(numbers)))} per step of "
            f"{' or '.join(f'{size:,}' for size in sorted(sizes)) or 'no'} B")


def module_time(path: str, phase: str, part: str) -> Callable[[Evidence], Judged]:
    """Returns a check of the time of a module according to its timers, as the mean over ranks."""
    return lambda evidence: near(evidence.planted_ns(part, evidence.steps_of(TIME)),
                                 evidence.module(path)[f"{phase}_time_ns_mean"])


def _loading(evidence: Evidence) -> Judged:
    rows = evidence.ops.filter(pl.col("type") == "annotation", pl.col("phase") == "data")
    found_ns = float(rows["host_ns"].sum()) / evidence.num_traced / len(evidence.planted)
    return near(evidence.planted_ns("loader", evidence.steps_of(TRACE)), found_ns)


def _before_forward(evidence: Evidence) -> Judged:
    timed = evidence.steps_of(TIME)
    found = evidence.steps.filter(pl.col("pass") == TIME)["before_forward_ns"].to_list()
    return near(sum(evidence.planted_ns(part, timed) for part in ("loader", "between")), fmean(found))


def line_time(part: str) -> Callable[[Evidence], Judged]:
    """Returns a check of the line of a sleep, and of its sampled time in steps with a timeline."""
    def judge(evidence: Evidence) -> Judged:
        file, line = evidence.line_of(part)
        expected_ns = evidence.planted_ns(part, evidence.steps_of(TRACE))
        found = [one for one in evidence.lines if (PurePath(one["file"]).name, one["line"]) == (file, line)]
        judged = near(expected_ns, found[0]["mean_ns"] if found else None, SAMPLE_NS + RATIO * expected_ns)
        where = f"{file}:{line}"
        return Judged(f"{where}, {judged.expected}", f"{where}, {judged.found}" if found else "another line",
                      judged.holds)

    return judge


def late(evidence: Evidence) -> Judged:
    file, line = evidence.line_of("late")
    rows = evidence.blamed.select("rank", "module", "cause", "file", "line").rows()
    found = [_place(rank, module, cause, PurePath(path or "?").name, at) for rank, module, cause, path, at in rows]
    return same(_place(evidence.late_rank, "late", "forward", file, line), "; ".join(found) or "no late rank")


def _place(rank: int, module: str, cause: str, file: str, line: int | None) -> str:
    return f"rank {rank}, {module} {cause}, {file}:{line}"


def lateness(evidence: Evidence) -> Judged:
    cause: dict[str, Any] = next(one for one in evidence.culprits if one["rank"] == evidence.late_rank)["causes"][0]
    steps = evidence.steps_of(TRACE)[1:]  # the first step of a pass is excluded
    return near(evidence.planted_ns("late", steps, [evidence.late_rank]), cause["spent"] - cause["of_peers"])


def step_time(evidence: Evidence) -> Judged:
    """Compares the duration of steps with timers with the job's own measurement."""
    steps = evidence.inner_steps(TIME)
    found = evidence.steps.filter(pl.col("step").is_in(steps))["duration_ns"].to_list()
    return near(evidence.planted_ns(WHOLE, steps), fmean(found))


def cost(name: str) -> Callable[[Evidence], Judged]:
    """Returns a check of the overhead of a pass: the rest of its steps, without the parts of known duration, compared
    with that of plain steps, on the rank that waits for no other.

    The fastest step of the pass counts: it includes the overhead, but least of the influence of other programs.
    """
    def judge(evidence: Evidence) -> Judged:
        steps = next(one.steps for one in evidence.planted if one.rank == evidence.late_rank)
        rest = [2 * step[WHOLE] - sum(step.values()) for step in steps]
        recorded = int(evidence.steps["step"].max()) + 1  # type: ignore[arg-type]
        plain_ns, (factor, more_ns) = median(rest[recorded + 1:]), PASS_LIMITS[name]
        judged = at_most(factor * plain_ns + more_ns, min(rest[step] for step in evidence.inner_steps(name)))
        return judged._replace(found=f"{judged.found}, plain {duration(plain_ns)}")

    return judge


SAID = (
    Claim(text="FLOPs of a product in forward", judge=module_flops("product", "fwd", product_flops)),
    Claim(text="FLOPs of a product in backward", judge=module_flops("product", "bwd", product_flops)),
    Claim(text="FLOPs of a step", judge=_all_flops),
    Claim(text="parameters of the model", judge=_params),
    Claim(text="products in the timeline", judge=product_calls),
    Claim(text="bytes read and written by a copy", judge=_copied),
    Claim(text="all_reduce", judge=collective("all_reduce", "reduces", "reduced_bytes")),
    Claim(text="broadcast", judge=collective("broadcast", "", "sent_bytes")),
    Claim(text="sleep in forward: module slow_forward", judge=module_time("slow_forward", "fwd", "forward")),
    Claim(text="sleep in backward: module slow_backward", judge=module_time("slow_backward", "bwd", "backward")),
    Claim(text="sleep in the data loader", judge=_loading),
    Claim(text="sleeps before forward", judge=_before_forward),
    Claim(text="line of the sleep in forward", judge=line_time("forward")),
    Claim(text="line of the sleep in backward", judge=line_time("backward")),
    Claim(text="line of the sleep in the data loader", judge=line_time("loader")),
    Claim(text="line of the sleep between steps", judge=line_time("between")),
    Claim(text="late rank, its module and line", judge=late),
    Claim(text="how late it is", judge=lateness),
    Claim(text="step time", judge=step_time),
    Claim(text="the rest of a step with timers", judge=cost(TIME)),
    Claim(text="the rest of a step with a timeline", judge=cost(TRACE)),
)
"""Claims that hold on CPUs and on GPUs."""
