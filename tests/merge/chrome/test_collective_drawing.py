"""Collectives in the merged trace: what is drawn of known ones, and of a real job before the real Perfetto engine."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import chain
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.tables import EVENTS
from distprof.merge.chrome.chrome_rank import FIRST_ARROW
from distprof.merge.chrome.drawing.collectives import DrawOptions, draw_collectives
from distprof.merge.chrome.drawing.drawn import BYTES_DRAWN, PROCESS, CounterValue, DrawnSlice
from distprof.merge.chrome.rank_events import IDS_PER_RANK
from distprof.merge.cost.measured_parts import CollectivePieces
from support.drawn_rows import MS, clock_of, collective, frame
from support.jobs import distprof, merged
from support.perfetto import ERRORS, ask, rank_of

NESTED = """select slice.name as name, slice.ts as ts, slice.dur as dur, parent.name as parent, parent.ts as parent_ts,
            parent.dur as parent_dur, process.name as process, thread.name as thread, slice.depth as depth
            from slice left join slice parent on slice.parent_id = parent.id
            join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
            where slice.category = 'distprof' and thread.name glob 'collectives*'"""
CROSSING = """select po.name as source, pi.name as target, so.ts as left_at, si.ts as came_at, wo.name as source_of,
              wi.name as target_of from flow
              join slice so on flow.slice_out = so.id join slice si on flow.slice_in = si.id
              left join slice wo on so.parent_id = wo.id left join slice wi on si.parent_id = wi.id
              join thread_track tto on so.track_id = tto.id join thread tho on tto.utid = tho.utid
              join process po on tho.upid = po.upid join thread_track tti on si.track_id = tti.id
              join thread thi on tti.utid = thi.utid join process pi on thi.upid = pi.upid
              where po.upid != pi.upid"""
COUNTERS = """select process.name as process, track.name as name, count(*) as n, min(value) as least, max(value) as most
              from counter join process_counter_track track on counter.track_id = track.id join process using (upid)
              group by 1, 2"""

ALL = {rank: DrawOptions(step_ns={7: 100 * MS}) for rank in range(4)}
FOUR = {0: (1.0, 12.0), 1: (2.0, 12.0), 2: (10.0, 12.0), 3: (9.999, 11.5)}


def held(*collectives) -> CollectivePieces:
    return CollectivePieces.held(frame(*collectives))


def test_a_collective_has_a_waiting_and_a_moving_part_and_arrows_from_the_last():
    found = draw_collectives(held(collective(3, FOUR)), clock_of(4), ALL, origin_ns=0)
    (mine,) = found.of_rank(0)
    assert (mine.thread, mine.slice) == ("collectives default_pg", DrawnSlice("all_reduce #3", MS, 12 * MS))
    assert mine.parts == (DrawnSlice("waiting for rank 2", MS, 10 * MS), DrawnSlice("moving", 10 * MS, 12 * MS))
    assert mine.args == {
        "group": "default_pg", "group name": "0", "ranks": "0-3", "bytes": 1024, "dtype": "float32", "step": 7,
        "phase": "backward", "late rank": 2, "wait_us": 9000.0, "transfer_us": 2000.0, "busbw_GB_per_s": 0.000768,
        "collective": 3}
    (late,), (short,) = found.of_rank(2), found.of_rank(3)
    assert late.parts == (DrawnSlice("moving", 10 * MS, 12 * MS),)
    assert [arrow.phase for arrow in late.arrows] == ["s", "s"], "rank 3 waited a microsecond: not worth an arrow"
    assert [arrow.phase for arrow in mine.arrows] == ["f"] and short.arrows == ()


@pytest.mark.long
@given(late=st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_arrows_lead_from_whoever_was_late_to_all_others_of_the_same_collective(late):
    """Whether one rank is late each time, as those of a slow host are, or another one each time."""
    rows = [collective(number, {rank: (100.0 * number + (50 if rank == last else rank), 100.0 * number + 90)
                                for rank in range(4)}) for number, last in enumerate(late)]
    found = draw_collectives(held(*rows), clock_of(4), ALL, origin_ns=0)
    drawn = {rank: list(found.of_rank(rank)) for rank in range(4)}
    for number, last in enumerate(late):
        ends = {rank: [(arrow.phase, arrow.number) for arrow in mine[number].arrows] for rank, mine in drawn.items()}
        into = [ends[rank] for rank in range(4) if rank != last]
        assert [[phase for phase, _ in each] for each in into] == [["f"]] * 3
        assert ends[last] == sorted(("s", arrow) for ((_, arrow),) in into)


def test_counters_say_how_many_wait_and_what_moves():
    found = draw_collectives(held(collective(3, FOUR)), clock_of(4), ALL, origin_ns=0)
    assert list(chain.from_iterable(found.counters)) == [
        CounterValue("ranks", "waiting", MS, 1), CounterValue("ranks", "waiting", 2 * MS, 2),
        CounterValue("ranks", "waiting", round(9.999 * MS), 3), CounterValue("ranks", "waiting", 10 * MS, 0),
        CounterValue("bytes", "in flight", 10 * MS, 4096), CounterValue("bytes", "in flight", round(11.5 * MS), 3072),
        CounterValue("bytes", "in flight", 12 * MS, 0)]


def test_waits_that_clocks_do_not_know_have_no_arrow():
    clock = clock_of(4, uncertainty_ns=6 * MS, clocks=4)
    assert not draw_collectives(held(collective(3, FOUR)), clock, ALL, 0).num_arrows
    unsure = draw_collectives(held(collective(3, FOUR, unsure=True)), clock_of(4), ALL, 0)
    (mine,) = unsure.of_rank(0)
    assert mine.parts[0].name == "waiting" and not mine.arrows


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_nothing_on_a_thread_overlaps(spans):
    rows = frame(*(collective(number, {0: (came, came + wait + moves), 1: (came + wait, came + wait + moves)})
                   for number, (came, wait, moves) in enumerate(spans)))
    drawn = draw_collectives(CollectivePieces.held(rows), clock_of(2), {rank: DrawOptions() for rank in range(2)}, 0)
    for rank in range(2):
        ends: dict[str, int] = {}
        for one in sorted(drawn.of_rank(rank), key=lambda one: one.slice.start_ns):
            assert one.slice.start_ns >= ends.get(one.thread, 0)
            ends[one.thread] = max(one.slice.end_ns, one.slice.start_ns + 1)
            assert all(one.slice.start_ns <= part.start_ns < part.end_ns <= one.slice.end_ns for part in one.parts)
    assert sum(len(list(drawn.of_rank(rank))) for rank in range(2)) == len(rows)


SOME = st.lists(st.tuples(st.lists(st.integers(0, 30), min_size=3, max_size=3), st.integers(0, 9), st.booleans()),
                max_size=12)
"""Of collectives of three ranks, when each comes in ms, how long they move, and whether clocks tell who was late."""


def rows_of(some: list[tuple[list[int], int, bool]]) -> pl.DataFrame:
    return frame(*(collective(number, {rank: (came, max(comes) + moves) for rank, came in enumerate(comes)},
                              unsure=unsure) for number, (comes, moves, unsure) in enumerate(some)))


@pytest.mark.long
@given(SOME)
def test_an_arrow_leads_to_each_that_waited_from_the_last_to_come(some):
    found = draw_collectives(CollectivePieces.held(rows_of(some)), clock_of(3),
                             {rank: DrawOptions() for rank in range(3)}, 0)
    ends: dict[int, dict[str, tuple[int, int]]] = {}
    for rank in range(3):
        for one in found.of_rank(rank):
            for arrow in one.arrows:
                assert one.slice.start_ns <= arrow.at_ns < one.slice.end_ns
                ends.setdefault(arrow.number, {})[arrow.phase] = (rank, one.args["collective"])
    assert sorted(ends) == list(range(len(ends))) and all(set(end) == {"s", "f"} for end in ends.values())
    expected = Counter()
    for number, (comes, moves, unsure) in enumerate(some):
        last = max(range(3), key=lambda rank: (comes[rank], rank))
        expected.update((last, rank, number) for rank in range(3)
                        if comes[rank] < comes[last] and moves and not unsure)
    assert Counter((end["s"][0], *end["f"]) for end in ends.values()) == expected
    assert all(end["s"][1] == end["f"][1] for end in ends.values())


@pytest.mark.long
@given(SOME)
def test_counters_are_what_one_counts(some):
    rows = rows_of(some)
    found = draw_collectives(CollectivePieces.held(rows), clock_of(3), {rank: DrawOptions() for rank in range(3)}, 0)
    for counter, count in zip(found.counters, (
            lambda at: len({row["rank"] for row in rows.iter_rows(named=True)
                            if row["arrival_ns"] <= at < row["arrival_ns"] + row["wait_ns"]}),
            lambda at: sum(row["size_bytes"] for row in rows.iter_rows(named=True)
                           if row["arrival_ns"] + row["wait_ns"] <= at < row["end_ns"])), strict=True):
        shown = {one.at_ns: one.value for one in counter}
        value, values = 0, list(shown.values())
        assert all(one != other for one, other in zip([0, *values], values, strict=False)), "it changes each time"
        for half_ms in range(100):
            at = half_ms * MS // 2
            value = shown.get(at, value)
            assert value == count(at)


def test_ids_of_arrows_between_ranks_are_nobody_elses_and_exact_in_a_double():
    assert FIRST_ARROW // IDS_PER_RANK == 1 << 20 and float(2 * FIRST_ARROW) == 2 * FIRST_ARROW


@pytest.fixture(scope="module")
def run(two_late_ranks) -> Path:
    return merged(two_late_ranks)


@pytest.fixture(scope="module")
def rows(run) -> pl.DataFrame:
    return pl.read_parquet(run / "merged" / "collectives.parquet")


def trace_of(run: Path) -> dict:
    return json.loads(gzip.decompress((run / "merged" / "trace.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def answer(run):
    found = ask(run / "merged" / "trace.json.gz", ERRORS, NESTED, CROSSING, COUNTERS)
    assert found.import_errors == [] and found.results[0] == []
    return found


def test_perfetto_nests_every_part_in_its_collective(answer, rows):
    slices = answer.results[1]
    wholes = [row for row in slices if row["depth"] == 0]
    assert len(wholes) == len(rows)
    assert Counter((rank_of(row["process"]), row["name"], row["dur"]) for row in wholes) == Counter(
        (rank, f"{op} #{sequence}", end - came) for rank, op, sequence, came, end in rows.select(
            "rank", "op", "sequence", "arrival_ns", "end_ns").iter_rows())
    parts = [row for row in slices if row["depth"] == 1]
    assert {row["depth"] for row in slices} == {0, 1}
    assert all(row["parent_ts"] <= row["ts"] and row["ts"] + row["dur"] <= row["parent_ts"] + row["parent_dur"]
               for row in parts)
    assert {row["name"] for row in parts} <= {"moving", *(f"waiting for rank {rank}" for rank in range(4))}
    assert sum(row["dur"] for row in parts if row["name"] != "moving") == rows["wait_ns"].sum()


def test_every_rank_has_a_thread_for_each_of_its_groups(answer):
    threads = {(rank_of(row["process"]), row["thread"].removesuffix(" (overlapping)")) for row in answer.results[1]}
    assert threads >= {(rank, f"collectives mesh_{axis}") for rank in range(4) for axis in ("tp", "dp")}


def test_arrows_lead_from_the_rank_that_came_last_to_ranks_of_its_group_that_waited(answer, rows):
    wanted = rows.filter(pl.col("wait_ns") >= 100_000, pl.col("transfer_ns") > 2, ~pl.col("unsure"))
    expected = Counter((one["late_rank"], one["rank"], f"{one['op']} #{one['sequence']}")
                       for one in wanted.iter_rows(named=True))
    found = Counter((rank_of(row["source"]), rank_of(row["target"]), row["target_of"]) for row in answer.results[2])
    assert found == expected and len(found) > 8
    assert all(row["source_of"] == row["target_of"] for row in answer.results[2])
    late = Counter(source for source, _, _ in found)
    assert late[1] and late[2]


def test_counters_stand_in_a_process_of_their_own_above_the_ranks(run, answer):
    told = {row["name"]: row for row in answer.results[3] if row["process"] == PROCESS}
    assert set(told) == {"ranks waiting", "bytes in flight"}
    assert (told["ranks waiting"]["least"], told["bytes in flight"]["least"]) == (0, 0)
    assert 1 <= told["ranks waiting"]["most"] <= 3
    order = {event["pid"]: event["args"]["sort_index"] for event in trace_of(run)["traceEvents"]
             if event["ph"] == "M" and event["name"] == "process_sort_index"}
    pid = next(event["pid"] for event in trace_of(run)["traceEvents"] if event["ph"] == "C"
               and event.get("cat") == "distprof")
    assert order[pid] < min(index for other, index in order.items() if other != pid)


@pytest.mark.core
def test_what_comms_says_of_the_job(run, rows):
    """The two late ranks with their causes; and what is said of waits and steps agrees with the tables."""
    found = json.loads(distprof("comms", "--json", run).stdout)
    causes = {one["rank"]: one["causes"][0] for one in found["culprits"][:2]}
    assert {rank: (cause["kind"], cause["where"]) for rank, cause in causes.items()} == {
        1: ("forward", "layers.1.mlp"), 2: ("data", None)}
    counted = rows.filter(pl.col("step").is_in(found["steps"]))
    waited = sum(one["wait_ns"] * one["num_ranks"] for one in found["kinds"]) * len(found["steps"])
    assert waited == pytest.approx(counted["wait_ns"].sum())
    for one in found["breakdown"]:
        parts = sum(one[f"{part}_ns"] for part in ("compute", "waiting", "moving", "data", "optimizer", "host"))
        assert parts == pytest.approx(one["duration_ns"], rel=0.01)
    sent = sum(one["num_bytes"] for one in found["matrix"] if one["op"] == "all_reduce")
    assert sent == pytest.approx(sum(2 * size * (count - 1) / count for size, count in rows.filter(
        pl.col("op") == "all_reduce").select("size_bytes", "num_ranks").iter_rows())), "rings"
    text = distprof("comms", run).stdout
    assert "Rank 1 delays " in text or "Rank 2 delays " in text, "which is the more certain is left to chance"
    assert "matched: " in text and text.count("\nrank ") >= 4


def test_a_merge_that_stands_alone_tells_the_same_of_collectives(run, tmp_path):
    done = distprof("merge", run, "--out", tmp_path / "alone")
    assert done.returncode == 0, done.stderr
    alone = json.loads(distprof("comms", "--json", tmp_path / "alone").stdout)
    whole = json.loads(distprof("comms", "--json", run).stdout)
    assert alone["collectives"] == whole["collectives"] and alone["matrix"] == whole["matrix"]
    assert alone["breakdown"] is None and alone["remarks"][-1] == {"code": "merge_alone"}
    inside = json.loads(distprof("comms", "--json", run / "merged").stdout)
    assert inside["breakdown"] == whole["breakdown"]


def drawn_after(run: Path, out: Path, *flags: str) -> list[dict]:
    done = distprof("merge", run, "--out", out, *flags)
    assert done.returncode == 0, done.stderr
    answer = ask(out / "trace.json.gz", ERRORS)
    assert answer.import_errors == [] and answer.results[0] == []
    with gzip.open(out / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    return [event for event in events if event.get("cat") == "distprof" and "step " not in event["name"]]


def test_what_is_drawn_is_chosen_like_the_rest(run, rows, tmp_path):
    some = drawn_after(run, tmp_path / "ranks", "--ranks", "0-1")
    assert {event["pid"] // 16384 for event in some if event["ph"] == "X"} == {0, 1}
    assert sum(event["ph"] == "s" for event in some) == sum(event["ph"] == "f" for event in some) > 0
    step = int(rows["step"].max())
    some = drawn_after(run, tmp_path / "steps", "--steps", str(step))
    wholes = [event for event in some if event["ph"] == "X" and "#" in event["name"]]
    assert len(rows.filter(pl.col("step") == step)) <= len(wholes) < len(rows)
    assert drawn_after(run, tmp_path / "categories", "--categories", "cpu_op") == []
    assert drawn_after(run, tmp_path / "with", "--categories", "cpu_op,distprof") != []
    long = drawn_after(run, tmp_path / "long", "--min-duration", "5ms")
    assert long and all(event["dur"] >= 5000 for event in long if event["ph"] == "X")


def test_what_is_drawn_takes_no_more_room_than_a_small_merge_sets_aside(run, rows):
    drawn = [event for event in trace_of(run)["traceEvents"]
             if event.get("cat") == "distprof" and "step " not in event["name"]]
    assert sum(len(json.dumps(event)) for event in drawn) <= BYTES_DRAWN * len(rows)
    assert pl.read_parquet(run / "rank00000" / EVENTS.file).height > 100
