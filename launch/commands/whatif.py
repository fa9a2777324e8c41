"""`distprof whatif`: what steps would take with something changed."""

from __future__ import annotations

from pathlib import Path

import click

from distprof.launch.options import ATTEMPT, JSON, RUNS, STRICT, given_sizes, mesh_sizes
from distprof.terminal import show


@click.command()
@RUNS
@click.option("--scale", "scales", multiple=True, metavar="WHAT:FACTOR",
              help="Work that takes FACTOR of its time, like 'rank=2,module=layers.1: 0.5'. WHAT is any of rank (2, "
                   "2-5 or all), module (a pattern; with all in it), phase, step (7 or 7-9) and op (a pattern).")
@click.option("--no-stragglers", is_flag=True,
              help="Pieces of work that are longer than those of the peers of their rank take as long as theirs.")
@click.option("--free-communication", is_flag=True, help="Collectives take no time; ranks still wait for each other.")
@click.option("--bandwidth", metavar="2x", help="Transfer, as far as it grows with bytes, is so many times as fast.")
@click.option("--defer-waits", is_flag=True, help="Ranks wait for a collective when they first use its tensors, by the "
                                                  "execution trace of the run.")
@click.option("--step", "steps", multiple=True, type=int, metavar="N", help="Change and predict only this step.")
@click.option("--top", default=None, type=click.IntRange(min=1), metavar="N",
              help="Ranks and steps that are listed.  [default: 20; all with --json]")
@mesh_sizes
@ATTEMPT
@JSON
@STRICT
def whatif(runs: tuple[Path, ...], *, scales: tuple[str, ...], no_stragglers: bool, free_communication: bool,
           bandwidth: str | None, defer_waits: bool, steps: tuple[int, ...], top: int | None, as_json: bool,
           strict: bool, attempt: int | None, **sizes: int | None) -> None:
    """Predict steps with something changed, by a replay.

    The job is replayed with less work, without stragglers, with faster communication, or with waits that come later:
    the step of the job and of each rank, beside what was measured and what a replay without any change gives. Changes
    can be combined. RUN is a run directory, or traces that torch.profiler wrote.
    """
    from distprof.launch.merge_memory import reuse_memory

    reuse_memory()
    from distprof.merge.commands.whatif import WhatIfView
    from distprof.merge.commands.whatif import whatif as whatif_of
    from distprof.merge.run.attempts import of_attempt
    from distprof.merge.whatif.changes import Changes, factor_of, scale_of

    changes = Changes(scales=tuple(map(scale_of, scales)), no_stragglers=no_stragglers,
                      free_communication=free_communication, defer_waits=defer_waits,
                      bandwidth=None if bandwidth is None else factor_of(bandwidth, "--bandwidth", least=0.001))
    view = WhatIfView(steps=steps, top=top, as_json=as_json)
    show(whatif_of(*of_attempt(runs, attempt), changes=changes, view=view, strict=strict, sizes=given_sizes(sizes)))
