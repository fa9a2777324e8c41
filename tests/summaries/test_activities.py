"""What ranks do between their calls is split alike on all ranks that call the same, however long they took."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from distprof.contract.rank_summary import MOST_ACTIVITIES, NO_INTEGER
from distprof.summaries.activities import blocked_of, spent_of
from distprof.summaries.packing import Cut
from distprof.summaries.rank_calls import RankCalls

LAYERS = 24


def calls(seed: int) -> RankCalls:
    """Each layer calls in forward and in backward, after working for as long as chance says."""
    number = 2 * LAYERS
    at = np.cumsum(np.random.default_rng(seed).integers(1_000, 1_000_000, number))
    none = np.full(number, NO_INTEGER)
    zeros = np.zeros(number, np.int64)
    modules = [f"model.layers.{layer}.mlp" for layer in range(LAYERS)]
    return RankCalls(
        step=zeros, op=zeros, ops=["all_reduce"], dtype=zeros, dtypes=["float32"], phase=np.repeat([0, 1], LAYERS),
        phases=["forward", "backward"], module=np.tile(np.arange(LAYERS), 2), modules=modules, size=zeros, peer=zeros,
        asynchronous=zeros, cut_off=zeros > 0, group=zeros, enqueue=at, start=none, end=at + 10, wait_start=none,
        wait_end=none, groups=[])


@pytest.mark.parametrize("seed", range(3))
def test_many_modules_are_folded_into_outer_ones_and_phases_stay_apart(seed):
    rank, cut = calls(seed), Counter()
    at = rank.enqueue.tolist()
    known, spent = spent_of(rank, blocked_of(rank), {0: (0, at[-1] + 500)}, cut)
    names = [(one.kind, one.module_path) for one in known]
    assert names[:2] == [("forward", "model.layers"), ("backward", "model.layers")] and len(names) <= MOST_ACTIVITIES
    assert cut["activities"] == 2 * LAYERS - 2
    ns = dict(zip(np.frombuffer(spent.columns["activity"], "<i4").tolist(),
                  np.frombuffer(spent.columns["ns"], "<i8").tolist(), strict=True))
    assert [ns[0], ns[1]] == [at[LAYERS - 1], at[-1] - at[LAYERS - 1]]
    assert ns[names.index(("end", None))] == 500


def test_few_modules_are_kept():
    rank = calls(0)
    cut: Cut = Counter()
    known, _ = spent_of(_first(rank, 4), blocked_of(rank), {0: (0, 10**9)}, cut)
    assert [one.module_path for one in known[:4]] == [f"model.layers.{layer}.mlp" for layer in range(4)]
    assert not cut["activities"]


def _first(rank: RankCalls, number: int) -> RankCalls:

    return replace(rank, **{field.name: getattr(rank, field.name)[:number] for field in fields(rank)
                            if isinstance(getattr(rank, field.name), np.ndarray)})
