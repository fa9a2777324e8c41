"""Draws critical paths: slices on a thread of each rank or device, and arrows where a path changes ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from distprof.merge.chrome.drawing.collectives import DrawOptions
from distprof.merge.chrome.drawing.drawn import ArrowEnd, DrawnCollective, DrawnSlice

THREAD = "critical path"
KINDS = {"unshown": "not shown"}
"""Kind of link without a name -> its name."""


class _Piece(NamedTuple):
    """An uninterrupted piece of a path on one rank."""

    chain: int
    step: int
    rank: int
    thread: str
    name: str
    start_ns: int
    end_ns: int


def links_of_ranks(links: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns the links of paths over ranks, with names.

    Args:
        links: Links of a `CriticalPath`, on the common clock.
        rows: `MERGED_COLLECTIVES`.
    """
    calls = rows.unique("collective", keep="first").select(
        "collective", called=pl.concat_str(pl.col("op").cast(pl.String), pl.format(" #{}", "sequence"),
                                           ignore_nulls=True))
    what = pl.when(pl.col("kind") == "work").then(_work()).otherwise(
        pl.concat_str("called", "kind", separator=" ", ignore_nulls=True))
    return links.join(calls, on="collective", how="left", maintain_order="left").select(
        pl.lit(0).alias("chain"), "step", "rank", pl.lit(THREAD).alias("thread"), what.alias("name"), "start_ns",
        "end_ns")


def links_of_devices(links: pl.DataFrame) -> pl.DataFrame:
    """Returns the links of paths through devices, with names; if a rank has several devices, each has a thread.

    Args:
        links: Links of a `DevicePath`.
    """
    several = pl.col("device").n_unique().over("rank") > 1
    thread = pl.when(several).then(pl.format(f"{THREAD}, device {{}}", "device")).otherwise(pl.lit(THREAD))
    command = pl.col("kind").is_in(["kernels", "communication", "copies"])
    what = pl.when(pl.col("kind") == "host").then(pl.concat_str(pl.lit("host:"), _work(), separator=" ")).when(
        command).then("op").otherwise(pl.col("kind").replace(KINDS))
    return links.sort("rank", "device", "start_ns").select(
        pl.struct("rank", "device").rank("dense").alias("chain"), "step", "rank", thread.alias("thread"),
        what.alias("name"), "start_ns", "end_ns")


def _work() -> pl.Expr:
    where = pl.when(pl.col("module_path") == "").then(pl.lit("model")).otherwise("module_path")
    phase = pl.when(where.is_null() | ~pl.col("phase").is_in(["host", "annotation"])).then("phase")  # the name says it
    return pl.concat_str(where, phase, separator=" ", ignore_nulls=True)


def draw_chains(links: pl.DataFrame, wanted: Mapping[int, DrawOptions], origin_ns: int,
                first_number: int) -> dict[int, list[DrawnCollective]]:
    """Draws critical paths.

    Args:
        links: Result of `links_of_ranks` or `links_of_devices`.
        wanted: Rank -> options; other ranks are not drawn.
        origin_ns: The time that becomes 0; no arrow starts before it.
        first_number: Number of the first arrow.

    Returns:
        Rank -> what is drawn.
    """
    pieces = _pieces(links)
    shown = [piece.rank in wanted and _is_wanted(piece, wanted[piece.rank]) for piece in pieces]
    arrows: dict[int, list[ArrowEnd]] = defaultdict(list)
    for place in range(1, len(pieces)):
        before, after = pieces[place - 1:place + 1]
        # viewers find the slices by time: both ends must lie within one, and the arrow must not point back in time
        starts = max(min(before.end_ns, after.end_ns - 1) - 1, before.start_ns)
        ends = max(after.start_ns, starts + 1)
        if (before.rank != after.rank and before[:2] == after[:2] and shown[place - 1] and shown[place]
                and origin_ns <= starts < before.end_ns and ends < after.end_ns):
            arrows[place - 1].append(ArrowEnd("s", first_number + place, starts, THREAD))
            arrows[place].append(ArrowEnd("f", first_number + place, ends, THREAD))
    found: dict[int, list[DrawnCollective]] = defaultdict(list)
    for place, piece in enumerate(pieces):
        if shown[place]:
            found[piece.rank].append(DrawnCollective(
                thread=piece.thread, slice=DrawnSlice(piece.name, piece.start_ns, piece.end_ns),
                args={"step": piece.step}, parts=(), arrows=tuple(arrows[place])))
    return found


def _pieces(links: pl.DataFrame) -> Sequence[_Piece]:
    """Returns links, joined if contiguous; a step starts no earlier than the previous one ended."""
    found, ended = list[_Piece](), 0
    for one in map(_Piece._make, links.iter_rows()):
        last = found[-1] if found else None
        if last is not None and last.chain != one.chain:
            ended = 0
        elif last is not None and last.step != one.step:
            ended = last.end_ns
        one = one._replace(start_ns=max(one.start_ns, ended))
        if one.end_ns <= one.start_ns:
            continue
        if last is not None and last[:5] == one[:5] and last.end_ns == one.start_ns:
            found[-1] = last._replace(end_ns=one.end_ns)
        else:
            found.append(one)
    return found


def _is_wanted(piece: _Piece, wanted: DrawOptions) -> bool:
    if piece.end_ns - piece.start_ns < wanted.min_duration_ns:
        return False
    return wanted.windows_ns is None or bool(wanted.windows_ns.meets(piece.start_ns, piece.end_ns))
