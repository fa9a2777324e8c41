"""How many steps a job had, and whether their time changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from distprof.contract.watch import Frame, StepRows, encoded
from distprof.merge.totals.later_steps import job_steps, step_change
from distprof.merge.watch.pieces import MAGIC


def old_file(folder: Path, first: int, times: np.ndarray) -> None:
    """As versions wrote it that noted ends of steps alone."""
    (folder / "step_ends.bin").write_bytes(np.array([MAGIC, first, *times], np.int64).tobytes())


def watch_file(folder: Path, first: int, times: np.ndarray, *, num_steps: int = 1) -> None:
    """As it is written now: rows of so many steps."""
    place = np.arange(0, len(times) - 1, num_steps)
    ends = np.minimum(place + num_steps, len(times) - 1)
    columns = {name: [-1] * len(place) for name in StepRows.__struct_fields__}
    columns |= {"first_step": (first + place).tolist(), "num_steps": (ends - place).tolist(),
                "end_ns": times[ends].tolist(), "span_ns": (times[ends] - times[place]).tolist()}
    (folder / "watch-000.bin").write_bytes(encoded(Frame(rows=StepRows(**columns))))


@pytest.mark.parametrize("write", [old_file, watch_file])
@pytest.mark.parametrize(("recorded_ns", "later_ns", "device_ns", "change"), [
    (20e6, [10e6] * 60, None, None),  # recording made steps longer
    (20e6, [10e6] * 40 + [30e6] * 40, None, 20 + 40),
    (20e6, [10e6] * 40 + [5e6] * 40, None, 20 + 40),
    (10e6, [20e6] * 60, None, 20),
    (10e6, [20e6] * 60, 10e6, 20),  # the host waits for its device in each step
    (4e6, [2e6] * 60, 9e6, None),  # it does not
    (4e6, [12e6] * 60, 9e6, None),
])
def test_steps_that_are_shorter_without_recording_or_on_a_host_alone_are_no_change(tmp_path, write, recorded_ns,
                                                                                  later_ns, device_ns, change):
    ends = np.cumsum(jittered([recorded_ns] * 20))
    later = int(ends[-1]) + np.cumsum(np.append(0, jittered(later_ns)))
    write(tmp_path, 20, later)
    found = job_steps(run_of([tmp_path]), recorded(ends, device_ns))
    assert found.num_run == 20 + len(later_ns)
    assert (found.change and found.change.step) == change
    assert (found.later_ns is None) == (device_ns == 9e6)


def test_ranks_with_rows_of_other_lengths_and_gaps_are_joined(tmp_path):
    folders = [tmp_path / str(rank) for rank in range(3)]
    times = 10**9 + np.cumsum(np.append(0, jittered([10e6] * 200 + [20e6] * 200)))
    for number, folder in enumerate(folders):
        folder.mkdir()
        watch_file(folder, 20, times, num_steps=number + 1)
    ends = np.cumsum(jittered([10e6] * 20))
    found = job_steps(run_of(folders), recorded(ends, None))
    assert found.num_run == 420 and found.change is not None
    assert abs(found.change.step - 220) <= 3
    assert found.change.before_ns == pytest.approx(10e6, rel=0.02)
    assert found.change.after_ns == pytest.approx(20e6, rel=0.02)
    gap = folders[0] / "watch-000.bin"
    watch_file(folders[0], 20, times[:101])
    before = gap.read_bytes()
    watch_file(folders[0], 150, times[130:])
    gap.write_bytes(before + gap.read_bytes())
    again = job_steps(run_of(folders), recorded(ends, None))
    assert again.num_run == 420 and again.change is not None and abs(again.change.step - 220) <= 3


def jittered(durations: list[float]) -> np.ndarray:
    return (np.array(durations) * np.random.default_rng(1).lognormal(0, 0.02, len(durations))).astype(np.int64)


def recorded(ends: np.ndarray, device_ns: float | None) -> pl.DataFrame:
    return pl.DataFrame({"rank": 0, "step": range(20), "pass": "arrivals", "start_ns": np.append(0, ends[:-1]),
                         "end_ns": ends, "device_ns": None if device_ns is None else int(device_ns)})


def run_of(folders: list[Path]) -> SimpleNamespace:
    return SimpleNamespace(ranks=[SimpleNamespace(folder=folder) for folder in folders])


@pytest.mark.parametrize("ratio", [0.6, 1.0, 1.1, 1.5, 10])
def test_a_change_is_found_where_there_is_one(ratio):
    random, found = np.random.default_rng(3), []
    for _ in range(40):
        durations = 1e7 * random.lognormal(0, 0.15, 300)
        durations[180:] *= ratio
        found.append(step_change(np.arange(20, 320), durations))
    if ratio in (1.0, 1.1):
        assert not any(found)
    else:
        assert all(one is not None and abs(one.step - 200) <= 5 for one in found)
        assert np.median([one.after_ns / one.before_ns for one in found if one]) == pytest.approx(ratio, rel=0.05)
