"""Bytes between ranks, by hand and against a simulation of the rings."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.cost.matrix import bytes_between, matrix_of, uneven_exchanges
from distprof.merge.match.matching import match
from support.comm_rows import call, frame
from support.jobs import called


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


COUNTS = st.integers(1, 4).flatmap(lambda calls: st.lists(
    st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=3, max_size=3), min_size=calls,
    max_size=calls))


@pytest.mark.long
@given(COUNTS)
def test_imbalance_is_that_of_sums_of_rows_and_columns(calls):
    of = (1, 5, 6)
    found = uneven_exchanges(match(frame(*(
        call(rank, "all_to_all", of=of, split_bytes=splits, size_bytes=sum(splits))
        for table in calls for rank, splits in zip(of, table, strict=True))), ended=(), world_size=8))
    used = np.array([table for table in calls if np.any(table)], np.float64).reshape(-1, 3, 3)
    assert len(found) == (2 if len(used) else 0)
    for one in found.to_dicts():
        sums = used.sum(axis=1 if one["way"] == "received" else 2)
        assert one["imbalance"] == pytest.approx(np.mean(sums.max(axis=1) / sums.mean(axis=1)))
        is_most = (sums == sums.max(axis=1, keepdims=True)).sum(axis=0)
        assert one["num_calls"] == len(used) and one["num_most"] == is_most.max() == is_most[of.index(one["rank"])]
        assert one["num_bytes"] == pytest.approx(sums.mean(axis=0)[of.index(one["rank"])])
        assert one["mean_bytes"] == pytest.approx(sums.mean())


def test_an_exchange_whose_splits_one_rank_does_not_tell_has_no_imbalance():
    of = (0, 1)
    assert uneven_exchanges(match(frame(
        call(0, "all_to_all", of=of, split_bytes=[1, 9], size_bytes=10), call(1, "all_to_all", of=of, size_bytes=10)),
        ended=(), world_size=2)).is_empty()


@pytest.mark.long
def test_an_uneven_exchange_is_said(tmp_path):
    splits = [[1000, 3000], [500, 5500]]
    for rank, mine in enumerate(splits):
        meta = {"Collective name": "all_to_allv", "In msg nelems": sum(mine), "dtype": "BFloat16", "Group size": 2,
                "In split size": str(mine), "Process Group Name": "3", "Process Group Description": "ep",
                "Process Group Ranks": "[0, 1]"}
        kernels = [{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "pid": 0, "tid": 7, "dur": 100,
                    "ts": 1000 * number, "args": {"stream": 7, **meta}} for number in range(4)]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({
            "distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"}, "traceEvents": kernels}))
    assert ("all_to_all of ep (0-1) is uneven: one rank receives 1.70 x the mean of the group; in 4 of 4 calls that is "
            "rank 1 (17.00 KB per call, mean 10.00 KB)") in called("comms", tmp_path).stdout
    found = json.loads(called("comms", "--json", tmp_path).stdout)["uneven_exchanges"]
    assert [(one["way"], one["imbalance"]) for one in found] == [("received", 1.7), ("sent", 1.2)]


def ring(op: str, count: int, size: int) -> np.ndarray:
    """What goes from each to its next, chunk by chunk."""
    sent = np.zeros((count, count))
    rounds = {"all_reduce": 2 * (count - 1), "reduce_scatter": count - 1, "all_gather": count - 1}[op]
    for _ in range(rounds):
        for index in range(count):
            sent[index, (index + 1) % count] += size if op == "all_gather" else size / count
    return sent


@pytest.mark.long
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
