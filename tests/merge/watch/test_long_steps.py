"""Single long steps of a rank: which they are does not depend on how many rows come at once."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.arrays import Floats
from distprof.contract.watch import UNKNOWN, StepRows
from distprof.merge.watch.long_steps import LongSteps
from distprof.merge.watch.pieces import Columns

MS = 1_000_000


def rows_of(spans_ms: Floats) -> Columns:
    """Rows of one step each."""
    columns = {name: np.zeros(len(spans_ms), np.int64) for name in StepRows.__struct_fields__}
    spans, step = (spans_ms * MS).astype(np.int64), np.arange(len(spans_ms))
    return columns | {"first_step": step, "longest_step": step, "num_steps": np.ones(len(step), np.int64),
                      "span_ns": spans, "longest_ns": spans, "forward_ns": spans // 2,
                      "device_ns": np.full(len(step), UNKNOWN)}


def seen(spans_ms: Floats, sizes: list[int]) -> tuple[dict[int, float], int]:
    """By step, the excess of each long one, where so many rows come at a time; and the most there were meanwhile."""
    found, rows, place, most = LongSteps(), rows_of(spans_ms), 0, 0
    for size in np.tile(sizes, len(spans_ms)).tolist():
        found.add(0, {name: values[place:place + size] for name, values in rows.items()}, [])
        place, most = place + size, max(most, len(found.of))
    return {step: float(of[0][0]) for step, of in sorted(found.of.items())}, most


def noisy(number: int) -> Floats:
    """Steps of about 400 ms."""
    return np.random.default_rng(0).normal(400, 8, number)


SIZES = [[1], [3], [7, 2], [15], [64], [10_000]]


@pytest.mark.parametrize("sizes", SIZES)
def test_rare_long_steps_are_seen_however_they_come(sizes: list[int]) -> None:
    spans = noisy(700)
    late = [70, 133, 200, 201, 333, 512]
    spans[late] += 900
    found, most = seen(spans, sizes)
    assert list(found) == late
    assert most == len(late)
    assert list(found.values()) == pytest.approx([900 * MS] * 6, rel=0.03)
    assert found == seen(spans, [10_000])[0]


@pytest.mark.parametrize("sizes", SIZES)
def test_steps_that_stay_long_are_not_rare(sizes: list[int]) -> None:
    """Not even at first, when few of them have come."""
    spans = noisy(700)
    spans[302:] += 900
    spans[365] += 4000
    found, most = seen(spans, sizes)
    assert list(found) == [365]
    assert most == 1


@pytest.mark.parametrize("sizes", SIZES[:-1])
@pytest.mark.parametrize("seed", [2, 3])
def test_any_steps_are_judged_alike_however_they_come(sizes: list[int], seed: int) -> None:
    draw, spans = np.random.default_rng(seed), noisy(500)
    for begin in draw.integers(0, 490, 40).tolist():
        spans[begin:begin + int(draw.integers(1, 10))] *= draw.uniform(1.5, 4)
    assert seen(spans, sizes)[0] == seen(spans, [10_000])[0]


def test_several_in_a_row_are_rare_if_they_are_few() -> None:
    """Wherever they begin."""
    for begin in range(400, 416):
        spans = noisy(700)
        spans[begin:begin + 4] += 900
        assert list(seen(spans, [15])[0]) == list(range(begin, begin + 4))


def test_garbage_collection_that_every_row_has_makes_no_step_long() -> None:
    spans = noisy(700)
    spans[333] += 900
    found, rows = LongSteps(), rows_of(spans)
    rows["gc_ns"] = rows["span_ns"] // 20
    found.add(0, rows, [])
    (_, _, collected_ns), = found.of[333].values()
    assert collected_ns < 0.1 * 900 * MS
