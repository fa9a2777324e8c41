"""What `distprof comms` prints of known collectives, to the letter."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.errors import UsageError
from distprof.merge.activity.breakdown import SCHEMA
from distprof.merge.blame.culprits import Cause, Culprit, Line
from distprof.merge.blame.excess import ShiftingLateness
from distprof.merge.cost.choice import Choice, chosen, group_label
from distprof.merge.cost.collective_sums import coverage, kinds, per_collective
from distprof.merge.text.communication.comms import HEADER, breakdown_rows, coverage_line
from distprof.merge.text.communication.comms_tables import list_slowest
from distprof.merge.text.communication.culprits import culprit_lines
from distprof.merge.text.communication.timeline import Axis, bars, draw_timeline
from distprof.merge.text.phrases import known_to
from distprof.reporters.page import Page
from support.drawn_rows import MS, clock_of, collective, frame, run_of

FOUR = {0: (0.0, 12.0), 1: (2.0, 12.0), 2: (10.0, 12.0), 3: (4.0, 11.5)}


def drawn(rows: pl.DataFrame, run) -> list[str]:
    page = Page()
    page.width = 72
    draw_timeline(rows, run, clock_of(4), page)
    return page.text().splitlines()


def test_the_timeline_of_one_all_reduce():
    rows = frame(collective(3, FOUR))
    assert drawn(rows, run_of(4)) == [
        "step 7: 1 collective, 12.00 ms from the first arrival to the last end",
        "            |0                       |5 ms                    |10 ms",
        "rank 0 dp0  ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~AAAAAAAAAA",
        "rank 1 dp1  ..........~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~AAAAAAAAAA",
        "rank 2 dp2  ..................................................AAAAAAAAAA",
        "rank 3 dp3  ....................~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~AAAAAAAA..",
        "            ~ waiting for another rank, A moving in all_reduce",
        "",
        "all_reduce #3 of default_pg (0-3), issued in backward, 1.02 KB float32, arrival spread 10.00 ms, busbw "
        "0.000768 GB/s",
        "            |0          |5 ms",
        "rank 0 dp0  >~~~~~~~~~~~~~~~~~~~~~~~AAAAA  waits 10.00 ms, moves 2.00 ms",
        "rank 1 dp1  ....>~~~~~~~~~~~~~~~~~~~AAAAA  waits 8.00 ms, moves 2.00 ms",
        "rank 2 dp2  ........................>AAAA  last, moves 2.00 ms",
        "rank 3 dp3  .........>~~~~~~~~~~~~~~AAAA.  waits 6.00 ms, moves 1.50 ms",
        "            > arrival, ~ waiting for another rank, A moving in all_reduce",
    ]


def test_what_is_not_known_is_not_drawn_as_if_it_were():
    told = {"wait_ns": None, "transfer_ns": None, "late_rank": None, "arrival_spread_ns": None}
    rows = frame(collective(0, {0: (0.0, 4.0), 1: (1.0, 4.0)}, op="broadcast", **told)[:1],
                 collective(0, {0: (0.0, 4.0), 1: (1.0, 4.0)}, op="broadcast", **{**told, "end_ns": None})[1:])
    axis = Axis(start_ns=0, end_ns=4 * MS, width=8)
    assert bars(rows, [0, 1], axis, arrivals=True) == {0: ">=======", 1: "..?....."}


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=20),
       st.integers(20, 120))
def test_rows_are_as_wide_as_asked_and_begin_where_the_rank_came(spans, width):
    rows = frame(*(collective(number, {0: (came, came + wait + moves), 1: (came + wait, came + wait + moves)})
                   for number, (came, wait, moves) in enumerate(spans) if moves))
    if rows.is_empty():
        return
    end = int(rows["end_ns"].max())
    axis = Axis(start_ns=0, end_ns=end, width=width)
    for rank, row in bars(rows, [0, 1], axis, arrivals=False).items():
        mine = rows.filter(pl.col("rank") == rank)
        assert len(row) == width and set(row) <= set(".~A")
        first = axis.cell(int(mine["arrival_ns"].min()))
        assert set(row[:first]) <= {"."} and row[first] != "."
        assert row.count("A") >= 1
    assert len(axis.ruler()) <= width


def test_the_table_of_the_slowest():
    page = Page()
    rows = frame(collective(0, FOUR), collective(1, {0: (20.0, 21.0), 1: (20.5, 21.0)}, op="all_gather", unsure=True))
    list_slowest(per_collective(rows), 1, clock_of(4), page)
    head, _, line, more, _ = page.text().splitlines()
    assert head.split() == ["step", "op", "group", "#", "ranks", "bytes", "dtype", "spread", "wait", "transfer",
                            "shortest", "longest", "busbw", "GB/s", "late", "rank", "issued", "in"]
    assert line.split() == ["7", "all_reduce", "default_pg", "(0-3)", "0", "4/4", "1.02", "KB", "float32", "10.00",
                            "ms", "6.00", "ms", "1.88", "ms", "2.00", "ms", "12.00", "ms", "0.000768", "2", "backward"]
    assert more == "... 1 more of 2: --slowest 2"


def test_kinds_are_per_step_and_rank():
    rows = frame(*(collective(step * 2 + index, FOUR, step=step) for step in (3, 4) for index in range(2)))
    (kind,) = kinds(per_collective(rows), num_steps=2)
    assert (kind.calls_per_step, kind.num_calls, kind.num_ranks, kind.group) == (2, 4, 4, "default_pg (0-3)")
    assert kind.wait_ns == pytest.approx(2 * 6 * MS) and kind.transfer_ns == pytest.approx(2 * 1.875 * MS)
    assert (kind.min_bytes, kind.max_bytes, kind.spread_median_ns, kind.spread_max_ns) == (1024, 1024, 10e6, 10e6)


def test_the_spread_of_a_kind_is_that_of_its_median_call():
    """One call that came very late says nothing of the others."""
    rows = frame(*(collective(number, {0: (0.0, 9.0), 1: (spread, 9.0)}) for number, spread in enumerate((1, 2, 8))))
    (kind,) = kinds(per_collective(rows), num_steps=1)
    assert (kind.spread_median_ns, kind.spread_max_ns) == (2 * MS, 8 * MS)


def test_many_groups_that_are_alike_are_one_line():
    groups = [collective(index, {2 * index: (0.0, 3.0), 2 * index + 1: (1.0, 3.0)}, group=str(index),
                         group_description="mesh_tp") for index in range(20)]
    (kind,) = kinds(per_collective(frame(*groups)), num_steps=1)
    assert (kind.group, kind.num_groups, kind.num_ranks, kind.calls_per_step) == ("20 x mesh_tp", 20, 2, 1)
    assert kind.wait_ns == pytest.approx(0.5 * MS)


MLP = Cause(kind="forward", where="layers.1.mlp", gain_ns=22.31e6, spent=20.8e6, of_peers=0.2536e6)
STEPS = list(range(1, 6))


def culprit(**changes) -> Culprit:
    return Culprit(**{"rank": 2, "delayed": [0, 1, 2, 3], "step_ns": 56.9e6, "gain_ns": 22.31e6,
                      "last_gain_ns": 22.31e6, "gain_error_ns": 0.92e6, "p_value": 0.00012, "num_peers": 3,
                      "excess_ns": [22e6] * 5, "late_steps": STEPS, "causes": [MLP], **changes})


def told(*found: Culprit, **chosen) -> list[str]:
    return list(culprit_lines(found, range(4), **chosen))


DELAYS = "Rank 2 delays every step by 22.3 ms (39.2 %): "


def test_a_culprit_is_named_with_cost_cause_certainty_and_what_fixing_gains():
    assert told(culprit()) == [
        f"{DELAYS}`layers.1.mlp` forward takes 20.8 ms against 0.3 ms on its peers; p = 0.0001",
        "  Fixing it would cut the step from 56.9 to 34.6 ms (± 920 us)."]
    assert told(culprit(), culprit(rank=1, step_ns=34.6e6, gain_ns=5e6))[-1] == (
        "  Fixing it as well would cut the step from 34.6 to 29.6 ms (± 920 us).")


@pytest.mark.parametrize(("kind", "where", "words"), [
    ("data", None, "loading data takes 20.8 ms against 0.1 ms on its peers"),
    ("host", "between backward and optimizer",
     "the host between backward and optimizer takes 20.8 ms against 0.1 ms on its peers"),
    ("optimizer", None, "the optimizer takes 20.8 ms against 0.1 ms on its peers"),
    ("backward", "", "`(root)` backward takes 20.8 ms against 0.1 ms on its peers"),
    ("annotation", "evaluate", "`evaluate` takes 20.8 ms against 0.1 ms on its peers"),
    ("whole", None, "all its work takes 20.8 ms against 0.1 ms on its peers"),
    ("unknown", None, "cause unknown: these steps have no timeline; rerun with `--steps wait=1`"),
    ("unknown", "between slices",
     "cause unknown: no module or annotation in its trace tells what that time belongs to")])
def test_causes_in_words(kind, where, words):
    cause = Cause(kind=kind, where=where, gain_ns=22e6, spent=20.8e6, of_peers=0.1e6)
    assert told(culprit(causes=[cause]))[0] == f"{DELAYS}{words}; p = 0.0001"


@pytest.mark.parametrize(("seen_ms", "more"), [(15, "15.0"), (40, "20.0")])
def test_a_line_takes_no_more_than_what_it_is_part_of(seen_ms, more):
    line = Line(file="/home/me/train.py", line=7, function="Net.forward", spent_ns=seen_ms * 1e6, of_peers_ns=0)
    cause = Cause(kind="forward", where="layers.1", gain_ns=20e6, spent=21e6, of_peers=1e6, line=line)
    assert told(culprit(causes=[cause]))[0] == (
        f"{DELAYS}`layers.1` forward takes 21.0 ms against 1.0 ms on its peers, {more} ms more at train.py:7 "
        "Net.forward; p = 0.0001")


def test_a_rank_that_shares_its_core():
    cause = Cause(kind="core", where=None, gain_ns=22e6, spent=0.613, of_peers=0.98)
    assert told(culprit(causes=[cause]))[0] == f"{DELAYS}it got 61 % of a core against 98 % for its peers; p = 0.0001"


def test_longer_samples():
    cause = Cause(kind="elements", where=None, gain_ns=22e6, spent=16_384, of_peers=8192)
    assert told(culprit(causes=[cause]))[0] == (
        f"{DELAYS}its input has 16.38 K elements against 8.19 K on its peers; p = 0.0001")


def test_a_larger_batch_and_several_causes():
    causes = [Cause(kind="batch", where=None, gain_ns=15e6, spent=512, of_peers=256),
              Cause(kind="data", where=None, gain_ns=5e6, spent=5e6, of_peers=1e6)]
    assert told(culprit(causes=causes))[:2] == [
        f"{DELAYS}its batch has 512 samples against 256 on its peers; p = 0.0001",
        "  loading data takes 5.00 ms against 1.00 ms on its peers: 5.00 ms of it"]


@pytest.mark.parametrize(("late", "steps", "words"), [
    ([3, 7, 11, 15, 19], 20, "Rank 2 delays every 4th step by 89.2 ms (22.3 ms per step, 39.2 %)"),
    ([3, 4, 11], 20, "Rank 2 delays 3 of 20 steps by 149 ms (22.3 ms per step, 39.2 %)"),
    ([3, 5, 7, 9], 9, "Rank 2 delays every 2nd step by 50.2 ms (22.3 ms per step, 39.2 %)")])
def test_delays_now_and_then(late, steps, words):
    assert told(culprit(late_steps=late, excess_ns=[1.0] * steps))[0].startswith(f"{words}: ")


def test_two_ranks_that_hide_behind_each_other():
    first, _, second, _ = told(culprit(rank=1, gain_ns=1e6, last_gain_ns=20e6), culprit(gain_ns=20e6))
    assert first.startswith("Rank 1 delays every step by 1.00 ms (1.8 %), and by 20.0 ms once rank 2 is fixed: ")
    assert second.startswith("Rank 2 delays every step by 20.0 ms (35.1 %): ")


def test_ranks_that_are_not_delayed_are_left_out():
    assert told(culprit(delayed=[2, 3]))[0].startswith("Rank 2 delays every step of ranks 2 and 3 by 22.3 ms")


def test_nobody_is_called_late_without_being_sure():
    assert told(culprit(p_value=0.3)) == [
        "No straggler: the slowest rank may be late by chance (p = 0.30, above 0.01)"]
    assert told(culprit(gain_ns=0.4e6, last_gain_ns=0.4e6, gain_error_ns=0.1e6)) == [
        "No straggler: fixing the slowest rank would save only 400 us per step, below 2 %"]
    lost = {"gain_ns": -283.0, "last_gain_ns": -283.0}
    assert told(culprit(**lost, gain_error_ns=0.0)) == [
        "No straggler: fixing the slowest rank would save nothing per step, below 2 %"]
    for gain_ns in (-283.0, 0.0, 4e5, 5e5):
        small = {"gain_ns": gain_ns, "last_gain_ns": gain_ns, "gain_error_ns": 5e5}
        assert told(culprit(**small)) == [
            "No straggler: fixing the slowest rank would save less than can be measured (± 500 us) per step, below 2 %"]
    core = Cause(kind="core", where=None, gain_ns=1.5e6, spent=0.61, of_peers=0.98)
    small = {"gain_ns": 1.5e6, "last_gain_ns": 1.5e6, "gain_error_ns": 0.5e6}
    assert told(culprit(causes=[core], **small))[0] == (
        "No straggler: fixing the slowest rank would save 1.50 ms ± 500 us per step, which may be below 2 %")
    assert told(culprit(**small))[0].startswith("Rank 2 delays every step by 1.50 ms (2.6 %): `layers.1.mlp`")
    why = "`layers.1.mlp` forward takes 20.8 ms against 0.3 ms on its peers"
    assert told(culprit(late_steps=[4])) == ["No straggler: the slowest rank was late only once or twice",
                                             f"  Slowest: rank 2, 22.3 ms per step (39.2 %): {why}"]
    assert told(culprit(p_value=None, gain_error_ns=None, excess_ns=[1.0] * 2))[0] == (
        "No straggler named: at least 3 steps are needed to rule out chance, and only 2 were recorded")
    assert told() == ["No straggler: no rank delays the others"]
    assert told(missing=[2]) == [
        "No straggler among the ranks recorded; whether rank 2 delayed them is unknown"]


def test_lateness_that_shifts_is_said_as_that():
    shifting = ShiftingLateness(ranks=[0, 1, 3], num_steps=20, late_ns=8.1e6, step_ns=60e6)
    (line,) = told(culprit(p_value=0.3), shifting=shifting)
    assert line.startswith("A different rank is late from step to step (3 ranks in 20 steps): each step waits 8.10 ms "
                           "(13.5 %) for the latest rank.")
    assert told(culprit(), shifting=shifting)[0].startswith("Rank 2 delays every step")


@pytest.mark.parametrize(("blind", "words"), [
    ("one rank", "one rank: nobody waits"),
    ("no wait", "no rank is known to have waited for a collective: whether a rank delays others is unknown")])
def test_that_nobody_is_late_is_only_said_where_it_would_show(blind, words):
    assert told(blind=blind) == [words]


def split(rank: int, compute: float, waiting: float) -> dict:
    return {"rank": rank, "step": 1, "duration_ns": 100 * MS, "compute_ns": round(compute * MS),
            "waiting_ns": round(waiting * MS), "moving_ns": 10 * MS, "data_ns": 0, "optimizer_ns": 0,
            "host_ns": round((90 - compute - waiting) * MS), "message_waiting_ns": 0,
            "overlapped_ns": 5 * MS, "communication_ns": 50 * MS,
            "overlap_ratio": 0.1}


def test_the_step_of_each_rank_and_their_mean():
    rows = breakdown_rows(pl.DataFrame([split(0, 40.0, 20.0), split(1, 60.0, 0.0)], schema=SCHEMA))
    assert [len(row) for row in rows] == [len(HEADER)] * 3
    assert rows[0] == ("rank 0", "100.00", "40.00 40.0 %", "20.00 20.0 %", "10.00 10.0 %", "0.00  0.0 %",
                       "0.00  0.0 %", "30.00 30.0 %", "5.00")
    assert rows[2][:4] == ("mean of 2", "100.00", "50.00 50.0 %", "10.00 10.0 %")


def test_of_many_ranks_three_and_the_mean_are_shown():
    many = [{**split(rank, 40.0, 20.0), "duration_ns": (100 + rank) * MS} for rank in range(40)]
    titles = [row[0] for row in breakdown_rows(pl.DataFrame(many, schema=SCHEMA))]
    assert titles == ["rank 39 (slowest)", "rank 19 (median)", "rank 0 (fastest)", "mean of 40"]


def test_coverage_says_what_was_not_matched():
    lonely = collective(1, {0: (0.0, 1.0), 1: (0.0, 1.0)}, complete=False, num_ranks=1, mismatch="rank 1 never entered")
    counts = coverage(per_collective(frame(collective(0, FOUR), lonely[:1])))
    assert (counts.num_collectives, counts.num_complete, counts.num_alone, counts.num_mismatches) == (2, 1, 1, 1)
    assert coverage_line(counts) == ("matched: 1 of 2 collectives on all ranks of their group (50.0 %); 2 by sequence; "
                                     "1 on one rank only")


@pytest.mark.parametrize(("ns", "uncertainty", "text"), [
    (22_312_345, 0, "22.31 ms"), (22_312_345, 300_000, "22.3 ms"), (22_312_345, 3_000_000, "22 ms"),
    (200_000, 300_000, "< 300 us"), (0, 0, "0 ns"), (None, 5, "-"), (1_000_000, None, "1.00 ms ?")])
def test_no_digit_that_clocks_do_not_know(ns, uncertainty, text):
    assert known_to(ns, uncertainty) == text


def test_ranks_of_one_clock_are_sure_of_each_other():
    clock = clock_of(4, uncertainty_ns=100, clocks=2)
    assert clock.pair_uncertainty_ns([0, 2]) == 0 and clock.pair_uncertainty_ns([0, 1]) == 200
    assert clock_of(4, uncertainty_ns=None, clocks=4).pair_uncertainty_ns([0, 1]) is None


def test_groups_are_called_by_what_tells_most():
    assert group_label("3", "mesh_tp", [0, 1]) == "mesh_tp (0-1)"
    assert group_label("3", "undefined", [0, 2]) == "3 (0, 2)"
    assert group_label(None, None, None) == "-"
    rows = frame(collective(0, FOUR))
    for name in ("0", "default_pg", "default_pg (0-3)"):
        assert len(chosen(rows, Choice(group=name))) == 4
    with pytest.raises(UsageError, match="did you mean --group 'default_pg'"):
        chosen(rows, Choice(group="defaul_pg"))
    with pytest.raises(UsageError, match="steps with communication: 7"):
        chosen(rows, Choice(step=2))


def test_a_send_stays_with_its_receive():
    pair = [collective(0, {0: (0.0, 1.0), 1: (0.0, 1.0)}, op="send", peer=1)[0],
            collective(0, {0: (0.0, 1.0), 1: (0.0, 1.0)}, op="recv", peer=0)[1]]
    rows = frame(pair, collective(1, FOUR))
    assert chosen(rows, Choice(op="recv"))["op"].to_list() == ["send", "recv"]
    assert per_collective(rows)["op"].to_list() == ["send", "all_reduce"]
