"""Makes the first screen of a report: what matters about a run, in sentences, most important first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl

from distprof.contract.problems import (
    RankFailed,
    RanksMissing,
    RecordedLightly,
    ScriptInterrupted,
    TimelinesCapped,
    TopologyUncertain,
    Unfinished,
    Unreadable,
)
from distprof.merge.activity.activities import OF_MODULES
from distprof.merge.clock.choose import runs_as_told
from distprof.merge.report.resource_findings import (
    MORE_LOADERS,
    Finding,
    bandwidth,
    compilations,
    data_loading,
    device_idle,
    host_waits,
    memory_imbalance,
    pipeline_bubble,
    uncounted,
)
from distprof.merge.report.sources import Sources
from distprof.merge.report.whole_job import watch_findings
from distprof.merge.text.communication.comms import dead_lines, mismatch_lines
from distprof.merge.text.communication.culprits import NEEDED
from distprof.merge.text.phrases import change_line, full_sentence, left_together, step_time_words
from distprof.merge.text.problems import sentence
from distprof.merge.text.rates import NO_MFU, mfu
from distprof.merge.text.watch import is_slow_later, watched_of
from distprof.terminal import quoted_all
from distprof.units import counted, duration, percent, si

MOST = 12
WEIGHTS = {"bad": 0, "warn": 1, "note": 2, "good": 3}
EXPOSED = 0.2
"""Exposed communication is a warning from this share of a step on."""
IMBALANCE = 1.2
"""A rank is named if its time in forward and backward is at least this many times that of the median rank."""
SHOWN = 4
ACTIONS = {
    "data": MORE_LOADERS,
    "host": "Move this work out of the step, or do it less often.",
    "forward": "If this rank does the same work as its peers, check its device for lower clocks or other processes.",
}
"""Kind of the first cause -> what usually helps."""
ACTIONS |= {"backward": ACTIONS["forward"], "recompute": ACTIONS["forward"]}


@dataclass(frozen=True, slots=True)
class Facts:
    """What findings are made from."""

    document: dict[str, Any]
    sources: Sources

    @property
    def where(self) -> str:
        """The run as an argument of a command."""
        return quoted_all(self.sources.paths)

    @property
    def where_told(self) -> str:
        """The same for a command that compares times of ranks."""
        return runs_as_told(self.sources.paths)


def findings(document: dict[str, Any], sources: Sources) -> list[dict[str, Any]]:
    """Returns at most `MOST` findings, the most severe first.

    Args:
        document: All other sections.
        sources: The run.
    """
    facts = Facts(document, sources)
    found = [one for look in (_dead, _hang, _missing, _mismatches, _late, _change, _step, _imbalance)
             for one in look(facts)]
    found += pipeline_bubble(document)
    if _has_steps(facts):
        found += [*data_loading(document, facts.where), *device_idle(document, facts.where)]
    if sources.is_recorded:
        found += watch_findings(sources.summary, facts.where)
    found += [*host_waits(document, facts.where), *compilations(document, facts.where), *bandwidth(document),
              *memory_imbalance(document, facts.where), *_topology(facts), *_mfu(facts), *uncounted(document),
              *_clock(facts), *_partial(facts)]
    if not any(one.severity in ("bad", "warn") for one in found) and _was_seen(facts):
        found.append(Finding(severity="good", section="step_parts",
                             text="Nothing in the recording looks wrong"))
    ordered = sorted(found, key=lambda one: WEIGHTS[one.severity])
    return [asdict(replace(one, text=full_sentence(one.text))) for one in ordered[:MOST]]


def _was_seen(facts: Facts) -> bool:
    """Returns whether the usual problems would have been seen."""
    blame = facts.document["blame"]
    return blame is not None and blame["blind"] is None and not facts.sources.run.problems and len(
        facts.sources.comms.steps) >= NEEDED


def _hang(facts: Facts) -> Iterator[Finding]:
    stuck = facts.document["hang"]
    if stuck is not None and stuck["lines"]:
        first, *more = stuck["lines"]
        absent = [rank for one in stuck["hangs"] for rank in one["absent"]]
        is_known = any(isinstance(one, RankFailed) for one in facts.sources.run.problems)
        yield Finding(severity="bad" if stuck["hangs"] or not is_known else "note", text=first,
                      detail="\n".join(more) or None, section="hang",
                      rank=absent[0] if len(absent) == 1 else None, next=f"distprof comms {facts.where_told}")


def _dead(facts: Facts) -> Iterator[Finding]:
    problems = facts.sources.run.problems
    lines = list(dead_lines(problems))
    if lines:
        first = next((one.rank for one in problems if isinstance(one, RankFailed | Unfinished)), None)
        yield Finding(severity="bad", rank=first, text=lines[0], detail="\n".join(lines[1:SHOWN]) or None,
                      section="missing")


def _missing(facts: Facts) -> Iterator[Finding]:
    for one in facts.sources.run.problems:
        if isinstance(one, RanksMissing):
            yield Finding(severity="bad", text=sentence(one), section="missing",
                           detail="Means and totals cover only the ranks that are present, and waiting for missing "
                                  "ranks counts as moving data.")
    for one in facts.sources.run.problems:
        if isinstance(one, TimelinesCapped):
            yield Finding(severity="warn", text=sentence(one), section="missing")
    damaged = [one for one in facts.sources.run.problems if isinstance(one, Unreadable)]
    for one in damaged[:SHOWN]:
        yield Finding(severity="bad", text=f"Damaged: {sentence(one)}", section="missing", rank=one.rank)
    if len(damaged) > SHOWN:
        yield Finding(severity="bad", text=f"{counted(len(damaged) - SHOWN, 'more file')} cannot be read",
                      section="missing")


def _mismatches(facts: Facts) -> Iterator[Finding]:
    lines = list(mismatch_lines(facts.sources.comms))
    if lines:
        yield Finding(severity="bad", text=lines[0], detail="\n".join(lines[1:SHOWN]) or None,
                      section="collectives", next=f"distprof comms {facts.where_told}")


def _look_at(facts: Facts, step: int) -> str:
    """Returns the flag that shows collectives of a step; a timeline of many ranks takes long."""
    return "--slowest 20" if not facts.sources.comms.has_rows else f"--timeline --step {step}"


def _late(facts: Facts) -> Iterator[Finding]:
    blame = facts.document["blame"]
    if blame is None:
        return
    certain = [one for one in blame["culprits"] if one["certain"]]
    has_timeline = any(rank.trace is not None for rank in facts.sources.run.ranks)
    for number, one in enumerate(certain[:SHOWN], 1):
        step = one["late_steps"][0]
        where = next((why["where"] for why in one["causes"][:1] if why["kind"] in OF_MODULES), None)
        yield Finding(severity="bad", text=one["sentence"], detail="\n".join(one["more"]), section="blame",
                      rank=one["rank"], step=step, module=where,
                      action=next((_action(why) for why in one["causes"][:1]), None),
                      view=f"distprof view --finding {number} {facts.where}" if has_timeline else None,
                      next=f"distprof comms {_look_at(facts, step)} {facts.where_told}")
    if not certain and blame["lines"] and facts.sources.run.world_size > 1:
        first, *more = blame["lines"]
        good = not blame["culprits"] and blame["blind"] is None and bool(facts.sources.comms.steps) and (
            not is_slow_later(watched_of(facts.sources.summary)))
        yield Finding(severity="good" if good else "note", text=first, detail="\n".join(more) or None,
                      section="blame")


def _action(cause: dict[str, Any]) -> str | None:
    """Returns what usually helps, unless the line of a module is known, which says more."""
    return None if cause["line"] is not None and cause["kind"] in OF_MODULES else ACTIONS.get(cause["kind"])


def _change(facts: Facts) -> Iterator[Finding]:
    """Yields changes of the step time after the recorded steps."""
    if facts.sources.is_recorded:
        for line in change_line(facts.sources.summary):
            yield Finding(severity="warn", text=line, section="step_parts")


def _step(facts: Facts) -> Iterator[Finding]:
    """Yields the step time and the share of exposed communication."""
    step, parts, split = (facts.document[name] for name in ("step", "step_parts", "communication"))
    words = []
    usual = facts.sources.comms.step_time
    if usual is not None:
        rate = "" if step["samples_per_second"] is None else f", {si(step['samples_per_second'])} samples/s"
        words.append(f"A step takes {step_time_words(usual)}{rate}")
    elif parts is not None and not _has_steps(facts):
        words.append(f"The traces mark no steps; they take {duration(parts['mean']['duration_ns'])}")
    exposed = None if split is None or facts.sources.run.world_size < 2 else (
        split["exposed_ratio"])
    if exposed is not None:
        of = "the device's step" if split["of_device"] else "it"
        words.append(f"{percent(exposed)} of {of} is exposed communication{_apart(facts, split)}")
    if words:
        yield Finding(severity="warn" if (exposed or 0) >= EXPOSED else "note", text="; ".join(words),
                      section="step_parts", next=f"distprof comms {facts.where_told}" if exposed else None)


def _apart(facts: Facts, split: dict[str, Any]) -> str:
    """Splits exposed communication into waiting and moving, if these can be distinguished."""
    if facts.document["missing_ranks"]:
        return "; how much of it is waiting for other ranks is unknown because ranks are missing"
    if not _is_matched(facts):
        return ""
    return f": {percent(split['waiting_ratio'])} waiting for other ranks, {percent(split['moving_ratio'])} moving data"


def _has_steps(facts: Facts) -> bool:
    """Returns whether steps are known; foreign traces mark them only if the script called the profiler's `step()`."""
    comms = facts.sources.comms
    return facts.sources.is_recorded or bool(comms.steps) or comms.step_time is not None


def _is_matched(facts: Facts) -> bool:
    """Returns whether waiting can be distinguished from moving: most collectives are known from all of their ranks."""
    counts = facts.sources.comms.coverage
    return 2 * counts.num_complete > counts.num_collectives


def _imbalance(facts: Facts) -> Iterator[Finding]:
    """Yields a rank that is slow in each timed step, if nothing else shows who is late."""
    one, blame = facts.sources.summary["slowest_rank"], facts.document["blame"]
    judged = blame is not None and blame["blind"] is None
    if one is None or judged or (one["ratio_to_median"] or 0) < IMBALANCE:
        return
    work = pl.col("fwd_ns") + pl.col("bwd_ns").fill_null(0)
    timed = facts.sources.tables.steps.filter(pl.col("pass") == "time").select(
        "rank", "step", ratio=work / work.median().over("step")).drop_nulls()
    mine = timed.filter(pl.col("rank") == one["rank"])["ratio"]
    if timed["rank"].n_unique() >= NEEDED and len(mine) >= NEEDED and (mine >= IMBALANCE).all():
        yield Finding(severity="note", section="step_parts", rank=one["rank"],
                      text=f"Rank {one['rank']} took {one['ratio_to_median']:.2f} x as long as the median rank for "
                           f"forward and backward, including waits for others, in each of {len(mine)} timed steps")


def _topology(facts: Facts) -> Iterator[Finding]:
    for one in facts.sources.run.problems:
        if isinstance(one, TopologyUncertain):
            yield Finding(severity="warn", text=sentence(one), section="topology",
                          next=f"distprof report --dp N {facts.where}")
            return
    if facts.document["topology"] is None:
        yield Finding(severity="note", section="topology",
                      text="How the model is split over the ranks is unknown: the traces do not say.")


def _mfu(facts: Facts) -> Iterator[Finding]:
    step = facts.document["step"]
    if step["mfu_basis"] is None or not facts.sources.is_recorded:
        return
    hint = "distprof doctor --peak" if step["mfu_basis"]["code"] in NO_MFU and (
        step["mfu_basis"]["code"] != "no_step") else None
    unknown = bool((facts.document["totals"] or {}).get("uncounted_ops"))
    yield Finding(severity="note", text=mfu(step, at_least=unknown), section="totals", next=hint)


def _clock(facts: Facts) -> Iterator[Finding]:
    """Yields doubts about clocks that are less accurate than the times they have to show."""
    counts, unsure_ns = facts.sources.comms.coverage, facts.sources.comms.clock.pair_uncertainty_ns()
    analysis = facts.sources.comms.analysis
    if analysis is not None and analysis.ends_apart_ns is not None:
        yield Finding(severity="note", section="clock",
                      text=full_sentence(left_together(analysis.ends_apart_ns)))
    elif unsure_ns and 2 * counts.num_unsure > counts.num_spreads:
        yield Finding(severity="warn", section="clock",
                      text=f"Clocks of two ranks agree within {duration(unsure_ns)}, and {counts.num_unsure} of "
                           f"{counts.num_spreads} arrival spreads are smaller than that, so their last rank is "
                           "unknown.")
    elif unsure_ns is None and counts.num_spreads:
        yield Finding(severity="warn", section="clock", text="The ranks' clocks were never compared: waits and late "
                                                             "ranks may only reflect clock offsets.")


def _partial(facts: Facts) -> Iterator[Finding]:
    for one in facts.sources.run.remarks:
        if isinstance(one, RecordedLightly):
            yield Finding(severity="note", text=sentence(one), section="missing")
    if ScriptInterrupted() in facts.sources.run.remarks:
        yield Finding(severity="note", text=sentence(ScriptInterrupted()), section="missing")
    found = [one for one in facts.sources.run.problems if isinstance(one, Unfinished) and one.status != "recording"]
    if found:
        more = f" (and {counted(len(found) - 1, 'more rank')})" if len(found) > 1 else ""
        yield Finding(severity="note", text=f"{sentence(found[0])}{more}", section="missing",
                      rank=found[0].rank if len(found) == 1 else None)
