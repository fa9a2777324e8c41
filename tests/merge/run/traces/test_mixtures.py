"""Folders in which anything lies beside traces: each file is a rank, or named as left out, or all is refused."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

from distprof.contract.problems import ExecutionTraces, FilesLeftOut
from distprof.errors import DataError
from distprof.merge.run.open_run import open_run
from distprof.merge.run.traces.discovery import NAMED
from distprof.merge.text.problems import sentences
from support.kineto_files import events, kineto, write

TWO_CPUS = [{"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": "CPU"}} for pid in (7, 8)]
NODES = json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "name": "[pytorch|profiler]"}]})


def _archive(path: Path, number: int) -> None:
    with tarfile.open(path / f"more{number}.tar", "w") as archive:
        content = kineto(10 + number, 20).encode()
        about = tarfile.TarInfo(f"rank{10 + number}.json")
        about.size = len(content)
        archive.addfile(about, io.BytesIO(content))


def _as(name: str, text: Callable[[int], str]) -> Callable[[Path, int], None]:
    return lambda path, number: write(path / name.format(number), text(number)) and None


MAKERS: dict[str, Callable[[Path, int], None]] = {
    "a rank": _as("host_47{}.17.pt.trace.json", lambda number: kineto(number, 20)),
    "a rank by its name": _as("rank{}.json.gz", lambda number: kineto(None).replace("work of 0", f"work of {number}")),
    "a rank by its folder": _as("node/rank_{}/trace.json", lambda _: kineto(None)),
    "a list": _as("rank_{}_list.json", lambda number: json.dumps(events(number))),
    "no rank": _as("trace_of_{}_somebody.json", lambda _: kineto(None)),
    "merged": _as("all_ranks{}.json", lambda number: json.dumps({"traceEvents": [*TWO_CPUS, *events(number)]})),
    "merged by us": _as("ours{}.json", lambda _: json.dumps({"metadata": {"distprof": {}}, "traceEvents": events(0)})),
    "a leftover": _as("merge_trace{}.json", lambda _: ""),
    "another program": _as("viztracer_rank{}.json", lambda number: json.dumps(
        {"traceEvents": events(number), "viztracer_metadata": {}})),
    "an execution trace": _as("et_rank{}.json", lambda _: NODES),
    "other JSON": _as("config{}.json", lambda number: json.dumps({"lr": number})),
    "a list of numbers": _as("numbers{}.json", lambda number: f"[{number}]"),
    "nothing": _as("empty{}.json", lambda _: ""),
    "a cut trace": _as("rank{}_cut.json", lambda number: kineto(number, 20)[:-40]),
    "cut before its events": _as("rank{}_head.json", lambda number: kineto(number, 20)[:40]),
    "a picture": _as("picture{}.json.gz", lambda _: "\x89PNG nothing"),
    "an archive": _archive,
}
PASSED_BY = {"notes.txt": "rank 0 was slow", ".hidden.json": kineto(0), "merged/trace.json": kineto(0)}
"""Without a word."""


@given(st.lists(st.tuples(st.sampled_from([*MAKERS]), st.integers(0, 3)), min_size=1, max_size=9, unique=True),
       st.booleans())
@example([("another program", 0), ("a rank", 0), ("a leftover", 1)], True)
@example([(name, 1) for name in MAKERS], False)
def test_every_file_is_a_rank_or_left_out_by_name_or_all_is_refused(chosen, beside):
    with TemporaryDirectory() as folder:
        path = Path(folder)
        for name, number in chosen:
            MAKERS[name](path, number)
        if beside:
            for name, text in PASSED_BY.items():
                write(path / name, text)
        files = {file.name for file in path.rglob("*") if file.is_file()}
        files -= {Path(name).name for name in PASSED_BY} if beside and not any(
            name == "a rank by its folder" for name, _ in chosen) else {"notes.txt", ".hidden.json"}
        try:
            run = open_run(path)
        except DataError as error:
            assert "\n" not in str(error) and error.hint, error
            return
        read = {rank.trace.path.name for rank in run.ranks}
        said = " ".join(sentences([*run.problems, *run.remarks]))
        # a line names a few of many
        counted = sum(max(getattr(one, "num_files", 0), len(getattr(one, "ranks", ()))) for one in run.remarks
                      if isinstance(one, FilesLeftOut | ExecutionTraces))
        silent = {name for name in files - read if name not in said}
        assert not silent or (counted > NAMED and len(silent) <= counted - NAMED), (silent, said)
        assert len({rank.number for rank in run.ranks}) == len(run.ranks)
