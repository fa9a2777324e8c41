"""Makes the text of `distprof whatif`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from distprof.errors import UsageError
from distprof.merge.commands.incomplete import fail_if_incomplete
from distprof.merge.critical.replayable import Replayable, chosen_steps, open_replayable
from distprof.merge.execution.dependencies.first_uses import uses_of
from distprof.merge.run.open_run import NO_SIZES
from distprof.merge.text.whatif import WhatIfShown, render
from distprof.merge.totals.description import described, problems_of
from distprof.merge.totals.step_time import step_time, step_time_data
from distprof.merge.whatif.changes import Changes
from distprof.merge.whatif.prediction import Prediction, predict
from distprof.reporters.page import Page

DESCRIBED = ("format", "run_id", "world_size", "ranks", "missing_ranks", "problems", "remarks", "clock")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfView:
    """What is shown, and how."""

    steps: Sequence[int] = ()
    """Those that are changed and predicted; all that can be without."""
    top: int | None = None
    """Steps that are listed; 20 in text without."""
    as_json: bool = False


def whatif(path: Path, *more: Path, changes: Changes, view: WhatIfView, strict: bool = False,
           sizes: Mapping[str, int] = NO_SIZES) -> str:
    """What the steps of a run would have taken with changes, as text.

    Args:
        path: A run directory, or traces of other programs.
        *more: Further run directories of the same job.
        changes: What is changed.
        view: Of which steps, and how.
        strict: Fail where something is missing.
        sizes: Axis of the device mesh -> size, in place of what the run says.

    Raises:
        DataError: The run cannot be read, its ranks cannot be put into one graph, or sizes or who uses what are not
            known.
        UsageError: What is to be changed, or a step, is not there; or nothing is to be changed, or one thing twice.
        IncompleteError: Something is missing and `strict` is set.
    """
    if changes == Changes():
        raise UsageError("nothing to change",
                         hint="--scale 'module=layers.1: 0.5', --no-stragglers, --free-communication, --bandwidth 2x, "
                              "--defer-waits or --no-overlap")
    if changes.defer_waits and changes.no_overlap:
        raise UsageError("--defer-waits and --no-overlap cannot be combined",
                         hint="a rank waits either as late as it can or at once")
    if changes.free_communication and changes.bandwidth is not None:
        raise UsageError("--free-communication and --bandwidth cannot be combined",
                         hint="communication that takes no time has no bandwidth")
    found = open_replayable(path, *more, sizes=sizes)
    problems = problems_of(found.run, found.clock)
    fail_if_incomplete(problems, strict=strict)
    coordinates = {rank.number: rank.coordinates for rank in found.run.ranks if rank.coordinates is not None}
    prediction = predict(found.program, found.job, changes, _steps(found, changes, view.steps), coordinates=coordinates,
                         clock_ns=found.clock.pair_uncertainty_ns() or 0,
                         uses=uses_of(found.run) if changes.defer_waits else {})
    if view.as_json:
        return json.dumps(_data(found, changes, prediction), indent=1)
    return render(WhatIfShown(run=found.run, clock=found.clock, changes=changes, prediction=prediction, top=view.top,
                              guessed=found.guessed, on_device=found.on_device, problems=problems, paths=(path, *more),
                              step_time=None if view.steps else step_time(found.recorded),
                              untraced=changes.needs_timeline and not view.steps and bool(found.program.arrivals)),
                  Page())


def _steps(found: Replayable, changes: Changes, wanted: Sequence[int]) -> list[int]:
    """Steps that are predicted: without a timeline nothing shows which module ran."""
    if wanted:
        return chosen_steps(found, wanted)
    there = set(found.steps)
    traced, replayable = ([step for step in steps if step in there] for steps in (found.program.traced,
                                                                                 found.program.replayable))
    return sorted(traced if changes.needs_timeline and traced else replayable) or found.steps


def _data(found: Replayable, changes: Changes, prediction: Prediction) -> dict[str, Any]:
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
        "replay_error_ns": prediction.replay_error_ns,
        "largest_replay_error_ns": prediction.largest_replay_error_ns, "scatter_ns": prediction.scatter_ns,
        "fixed": prediction.work.rename({"module_path": "module"}).to_dicts(),
        "scaled": [{"scale": scale.text, "by_rank": [{"rank": rank, "time_ns": ns} for rank, ns in each.items()]}
                   for scale, each in zip(changes.scales, prediction.scaled_ns, strict=True)],
        "deferred": None if prediction.deferral is None else prediction.deferral.moved.to_dicts(),
        "waits_without_known_use": None if prediction.deferral is None else prediction.deferral.num_unknown,
        "bandwidth": [asdict(one) for one in prediction.bandwidths], "at_best_ns": prediction.at_best_ns}
