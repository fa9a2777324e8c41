"""`distprof whatif`: predicts step times after a change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distprof.errors import UsageError
from distprof.launch.options import (
    ATTEMPT,
    JSON,
    RUNS,
    SAME_HOST,
    STRICT,
    TIME_UNIT,
    given_runs,
    given_sizes,
    mesh_sizes,
)
from distprof.terminal import show

if TYPE_CHECKING:
    from distprof.merge.critical.replayable import Opened, Replayable
    from distprof.merge.whatif.changes import Changes
    from distprof.merge.whatif.prediction import Prediction


@click.command()
@RUNS
@click.option("--scale", "scales", multiple=True, metavar="WHAT:FACTOR",
              help="Multiply the time of some work by FACTOR, like 'rank=2,module=layers.1: 0.5'. WHAT combines rank "
                   "(2, 2-5 or all), module (a pattern; includes submodules), phase, step (7 or 7-9) and op (a "
                   "pattern).")
@click.option("--no-stragglers", is_flag=True,
              help="Work that takes longer than on peer ranks takes only as long as there.")
@click.option("--free-communication", is_flag=True, help="Collectives take no time; ranks still wait for each other.")
@click.option("--bandwidth", metavar="2x", help="Speed up transfers by this factor, for the part of their time that "
                                                "grows with bytes.")
@click.option("--defer-waits", is_flag=True, help="Ranks wait for a collective only when they first use its tensors, "
                                                  "according to the execution trace of the run.")
@click.option("--no-overlap", is_flag=True, help="Ranks wait for each collective as soon as they have called it: what "
                                                 "overlapping it with work gains.")
@click.option("--step", "steps", multiple=True, type=int, metavar="N", help="Change and predict only this step.")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Number of ranks and steps listed.  [default: 20; all with --json]")
@mesh_sizes
@SAME_HOST
@TIME_UNIT
@ATTEMPT
@JSON
@STRICT
def whatif(runs: tuple[Path, ...], *, scales: tuple[str, ...], no_stragglers: bool, free_communication: bool,
           bandwidth: str | None, defer_waits: bool, no_overlap: bool, steps: tuple[int, ...], top: int | None,
           as_json: bool, strict: bool, attempt: int | None, **sizes: int | None) -> None:
    """Predict step times after a change, by replaying the run.

    The replay can have less work, no stragglers, faster communication, and later or earlier waits. It shows the
    predicted step of the job and of each rank next to the measured step and a replay without changes. Changes can be
    combined. RUN is a run directory or traces from torch.profiler.
    """
    runs = given_runs(runs, attempt)
    from distprof.merge.whatif.changes import Changes, factor_of, scale_of

    changes = Changes(scales=tuple(map(scale_of, scales)), no_stragglers=no_stragglers,
                      free_communication=free_communication, defer_waits=defer_waits, no_overlap=no_overlap,
                      bandwidth=None if bandwidth is None else factor_of(bandwidth, "--bandwidth", least=0.001))
    if changes == Changes():
        raise UsageError("nothing to change",
                         hint="--scale 'module=layers.1: 0.5', --no-stragglers, --free-communication, --bandwidth 2x, "
                              "--defer-waits or --no-overlap")
    _fail_if_contradicting(changes)
    show(_predicted(runs, changes, steps=steps, top=top, as_json=as_json, strict=strict, sizes=given_sizes(sizes)))


def _fail_if_contradicting(changes: Changes) -> None:
    if changes.defer_waits and changes.no_overlap:
        raise UsageError("--defer-waits and --no-overlap cannot be combined",
                         hint="a rank waits either as late as it can or at once")
    if changes.free_communication and changes.bandwidth is not None:
        raise UsageError("--free-communication and --bandwidth cannot be combined",
                         hint="communication that takes no time has no bandwidth")


def _predicted(runs: Sequence[Path], changes: Changes, *, steps: Sequence[int], top: int | None, as_json: bool,
               strict: bool, sizes: Mapping[str, int]) -> str:
    """Returns the predicted step times of a run as text or JSON.

    Raises:
        DataError: The run cannot be read, its ranks cannot be joined in one graph, or the sizes of collectives or the
            uses of their results, which a change needs, are unknown.
        UsageError: The object of a change, or a step, does not exist.
        IncompleteError: Data is missing and `strict` is set.
    """
    from distprof.merge.critical.replayable import chosen_steps, opened
    from distprof.merge.execution.dependencies.first_uses import uses_of
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.merge.text.whatif import WhatIfShown, render, whatif_data
    from distprof.merge.totals.description import problems_of
    from distprof.merge.totals.step_time import step_time
    from distprof.merge.whatif.prediction import predict
    from distprof.reporters.page import Page

    read = opened(*runs, sizes=sizes)
    prediction = _on_device(read, changes, steps)
    found: Opened | Replayable = read
    if prediction is None:
        whole = read.replayable()
        prediction, found = predict(
            whole.program, whole.job, changes, chosen_steps(whole, steps) if steps else _all_steps(whole, changes),
            coordinates={rank.number: rank.coordinates for rank in whole.run.ranks if rank.coordinates is not None},
            clock_ns=whole.clock.pair_uncertainty_ns() or 0,
            uses=uses_of(whole.run) if changes.defer_waits else {}), whole
    problems, usual = problems_of(found.run, found.clock), None if steps else step_time(found.recorded)
    fail_if_incomplete(problems, strict=strict)
    if found is read and usual is not None and not usual.is_light:
        usual = None  # device steps under the profiler are not comparable with host steps under it
    if as_json:
        return json.dumps(whatif_data(found, changes, prediction), indent=1)
    return render(WhatIfShown(run=found.run, clock=found.clock, changes=changes, prediction=prediction, top=top,
                              guessed=found.guessed, on_device=found.on_device, problems=problems, paths=runs,
                              step_time=usual, through_device=found is read,
                              untraced=changes.needs_timeline and not steps and bool(found.program.arrivals)), Page())


def _on_device(read: Opened, changes: Changes, steps: Sequence[int]) -> Prediction | None:
    """Returns the prediction of a replay of devices; None if ranks wait for each other or it predicts nothing."""
    from distprof.merge.whatif.on_device import predict_on_devices

    if not read.is_alone or changes.needs_ranks:
        return None
    return predict_on_devices(read.program, changes, steps)


def _all_steps(found: Replayable, changes: Changes) -> list[int]:
    """Returns the steps that can be predicted: only those with a timeline if a change needs to know the modules."""
    there = set(found.steps)
    traced, replayable = ([step for step in steps if step in there] for steps in (found.program.traced,
                                                                                 found.program.replayable))
    return sorted(traced if changes.needs_timeline and traced else replayable) or found.steps
