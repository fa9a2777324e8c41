"""Rows of single ranks find their collective by whatever they tell, and what is wrong is named."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.contract.collective_ops import ranks_of
from distprof.merge.cost.collective_sums import group_coverage
from distprof.merge.match.matching import ALONE, MATCHED, match
from support.comm_rows import SCHEMA, call, frame, matched, numbered


def told(rows: pl.DataFrame) -> list[str]:
    """The mismatches, each once."""
    return rows.unique("collective", maintain_order=True)["mismatch"].drop_nulls().to_list()


def assert_true(rows: pl.DataFrame) -> None:
    """Rows are of one collective exactly where their `truth` is."""
    pairs = rows.select("collective", "truth").unique()
    assert len(pairs) == pairs["collective"].n_unique() == pairs["truth"].n_unique()


@st.composite
def jobs(draw):
    """Ranks of one group that lost rows, all but one, each with a number for the truth; all labels are different."""
    num_ranks, length = draw(st.integers(2, 4)), draw(st.integers(1, 12))
    ops = draw(st.lists(st.sampled_from(["all_reduce", "broadcast", "all_gather"]), min_size=length, max_size=length))
    members = tuple(range(num_ranks))
    whole, rows = draw(st.sampled_from(members)), []
    for rank in members:
        first, lost = draw(st.integers(0, 2)), draw(st.sets(st.integers(0, length - 1), max_size=2))
        mine = numbered(*(call(rank, op, of=members, size_bytes=4 * (place + 1), num_elements=place + 1, truth=place)
                          for place, op in enumerate(ops)), first=5)
        rows.append([one for place, one in enumerate(mine) if rank == whole or (place >= first and place not in lost)])
    return num_ranks, rows


@pytest.mark.long
@given(jobs())
def test_sequence_numbers_find_them_whatever_is_lost(job):
    num_ranks, rows = job
    found = matched(*(one for mine in rows for one in mine), world_size=num_ranks)
    assert_true(found)
    assert set(found["matched_by"]) <= {"sequence"}


@pytest.mark.long
@given(jobs())
def test_labels_find_them_where_numbers_count_something_else(job):
    """As gloo's do on ranks that have sent before: each rank is ahead by numbers of its own."""
    num_ranks, rows = job
    shifted = [{**one, "group_sequence": one["group_sequence"] + 100 * one["rank"], "sequence": place}
               for mine in rows for place, one in enumerate(mine)]
    assert_true(matched(*shifted, world_size=num_ranks))


@pytest.mark.long
@given(jobs())
def test_labels_find_them_without_any_number(job):
    num_ranks, rows = job
    bare = [{**one, "group_sequence": None, "sequence": None} for mine in rows for one in mine]
    found = matched(*bare, world_size=num_ranks)
    assert_true(found)
    assert set(found["matched_by"]) <= {"label"}


@pytest.mark.long
@given(st.integers(0, 3), st.integers(0, 5))
def test_one_missing_first_event_shifts_nothing_even_if_all_are_alike(rank, first):
    members = (0, 1, 2, 3)
    rows = [{**one, "truth": place} for other in members for place, one in enumerate(numbered(
        *(call(other, of=members) for _ in range(8)), first=first)) if place or other != rank]
    found = matched(*rows, world_size=4)
    assert_true(found)
    assert told(found) == []
    assert found["complete"].sum() == 28


def test_sends_before_count_in_numbers_of_gloo_and_mislead_nobody():
    ahead = numbered(call(0, "send", peer=5), call(0), call(0, "send", peer=5), call(0, "broadcast"), first=3)
    behind = numbered(call(1), call(1, "broadcast"), first=3)
    found = matched(*ahead, *behind).filter(pl.col("op") != "send")
    assert found["op"].to_list() == ["all_reduce"] * 2 + ["broadcast"] * 2 or found["op"].to_list() == [
        "broadcast"] * 2 + ["all_reduce"] * 2
    assert found["complete"].all() and set(found["matched_by"]) == {"sequence"}


def test_ids_of_the_backend_come_first():
    rows = [call(0, comms_id="7", sequence=0, group_sequence=4), call(0, comms_id="9", sequence=1, group_sequence=5),
            call(1, comms_id="9", sequence=0, group_sequence=4), call(1, comms_id="7", sequence=1, group_sequence=5)]
    found = matched(*rows)
    assert set(found["matched_by"]) == {"id"} and found["complete"].all()
    assert all(part["comms_id"].n_unique() == 1 for _, part in found.group_by("collective"))


def test_ops_issued_as_one_share_a_number_and_stay_apart():
    rows = [call(rank, "all_gather", size_bytes=size, group_sequence=3) for rank in (0, 1) for size in (8, 4, 2)]
    found = matched(*rows)
    assert found["complete"].all() and found["collective"].n_unique() == 3
    assert all(part["size_bytes"].n_unique() == 1 for _, part in found.group_by("collective"))


def test_ops_that_threads_take_up_in_another_order_are_the_same_ops():
    """As on the two threads of a group of gloo, where no number tells the order of the calls."""
    bare = {"of": None, "group": None}
    order = {0: [8, 4, 8, 4, 8, 4], 1: [8, 4, 4, 8, 8, 4], 2: [8, 4, 8, 4, 4, 8]}
    rows = [call(rank, **bare, size_bytes=size, truth=size * 10 + sizes[:place].count(size))
            for rank, sizes in order.items() for place, size in enumerate(sizes)]
    found = matched(*rows, world_size=3)
    assert_true(found)
    assert found["complete"].all() and set(found["matched_by"]) == {"label"}


# --- what is wrong --------------------------------------------------------------------------------------------------


def group_of_four(*ops: tuple[str, ...], **columns):
    """Rows of ranks that issue these, in turn."""
    return [one for rank, mine in enumerate(ops) for one in numbered(
        *(call(rank, op, of=(0, 1, 2, 3), **{name: values[rank] for name, values in columns.items()})
          for op in mine))]


def test_the_bug_that_hangs_jobs_is_named():
    same = ("all_reduce",) * 3
    odd = ("all_reduce", "all_reduce", "all_gather")
    found = matched(*group_of_four(same, same, odd, same), world_size=4)
    assert told(found) == ["rank 2 called all_gather where ranks 0-1, 3 called all_reduce"]
    assert found.filter(pl.col("mismatch").is_not_null())["complete"].any() is False


def test_a_rank_that_never_entered_is_named():
    rows = group_of_four(*[("all_reduce", "barrier")] * 3, ("all_reduce",))
    found = matched(*rows, ended=(3,), world_size=4)
    assert told(found) == ["rank 3 never entered"]
    assert found.filter(pl.col("op") == "barrier")["num_ranks"].to_list() == [3, 3, 3]


def test_a_rank_whose_record_may_have_ended_before_is_not_blamed():
    rows = group_of_four(("barrier",), ("barrier",))
    assert told(matched(*rows, ended=(2, 3), world_size=4)) == ["ranks 2-3 never entered"]
    assert told(matched(*rows, ended=(3,), world_size=4)) == ["rank 3 never entered"]
    found = matched(*rows, world_size=4)
    assert told(found) == [] and not found["complete"].any()


@pytest.mark.long
@given(jobs(), st.data())
def test_no_rank_is_said_to_lack_a_call_that_all_ranks_made(job, data):
    """Whatever records begin late, lose and end early, as long as those that are whole to their end are whole."""
    num_ranks, rows = job
    lengths = [data.draw(st.integers(0, len(mine))) for mine in rows]
    last = max(one["truth"] for mine in rows for one in mine)
    kept = [mine[:length] for mine, length in zip(rows, lengths, strict=True)]
    ended = tuple(rank for rank, mine in enumerate(kept) if mine and mine[-1]["truth"] == last)
    found = matched(*(one for mine in kept for one in mine), ended=ended, world_size=num_ranks)
    assert told(found) == []


def test_a_record_that_is_lost_in_between_is_no_mismatch():
    rows = group_of_four(*[("all_reduce", "broadcast", "barrier")] * 4)
    assert told(matched(*rows[:4], *rows[5:], ended=(0, 1, 2, 3), world_size=4)) == []


@pytest.mark.parametrize(("op", "sizes", "says"), [
    ("all_reduce", (64_000, 32_000), ["sizes differ: 64 KB on rank 0, 32 KB on rank 1"]),
    ("broadcast", (8, 4), ["sizes differ: 8 B on rank 0, 4 B on rank 1"]),
    ("reduce_scatter", (8, 4), ["sizes differ: 8 B on rank 0, 4 B on rank 1"]),
    ("all_gather", (8, 4), []), ("all_to_all", (8, 4), []), ("gather", (8, 4), []), ("scatter", (8, 0), [])])
def test_sizes_have_to_be_equal_in_some_ops_only(op, sizes, says):
    found = matched(*(one for rank, size in enumerate(sizes) for one in numbered(call(rank, op, size_bytes=size))))
    assert [text.replace(".00", "") for text in told(found)] == says
    assert found["complete"].all() == (not says)


def test_types_and_roots_that_differ_are_named():
    assert told(matched(*numbered(call(0)), *numbered(call(1, dtype="float16")))) == [
        "types differ: float32 on rank 0, float16 on rank 1"]
    assert told(matched(*numbered(call(0, "broadcast", peer=0)), *numbered(call(1, "broadcast", peer=1)))) == [
        "roots differ: 0 on rank 0, 1 on rank 1"]


# --- odd input ------------------------------------------------------------------------------------------------------


def test_nothing_gives_nothing():
    assert match(frame(), ended=[], world_size=2).columns == [*SCHEMA, "truth", *MATCHED]


def test_one_rank_no_bytes_no_type():
    found = matched(*numbered(call(0, of=(0,)), call(0, of=(0,), size_bytes=0, num_elements=0),
                              call(0, of=(0,), dtype=None)), world_size=1)
    assert found["complete"].all() and found["num_ranks"].to_list() == [1, 1, 1]
    found = matched(*numbered(call(0, dtype=None), call(0)), *numbered(call(1), call(1)))
    assert found["complete"].all()


def test_groups_that_overlap_or_share_a_name_stay_apart():
    rows = [one for rank in range(4) for one in numbered(
        call(rank, of=(rank // 2 * 2, rank // 2 * 2 + 1), group="pair"),
        call(rank, of=(rank % 2, rank % 2 + 2), group="cross"), call(rank, of=(0, 1, 2, 3)))]
    found = matched(*rows, world_size=4)
    assert found["complete"].all() and found["collective"].n_unique() == 5
    for _, one in found.group_by("collective"):
        assert sorted(one["rank"]) == list(ranks_of(one["group_ranks"][0]))


def test_of_unknown_groups_all_ranks_make_it_complete():
    bare = {"of": None, "group": None, "group_description": None}
    found = matched(call(0, **bare), call(1, **bare), call(0, "barrier", **bare))
    by_op = {op: (complete, how) for op, complete, how in found.select("op", "complete", "matched_by").iter_rows()}
    assert by_op == {"all_reduce": (True, "label"), "barrier": (False, "label")} and told(found) == []
    found = matched(*(call(rank, **bare, size_bytes=None, dtype=None) for rank in (0, 1)))
    assert set(found["matched_by"]) == {"order"}


def test_streams_without_names_are_communicators_of_their_own():
    bare = {"of": None, "group": None}
    rows = [call(0, **bare, lane=0, truth=0), call(0, **bare, lane=1, truth=1), call(1, **bare, lane=1, truth=1),
            call(1, **bare, lane=0, truth=0)]
    assert_true(matched(*rows))


def test_rows_whose_group_nothing_tells_stay_alone():
    found = matched(*(call(rank, of=None, group=None, lane=ALONE) for rank in (0, 1)))
    assert found["matched_by"].to_list() == [None, None] and found["collective"].n_unique() == 2
    assert told(found) == ["its process group is unknown"] * 2


def test_coverage_is_counted_by_group():
    pairs = [one for rank in (0, 1) for one in numbered(*[call(rank, group="pair")] * (3 - rank))]
    rows = [one for rank in range(4) for one in numbered(*[call(rank, of=(0, 1, 2, 3))] * (2 if rank < 2 else 1))]
    each = matched(*rows, *pairs, call(0, "send", peer=1), ended=(0, 1, 2, 3), world_size=4)
    found = group_coverage(each.unique("collective", keep="first"))
    assert found.select("group", "matched_by", "num_collectives", "matched", "partial", "unmatched", "mismatched").rows(
    ) == [("0", "sequence", 2, 1, 1, 0, 1), ("0", "peer", 1, 0, 0, 1, 0), ("pair", "sequence", 3, 2, 0, 1, 1)]
    assert found["group_ranks"].to_list() == [[0, 1, 2, 3], [0, 1], [0, 1]]
    assert group_coverage(matched()).is_empty()


# --- point to point -------------------------------------------------------------------------------------------------


def test_a_send_and_its_receive_are_one():
    rows = [call(0, "send", peer=1, tag=0), call(0, "send", peer=1, tag=9), call(0, "recv", peer=1, tag=0),
            call(1, "recv", peer=0, tag=9), call(1, "recv", peer=0, tag=0), call(1, "send", peer=0, tag=0)]
    found = matched(*rows)
    assert found["complete"].all() and set(found["matched_by"]) == {"peer"}
    for _, one in found.group_by("collective"):
        assert sorted(one["op"]) == ["recv", "send"] and one["tag"].n_unique() == 1
        assert one["peer"].to_list() == one["rank"].to_list()[::-1]


def test_the_next_send_of_a_rank_is_not_the_lost_one():
    sizes = (4, 8, 12, 16)
    rows = [call(0, "send", peer=1, size_bytes=size, truth=size) for size in sizes]
    rows += [call(1, "recv", peer=0, size_bytes=size, truth=size) for size in sizes[1:]]
    found = matched(*rows)
    assert_true(found)
    assert told(found) == []


def test_of_messages_only_what_contradicts_is_told():
    assert told(matched(call(1, "recv", peer=0), ended=(0, 1))) == []
    assert told(matched(call(1, "recv"), call(0, "send", peer=1))) == ["the peer is unknown"]
    assert told(matched(call(0, "send", peer=1), call(1, "recv", peer=0, size_bytes=8))) == [
        "sizes differ: 16 B on rank 0, 8 B on rank 1"]
    found = matched(call(0, "send", peer=0), call(0, "recv", peer=0))
    assert found["complete"].all() and found["collective"].n_unique() == 1


def test_equal_sizes_of_exchanges_that_data_divides_bring_nothing_together():
    """The first of rank 0 sends as much as the second of rank 1, and the other way round."""
    splits = [[[5, 5], [12, 8], [20, 0], [7, 3]], [[10, 10], [5, 5], [7, 3], [0, 20]]]
    found = matched(*(call(rank, "all_to_all", split_bytes=one, size_bytes=sum(one), num_elements=sum(one))
                      for rank, mine in enumerate(splits) for one in mine))
    for rank, mine in enumerate(splits):
        assert found.filter(rank=rank)["collective"].to_list() == [0, 1, 2, 3]
        assert found.filter(rank=rank)["split_bytes"].to_list() == mine
