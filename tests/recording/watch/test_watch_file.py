"""Frames are appended to pieces; beyond a limit old ones are thinned, and no step is lost."""

from __future__ import annotations

import errno
import time
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import distprof
from distprof.contract.watch import SUMMED, UNKNOWN, Note, SampledStep, is_sampled, sparseness
from distprof.merge.watch.pieces import RankReader
from distprof.recording.watch import device_marks, rank_watch, rows, watch_file
from distprof.recording.watch.rows import Row
from distprof.recording.watch.sampled_steps import FoundSample
from distprof.recording.watch.thinning import pieces_in, thin
from distprof.recording.watch.watch_file import WatchFile
from support.processes import files_no_larger_than
from support.watched import noted, steps_of

NAMES = ("end_ns", "longest_ns", "longest_step", "host_bytes", "device_bytes")
STEPS = 10


def row(number: int, random: np.random.Generator) -> Row:
    values = {name: int(random.integers(10**6, 10**8)) // 1000 * 1000 for name in (*SUMMED, *NAMES)}
    return values | {"first_step": number * STEPS, "num_steps": STEPS, "device_ns": UNKNOWN,
                     "host_bytes": 2**30, "device_bytes": UNKNOWN}


def sample(step: int) -> FoundSample:
    found = SampledStep(step=step, start_ns=step, span_ns=1000, num_calls=2, group=[], op=[], arrived_ns=[1000, 2000],
                        took_ns=[3000, UNKNOWN], blocked_ns=[UNKNOWN, 4000])
    return FoundSample(step=found, groups=[("0", [0, 1]), (f"{step % 3}", [step % 3, 9])], ops=["all_reduce", "send"])


def written(folder, most_bytes: int, num_rows: int, each: int = 50) -> WatchFile:
    """A watch of so many rows, in frames of some."""
    random, failed = np.random.default_rng(0), []
    file = WatchFile(folder, most_bytes, lambda _: [], failed.append)
    for begin in range(0, num_rows, each):
        rows = [row(number, random) for number in range(begin, min(begin + each, num_rows))]
        steps = range(begin * STEPS, (begin + each) * STEPS)
        file.add(rows, [sample(step) for step in steps if is_sampled(step, 4)])
        file.flush()
    file.note(Note(time_ns=1, step=num_rows * STEPS, kind="ended"))
    file.flush(at_end=True)
    assert not failed
    return file


def test_within_the_limit_all_is_as_it_was_noted(tmp_path):
    written(tmp_path, 10**7, 300)
    piece = RankReader(tmp_path).new()
    assert steps_of(piece.columns) == [*range(300 * STEPS)]
    assert (piece.columns["num_steps"] == STEPS).all()
    assert [one.step.step for one in piece.samples] == [step for step in range(300 * STEPS) if is_sampled(step, 4)]
    assert [note.kind for note in piece.notes] == ["ended"]


@pytest.mark.long
def test_beyond_the_limit_old_steps_are_joined_and_none_is_lost(tmp_path):
    most = 60_000
    written(tmp_path, most, 6000)
    assert sum(path.stat().st_size for path in pieces_in(tmp_path)) <= most * 1.1
    assert {path.suffix for path in tmp_path.iterdir()} == {".bin"}
    piece = RankReader(tmp_path).new()
    assert steps_of(piece.columns) == [*range(6000 * STEPS)]
    whole = tmp_path / "whole"
    whole.mkdir()
    written(whole, 10**9, 6000)
    full = RankReader(whole).new().columns
    for name in SUMMED:
        assert name == "device_ns" or piece.columns[name].sum() == full[name].sum(), name
    assert piece.columns["longest_ns"].max() == full["longest_ns"].max()
    number = piece.columns["num_steps"]
    assert number.max() >= 8 * STEPS and number[-1] == STEPS  # older ones have more steps
    kinds = [note.kind for note in piece.notes]
    assert kinds.count("ended") == 1 and kinds.count("thinned") >= 1
    old = [one.step.step for one in piece.samples if one.step.step < 30_000]
    assert 0 < len(old) < 30_000 / 2**5 and sparseness(old) > 4
    for one in piece.samples:
        assert [one.groups[group][0] for group in one.step.group] == ["0", str(one.step.step % 3)]
        assert [one.names[op] for op in one.step.op] == ["all_reduce", "send"]


def test_thinned_to_the_end_there_is_nothing_to_gain(tmp_path):
    written(tmp_path, 20_000, 500)
    taken = thin(tmp_path, 1)
    assert taken == sum(path.stat().st_size for path in pieces_in(tmp_path))
    assert steps_of(RankReader(tmp_path).new().columns) == [*range(500 * STEPS)]


def test_a_second_watch_of_a_folder_goes_on_in_a_new_piece(tmp_path):
    written(tmp_path, 10**7, 50)
    file = WatchFile(tmp_path, 10**7, lambda _: [], pytest.fail)
    file.start()
    file.add([row(50, np.random.default_rng(1))], [])
    file.close()
    assert [path.name for path in pieces_in(tmp_path)] == ["watch-000.bin", "watch-001.bin"]
    assert steps_of(RankReader(tmp_path).new().columns) == [*range(51 * STEPS)]


def test_a_reader_that_reads_on_meets_each_row_once(tmp_path):
    reader, random, seen = RankReader(tmp_path), np.random.default_rng(0), []
    file = WatchFile(tmp_path, 10**7, lambda _: [], pytest.fail)
    for number in range(20):
        file.add([row(number, random)], [])
        file.flush()
        seen += reader.new().columns["first_step"].tolist()
    assert all(after - before == STEPS for before, after in pairwise(seen)) and len(seen) == 20


@pytest.mark.long
def test_what_was_thinned_is_not_news_but_what_took_its_place_is(tmp_path):
    reader, random, seen = RankReader(tmp_path), np.random.default_rng(0), []
    file = WatchFile(tmp_path, 30_000, lambda _: [], pytest.fail)
    for number in range(1500):
        file.add([row(number, random)], [])
        if number % 10 == 9:
            file.flush()
            seen += reader.new().columns["first_step"].tolist()
    assert len(pieces_in(tmp_path)) < 9 and RankReader(tmp_path).new().columns["num_steps"].max() > STEPS
    assert seen == [number * STEPS for number in range(1500)]
    for path in pieces_in(tmp_path):  # the next attempt of the job
        path.rename(path.with_suffix(".old"))
    written(tmp_path, 10**7, 10)
    assert steps_of(reader.new().columns) == [*range(10 * STEPS)]


def test_what_is_noted_is_there_within_seconds_while_no_step_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(watch_file, "EVERY_S", 0.01)
    file = WatchFile(tmp_path, 10**7, lambda _: [], pytest.fail)
    file.start()
    file.add([row(0, np.random.default_rng(1))], [])
    until = time.monotonic() + 60
    while not len(RankReader(tmp_path).new().columns["first_step"]) and time.monotonic() < until:
        time.sleep(0.01)
    assert steps_of(RankReader(tmp_path).new().columns) == [*range(STEPS)]
    file.close()


def test_a_full_disk_ends_it_with_one_message(tmp_path, monkeypatch):
    failed = []
    monkeypatch.setattr(watch_file.os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    file = WatchFile(tmp_path, 10**7, lambda _: [], failed.append)
    for number in range(3):
        file.add([row(number, np.random.default_rng(1))], [])
        file.flush()
    file.close()
    assert [error.errno for error in failed] == [28]


def test_a_frame_for_which_there_is_no_room_ends_it_and_leaves_whole_frames(tmp_path):
    failed: list[Exception] = []
    file = WatchFile(tmp_path, 10**7, lambda _: [], failed.append)
    for number in range(3):
        file.add([row(number, np.random.default_rng(number))], [])
        if number == 1:
            before = pieces_in(tmp_path)[0].read_bytes()
            with files_no_larger_than(len(before) + 20):
                file.flush()
        file.flush()
    assert [error.errno for error in failed] == [errno.EFBIG]
    assert [path.read_bytes() for path in pieces_in(tmp_path)] == [before]
    assert steps_of(RankReader(tmp_path).new().columns) == [*range(STEPS)]


def train(num_steps: int, pause_s: float = 0.0) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(num_steps):
        model(torch.ones(2, 4)).sum().backward()
        time.sleep(pause_s)
        optimizer.step()


def test_what_came_before_a_step_that_hangs_is_logged_meanwhile(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "ROW_NS", 10_000_000)  # each step ends a row
    monkeypatch.setattr(rows, "BATCH_NS", 300_000_000)
    monkeypatch.setattr(watch_file, "EVERY_S", 0.05)
    with distprof.record(tmp_path / "run", steps="off"):
        train(20, 0.012)
        give_up = time.monotonic() + 20
        while (logged := steps_of(noted(tmp_path / "run").columns)) != [*range(1, 20)] and time.monotonic() < give_up:
            time.sleep(0.05)
    assert logged == [*range(1, 20)] == steps_of(noted(tmp_path / "run").columns)


def test_both_threads_make_rows_and_each_step_is_logged_once(tmp_path, monkeypatch):
    own = device_marks.DeviceMarks.cut

    def interrupted(marks):
        time.sleep(1e-3)  # the other thread runs meanwhile
        return own(marks)

    monkeypatch.setattr(device_marks.DeviceMarks, "cut", interrupted)
    monkeypatch.setattr(rows, "ROW_NS", 0)
    monkeypatch.setattr(rows, "BATCH_NS", 0)
    monkeypatch.setattr(watch_file, "EVERY_S", 5e-4)
    with distprof.record(tmp_path / "run", steps="off"):
        train(300)
    assert steps_of(noted(tmp_path / "run").columns) == [*range(1, 300)]


def test_while_nothing_can_be_written_few_steps_wait_to_become_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_watch, "MOST_ENDED", 5)
    monkeypatch.setattr(rows, "ROW_NS", 0)
    monkeypatch.setattr(rows, "BATCH_NS", 0)
    monkeypatch.setattr(watch_file, "EVERY_S", 1000)  # as if its thread waited for a disk
    with distprof.record(tmp_path / "run", steps="off") as recording:
        train(50)
        assert recording.later._phases.num_ended <= 6
    assert steps_of(noted(tmp_path / "run").columns) == [*range(1, 50)]


def test_a_row_is_divided_by_the_rule_that_ended_its_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "ROW_NS", 0)
    monkeypatch.setattr(watch_file, "EVERY_S", 1000)  # rows are made at the end, when an optimizer ends steps
    model = nn.Linear(4, 4)
    with distprof.record(tmp_path / "run", steps="off"):
        with torch.no_grad():
            for _ in range(20):
                model(torch.ones(2, 4))
        train(20)
    columns = noted(tmp_path / "run").columns
    inference = columns["first_step"] < 18
    assert (columns["backward_ns"][inference][1:] == 0).all() and (columns["backward_ns"][~inference][2:] > 0).all()
