"""Problems and remarks: each code has a sentence, and survives `summary.json`."""

from __future__ import annotations

import json
from string import Formatter
from typing import get_args, get_type_hints

import msgspec
import pytest

from distprof.contract.problems import (
    ClockReason,
    ClocksNotAligned,
    ClocksWrong,
    ExecutionTraceLeftOut,
    FilesLeftOut,
    MatchingInferred,
    MergeAlone,
    NoteOfRank,
    Problem,
    RankFailed,
    RanksFromNames,
    RanksMissing,
    Remark,
    SeveralRanksInFile,
    SeveralTraces,
    StepsUnsure,
    TimesFromStart,
    TimesInNanoseconds,
    TopologyUncertain,
    TraceDamaged,
    TracesBeside,
    Unfinished,
    Unreadable,
    WorldSizeFromRanks,
    WorldSizesDiffer,
    from_json,
)
from distprof.merge.text.problems import CLOCK_REASONS, FORMATS, SENTENCES, problem_lines, sentence, sentences

CODES = [*Problem.__subclasses__(), *Remark.__subclasses__()]


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.__struct_config__.tag)
def test_every_code_has_a_sentence_with_its_fields(code):
    words = SENTENCES[code]
    parts = [part for one in (words.values() if isinstance(words, dict) else (words,))
             for part in Formatter().parse(one)]
    assert {field for _, field, _, _ in parts if field} <= {*code.__struct_fields__}
    assert {spec for _, field, spec, _ in parts if field and spec and spec[:2] != "# "} <= {*FORMATS, ".0f"}


@pytest.mark.parametrize(("code", "field"), [
    (Unfinished, "status"), (TraceDamaged, "what"), (MatchingInferred, "what"), (StepsUnsure, "what"),
    (TopologyUncertain, "doubt")])
def test_every_kind_of_a_code_has_a_sentence(code, field):
    kinds = set(get_args(get_type_hints(code)[field])) - {"complete"}
    assert kinds == set(SENTENCES[code])


def test_codes_differ():
    assert len({code.__struct_config__.tag for code in CODES}) == len(CODES) == len(SENTENCES)


@pytest.mark.parametrize(("one", "data", "text"), [
    (RanksMissing(ranks=(1, 2, 5), world_size=8), {"code": "ranks_missing", "ranks": [1, 2, 5], "world_size": 8,
                                                    "where": []}, "ranks 1, 2 and 5 of 8 missing"),
    (RanksMissing(ranks=(1,), world_size=2, where=("b:/runs/x",)),
     {"code": "ranks_missing", "ranks": [1], "world_size": 2, "where": ["b:/runs/x"]},
     "rank 1 of 2 missing; recorded in b:/runs/x: pass that directory, too"),
    (Unreadable(detail="what an exception said"),
     {"code": "unreadable", "detail": "what an exception said", "file": None, "rank": None}, "what an exception said"),
    (Unreadable(detail="it is cut", file="ops.parquet", rank=3),
     {"code": "unreadable", "detail": "it is cut", "file": "ops.parquet", "rank": 3},
     "rank 3: ops.parquet cannot be read: it is cut"),
    (Unfinished(rank=1, status="recording", steps=4, why=None),
     {"code": "unfinished", "rank": 1, "status": "recording", "steps": 4, "why": None},
     "rank 1 did not finish recording (killed, out of disk, or still running): 4 steps recorded"),
    (RankFailed(rank=1, exit_code=-9), {"code": "rank_failed", "rank": 1, "exit_code": -9, "why": None},
     "rank 1 failed first: killed by signal 9"),
    (TraceDamaged(rank=0, file="a.json", what="places", places=2, lost_bytes=9),
     {"code": "trace_damaged", "rank": 0, "file": "a.json", "what": "places", "num_events": 0, "places": 2,
      "lost_bytes": 9, "detail": ""}, "rank 0: a.json is damaged at 2 places: 9 bytes lost"),
    (TraceDamaged(rank=0, file="a.json", what="end", num_events=1, lost_bytes=1),
     {"code": "trace_damaged", "rank": 0, "file": "a.json", "what": "end", "num_events": 1, "places": 0,
      "lost_bytes": 1, "detail": ""}, "rank 0: a.json is cut off after 1 whole event: 1 byte lost"),
    (SeveralTraces(rank=0, used="b.json", left_out=("a.json",)),
     {"code": "several_traces", "rank": 0, "used": "b.json", "left_out": ["a.json"]},
     "rank 0 has several traces: the newest, b.json, is merged; a.json is skipped"),
    (WorldSizesDiffer(ranks_by_size={4: (0,), 8: (5, 6)}, highest_rank=8),
     {"code": "world_sizes_differ", "ranks_by_size": {"4": [0], "8": [5, 6]}, "highest_rank": 8},
     "the world size is unclear from the traces: 4 in rank 0, 8 in ranks 5-6; the highest rank is 8"),
    (ClocksNotAligned(ranks=(1,), reason="asked", note=None),
     {"code": "clocks_not_aligned", "ranks": [1], "reason": "asked", "note": None},
     "clocks are not aligned (rank 1): --align none"),
    (ClocksWrong(violations=3, num_collectives=40, largest_ns=2_000_000, allowed_ns=5_000),
     {"code": "clocks_wrong", "violations": 3, "num_collectives": 40, "largest_ns": 2_000_000, "allowed_ns": 5_000},
     "clocks are wrong: 3 of 40 collectives finish on one rank before every rank has entered, by up to 2.00 ms; clock "
     "uncertainty explains only 5.00 us"),
    (SeveralRanksInFile(file="merged.json"), {"code": "several_ranks_in_file", "file": "merged.json"},
     "merged.json has events of several ranks and is read as one; distprof split takes it apart"),
    (TracesBeside(num_files=2, files=("a.json", "b.json"), drawn=True),
     {"code": "traces_beside", "num_files": 2, "files": ["a.json", "b.json"], "drawn": True},
     "2 traces of other programs next to those of torch.profiler: drawn as processes of the rank (a.json, b.json)"),
    (TimesFromStart(num_files=1, files=("a.json",)),
     {"code": "times_from_start", "num_files": 1, "files": ["a.json"]},
     "clocks of other programs are not those of the ranks: 1 trace drawn from the start of the rank's trace (a.json)"),
    (TimesInNanoseconds(num_files=2, files=("a.json", "b.json")),
     {"code": "times_in_nanoseconds", "num_files": 2, "files": ["a.json", "b.json"]},
     "times of 2 traces are read as nanoseconds, not microseconds (a.json, b.json)"),
    (FilesLeftOut(num_files=1, files=("a.json",), instead="a merged trace"),
     {"code": "files_left_out", "num_files": 1, "files": ["a.json"], "instead": "a merged trace"},
     "1 file skipped: a merged trace (a.json)"),
    (ExecutionTraceLeftOut(file="et.json", what="without_rank", timelines=("t.json",)),
     {"code": "execution_trace_left_out", "file": "et.json", "what": "without_rank", "timelines": ["t.json"]},
     "et.json skipped: an execution trace of t.json, whose rank is unknown. distprof export et.json t.json joins the "
     "two"),
    (ExecutionTraceLeftOut(file="et.json", what="alike", timelines=("a.json", "b.json")),
     {"code": "execution_trace_left_out", "file": "et.json", "what": "alike", "timelines": ["a.json", "b.json"]},
     "et.json skipped: an execution trace whose calls are in several timelines (a.json, b.json). Put the rank into its "
     "name, like et_rank0.json"),
    (RanksFromNames(names="host", contradicted=False),
     {"code": "ranks_from_names", "names": "host", "contradicted": False},
     "ranks are taken from the order of the hosts in the file names"),
    (RanksFromNames(names="mesh", contradicted=True),
     {"code": "ranks_from_names", "names": "mesh", "contradicted": True},
     "several traces claim the same rank: ranks are taken from tp, pp and dp in the file names"),
    (WorldSizeFromRanks(world_size=4, contradicted=False),
     {"code": "world_size_from_ranks", "world_size": 4, "contradicted": False},
     "no trace states the world size, so it is assumed to be 4, the highest rank plus one"),
    (MergeAlone(), {"code": "merge_alone"},
     "this is a merge without its rank folders, so step breakdowns are not available"),
])
def test_code_fields_and_sentence(one, data, text):
    assert json.loads(msgspec.json.encode(one)) == data
    assert from_json(Problem if isinstance(one, Problem) else Remark, [data]) == [one]
    assert sentence(one) == text


def test_every_reason_of_a_clock_has_words():
    assert set(CLOCK_REASONS) == {*get_args(ClockReason), None}


def test_problems_that_many_ranks_have_are_told_of_some():
    damaged = [Unreadable(rank=rank, file=file, detail=f"at {rank}") for rank in range(1000)
               for file in ("steps.parquet", "ops.parquet")]
    others = [NoteOfRank(rank=rank, detail=f"note {rank}") for rank in range(20)]
    found = list(problem_lines([*damaged, *others, Unreadable(file="run.json", detail="no JSON")]))
    assert found[:9] == [*(f"rank {rank}: steps.parquet cannot be read: at {rank}" for rank in range(8)),
                         "the same for ranks 8-999"]
    assert found[9:18] == [*(f"rank {rank}: ops.parquet cannot be read: at {rank}" for rank in range(8)),
                           "the same for ranks 8-999"]
    assert found[18:] == [*(f"rank {rank}: note {rank}" for rank in range(20)), "run.json cannot be read: no JSON"]


def test_one_more_is_named_too():
    nine = [Unfinished(rank=rank, status="failed", steps=3, why="x") for rank in range(9)]
    assert list(problem_lines(nine)) == list(sentences(nine))
