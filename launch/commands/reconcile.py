"""`distprof reconcile`: the difference between distprof's FLOPs and those of another counter."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from distprof.launch.options import COUNT_DEVICE, JSON, model_arguments
from distprof.needs import import_torch
from distprof.terminal import show


@click.command()
@model_arguments
@COUNT_DEVICE
@click.option("--peer", default="deepspeed", metavar="NAME", show_default=True,
              help="The other counter: deepspeed, fvcore or ptflops. It does not have to be installed.")
@JSON
def reconcile(model: str, *, shapes: Sequence[str], dtypes: Sequence[str], device: str, peer: str,
              as_json: bool) -> None:
    """Explain why another FLOP counter gets a different total.

    Lists every difference with its amount. MODULE:FACTORY is explained in `distprof count --help`.
    """
    import_torch("reconcile counts")
    from distprof.counting.count import count_with_unused
    from distprof.launch.model_factory import call_model
    from distprof.peers.reconcile import known_peer, reconcile_counts

    known_peer(peer)
    found = reconcile_counts(call_model(model, shapes, dtypes, device, count_with_unused), peer)
    show(json.dumps(found.to_dict(), indent=1) if as_json else str(found))
