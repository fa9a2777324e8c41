"""`distprof profile`: counts of a model and the latency of every module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from distprof.launch.options import JSON, model_arguments, module_tree
from distprof.needs import import_torch
from distprof.reporters.tree import SORTS
from distprof.terminal import show


@click.command()
@model_arguments
@click.option("--device", default="cpu", type=click.Choice(["cpu", "cuda"]), show_default=True,
              help="Device on which the model is built and called.")
@click.option("--backward", is_flag=True, help="Count and time the backward pass too.")
@click.option("--warmup", default=3, type=click.IntRange(min=0), metavar="N", show_default=True,
              help="Number of calls before the timed ones.")
@click.option("--runs", default=10, type=click.IntRange(min=1), metavar="N", show_default=True,
              help="Number of timed calls.")
@click.option("--peak", "measured_peak", is_flag=True,
              help="Measure the peak rate of the device for MFU instead of looking it up; takes a few seconds.")
@module_tree(*SORTS)
@JSON
def profile(model: str, *, shapes: Sequence[str], dtypes: Sequence[str], device: str, backward: bool, depth: int,
            top: int | None, sort: str, warmup: int, runs: int, measured_peak: bool, as_json: bool) -> None:
    """Count one model call and measure the latency of every module.

    MODULE:FACTORY is explained in `distprof count --help`.
    """
    import_torch("measure a model")
    from distprof.launch.model_factory import call_model, tree_text
    from distprof.profiling.profile import profile as profile_call

    found = call_model(model, shapes, dtypes, device, partial(
        profile_call, backward=backward, warmup=warmup, runs=runs, peak="measured" if measured_peak else "published"))
    show(tree_text(found, depth=depth, top=top, sort=sort, as_json=as_json))
