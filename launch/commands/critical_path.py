"""`distprof critical-path`: the critical path of each step, across all ranks or through the device of one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from distprof.errors import DataError, UsageError
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
from distprof.units import numbered, spans

if TYPE_CHECKING:
    from distprof.merge.critical.replayable import Opened, Replayable


@click.command("critical-path")
@RUNS
@click.option("--step", "steps", multiple=True, type=int, metavar="N",
              help="Show only this step; repeat it for the mean of several. With --json, its chain is listed link by "
                   "link.  [default: all steps with a timeline]")
@click.option("--rank", "ranks", multiple=True, type=click.IntRange(min=0), metavar="N",
              help="Follow the path on this rank alone, through its device: launches, streams, synchronisations and "
                   "the host. Can be repeated.  [default: if there is one rank, or no rank waits for another]")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Rows of each table.  [default: 15; all with --json]")
@mesh_sizes
@SAME_HOST
@TIME_UNIT
@ATTEMPT
@JSON
@STRICT
def critical_path(runs: tuple[Path, ...], *, steps: tuple[int, ...], ranks: tuple[int, ...], top: int | None,
                  as_json: bool, strict: bool, attempt: int | None, **sizes: int | None) -> None:
    """Show the critical path of a step across all ranks.

    The critical path is the chain of work, collectives and queues that leads without a gap from the start of a step to
    its end. A step ends earlier only if something on this path gets shorter. The slack of a module is how much longer
    it could take without delaying any step. With a single GPU, the path leads through its streams, the launches of its
    kernels and what the host did before them. RUN is a run directory or traces from torch.profiler.
    """
    show(critical_path_text(*given_runs(runs, attempt), steps=steps, ranks=ranks, top=top, as_json=as_json,
                            strict=strict, sizes=given_sizes(sizes)))


def critical_path_text(*runs: Path, steps: Sequence[int] = (), ranks: Sequence[int] = (), top: int | None = None,
                       as_json: bool = False, strict: bool = False, sizes: Mapping[str, int] | None = None) -> str:
    """Returns what `distprof critical-path` prints about the steps of a run.

    Args:
        *runs: A run directory, or several of one job; or traces of other programs.
        steps: Steps to show; if empty, those with a timeline.
        ranks: Ranks whose paths are followed through their own devices; if empty, the path leads across ranks unless
            no rank waits for another.
        top: Rows of each table; None: 15 in text, all in JSON.
        as_json: Returns JSON; if `steps` are given, with every link.
        strict: Fails if data is missing.
        sizes: Axis of the device mesh -> size, instead of those recorded in the run.

    Raises:
        DataError: The run cannot be read; or its ranks cannot be joined in one graph, and no device has known
            launches.
        UsageError: There is no such step or rank.
        IncompleteError: Data is missing and `strict` is set.
    """
    from distprof.merge.critical.replayable import opened

    found = opened(*runs, sizes=sizes or {})
    if ranks or found.is_alone:
        text = _of_devices(found, runs, steps=steps, ranks=ranks, top=top, as_json=as_json, strict=strict)
        if text is not None:
            return text
    return _of_job(found.replayable(), runs, steps=steps, top=top, as_json=as_json, strict=strict)


def _of_devices(opened: Opened, runs: Sequence[Path], *, steps: Sequence[int], ranks: Sequence[int], top: int | None,
                as_json: bool, strict: bool) -> str | None:
    """Returns the critical paths through devices as text; None if there is none and `ranks` is empty."""
    from distprof.contract.problems import FirstStepLeftOut
    from distprof.merge.critical.device.run_paths import device_paths
    from distprof.merge.text.device_paths import DevicePathsShown, device_paths_data, render
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.merge.totals.description import problems_of
    from distprof.merge.totals.step_time import step_time
    from distprof.reporters.page import Page

    run, clock = opened.run, opened.clock
    for rank in ranks:
        if rank not in {one.number for one in run.ranks}:
            raise UsageError(f"no rank {rank}; --rank can be {spans(one.number for one in run.ranks)}")
    found = device_paths(run, clock, opened.program, ranks=ranks, wanted=steps)
    if found is None:
        if ranks:
            raise DataError(f"no device commands launched by {numbered('rank', sorted(set(ranks)))} in {run.path}",
                            hint="--rank follows a GPU; without it, the path leads across ranks")
        return None
    problems = problems_of(found.run, clock)
    fail_if_incomplete(problems, strict=strict)
    usual = step_time(opened.recorded)
    if as_json:
        return json.dumps(device_paths_data(found, top=top, with_chain=bool(steps), step_time=usual), indent=1)
    skipped = [FirstStepLeftOut(step=found.skipped)] if found.skipped is not None else []
    return render(DevicePathsShown(found=found, top=top, problems=problems, remarks=skipped, paths=runs,
                                   step_time=usual), Page())


def _of_job(found: Replayable, runs: Sequence[Path], *, steps: Sequence[int], top: int | None, as_json: bool,
            strict: bool) -> str:
    """Returns the critical path across all ranks as text."""
    from distprof.contract.problems import RecordedLightly
    from distprof.merge.critical.critical_path import critical_path
    from distprof.merge.critical.replayable import chosen_steps
    from distprof.merge.text.critical import CriticalShown, critical_data, render
    from distprof.merge.text.problems import fail_if_incomplete
    from distprof.merge.totals.description import problems_of
    from distprof.merge.totals.step_time import step_time
    from distprof.reporters.page import Page

    problems = problems_of(found.run, found.clock)
    fail_if_incomplete(problems, strict=strict)
    chain = critical_path(found.program, found.job, chosen_steps(found, steps))
    if as_json:
        return json.dumps(critical_data(found, chain, top=top, with_chain=bool(steps)), indent=1)
    lightly = [one for one in found.run.remarks if isinstance(one, RecordedLightly)]
    shown = CriticalShown(run=found.run, clock=found.clock, path=chain, rows=found.program.rows, top=top,
                          guessed=found.guessed, on_device=found.on_device,
                          remarks=(*lightly, *(found.program.remarks if not steps else ())),
                          problems=problems, paths=runs, step_time=step_time(found.recorded))
    return render(shown, Page())
