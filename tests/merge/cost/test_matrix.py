"""Bytes between ranks, by hand and against a simulation of the rings."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.cost.matrix import bytes_between, matrix_of
from distprof.merge.match.matching import match
from support.comm_rows import call, frame


def between(*calls: dict, world_size: int = 8) -> pl.DataFrame:
    return bytes_between(match(frame(*calls), ended=(), world_size=world_size))


def test_sends_are_exact_and_counted_once():
    found = between(call(0, "send", peer=3, size_bytes=8), call(3, "recv", peer=0, size_bytes=8),
                    call(0, "send", peer=3, size_bytes=4), call(5, "recv", peer=1, size_bytes=16),
                    call(2, "recv", size_bytes=16))
    assert found.rows() == [(0, 3, "send", "exact", 12.0, 2), (1, 5, "send", "exact", 16.0, 1)]


def test_splits_of_an_all_to_all_name_global_ranks():
    of = (1, 5, 6)
    found = between(call(1, "all_to_all", of=of, split_bytes=[10, 20, 0], size_bytes=30),
                    call(5, "all_to_all", of=of, split_bytes=[1, 2, 3], size_bytes=6),
                    call(6, "all_to_all", of=of, size_bytes=9))
    assert found.rows() == [
        (1, 5, "all_to_all", "exact", 20.0, 1), (1, 6, "all_to_all", "exact", 0.0, 1),
        (5, 1, "all_to_all", "exact", 1.0, 1), (5, 6, "all_to_all", "exact", 3.0, 1),
        (6, 1, "all_to_all", "assumes an even split", 3.0, 1), (6, 5, "all_to_all", "assumes an even split", 3.0, 1)]
    assert matrix_of(found, 8)[1, 5] == 20 and matrix_of(found, 8).sum() == 30


def ring(op: str, count: int, size: int) -> np.ndarray:
    """What goes from each to its next, chunk by chunk."""
    sent = np.zeros((count, count))
    rounds = {"all_reduce": 2 * (count - 1), "reduce_scatter": count - 1, "all_gather": count - 1}[op]
    for _ in range(rounds):
        for index in range(count):
            sent[index, (index + 1) % count] += size if op == "all_gather" else size / count
    return sent


@given(st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"]),
       st.sampled_from([(0, 1), (4, 2, 7), (1, 3, 5, 6)]),
       st.integers(1, 1000))
def test_rings_against_their_rounds(op, of, size):
    found = between(*(call(rank, op, of=of, size_bytes=size) for rank in of))
    assert set(found["basis"]) == {"assumes a ring"}
    assert matrix_of(found, 8)[np.ix_(of, of)] == pytest.approx(ring(op, len(of), size))


def test_rooted_ops_leave_and_reach_their_root():
    of = (0, 2, 4)
    one = {op: matrix_of(between(*(call(rank, op, of=of, peer=2, size_bytes=30 if op != "scatter" or rank == 2 else 0)
                                   for rank in of)), 8) for op in ("broadcast", "reduce", "gather", "scatter")}
    for op, edges in {"broadcast": {(2, 4): 30, (4, 0): 30}, "reduce": {(4, 0): 30, (0, 2): 30},
                      "gather": {(0, 2): 30, (4, 2): 30}, "scatter": {(2, 0): 10, (2, 4): 10}}.items():
        assert {edge: one[op][edge] for edge in zip(*map(list, np.nonzero(one[op])), strict=True)} == edges, op


def test_what_is_not_known_is_left_out():
    assert between(call(0, of=None), call(0, of=(0,)), call(0, size_bytes=None), call(0, "barrier", size_bytes=0),
                   call(0, "unknown")).is_empty()
    assert between().is_empty()
