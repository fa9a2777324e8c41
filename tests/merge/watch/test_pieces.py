"""The watch files of ranks as they grow: what was read is not read again, what is cut short is read later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distprof.contract.watch import (
    UNKNOWN,
    Frame,
    Note,
    PackedRows,
    SampledStep,
    StepRows,
    encoded,
    frames,
    packed_frames,
    unit_of,
)
from distprof.merge.watch.pieces import LARGEST, RankReader, piece_of


def rows(first: int, number: int, count: int = 10) -> StepRows:
    """Rows of `count` steps each."""
    firsts = [first + count * place for place in range(number)]
    columns: dict[str, Any] = {name: [UNKNOWN] * number for name in StepRows.__struct_fields__}
    return StepRows(**columns | {"first_step": firsts, "num_steps": [count] * number,
                                 "end_ns": [1_700_000_000_000_000_000 + 1_000_000 * one for one in firsts],
                                 "span_ns": [200_000_000 + 1000 * one for one in firsts]})


def sample(step: int) -> SampledStep:
    """A step without calls."""
    return SampledStep(step=step, start_ns=1, span_ns=2, num_calls=0, group=[], op=[], arrived_ns=[], took_ns=[],
                       blocked_ns=[])


def as_written(*every: Frame) -> list[tuple[Frame, PackedRows]]:
    """Frames as they are read."""
    return [(frame, packed) for one in every for _, frame, packed in packed_frames(encoded(one))]


def test_many_frames_at_once_are_what_each_one_is(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    content, first = b"", 0
    for size in (0, 1, 15, 3, 40):
        columns = {name: draw.integers(-1, 9, size) * 1000 * 1024 for name in StepRows.__struct_fields__}
        columns |= {"first_step": first + np.arange(size), "num_steps": np.ones(size, int)}
        columns |= {name: np.maximum(columns[name], 0) for name in ("end_ns", "span_ns", "longest_step")}
        known = {name: np.where(values < 0, UNKNOWN, values).tolist() for name, values in columns.items()}
        content, first = content + encoded(Frame(rows=StepRows(**known))), first + size
    (tmp_path / "watch-000.bin").write_bytes(content)
    found = RankReader(tmp_path).new().columns
    for name in StepRows.__struct_fields__:
        each = [value for _, frame in frames(content) for value in getattr(frame.rows, name)]
        assert found[name].tolist() == each, name


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    piece = RankReader(tmp_path / "rank00000").new()
    assert piece.columns.keys() == set(StepRows.__struct_fields__)
    assert not len(piece.columns["first_step"])
    assert not piece.samples


def test_what_was_appended_comes_once(tmp_path: Path) -> None:
    file, reader = tmp_path / "watch-000.bin", RankReader(tmp_path)
    file.write_bytes(encoded(Frame(rows=rows(40, 2))))
    assert reader.new().columns["first_step"].tolist() == [40, 50]
    assert not len(reader.new().columns["first_step"])
    with file.open("ab") as more:
        more.write(encoded(Frame(rows=rows(60, 1), notes=[Note(time_ns=1, step=61, kind="checkpoint")])))
    piece = reader.new()
    assert piece.columns["first_step"].tolist() == [60]
    assert piece.columns["span_ns"].tolist() == [200_060_000]
    assert [note.kind for note in piece.notes] == ["checkpoint"]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_frame_that_is_being_written_is_read_when_it_is_there(tmp_path: Path, cut: int) -> None:
    file, reader = tmp_path / "watch-000.bin", RankReader(tmp_path)
    first, second = encoded(Frame(rows=rows(0, 1))), encoded(Frame(rows=rows(10, 1)))
    file.write_bytes(first + second[:-cut])
    assert reader.new().columns["first_step"].tolist() == [0]
    file.write_bytes(first + second)
    assert reader.new().columns["first_step"].tolist() == [10]


def test_a_damaged_frame_costs_what_was_in_it(tmp_path: Path) -> None:
    damaged = bytearray(encoded(Frame(rows=rows(0, 1))))
    damaged[-3] ^= 0xFF
    (tmp_path / "watch-000.bin").write_bytes(bytes(damaged) + encoded(Frame(rows=rows(10, 1))))
    assert RankReader(tmp_path).new().columns["first_step"].tolist() == [10]


@pytest.mark.parametrize("damage", [
    {"host_bytes": [1 << 53]}, {"first_step": [1 << 52, 1 << 52, 1]}, {"end_ns": [1 << 53], "span_ns": [1 << 53]},
    {"span_ns": [1 << 64]}, {"backward_ns": [(1 << 53) - 1], "span_ns": [1 << 53]}])
def test_numbers_that_are_too_large_cost_their_frame(damage: dict[str, list[int]]) -> None:
    """As 64 bits would not hold what they become: a sum of differences, a time in nanoseconds, bytes."""
    good, = as_written(Frame(rows=rows(0, 1)))
    number = max(map(len, damage.values()))
    columns: dict[str, list[int]] = {name: [0] * number for name in StepRows.__struct_fields__}
    bad = good[0], PackedRows(**columns | {name: [*values, *[0] * (number - len(values))]
                                           for name, values in damage.items()})
    found = piece_of([bad, good]).columns
    assert found["first_step"].tolist() == [0]
    assert found["span_ns"].tolist() == [200_000_000]


def test_the_largest_numbers_are_read_as_they_are() -> None:
    columns: dict[str, list[int]] = {name: [LARGEST] for name in StepRows.__struct_fields__}
    found = piece_of([(Frame(), PackedRows(**columns))]).columns
    exact = {"end_ns": 2 * LARGEST, "backward_ns": LARGEST // 2}  # after the start of the row; twice of the rest
    assert {name: values.tolist() for name, values in found.items()} == {
        name: [exact.get(name, LARGEST) * unit_of(name)] for name in columns}


def test_files_are_read_in_their_order_and_another_file_of_that_name_from_its_begin(tmp_path: Path) -> None:
    reader = RankReader(tmp_path)
    (tmp_path / "watch-001.bin").write_bytes(encoded(Frame(rows=rows(20, 1))))
    (tmp_path / "watch-000.bin").write_bytes(encoded(Frame(rows=rows(0, 2))))
    assert reader.new().columns["first_step"].tolist() == [0, 10, 20]
    other = tmp_path / "other"
    other.write_bytes(encoded(Frame(rows=rows(30, 1))))
    other.replace(tmp_path / "watch-000.bin")
    assert reader.new().columns["first_step"].tolist() == [30]


def test_a_file_thinned_again_is_not_read_from_where_an_earlier_one_of_its_inode_ended(tmp_path: Path) -> None:
    """A file system gives the inode of a replaced file to a later one, as if the file was written anew in place."""
    file, reader = tmp_path / "watch-000.bin", RankReader(tmp_path)
    file.write_bytes(encoded(Frame(rows=rows(0, 2))))
    assert reader.new().columns["first_step"].tolist() == [0, 10]
    thinned = Frame(rows=rows(0, 300), notes=[Note(time_ns=1, step=3, kind="thinned")])
    file.write_bytes(encoded(thinned) + encoded(Frame(rows=rows(3000, 3))))
    assert reader.new().columns["first_step"].tolist() == []
    with file.open("ab") as more:
        more.write(encoded(Frame(rows=rows(3030, 1))))
    assert reader.new().columns["first_step"].tolist() == [3030]


def test_steps_that_are_there_twice_count_once() -> None:
    piece = piece_of(as_written(Frame(rows=rows(0, 3)), Frame(rows=rows(10, 3))))
    assert piece.columns["first_step"].tolist() == [0, 10, 20, 30]


def test_samples_come_by_step_with_their_groups() -> None:
    late = Frame(samples=[sample(34)], groups=[("a", [0, 1])], names=["all_reduce"])
    early = Frame(samples=[sample(13)], groups=[("b", [0])])
    piece = piece_of(as_written(late, early))
    assert [(one.step.step, one.groups) for one in piece.samples] == [(13, [("b", [0])]), (34, [("a", [0, 1])])]
