"""Arrows and other things that ids link: traps of joining traces, before the real Perfetto engine."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest

from distprof.merge.chrome.numbering import NUMBERS_PER_RANK
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.chrome.rank_events import IDS_PER_RANK
from support.perfetto import ARROWS, ERRORS, FLOWS, Answer, ask
from support.rank_traces import Merged, files, merge, slice_of
from support.usual_merge import usual_merge

ODD_IDS = ("0x1f", "r0_12", "", -5, 18446744073709551615, 2**40, 1.5, "12", "0012")
"""Ids that are no small numbers; Perfetto reads text as hexadecimal and takes no more than 64 bits."""
ASYNC = "select name, dur from slice where track_id not in (select id from thread_track)"


def ends(number: object, source: tuple[float, int], target: tuple[float, int], *, name: str = "ac2g",
         **more: object) -> list[dict]:
    """An arrow from (time, tid) to (time, tid)."""
    return [{"ph": phase, "id": number, "cat": name, "name": name, "pid": 7, "tid": tid, "ts": ts, **last}
            for phase, (ts, tid), last in (("s", source, {}), ("f", target, {"bp": "e"} | more))]


def rank_events(rank: int) -> list[dict]:
    """Launches, kernels and the arrows between them: on every rank with the same ids, at nearly the same time."""
    late = rank * 0.25
    events = []
    for number in range(4):
        start = 100 * number + late
        events += [slice_of(f"launch {number} of {rank}", start, 10, tid=1),
                   slice_of(f"kernel {number} of {rank}", start + 50, 10, tid=2),
                   *ends(number, (start + 1, 1), (start + 50, 2)),
                   *ends(number, (start + 2, 1), (start + 51, 2), name="fwdbwd")]
    for number, odd in enumerate(ODD_IDS):
        start = 1000 + 100 * number + late
        events += [slice_of(f"from {odd} of {rank}", start, 10, tid=1), slice_of(f"to {odd} of {rank}", start + 50, 10,
                   tid=2), *ends(odd, (start + 1, 1), (start + 50, 2), name=f"odd {number % 7}")]
    return events


@pytest.fixture(scope="module")
def merged(tmp_path_factory) -> Merged:
    return merge(tmp_path_factory.mktemp("arrows"), *map(rank_events, range(3)))


@pytest.fixture(scope="module")
def answer(merged) -> Answer:
    return ask(merged.path, ERRORS, FLOWS, ARROWS)


def joined(answer: Answer, result: int = 2) -> list[tuple[str, str]]:
    return sorted((row["source"], row["target"]) for row in answer.results[result])


def test_an_id_that_every_rank_uses_joins_no_ranks(merged, answer, tmp_path):
    """Arrows are known by id, category and name in the whole file; correlation ids repeat on every rank."""
    assert answer.import_errors == [] and answer.results[0] == []
    assert all(row["source"] == row["target"] for row in answer.results[1])
    wanted = [(f"launch {number} of {rank}", f"kernel {number} of {rank}")
              for rank in range(3) for number in range(4) for _ in ("ac2g", "fwdbwd")]
    assert [pair for pair in joined(answer) if pair[0].startswith("launch")] == sorted(wanted)
    usual_merge(files(merged.path.parent.parent / "run"), tmp_path / "usual.json")
    usual = ask(tmp_path / "usual.json", ERRORS, FLOWS)
    assert any(row["name"] == "flow_duplicate_id" for row in usual.results[0])
    assert any(row["source"] != row["target"] for row in usual.results[1])


def test_ids_that_are_no_small_numbers_keep_their_arrows(merged, answer):
    """The id "r0_12" is no hexadecimal number and loses its arrow; more than 63 bits lose theirs too."""
    wanted = [(f"from {odd} of {rank}", f"to {odd} of {rank}") for rank in range(3) for odd in ODD_IDS]
    assert [pair for pair in joined(answer) if pair[0].startswith("from")] == sorted(wanted)
    assert all(type(event["id"]) is int and 0 <= event["id"] < 2**53 for event in merged.events if event["ph"] in "sf")


def test_an_arrow_goes_with_its_slice_into_the_lane_beside(tmp_path):
    """An end binds to the slice around it on its thread, wherever that has been put."""
    events = [
        slice_of("first", 100, 50, tid=1), slice_of("second", 140, 50, tid=1), slice_of("inner", 145, 2, tid=1),
        slice_of("after", 300, 10, tid=1), slice_of("far", 1000, 400, tid=2),
        *ends(1, (160, 1), (1001, 2)), *ends(2, (140, 1), (1002, 2)), *ends(3, (100, 1), (1003, 2)),
        *ends(4, (300, 1), (1004, 2)), *ends(5, (146, 1), (1005, 2))]
    found = merge(tmp_path, events)
    answer = ask(found.path, ERRORS, ARROWS)
    assert found.found.total("num_side") == 1 and answer.results[0] == []
    assert Counter(row["source"] for row in answer.results[1]) == Counter(
        ["second", "second", "first", "after", "inner"])


def test_an_end_without_a_binding_belongs_to_the_next_slice(tmp_path):
    """Only with "bp": "e" is it the slice around; the next one may be in a lane beside."""
    events = [
        slice_of("source", 0, 100, tid=1), slice_of("around", 200, 50, tid=2), slice_of("overlapping", 240, 50, tid=2),
        *ends(1, (1, 1), (210, 2), bp="x"), *ends(2, (2, 1), (150, 2), bp="x"), *ends(3, (3, 1), (295, 2), bp="x"),
        *ends(4, (4, 1), (250, 2), bp="e")]
    found = merge(tmp_path, events)
    answer = ask(found.path, ERRORS, ARROWS)
    assert answer.results[0] == [] and found.found.total("num_hanging") == 2, "behind the last slice there is none"
    assert sorted(row["target"] for row in answer.results[1]) == ["around", "overlapping", "overlapping"]


def test_an_id_that_is_used_again_makes_another_arrow(tmp_path):
    """Within one rank: a second start of one id is an error, and its end joins the first start's slice."""
    slices = [slice_of(f"{name} {at}", at + shift, 10, tid=tid) for at in (0, 100, 200)
              for name, shift, tid in (("from", 0, 1), ("to", 50, 2), ("also to", 70, 2))]
    arrows = [end for at in (0, 100, 200) for end in (
        *ends(1, (at + 1, 1), (at + 50, 2)), ends(1, (0, 1), (at + 70, 2))[1])]
    found = merge(tmp_path, slices + arrows, slices + arrows)
    answer = ask(found.path, ERRORS, ARROWS)
    assert answer.results[0] == [] and found.found.total("num_hanging") == 0
    assert joined(answer, 1) == sorted(2 * [(f"from {at}", f"{to} {at}") for at in (0, 100, 200)
                                            for to in ("to", "also to")])


def test_ends_without_a_slice_or_another_end_are_left_out_and_counted(tmp_path):
    """They are errors in Perfetto, or join what happened to run before."""
    events = [slice_of("a", 0, 10, tid=1), slice_of("b", 100, 10, tid=2), *ends(1, (1, 1), (50, 2)),
              *ends(2, (20, 1), (101, 2)), *ends(3, (2, 1), (101, 2))[:1], *ends(4, (2, 1), (101, 2))[1:]]
    found = merge(tmp_path, events)
    assert not found.of(0, "stf") and found.found.total("num_hanging") == 6
    assert ask(found.path, ERRORS).results[0] == []


def test_ends_of_arrows_go_with_the_slices_that_are_left_out(tmp_path):
    """What filtering leaves of an arrow is an error, or joins what is around."""
    events = [slice_of("op", 0, 100, tid=1, cat="cpu_op"), slice_of("frame", 10, 5, tid=1, cat="python_function"),
              slice_of("kernel", 200, 10, tid=2, cat="kernel"), slice_of("frame", 300, 5, tid=3, cat="python_function"),
              *ends(1, (1, 1), (200, 2)), *ends(2, (2, 1), (301, 3))]
    found = merge(tmp_path, events, options=MergeOptions(without_python=True))
    answer = ask(found.path, ERRORS, ARROWS)
    assert answer.results == [[], [{"source": "op", "target": "kernel"}]]
    assert found.found.total("num_left_out") == 2 and found.found.total("num_hanging") == 2


def test_asynchronous_slices_of_ranks_stay_apart(tmp_path):
    """Their ids are global, only `id2.local` is of one process; old phases and objects have ids too."""
    def asynchronous(rank: int) -> list[dict]:
        def begin_and_end(name: str, phases: str = "be", **ids: object) -> list[dict]:
            return [{"ph": phase, "cat": "io", "name": name, "pid": 7, "tid": 7, "ts": ts + rank, **ids}
                    for phase, ts in zip(phases, (10, 30), strict=True)]

        return [slice_of("op", 0, 100), *begin_and_end("number", id=1), *begin_and_end("text", id="0xA"),
                *begin_and_end("local", id2={"local": "0x1"}), *begin_and_end("global", id2={"global": "0x1"}),
                *begin_and_end("spread", id2={"x": [1], "global": "0x2"}), *begin_and_end("old", "SF", id=3),
                *begin_and_end("object", "ND", id="0x9"), *begin_and_end("step", "Tp", id=3)]

    found = merge(tmp_path, *map(asynchronous, range(3)))
    answer = ask(found.path, ERRORS, ASYNC)
    assert answer.results[0] == []
    assert Counter((row["name"], row["dur"]) for row in answer.results[1]) == {
        (name, 20_000): 3 for name in ("number", "text", "local", "global", "spread")}
    ids: dict[object, set[int]] = {}
    for rank in range(3):
        for event in found.of(rank, "beSFTpND"):
            linked = event.get("id", event.get("id2", {}).get("global"))
            if linked is not None:
                ids.setdefault((event["name"], linked), set()).add(rank)
    assert all(len(ranks) == 1 for ranks in ids.values()) and len(ids) == 3 * 7
    assert [event["id2"] for event in found.of(1, "b") if event["name"] == "local"] == [{"local": "0x1"}]


def test_arrows_between_slices_themselves_stay_in_their_rank(tmp_path):
    """A `bind_id` is known in the whole file; an end without its start, or a second start, is an error."""
    def bound(rank: int) -> list[dict]:
        return [slice_of(f"out {rank}", 0, 10, tid=1, bind_id="0x1", flow_out=True),
                slice_of(f"through {rank}", 50, 10, tid=2, bind_id="0x1", flow_in=True, flow_out=True),
                slice_of(f"in {rank}", 100, 10, tid=3, bind_id="0x1", flow_in=True),
                slice_of(f"nowhere {rank}", 200, 10, tid=1, bind_id=77, flow_in=True),
                slice_of(f"again {rank}", 300, 10, tid=1, bind_id="0x1", flow_out=True),
                slice_of(f"in again {rank}", 350, 10, tid=2, bind_id="0x1", flow_in=True)]

    found = merge(tmp_path, *map(bound, range(2)))
    answer = ask(found.path, ERRORS, ARROWS)
    assert answer.results[0] == [] and found.found.total("num_hanging") == 2
    assert joined(answer, 1) == sorted(pair for rank in range(2) for pair in (
        (f"out {rank}", f"through {rank}"), (f"through {rank}", f"in {rank}"), (f"again {rank}", f"in again {rank}")))
    assert found.found.num_slices == 12


def test_ids_leave_room_for_arrows_between_ranks(merged):
    """Ids of the last rank that has pids are exact in a double, and far below 2^52."""
    last_rank = 2**31 // NUMBERS_PER_RANK - 1
    assert (last_rank + 1) * IDS_PER_RANK < 2**52
    for rank in range(3):
        assert {event["id"] // IDS_PER_RANK for event in merged.of(rank, "sf")} == {rank}


def test_ids_in_args_are_told_apart_by_rank(tmp_path):
    """`correlation`, `External id` and the like begin anew on every rank; they stay as they are."""
    events = [slice_of("op", 10 * number, 5, args={"correlation": number, "External id": number, "Ev Idx": number})
              for number in range(5)]
    found = merge(tmp_path, events, events)
    assert [event["args"] for rank in range(2) for event in found.of(rank, "X")] == 2 * [
        event["args"] for event in events]
    table = pl.read_parquet(found.path.parent / "events.parquet")
    assert len(table) == 10 and table["correlation"].n_unique() == 5
    assert table.select("rank", "correlation").n_unique() == 10


def test_an_end_in_the_part_of_a_slice_that_is_cut_lies_in_none(tmp_path):
    """What rounding cuts of a slice has no room for arrows."""
    events = [slice_of("a", 10, 100, tid=1), slice_of("b", 50, 60.9, tid=1), slice_of("c", 200, 10, tid=2),
              *ends(1, (110.5, 1), (201, 2))]
    found = merge(tmp_path, events)
    assert found.found.total("num_cut") == 1 and found.found.total("num_hanging") == 2
    assert ask(found.path, ERRORS).results[0] == []
