"""Runs of older versions, which noted only when steps behind the last pass ended."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.watch.pieces import MAGIC, old_columns, step_ends


@given(cut=st.integers(0, 100), damage=st.binary(max_size=24))
def test_a_file_is_read_as_far_as_it_goes(cut, damage):
    times = [1_795_000_000_000_000_000 + 10**7 * step for step in range(10)]
    content = np.array([MAGIC, 7, *times], np.int64).tobytes()
    found = step_ends(content[:cut])
    assert found is None or (found[0] == 7 and found[1] == times[:len(found[1])])
    assert (found is not None) == (cut >= 32)
    step_ends(damage)
    assert step_ends(np.array([MAGIC, 7, *times], ">i8").tobytes()) == (7, times)
    broken = step_ends(np.array([MAGIC, 7, *times[:5], -3, *times[5:]], np.int64).tobytes())
    assert broken == (7, times[:5])


def test_each_step_is_a_row(tmp_path):
    assert old_columns(tmp_path) is None
    times = np.cumsum([1_795_000_000_000_000_000, 10**7, 2 * 10**7, 10**7])
    (tmp_path / "step_ends.bin").write_bytes(np.array([MAGIC, 7, *times], np.int64).tobytes())
    columns = old_columns(tmp_path)
    assert columns is not None
    assert columns["first_step"].tolist() == [7, 8, 9] and columns["num_steps"].tolist() == [1, 1, 1]
    assert columns["span_ns"].tolist() == [10**7, 2 * 10**7, 10**7]
    assert columns["end_ns"].tolist() == times[1:].tolist()
    assert (columns["data_ns"] == -1).all()
