"""Shows `distprof whatif` on one screen, and makes its data for `--json`; docs/critical-path.md describes its keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from distprof.merge.blame.excess import MATERIAL
from distprof.merge.clock.choose import runs_as_told
from distprof.merge.critical.replayable import Opened, Replayable
from distprof.merge.run.run_model import Run
from distprof.merge.text.critical import DESCRIBED, ReplayedShown, doubts, first_line, last_lines
from distprof.merge.text.phrases import brief, work_name
from distprof.merge.totals.description import described
from distprof.merge.totals.step_time import step_time, step_time_data
from distprof.merge.whatif.changes import Changes
from distprof.merge.whatif.deferral import Deferral
from distprof.merge.whatif.prediction import Prediction
from distprof.reporters.page import Page
from distprof.units import counted, duration, percent, spans

TOP = 20
HALF = 0.5
LISTED = 5
"""Number of kinds of stragglers that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfShown(ReplayedShown):
    """What the screen shows."""

    changes: Changes
    prediction: Prediction
    untraced: bool
    """True if steps without a timeline were left out."""
    through_device: bool = False
    """True if commands of a device were replayed."""


def render(shown: WhatIfShown, page: Page) -> str:
    """Returns the screen as text."""
    found = shown.prediction
    left_out = "; steps without a timeline are excluded" if shown.untraced else ""
    page.line(first_line(shown, found.steps) + left_out)
    for line in _changed(shown):
        page.line(line)
    page.line()
    _table(shown, page)
    for line in _verdict(found, _scale(shown)):
        page.line(line)
    kept = ", which is not fixed" if shown.changes.no_stragglers else ""
    for line in doubts(shown, so=kept):
        page.line(line)
    last_lines(shown, page)
    page.line(f"Next: distprof critical-path {runs_as_told(shown.paths)}")
    return page.text()


def _changed(shown: WhatIfShown) -> Iterator[str]:
    changes, found = shown.changes, shown.prediction
    for scale, by_rank in zip(changes.scales, found.scaled_ns, strict=True):
        number = len(found.steps)
        each = ", ".join(f"rank {rank} {brief(ns / number)}" for rank, ns in list(by_rank.items())[:LISTED])
        more = f" and {len(by_rank) - LISTED} more" if len(by_rank) > LISTED else ""
        yield f"what if {scale.text}: affected work per step: {each}{more}"
    if changes.no_stragglers:
        yield from _stragglers(found, shown.run)
    if changes.free_communication:
        yield ("what if kernels that communicate took no time, with what they wait for other ranks"
               if shown.through_device else "what if collectives took no time (ranks still wait for each other)")
    if changes.no_overlap:
        yield "what if ranks waited for each collective as soon as they had called it"
    if found.deferral is not None:
        yield from _deferred(found, found.deferral)
    for one in found.bandwidths:
        part = (f"{percent(one.ratio)} of its transfer grows with its bytes" if one.ratio is not None else
                "its calls are too similar in size to tell what grows with bytes, so all of it counts")
        yield f"what if bandwidth were {changes.bandwidth:g}x: {one.op} of {one.num_ranks} ranks: {part}"


def _deferred(found: Prediction, deferral: Deferral) -> Iterator[str]:
    """Yields which waits come later, and by how much."""
    moved, steps = deferral.moved, len(found.steps)
    of_all = f"of {deferral.num_waits / steps:.3g} waits per step"
    if moved.is_empty():
        yield f"what if ranks waited only at the first use of the result: none {of_all} can move later"
    else:
        yield (f"what if ranks waited only at the first use of the result: {len(moved) / steps:.3g} {of_all} move "
               "later. Work that then overlaps with communication is assumed to take as long as before")
    kinds = moved.group_by("rank", "collective_op", "until").agg(
        pl.len().alias("number"), pl.col("later_ns").mean()).sort(
        pl.col("later_ns") * pl.col("number"), "rank", "collective_op", "until", descending=[True, False, False, False])
    for row in kinds.head(LISTED).iter_rows(named=True):
        until = row["until"] or "the end of the step (not used before)"
        yield (f"  rank {row['rank']}: {row['collective_op']}, {row['number'] / steps:.3g} per step: until {until}, "
               f"{brief(row['later_ns'])} of work later")
    if len(kinds) > LISTED:
        yield f"  and {len(kinds) - LISTED} more; --json lists all"
    if deferral.num_unknown:
        yield (f"who first uses the result is unknown for {deferral.num_unknown / steps:.3g} waits per step: these are "
               "unchanged")
    if deferral.kept:
        yield (f"waits of rank {spans(deferral.kept)} are unchanged: no execution trace, no timeline, or they wait on "
               "the device")
    if deferral.unlike:
        yield (f"in {counted(len(deferral.unlike), 'step')}, a rank ran other operators or collectives than in its "
               "execution trace: these waits are unchanged")


def _stragglers(found: Prediction, run: Run) -> Iterator[str]:
    if found.work.is_empty():
        yield "what if no rank were a straggler: no work stands out from that of its peers"
    else:
        yield from _fixed(found, run)
    if found.shifting_ns >= MATERIAL * found.measured_ns and found.left_ns < HALF * found.shifting_ns:
        yield (f"not fixed: lateness that shifts from rank to rank; in each step, the slowest rank still works "
               f"{brief(found.shifting_ns)} longer than its peers (mean over steps)")


def _fixed(found: Prediction, run: Run) -> Iterator[str]:
    steps = len(found.steps)
    unknown = "work that no module marks" if run.kind == "traces" else "work in steps without a timeline"
    less = float(found.work["less_ns"].to_numpy().sum())
    yield (f"what if no rank were a straggler: {brief(less / steps)} less work per step on "
           f"{counted(found.work['rank'].n_unique(), 'rank')}")
    for row in found.work.head(LISTED).iter_rows(named=True):
        what = unknown if row["phase"] == "unknown" else work_name(row["phase"], row["module_path"])
        each = "1 step" if row["steps"] == 1 else f"each of {row['steps']} steps"
        yield f"  rank {row['rank']}: {what}: {brief(row['less_ns'] / row['steps'])} less in {each}"
    if len(found.work) > LISTED:
        yield f"  and {len(found.work) - LISTED} more; --json lists all"


def _table(shown: WhatIfShown, page: Page) -> None:
    found, rows = shown.prediction, shown.top or TOP
    names = ("measured_ns", "replayed_ns", "predicted_ns")
    of_ranks = found.of_ranks.with_columns(pl.col(names) * _scale(shown))
    ranks = of_ranks.group_by("rank", maintain_order=True).agg(pl.col(names).mean()).sort("rank")
    lines = [_row("job", *(float(of_ranks[name].to_numpy().mean()) for name in names))]
    lines += [_row(f"rank {rank}", *times) for rank, *times in ranks.head(rows).iter_rows()]
    first = "measured" if shown.step_time is None else "step time"
    page.table(("", first, "replayed", "predicted", "change", ""), lines)
    _more("rank", len(ranks), rows, page)
    page.line()
    page.table(("as recorded", "measured", "replayed", "predicted", "change", ""), [
        _row(f"step {step}", *times) for step, *times in found.of_steps.head(rows).iter_rows()])
    _more("step", len(found.of_steps), rows, page)
    page.line("job and steps: mean over ranks; replayed: without changes" + (
        "; steps are those of the device, through its launches" if shown.through_device else ""))
    page.line()


def _scale(shown: WhatIfShown) -> float:
    """Returns the factor that turns means of the replayed steps into parts of the step time."""
    return 1.0 if shown.step_time is None else shown.step_time.scale(shown.prediction.measured_ns)


def _more(what: str, number: int, shown: int, page: Page) -> None:
    if number > shown:
        page.line(f"{counted(number - shown, f'more {what}')}: --top {number} shows all")


def _row(what: str, measured: float, replayed: float, predicted: float) -> tuple[str, ...]:
    change = predicted - replayed
    return (what, duration(measured), duration(replayed), duration(predicted),
            f"{'+' if change > 0 else ''}{duration(change)}", percent(change / replayed) if replayed else "-")


def _verdict(found: Prediction, scale: float = 1.0) -> Iterator[str]:
    """Yields what the prediction says, and what it cannot say.

    Args:
        found: The prediction, as measured.
        scale: Factor that turns it into parts of the step time.
    """
    mean = found.measured_ns
    yield (f"replay without changes: on average {brief(found.replay_error_ns)} "
           f"({percent(found.replay_error_ns / mean)}) off the measured step of a rank, at most "
           f"{brief(found.largest_replay_error_ns)}; that checks the graph, not the prediction")
    gain, error = found.gain_ns, found.gain_error_ns
    if abs(gain) <= found.replay_error_ns:
        yield (f"the change ({brief(abs(gain))}) is no larger than that, so whether steps would be shorter is unknown"
               if gain else "nothing changes: no step depends on that work")
        return
    way = "less" if gain > 0 else "more"
    yield (f"a step would take {brief(scale * abs(gain))} (± {brief(scale * error)}) {way}: "
           f"{brief(scale * (mean - gain))} instead of {brief(scale * mean)}")
    scatter, number = found.scatter_ns, len(found.steps)
    if scatter is not None and abs(gain) < 2 * scatter / number ** 0.5:
        yield (f"that is within the uncertainty of the mean of {counted(number, 'step')}, which scatter by "
               f"{brief(scatter)}: a real run with the change may not show it")
    if found.at_best_ns is not None:
        yield f"if all transfer time grew with bytes: {brief(scale * found.at_best_ns)}"


def whatif_data(found: Opened | Replayable, changes: Changes, prediction: Prediction) -> dict[str, Any]:
    """Returns all that is known about the steps that a change would bring.

    Args:
        found: The run.
        changes: What is changed.
        prediction: Steps with and without the changes.
    """
    about, frame = described(found.run, found.clock), prediction.of_ranks
    of_rank: dict[int, list[dict[str, Any]]] = {}
    for row in frame.iter_rows(named=True):
        of_rank.setdefault(row.pop("step"), []).append(row)
    names = ("measured_ns", "replayed_ns", "predicted_ns")
    return {
        **{key: about[key] for key in DESCRIBED}, "kind": "whatif", "changes": asdict(changes),
        "step_time": step_time_data(step_time(found.recorded)), "gain_ratio": prediction.gain_ratio,
        "pair_uncertainty_ns": found.clock.pair_uncertainty_ns(), "ranks_with_guessed_waits": found.guessed,
        "job": {name: frame[name].mean() for name in names},
        "by_rank": frame.group_by("rank", maintain_order=True).agg(pl.col(names).mean()).sort("rank").to_dicts(),
        "steps": [{**row, "by_rank": of_rank[row["step"]]} for row in prediction.of_steps.iter_rows(named=True)],
        "gain_ns": prediction.gain_ns, "gain_error_ns": prediction.gain_error_ns,
        "shifting_ns": prediction.shifting_ns,
        "replay_error_ns": prediction.replay_error_ns,
        "largest_replay_error_ns": prediction.largest_replay_error_ns, "scatter_ns": prediction.scatter_ns,
        "fixed": prediction.work.rename({"module_path": "module"}).to_dicts(),
        "scaled": [{"scale": scale.text, "by_rank": [{"rank": rank, "time_ns": ns} for rank, ns in each.items()]}
                   for scale, each in zip(changes.scales, prediction.scaled_ns, strict=True)],
        "deferred": None if prediction.deferral is None else prediction.deferral.moved.to_dicts(),
        "waits_without_known_use": None if prediction.deferral is None else prediction.deferral.num_unknown,
        "bandwidth": [asdict(one) for one in prediction.bandwidths], "at_best_ns": prediction.at_best_ns}
