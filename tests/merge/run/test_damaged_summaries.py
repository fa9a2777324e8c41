"""Summaries that are whole by their checksum and yet make no sense cost their rank, and not the command."""

from __future__ import annotations

import os
import random
import tracemalloc
import zlib

import pytest
from isal import isal_zlib
from msgspec.structs import asdict, replace

from distprof.contract import rank_json
from distprof.contract.paths import RANK_JSON, RUN_JSON, rank_folder
from distprof.contract.rank_summary import SUMMARIES, Arrivals, PackedTable
from distprof.contract.run_json import RunJson
from distprof.contract.tables import STEPS
from distprof.merge.run import recorded
from distprof.merge.run.joined_calls import joined_calls
from distprof.merge.run.recorded import recorded_run
from distprof.merge.run.summaries.summaries import MANY_RANKS, read_summaries
from distprof.summaries import host_file
from distprof.summaries.host_file import append, files_of, frames_in, packed_frame
from distprof.summaries.maker import summarise
from support.many_ranks import made_up_rank


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    _, folder = made_up_rank(tmp_path_factory.mktemp("run"))
    return summarise(folder)


def damaged(found: PackedTable, chance: random.Random) -> PackedTable:
    """With a column that is gone, cut, or holds numbers of nothing."""
    name = chance.choice(sorted(found.columns))
    how = chance.choice(("gone", "cut", "large", "below"))
    columns = dict(found.columns)
    if how == "gone":
        del columns[name]
    elif how == "cut":
        columns[name] = columns[name][:-1]
    else:
        columns[name] = (b"\x7f" if how == "large" else b"\xf0") * len(columns[name])
    return replace(found, columns=columns)


@pytest.mark.parametrize("seed", range(150))
def test_arrivals(tmp_path, made, seed):
    chance = random.Random(seed)
    tables = [name for name, value in asdict(made.arrivals).items() if isinstance(value, PackedTable)]
    which = chance.choice(tables)
    arrivals: Arrivals = replace(made.arrivals, **{which: damaged(getattr(made.arrivals, which), chance)})
    append(tmp_path, replace(made, arrivals=arrivals))
    append(tmp_path, replace(made, about=replace(made.about, rank=6), folder="rank00006"))
    found = read_summaries([tmp_path])
    joined = joined_calls(found.arrivals(), range(100))
    assert 6 in joined.ranks.tolist()
    timed = (joined.cell_step >= 0) & (joined.cell_step < 100)
    assert len(joined.times["end_ns"]) == sum(joined.sequence_calls[joined.cell_sequence[timed]])


@pytest.mark.parametrize("seed", range(60))
def test_tables(tmp_path, made, seed):
    chance = random.Random(seed)
    which = chance.choice(("steps", "modules", "ops"))
    append(tmp_path, replace(made, **{which: damaged(getattr(made, which), chance)}))
    append(tmp_path, replace(made, about=replace(made.about, rank=6), folder="rank00006"))
    found = read_summaries([tmp_path])
    assert set(found.tables[STEPS.file].rank.tolist()) >= {6}
    for table in found.tables.values():
        assert {len(column) for column in table.columns.values()} == {len(table.rank)}


def test_a_frame_of_another_rank(tmp_path, made):
    path = append(tmp_path, made)
    content = bytearray(path.read_bytes())
    content[8] ^= 1  # in front of what is checked
    path.write_bytes(content)
    append(tmp_path, replace(made, about=replace(made.about, rank=6), folder="rank00006"))
    found = read_summaries([tmp_path])
    assert list(found.frames) == [6]
    assert [(one.file, one.detail) for one in found.problems] == [
        (f"{SUMMARIES}/{path.name}", "the summary belongs to rank 5")]


def test_an_empty_file_and_a_foreign_one(tmp_path, made):
    append(tmp_path, made)
    (tmp_path / SUMMARIES / "other.bin").write_bytes(b"not ours" * 100)
    (tmp_path / SUMMARIES / "empty.bin").write_bytes(b"")
    found = read_summaries([tmp_path])
    assert list(found.frames) == [5]
    assert sorted(one.file for one in found.problems) == [f"{SUMMARIES}/empty.bin", f"{SUMMARIES}/other.bin"]


def test_a_block_that_unpacks_to_too_much(tmp_path, made, monkeypatch):
    monkeypatch.setattr(host_file, "MOST_RAW_BYTES", 1 << 20)
    bomb = bytes(isal_zlib.compress(bytes(host_file.MOST_RAW_BYTES + 1), 1))
    frame = packed_frame(made)
    path = append(tmp_path, replace(made, about=replace(made.about, rank=6), folder="rank00006"))
    path.write_bytes(path.read_bytes() + host_file.HEAD.pack(
        host_file.MAGIC, 5, len(bomb), 0, zlib.crc32(bomb)) + bomb + frame)
    found = read_summaries([tmp_path])
    assert sorted(found.frames) == [5, 6]  # the last one counts, which is whole
    assert [len(frames_in(one, one.read_bytes())[0]) for one in files_of(tmp_path)] == [3]


def test_a_block_that_unpacks_to_a_thousand_times_its_size(tmp_path, made):
    bomb = zlib.compress(bytes(1 << 28), 9)
    path = append(tmp_path, made)
    path.write_bytes(path.read_bytes() + host_file.HEAD.pack(
        host_file.MAGIC, 5, len(bomb), 0, zlib.crc32(bomb)) + bomb)
    tracemalloc.start()
    try:
        found = read_summaries([tmp_path])
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()
    assert list(found.frames) == [5] and found.frames[5].offset == host_file.HEAD.size
    assert [one.detail for one in found.problems] == ["a block of the summary is truncated or too large"]


@pytest.mark.parametrize("what", ["a pipe", "a device", "1099511627776 bytes"])
def test_what_never_ends_in_the_place_of_a_file(tmp_path, made, what):
    append(tmp_path, made)
    other = tmp_path / SUMMARIES / "other.bin"
    if what == "a pipe":
        os.mkfifo(other)
    elif what == "a device":
        other.symlink_to("/dev/zero")
    else:
        other.touch()
        os.truncate(other, 1 << 40)
    found = read_summaries([tmp_path])
    assert list(found.frames) == [5]
    assert [(one.file, what in one.detail) for one in found.problems] == [(f"{SUMMARIES}/other.bin", True)]


def test_no_summary_at_all(tmp_path):
    assert read_summaries([tmp_path]) is None


@pytest.mark.parametrize(("world_size", "is_read"), [(MANY_RANKS, False), (MANY_RANKS + 1, True), (None, True)])
def test_of_few_ranks_none_is_read(tmp_path, made, monkeypatch, world_size, is_read):
    """Folders of ranks do not tell how many there are: they need not be there."""
    num_ranks, reads = world_size or MANY_RANKS + 1, list[object]()
    rank_json.write(tmp_path / RUN_JSON, RunJson(run_id=made.about.run_id, world_size=world_size))
    sizes = {"world_size": num_ranks, "mp_size": 1, "dp_size": num_ranks, "topology": None}
    for rank in range(num_ranks):
        append(tmp_path, replace(made, about=replace(made.about, rank=rank, **sizes), folder=""))
    folder = tmp_path / rank_folder(0)
    folder.mkdir()
    rank_json.write(folder / RANK_JSON, replace(made.about, rank=0, **sizes))

    def read(*arguments, **options):
        reads.append(arguments)
        return read_summaries(*arguments, **options)

    monkeypatch.setattr(recorded, "read_summaries", read)
    run = recorded_run(tmp_path, by_host=True)
    assert bool(reads) == run.by_host == is_read and len(run.ranks) == (num_ranks if is_read else 1)
