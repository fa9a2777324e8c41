"""`distprof whatif`: what steps would take with something changed."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, JSON, RUNS, SAME_HOST, STRICT, given_sizes, mesh_sizes
from distprof.terminal import show


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
    from distprof.launch.limits import reuse_memory

    reuse_memory()
    from distprof.merge.commands.whatif import WhatIfView
    from distprof.merge.commands.whatif import whatif as whatif_of
    from distprof.merge.run.rank_folders import of_attempt
    from distprof.merge.whatif.changes import Changes, factor_of, scale_of

    changes = Changes(scales=tuple(map(scale_of, scales)), no_stragglers=no_stragglers,
                      free_communication=free_communication, defer_waits=defer_waits, no_overlap=no_overlap,
                      bandwidth=None if bandwidth is None else factor_of(bandwidth, "--bandwidth", least=0.001))
    view = WhatIfView(steps=steps, top=top, as_json=as_json)
    show(whatif_of(*of_attempt(runs, attempt), changes=changes, view=view, strict=strict, sizes=given_sizes(sizes)))
