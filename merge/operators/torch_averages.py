"""Averages of one rank's operators as torch.profiler's `key_averages` has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from distprof.merge.operators.device_times import launchers
from distprof.merge.operators.nesting import Nesting
from distprof.merge.operators.rank_timeline import ANNOTATION, NUM_HOST, RankTimeline
from distprof.merge.operators.shapes import tensors_and_scalars


def torch_averages(timeline: RankTimeline, *, by_shape: bool = False) -> pl.DataFrame:
    """Rows in the order in which their first call began.

    An operator whose only child has its name is one call, whatever the shapes.

    Returns:
        `name`, `shapes` (None without `by_shape`), `calls`, `self_host_ns`, `host_ns`, `self_device_ns`, `device_ns`,
        and `on_device`: True for kernels.
    """
    host = timeline.type < NUM_HOST
    nesting = Nesting(timeline.thread, timeline.start_ns, timeline.end_ns, held=host)
    same = _only_children(timeline, nesting)
    on_host = np.where(host, timeline.duration_ns, 0)
    launcher = launchers(timeline, nesting)
    known = launcher >= 0
    launched = np.bincount(launcher[known], timeline.duration_ns[known], len(host)).astype(np.int64)
    on_device = np.where(host, 0, timeline.duration_ns)
    shapes = [tensors_and_scalars(text) for text in timeline.texts] + ["[]"]
    keys = {text: number for number, text in enumerate(dict.fromkeys(shapes))}
    rows = pl.DataFrame({
        "name": timeline.name, "on_device": ~host, "annotation": timeline.type == ANNOTATION,
        "shapes": np.array([keys[text] for text in shapes])[timeline.shapes],
        "start": timeline.start_ns, "end": -timeline.end_ns,
        "self_host_ns": nesting.lifted(nesting.without_inner(on_host), same), "host_ns": on_host,
        "self_device_ns": nesting.lifted(launched, same) + on_device,
        "device_ns": nesting.with_inner(launched) + on_device,
    }).filter(pl.Series(~same)).sort("start", "end", maintain_order=True)
    by = ["name", "on_device", "annotation", *(["shapes"] if by_shape else [])]
    found = rows.group_by(by, maintain_order=True).agg(
        calls=pl.len(), **{column: pl.col(column).sum() for column in (
            "self_host_ns", "host_ns", "self_device_ns", "device_ns")})
    names, texts = pl.Series(timeline.names, dtype=pl.String), pl.Series(list(keys), dtype=pl.String)
    return found.with_columns(
        name=names.gather(found["name"]),
        shapes=texts.gather(found["shapes"]) if by_shape else pl.lit(None, pl.String)).drop("annotation")


def _only_children(timeline: RankTimeline, nesting: Nesting) -> Any:
    """True for slices with the name of the slice around them, in which no other lies."""
    inside = np.flatnonzero((nesting.parent >= 0) & (timeline.type <= ANNOTATION))
    number = np.bincount(nesting.parent[nesting.parent >= 0], minlength=len(nesting.parent))
    parent = nesting.parent[inside]
    found = np.zeros(len(nesting.parent), bool)
    found[inside[(timeline.name[inside] == timeline.name[parent]) & (number[parent] == 1)]] = True
    return found
