"""The file of a host: whatever is torn or damaged in it costs one rank, whoever writes at the same time."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import random

import pytest
from msgspec.structs import replace

from distprof.contract.rank_json import RankJson
from distprof.contract.rank_summary import SUMMARIES, Arrivals, PackedTable, RankGroup, RankSummary
from distprof.errors import FormatError
from distprof.summaries import host_file
from distprof.summaries.host_file import append, files_of, frames_in, head_of, summary_of
from support.processes import files_no_larger_than


def summary(rank: int, **fields) -> RankSummary:
    about = RankJson(run_id="a", status="complete", rank=rank, world_size=100_000, host="host a/b", boot_id="4f-00-11")
    steps = PackedTable(rows=3, columns={"step": bytes(range(24))}, texts={"pass": ["trace"]})
    group = RankGroup(name="0", description="default_pg", ranges=[(0, 1, 4)], num_ranks=4, digest=-7)
    return replace(RankSummary(about=about, folder=f"rank{rank:05d}", steps=steps, arrivals=Arrivals(
        groups=[group], times={"end_ns": os.urandom(400)})), **fields)


def read(run):
    found, lost = {}, 0
    for path in files_of(run):
        content = path.read_bytes()
        frames, missing = frames_in(path, content)
        lost += missing
        found |= {frame.rank: summary_of(frame, content) for frame in frames}
    return found, lost


def test_what_is_appended_is_read(tmp_path):
    written = {rank: summary(rank) for rank in range(5)}
    paths = {append(tmp_path, one) for one in written.values()}
    assert [path.name for path in paths] == ["host_a_b-4f0011.bin"]
    assert read(tmp_path) == (written, 0)


@pytest.mark.parametrize("seed", range(40))
def test_damage_costs_the_ranks_that_it_hits(tmp_path, seed):
    chance = random.Random(seed)
    written = {rank: summary(rank) for rank in range(6)}
    for one in written.values():
        path = append(tmp_path, one)
    content = bytearray(path.read_bytes())
    frames, _ = frames_in(path, bytes(content))
    at, length = chance.randrange(len(content)), chance.choice((1, 7, 300))
    content[at:at + length] = bytes(byte ^ 0x5A for byte in content[at:at + length])
    path.write_bytes(content)
    whole = {frame.rank for frame in frames
             if frame.offset + frame.head_bytes + frame.arrivals_bytes <= at
             or frame.offset - host_file.HEAD.size >= at + length}
    found, lost = read(tmp_path)
    # a rank in the head of a frame is no part of what is checked
    assert whole <= {rank for rank, one in found.items() if one == written.get(rank)}
    assert lost or len(found) == 6


@pytest.mark.parametrize("cut", [1, 10, 100, 500])
def test_a_torn_end_costs_the_last_rank(tmp_path, cut):
    written = {rank: summary(rank) for rank in range(3)}
    for one in written.values():
        path = append(tmp_path, one)
    path.write_bytes(path.read_bytes()[:-cut])
    append(tmp_path, written[2])
    found, lost = read(tmp_path)
    assert found == written
    assert lost > 0


def _append_many(run, first):
    for rank in range(first, first + 25):
        append(run, summary(rank))


@pytest.mark.long
def test_processes_that_write_at_once_lose_nothing(tmp_path):
    spawn = multiprocessing.get_context("fork")
    processes = [spawn.Process(target=_append_many, args=(tmp_path, first)) for first in range(0, 200, 25)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    found, lost = read(tmp_path)
    assert sorted(found) == list(range(200))
    assert lost == 0


def test_a_rank_does_not_wait_long_for_another(tmp_path, monkeypatch):
    monkeypatch.setattr(host_file, "PATIENCE_S", 0.05)
    path = append(tmp_path, summary(0))
    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        other = append(tmp_path, summary(1))
    assert other.name == "host_a_b-4f0011-rank00001.bin"
    assert sorted(read(tmp_path)[0]) == [0, 1]


def refusing(number: int):
    """A lock that fails with this error."""
    def refuse(_handle: int) -> None:
        raise OSError(number, os.strerror(number))
    return refuse


def test_a_rank_that_can_lock_no_file_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(host_file, "PATIENCE_S", 0.0)
    monkeypatch.setattr(host_file, "lock", refusing(errno.EWOULDBLOCK))
    with pytest.raises(OSError, match="another process has locked it"):
        append(tmp_path, summary(0))
    assert read(tmp_path) == ({}, 0)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path):
    path = append(tmp_path, summary(0))
    before = path.read_bytes()
    with files_no_larger_than(len(before) + 20), pytest.raises(OSError, match="File too large"):
        append(tmp_path, summary(1))
    assert path.read_bytes() == before


def test_without_locks_a_full_disk_costs_no_other_rank(tmp_path, monkeypatch):
    path, others = append(tmp_path, summary(0)), host_file.packed_frame(summary(2))
    write = os.write

    def torn(handle: int, content: bytes) -> int:
        """Room for 20 bytes; then somebody removes a file, and another rank finds room."""
        written = write(handle, content[:20])
        with path.open("ab") as other:
            other.write(others)
        return written

    monkeypatch.setattr(host_file, "lock", refusing(errno.ENOTSUP))
    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(OSError, match="No space"):
        append(tmp_path, summary(1))
    found, lost = read(tmp_path)
    assert (sorted(found), lost) == ([0, 2], 20)


def test_the_last_of_a_rank_counts(tmp_path):
    append(tmp_path, summary(0, folder="first"))
    append(tmp_path, summary(0, folder="second"))
    assert read(tmp_path)[0][0].folder == "second"


def test_names_that_are_not_utf8(tmp_path):
    one = summary(0)
    append(tmp_path, replace(one, about=replace(one.about, notes=["bad \udcff"])))
    assert read(tmp_path)[0][0].about.notes == ["bad \\udcff"]


def test_a_newer_format_is_refused(tmp_path):
    path = append(tmp_path, summary(0, format=4))
    content = path.read_bytes()
    with pytest.raises(FormatError, match="format 4"):
        head_of(frames_in(path, content)[0][0], content)


def test_a_folder_without_summaries_has_none(tmp_path):
    assert list(files_of(tmp_path)) == []
    (tmp_path / SUMMARIES).write_text("a file")
    assert list(files_of(tmp_path)) == []
