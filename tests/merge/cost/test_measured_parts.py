"""Collectives that are matched, measured and drawn part by part are those that are all looked at together."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from distprof.merge.chrome.drawing import collectives as drawing
from distprof.merge.chrome.drawing.collectives import DrawOptions, draw_collectives
from distprof.merge.clock.by_collectives import check_clock, synchronising
from distprof.merge.clock.model import Clock
from distprof.merge.cost.measured_parts import CollectivePieces, measured_parts
from distprof.merge.cost.measures import measured_collectives
from distprof.merge.match.matched_run import RowParts
from distprof.merge.match.matching import match
from distprof.merge.match.mismatches import num_mismatches
from support.comm_rows import SCHEMA, call, frame, numbered
from support.drawn_rows import clock_of

MS = 1_000_000
GROUPS = ("world", "pair", "even")


def members(group: str, rank: int, world: int) -> tuple[int, ...]:
    if group == "world":
        return tuple(range(world))
    if group == "pair":
        return tuple(other for other in (rank // 2 * 2, rank // 2 * 2 + 1) if other < world)
    return tuple(range(rank % 2, world, 2))


@st.composite
def jobs(draw) -> tuple[int, list[dict[str, Any]]]:
    """Ranks that call collectives of three kinds of groups, and send to the next; some rows, some ranks are lost."""
    world = draw(st.integers(1, 6))
    program = draw(st.lists(st.tuples(
        st.sampled_from([*GROUPS, "ring"]), st.sampled_from(["all_reduce", "all_gather", "broadcast"]),
        st.sampled_from([16, 64]), st.lists(st.integers(0, 9), min_size=6, max_size=6), st.integers(1, 5)),
        max_size=14))
    how = draw(st.sampled_from(["numbers", "shifted", "no numbers", "uneven sizes"]))
    found = []
    for rank in range(world):
        calls, now = list[dict[str, Any]](), 0
        for place, (kind, op, size, work, took) in enumerate(program):
            now += work[rank] * MS
            times = {"enqueue_ns": now, "start_ns": now, "end_ns": now + took * MS, "step": place // 4}
            if kind == "ring":
                pair = {"group": "world", "of": tuple(range(world)), **times}
                calls += [call(rank, "send", peer=(rank + 1) % world, **pair),
                          call(rank, "recv", peer=(rank - 1) % world, **pair)]
            else:
                own = size + 4 * rank if how == "uneven sizes" else size
                calls.append(call(rank, op, of=members(kind, rank, world), group=kind, size_bytes=own,
                                  num_elements=own // 4, **times))
            now += took * MS
        mine = numbered(*calls, first=100 * rank if how == "shifted" else 0)
        if how == "no numbers":
            mine = [{**one, "sequence": None, "group_sequence": None} for one in mine]
        lost = draw(st.sets(st.integers(0, 14), max_size=2)) if draw(st.booleans()) else ()
        found += [one for place, one in enumerate(mine) if place not in lost]
    return world, found


def by_rank(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    found = defaultdict(list)
    for row in rows:
        found[row["rank"]].append(row)
    return found


def in_parts(world: int, rows: Sequence[Mapping[str, Any]], clock: Clock, hosts: dict[int, str], folder: Path,
             held: int, at_once: int) -> tuple[CollectivePieces, Any, int]:
    parts, mine = RowParts(len(rows), world, folder, held), by_rank(rows)
    for first in range(0, world, at_once):
        ranks = range(first, min(first + at_once, world))
        some = [row for rank in ranks for row in mine.get(rank, ())]
        parts.add(frame(*some).select(*SCHEMA), ranks)
    return measured_parts(parts, clock, hosts, folder)


@pytest.mark.long
@given(jobs(), st.integers(1, 12), st.integers(1, 3), st.booleans())
def test_parts_are_the_whole(job, held, at_once, several_clocks):
    world, rows = job
    if not rows:
        return
    clock = clock_of(world, uncertainty_ns=2 * MS, clocks=2 if several_clocks and world > 1 else 1)
    hosts = {rank: f"host{rank // 2}" for rank in range(world)}
    matched = match(frame(*rows).select(*SCHEMA), ended=range(world), world_size=world)
    whole = measured_collectives(matched, clock, hosts)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "PART_ROWS", held)
        pieces, check, num_differing = in_parts(world, rows, clock, hosts, Path(name), held, at_once)
        found = pieces.whole()
        assert_frame_equal(found, whole.select(found.columns), categorical_as_str=True)
        assert num_differing == num_mismatches(matched)
        assert check == check_clock(synchronising(matched), clock)
        assert [piece["collective"].min() for piece in pieces] == sorted(piece["collective"].min() for piece in pieces)
        assert_drawn_alike(pieces, CollectivePieces.held(whole), clock, world)


def assert_drawn_alike(pieces: CollectivePieces, whole: CollectivePieces, clock: Clock, world: int) -> None:
    wanted = {rank: DrawOptions(step_ns={0: 50 * MS}) for rank in range(world)}
    mine, theirs = (draw_collectives(one, clock, wanted, 0) for one in (pieces, whole))
    for rank in range(world):
        assert list(mine.of_rank(rank)) == list(theirs.of_rank(rank))
    assert [list(one) for one in mine.counters] == [list(one) for one in theirs.counters]
    assert (mine.num_arrows, mine.most_threads) == (theirs.num_arrows, theirs.most_threads)


@pytest.mark.long
def test_a_large_group_with_a_lost_row_is_matched_in_pieces(tmp_path):
    """By its numbers, of which it is known without all rows that they bring together what belongs together."""
    rows = [one for rank in range(4) for place, one in enumerate(numbered(*(
        call(rank, of=(0, 1, 2, 3), start_ns=place * MS, end_ns=place * MS + 9, enqueue_ns=place * MS)
        for place in range(50)))) if (rank, place) not in ((2, 7), (3, 49))]
    pieces, _, num_differing = in_parts(4, rows, clock_of(4), dict.fromkeys(range(4), "a"), tmp_path, 20, 1)
    assert len(list(pieces)) == 10 and max(map(len, pieces)) <= 23
    told = pl.concat(list(pieces)).unique("collective", maintain_order=True)
    assert told["mismatch"].drop_nulls().to_list() == ["rank 3 never entered"]
    assert set(told["matched_by"]) == {"sequence"} and told["complete"].sum() == 48 and num_differing == 1
