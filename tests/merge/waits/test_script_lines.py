"""Time in lines by samples, beside what a simulated thread did: lines that follow each other in every step."""

import numpy as np
import polars as pl
import pytest

from distprof.merge.waits.script_lines import spent_in_lines

MS = 1_000_000
PERIOD_NS = 25 * MS
NO_WAITS = pl.DataFrame(schema={"rank": pl.Int64(), "wait_start_ns": pl.Int64(), "wait_end_ns": pl.Int64()})


def sampled(lines: list[tuple[int, float, bool]], num_steps: int) -> dict[int, float]:
    """Mean ms per step of each line by our samples.

    Args:
        lines: Number, ms per step, and whether it holds Python's lock all the time, so that no sample is taken in it.
        num_steps: Number of steps.
    """
    lengths = np.array([int(ms * MS) for _, ms, _ in lines] * num_steps)
    ends = np.cumsum(lengths)
    step_ns = int(lengths[:len(lines)].sum())
    steps = pl.DataFrame([(0, step, step * step_ns, (step + 1) * step_ns) for step in range(num_steps)],
                         ["rank", "step", "start_ns", "end_ns"], orient="row")
    at, rows = 7 * MS, []
    while at < ends[-1]:
        place = int(np.searchsorted(ends, at, "right"))
        number, _, holds = lines[place % len(lines)]
        if holds:  # the sample is taken when the lock is free, before the next line begins
            at = int(ends[place])
        rows.append((0, min(at, int(ends[place]) - 1) // step_ns, min(at, int(ends[place]) - 1), "train.py", number,
                     "f"))
        at += PERIOD_NS
    samples = pl.DataFrame(rows, ["rank", "step", "at_ns", "file", "line", "function"], orient="row")
    spent = spent_in_lines(samples, steps, NO_WAITS).group_by("line").agg(pl.col("ns").sum() / MS)
    return dict(spent.iter_rows())


@pytest.mark.parametrize("step_ms", [5.3, 31, 53.7, 190])
def test_a_line_at_the_begin_of_a_step_gets_as_much_as_it_takes(step_ms):
    found = sampled([(1, 0.4 * step_ms, False), (2, 0.35 * step_ms, False), (3, 0.25 * step_ms, False)], 600)
    assert found == pytest.approx({1: 0.4 * step_ms, 2: 0.35 * step_ms, 3: 0.25 * step_ms}, rel=0.12)


def test_a_line_that_lets_no_sample_in_gets_what_passed_meanwhile():
    found = sampled([(1, 6, False), (2, 80, True), (3, 9, False)], 600)
    assert 75 <= found[2] <= 95, "a sample may be late in every step, and none is left for the other lines"
