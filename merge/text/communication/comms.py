"""Prints the screen of `distprof comms`: costs, steps, culprits and doubts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from distprof.contract.problems import Problem, RankFailed, Unfinished
from distprof.contract.watch_state import WatchState
from distprof.merge.activity.breakdown import PARTS
from distprof.merge.blame.analysis import Analysis
from distprof.merge.clock.choose import hosts_of
from distprof.merge.cost.choice import group_label
from distprof.merge.cost.collective_sums import CollectiveKind, Coverage
from distprof.merge.cost.matrix import uneven_exchanges
from distprof.merge.run.group_ranks import with_lists
from distprof.merge.text.communication.culprits import culprit_lines, lines_of_summary
from distprof.merge.text.communication.device_steps import outside_lines, show_device_steps
from distprof.merge.text.communication.hang import hang_lines
from distprof.merge.text.communication.timeline import collective_line, gigabytes
from distprof.merge.text.phrases import clock_line, known_to, left_together, rank_list, some, step_time_words
from distprof.merge.text.problems import sentence, sentences
from distprof.merge.text.watch import end_lines, is_slow_later
from distprof.merge.totals.findings import Findings
from distprof.merge.totals.step_time import StepTime, parts_of_step
from distprof.reporters.page import Page
from distprof.units import UNKNOWN, counted, duration, numbered, percent, size

SHOWN_KINDS = 15
SHOWN_MISMATCHES = 5
SHOWN_UNEVEN = 3
UNEVEN_FROM = 1.1
"""An exchange is uneven if a rank sends or receives at least this many times the mean."""
MOST_RANKS = 16
"""With more ranks, only the slowest, the median and the fastest have a row."""
HEADER = ("step in ms", "step", *PARTS, "overlapped comm.")


def summarise(found: Findings, page: Page, whole_job: WatchState | None = None) -> None:
    """Prints all sections.

    Args:
        found: What was found in the recorded steps.
        page: Where to print.
        whole_job: What the watch noticed in all steps; None if these were not analysed.
    """
    page.line(_head(found))
    for line in dead_lines(found.run.problems):
        page.line(line, style="bold red")
    is_known = any(isinstance(one, RankFailed) and one.why is not None for one in found.run.problems)
    for line in hang_lines(found.hangs, but_victims=is_known) if found.hangs is not None else ():
        page.line(line, style="bold red")
    for line in mismatch_lines(found):
        page.line(line, style="bold red")
    page.line()
    _kinds(found, page)
    if not found.devices.steps.is_empty():
        show_device_steps(found.devices, page, found.step_time,
                          () if found.analysis is None else found.analysis.without_kernels)
    else:
        for line in outside_lines(found.devices):
            page.line(f"device steps are unknown; {line}")
    if found.analysis is not None:
        if found.devices.steps.is_empty() or not found.analysis.breakdown.is_empty():
            _steps(found, page)
        _culprits(found, found.analysis, page, whole_job)
    elif found.communication is not None:
        for line in lines_of_summary(found.communication, [rank.number for rank in found.run.ranks],
                                     missing=found.run.missing, usual=found.step_time,
                                     slow_later=is_slow_later(whole_job)):
            page.line(line)
        page.line()
    for line in (*end_lines(whole_job), "") if whole_job is not None else ():
        page.line(line)
    for line in doubts(found):
        page.line(line)


def _head(found: Findings) -> str:
    run = found.run
    parts = [counted(run.world_size, "rank")]
    if run.topology_known:
        parts[0] += " = " + " x ".join(f"{axis} {number}" for axis, number in run.topology.items())
    if found.steps:
        parts.append(numbered("step", found.steps))
    parts += sentences(found.analysis.remarks) if found.analysis is not None else []
    return "; ".join(parts)


def dead_lines(problems: Iterable[Problem]) -> Iterator[str]:
    """Yields the rank that failed first, but not those that failed because of it; else those that ended silently."""
    failed = {one.rank: one.why for one in problems if isinstance(one, RankFailed)}
    for one in problems:
        if isinstance(one, RankFailed) or (isinstance(one, Unfinished) and (
                failed.get(one.rank, "") is None if failed else one.status == "recording")):
            yield sentence(one)


def mismatch_lines(found: Findings) -> Iterator[str]:
    """Yields ranks that disagree in what they call, which makes jobs hang or compute nonsense."""
    bad = found.collectives.filter(pl.col("mismatch").is_not_null(), pl.col("matched_by").is_not_null())
    for one in with_lists(bad.head(SHOWN_MISMATCHES)).iter_rows(named=True):
        step = "" if one["step"] is None else f" in step {one['step']}"
        what = collective_line({**one, "arrival_spread_ns": None, "busbw": None}, None)
        yield f"mismatch{step}: {what}: {one['mismatch']}"
    if len(bad) > SHOWN_MISMATCHES:
        yield f"mismatch: {some(len(bad) - SHOWN_MISMATCHES)} more; --json lists all"


def _kinds(found: Findings, page: Page) -> None:
    if not found.kinds:
        page.line("no collective was recorded")
        page.line()
        return
    per = "step" if found.steps else "call"
    page.table(("op", "group", "ranks", "hosts", "calls/step", "bytes", "spread", "max",
                f"wait/{per}", f"transfer/{per}", "algbw", "busbw"),
               [_kind(one, found) for one in found.kinds[:SHOWN_KINDS]], left=2)
    if len(found.kinds) > SHOWN_KINDS:
        page.line(f"... {len(found.kinds) - SHOWN_KINDS} more of {len(found.kinds)}: --json lists all")
    mean = "ranks, summed over the calls in a step" if found.steps else "ranks and calls"
    page.line(f"spread: last minus first arrival, median; wait and transfer: mean over {mean}; algbw, busbw: GB/s, "
              "median")
    for line in uneven_lines(uneven_exchanges(found.counted_rows)):
        page.line(line)
    page.line()


def uneven_lines(exchanges: pl.DataFrame) -> Iterator[str]:
    """Yields `all_to_all of ep (0-3) is uneven: the rank that receives most gets 3.4 x the mean ...`, the worst first.

    Args:
        exchanges: `UNEVEN`.
    """
    worst = exchanges.sort("imbalance", descending=True).unique(["group", "group_ranks"], keep="first",
                                                                maintain_order=True)
    for one in worst.filter(pl.col("imbalance") >= UNEVEN_FROM).head(SHOWN_UNEVEN).iter_rows(named=True):
        does, label = "receives" if one["way"] == "received" else "sends", group_label(
            one["group"], one["group_description"], one["group_ranks"])
        yield (f"all_to_all of {label} is uneven: one rank {does} {one['imbalance']:.2f} x the mean of the group; in "
               f"{one['num_most']} of {counted(one['num_calls'], 'call')} that is rank {one['rank']} "
               f"({size(one['num_bytes'])} per call, mean {size(one['mean_bytes'])})")


def _kind(one: CollectiveKind, found: Findings) -> tuple[str, ...]:
    unsure_ns = found.clock.pair_uncertainty_ns(one.ranks)
    hosts = UNKNOWN if one.between_hosts is None else "several" if one.between_hosts else "one"
    same = one.min_bytes == one.max_bytes
    sizes = UNKNOWN if one.max_bytes is None else size(one.max_bytes) if same else (
        f"{size(one.min_bytes)} - {size(one.max_bytes)}")
    return (one.op, one.group, UNKNOWN if one.num_ranks is None else str(one.num_ranks), hosts,
            UNKNOWN if one.calls_per_step is None else f"{one.calls_per_step:.3g}", sizes,
            *(known_to(ns, unsure_ns) for ns in (one.spread_median_ns, one.spread_max_ns, one.wait_ns,
                                                 one.transfer_ns)),
            gigabytes(one.algbw), gigabytes(one.busbw))


def _steps(found: Findings, page: Page) -> None:
    assert found.analysis is not None
    breakdown = found.analysis.breakdown
    if breakdown.is_empty():
        page.line("step breakdown unknown: no rank has both steps and a timeline")
    else:
        whole = HEADER if found.steps else ("whole trace in ms", "time", *HEADER[2:])
        usual = found.step_time if found.steps == found.analysis.steps else None
        page.table(whole, breakdown_rows(breakdown, usual))
        page.line(f"the six parts add up to the {_sum_of_parts(whole[1], usual)}; waiting and moving: communication "
                  "during which nothing is computed; overlapped comm.: the rest of it" + (
                      "; waiting for missing ranks counts as moving" if found.run.missing else "")
                  if breakdown["compute_ns"].count() else
                  "waiting and moving: communication that a rank is known to wait for; the other parts are in "
                  "timelines, which are not read for so many ranks")
    page.line()


def _sum_of_parts(whole: str, usual: StepTime | None) -> str:
    return whole if usual is None else (
        f"step time, {step_time_words(usual)}, split in the proportions of the steps with a timeline")


def breakdown_rows(breakdown: pl.DataFrame, usual: StepTime | None = None) -> list[tuple[str, ...]]:
    """Returns what each rank spends a step on, as cells under `HEADER`.

    Args:
        breakdown: See `step_breakdown`.
        usual: The step time, of which these are the parts; None: times as measured.
    """
    ranks = parts_of_step(breakdown, usual)
    shown = [(f"rank {one['rank']}", one) for one in ranks]
    if len(ranks) > MOST_RANKS:
        by_time = sorted(ranks, key=lambda one: -one["duration_ns"])
        picked = {"slowest": by_time[0], "median": by_time[len(by_time) // 2], "fastest": by_time[-1]}
        shown = [(f"rank {one['rank']} ({why})", one) for why, one in picked.items()]
    if len(ranks) > 1:
        mean = pl.DataFrame(ranks, infer_schema_length=None).mean().row(0, named=True)
        shown.append((f"mean of {len(ranks)}", mean))
    return [_row(title, one) for title, one in shown]


def _row(title: str, one: dict[str, Any]) -> tuple[str, ...]:
    whole = one["duration_ns"]
    parts = (_part(one[f"{part}_ns"], whole) for part in PARTS)
    overlap = "-" if one["overlap_ratio"] is None else f"{one['overlapped_ns'] / 1e6:.2f}"
    return title, UNKNOWN if whole is None else f"{whole / 1e6:.2f}", *parts, overlap


def _part(ns: float | None, whole: float | None) -> str:
    if ns is None or not whole:
        return UNKNOWN
    return f"{ns / 1e6:.2f} {100 * ns / whole:4.1f} %"


def _culprits(found: Findings, analysis: Analysis, page: Page, whole_job: WatchState | None) -> None:
    if found.steps or found.collectives.is_empty():
        ranks = [rank.number for rank in found.run.ranks]
        for line in culprit_lines(analysis.culprits, ranks, analysis.blind, crowded=analysis.crowded,
                                  shifting=analysis.shifting, missing=found.run.missing,
                                  usual=found.step_time, slow_groups=analysis.slow_groups,
                                  slow_later=is_slow_later(whole_job)):
            page.line(line, style="bold" if any(one.certain for one in analysis.culprits) else None)
    else:
        page.line("late ranks are not judged: the collectives have no steps, and several steps are needed to rule out "
                  "chance (torch.profiler marks steps if its step() is called)")
    page.line()


def doubts(found: Findings) -> Iterator[str]:
    """Yields what is inferred, unknown or uncertain."""
    yield coverage_line(found.coverage)
    clock = found.clock
    unsure_ns = clock.pair_uncertainty_ns()
    yield clock_line(clock.to_json())
    counts = found.coverage
    settled = "; if all ranks ran on one host, --same-host settles it" if None in hosts_of(found.run).values() else ""
    if found.analysis is not None and found.analysis.ends_apart_ns is not None:
        yield left_together(found.analysis.ends_apart_ns)
    if unsure_ns and counts.num_unsure:
        yield (f"clocks of two ranks agree within {duration(unsure_ns)}: {counts.num_unsure} of {counts.num_spreads} "
               f"arrival spreads are smaller than that, so their last rank is unknown{settled}")
    elif unsure_ns is None and counts.num_spreads:
        yield ("clocks were never compared, so waits and late ranks marked with ? may only reflect clock "
               f"offsets{settled}")
    if counts.num_disagreeing:
        yield (f"{some(counts.num_disagreeing)}: on some rank, waits measured by clocks and by durations differ by "
               "more than their combined uncertainty")
    if counts.num_without_end:
        yield (f"{some(counts.num_without_end)} have no known end on some rank, so wait and transfer are unknown "
               "there")
    light = sorted(found.run.light_ranks)
    if light and found.analysis is not None:
        yield (f"{rank_list(light)} wait longer in steps with a timeline, because recording it slows down the other "
               "ranks")
    if found.run.kind == "traces":
        yield ("foreign traces: groups, steps and types come from the traces, ops are matched as described above, and "
               "modules come from the script's own annotations")


def coverage_line(counts: Coverage) -> str:
    """Returns how many collectives were found on all their ranks."""
    if not counts.num_collectives:
        return "matched: nothing to match"
    methods = ", ".join(f"{number} by {method}" for method, number in counts.matched_by.items()) or "none"
    rest = [f"{number} {what}" for number, what in (
        (counts.num_partial, "on some ranks or with a mismatch"), (counts.num_alone, "on one rank only"),
        (counts.num_unmatched, "of an unknown group and therefore not matched")) if number]
    return (f"matched: {counts.num_complete} of {some(counts.num_collectives)} on all ranks of their group "
            f"({percent(counts.matched_ratio)}); {methods}" + "".join(f"; {one}" for one in rest))
