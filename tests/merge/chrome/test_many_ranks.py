"""What a merge holds, numbers and opens does not grow with its ranks, or has room for all of them."""

from __future__ import annotations

import gzip
import json
import resource
import sys
from functools import partial
from pathlib import Path

import pytest

from distprof.merge.chrome import chrome_json
from distprof.merge.chrome.rank_surveys import RankSurveys
from distprof.merge.chrome.survey import survey_trace
from distprof.merge.chrome.work_folder import WORK
from distprof.merge.run.open_run import open_run
from distprof.merge.writing.merge import EVERYTHING, merge
from support import forked
from support.jobs import clean_environ
from support.peak_memory import peak_bytes
from support.rank_traces import slice_of, strict


def write_traces(folder: Path, ranks: list[int], count: int = 3) -> Path:
    folder.mkdir()
    for rank in ranks:
        events = [{"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": {"name": f"main {rank}"}},
                  *(slice_of(f"op{number}", 10 * number, 15) for number in range(count))]
        about = {"rank": rank, "world_size": max(ranks) + 1}
        (folder / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": about, "traceEvents": events}))
    return folder


def test_surveys_lie_in_files_until_a_rank_is_written(tmp_path):
    run = open_run(write_traces(tmp_path / "traces", [0, 1, 2]))
    with RankSurveys(run, EVERYTHING, tmp_path) as reading:
        for one in reading.read().ranks:
            survey, whole = one.survey, survey_trace(one.trace, folder=tmp_path / WORK)
            assert (survey.threads, survey.meta, survey.metadata, survey.layout.num_side) == ([], [], {}, 0)
            assert survey.num_numbers == whole.num_numbers > 64
            again = survey.whole()
            assert (again.threads, again.meta) == (whole.threads, whole.meta) and again.meta
            assert again.layout.num_side == whole.layout.num_side == 1
    assert not (tmp_path / WORK).exists()


@pytest.mark.parametrize("highest", [16_383, 99_999])
def test_the_last_of_many_ranks_has_numbers_of_31_bits(tmp_path, highest):
    merge(write_traces(tmp_path / "traces", [0, highest - 1, highest]), out=tmp_path / "merged")
    events = strict(gzip.decompress((tmp_path / "merged" / "trace.json.gz").read_bytes()))["traceEvents"]
    of_rank = {event["pid"]: event["args"]["name"].split(" |")[0] for event in events
               if event["name"] == "process_name"}
    numbers = {of_rank[event["pid"]]: {event["pid"]} for event in events}
    for event in events:
        numbers[of_rank[event["pid"]]] |= {event["tid"]} if "tid" in event else set()
    assert set(numbers) == {"rank 0", f"rank {highest - 1}", f"rank {highest}"}
    assert sum(map(len, numbers.values())) == len(set().union(*numbers.values()))
    assert max(map(max, numbers.values())) < 2**31


@pytest.mark.long
def test_metadata_of_many_ranks_is_compressed_in_pieces(tmp_path, monkeypatch):
    traces = write_traces(tmp_path / "traces", [*range(20)])
    merge(traces, out=tmp_path / "whole")
    monkeypatch.setattr(chrome_json, "PIECE_BYTES", 1000)
    merge(traces, out=tmp_path / "pieces")
    whole, pieces = ((tmp_path / name / "trace.json.gz").read_bytes() for name in ("whole", "pieces"))
    assert pieces != whole and gzip.decompress(pieces) == gzip.decompress(whole)
    about = strict(gzip.decompress(whole))["metadata"]["distprof"]["ranks"]
    assert [*about] == [str(rank) for rank in range(20)]
    assert about["19"]["kineto"]["distributedInfo"]["rank"] == 19


@pytest.mark.job
def test_files_are_opened_one_after_the_other(tmp_path):
    traces = write_traces(tmp_path / "traces", [*range(200)])
    done = forked.run([sys.executable, "-m", "distprof", "merge", traces], capture_output=True, text=True,
                      env=clean_environ(), preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (40, 40)),
                      check=False)
    assert (done.returncode, done.stderr) == (0, "") and "200 of 200 ranks" in done.stdout
    assert not [path for path in (traces / "merged").iterdir() if path.name.startswith(".")]


@pytest.mark.stress
def test_memory_does_not_grow_with_the_ranks(tmp_path):
    few, many = (peak_bytes("merge", write_traces(tmp_path / str(count), [*range(count)], 5000)) for count in (8, 512))
    assert many < few + 60_000_000
