"""Another output format is a class for the run, one for a rank, and a row of `FORMATS`."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from distprof.errors import UsageError
from distprof.merge.chrome.formats import FORMATS, Format
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.scan.engine import is_compiled
from distprof.merge.writing.merge import merge
from support.rank_traces import slice_of, write_run


class Lines:
    """lines.ndjson: an event a line, all ranks one after the other; then a line of counts."""

    def __init__(self, folder: Path, *_: Any) -> None:
        self.folder = folder

    def begin(self) -> None:
        self.file = (self.folder / "lines.ndjson").open("w")

    def rank_writer(self, plan: Any) -> LinesOfRank:
        return LinesOfRank(self.folder / f".{plan.rank}")

    def add(self, plan: Any, counts: Any) -> None:
        part = self.folder / f".{plan.rank}"
        self.file.write(part.read_text())
        part.unlink()

    def end(self, counts: Any) -> None:
        with self.file:
            self.file.write(json.dumps([one.num_slices for one in counts]) + "\n")


class LinesOfRank:
    integers, texts = ("Correlation",), ()

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, events: Any) -> None:
        self.rank, self.file = events.plan.rank, self.path.open("w")

    def add(self, events: Any) -> None:
        columns = zip(events.keep, events.scanner.column("name"), events.start_ns, events.duration_ns, strict=True)
        names = [name.decode() for name in events.scanner.names.texts()]
        for keep, name, start_ns, duration_ns in columns:
            if keep:
                self.file.write(json.dumps([self.rank, names[name], int(start_ns), int(duration_ns)]) + "\n")

    def end(self) -> None:
        pass

    def close(self) -> None:
        self.file.close()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "lines", Format(what="lines", files=("lines.ndjson",), outputs=lambda _: [Lines]))


def ranks(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [slice_of("a", 10, 5), slice_of("b", 11, 2)], [slice_of("c", 12, 3)])


@pytest.mark.usefixtures("lines")
def test_a_format_of_a_few_lines_is_merged_like_the_others(tmp_path):
    text = merge(ranks(tmp_path), options=MergeOptions(format="lines"))
    found = (tmp_path / "run" / "merged" / "lines.ndjson").read_text().splitlines()
    assert list(map(json.loads, found)) == [
        [0, "a", 10_000, 5000], [0, "b", 11_000, 2000], [1, "c", 12_000, 3000], [2, 1]]
    assert "lines.ndjson: 2 of 2 ranks, 3 slices" in text


@pytest.mark.usefixtures("lines")
def test_what_is_left_out_is_left_out_in_every_format(tmp_path):
    merge(ranks(tmp_path), options=MergeOptions(format="lines", min_duration_ns=2500))
    found = (tmp_path / "run" / "merged" / "lines.ndjson").read_text().splitlines()
    assert [json.loads(line)[1] for line in found[:-1]] == ["a", "c"]


@pytest.mark.skipif(not is_compiled(), reason="the plain engine writes in other processes")
@pytest.mark.usefixtures("lines")
def test_what_a_writer_holds_is_free_before_the_next_rank_is_written(tmp_path, monkeypatch):
    living, begin, at_once = WeakSet(), LinesOfRank.begin, []

    def noted(self: LinesOfRank, events: Any) -> None:
        living.add(self)
        gc.collect()
        at_once.append(len(living))
        begin(self, events)

    monkeypatch.setattr(LinesOfRank, "begin", noted)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    merge(ranks(tmp_path), options=MergeOptions(format="lines"))
    assert at_once == [1, 1]


def test_every_format_writes_the_files_of_its_row_and_replaces_those_of_another(tmp_path):
    run = ranks(tmp_path)
    for name, form in FORMATS.items():
        merge(run, options=MergeOptions(format=name), force=True)
        every = {file for other in FORMATS.values() for file in other.files}
        assert {file for file in every if (run / "merged" / file).exists()} == {*form.files}


def test_no_events_are_chosen_where_files_are_packed_as_they_are(tmp_path):
    with pytest.raises(UsageError, match="--format perfetto-tar cannot be combined"):
        merge(ranks(tmp_path), options=MergeOptions(format="perfetto-tar", min_duration_ns=1))
