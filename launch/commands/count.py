"""`distprof count`: FLOPs, MACs, bytes and parameters of a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from distprof.launch.options import COUNT_DEVICE, JSON, model_arguments, module_tree
from distprof.needs import import_torch
from distprof.terminal import show


@click.command()
@model_arguments
@COUNT_DEVICE
@click.option("--backward", is_flag=True, help="Count the backward pass too.")
@module_tree("path", "params", "macs", "flops")
@JSON
def count(model: str, *, shapes: Sequence[str], dtypes: Sequence[str], device: str, backward: bool, depth: int,
          top: int | None, sort: str, as_json: bool) -> None:
    """Count FLOPs, MACs, bytes and parameters of one model call.

    MODULE:FACTORY is a class or function callable without arguments, such as torchvision.models:resnet50 or
    path/to/file.py:build. It returns a model, (model, inputs) or (model, args, kwargs). inputs is a tensor, a tuple of
    positional arguments or a dict of keyword arguments; args is a tensor or a tuple; kwargs is a dict.
    """
    import_torch("count")
    from distprof.counting.count import count as count_call
    from distprof.launch.model_factory import call_model, tree_text

    counts = call_model(model, shapes, dtypes, device, partial(count_call, backward=backward))
    show(tree_text(counts, depth=depth, top=top, sort=sort, as_json=as_json))
