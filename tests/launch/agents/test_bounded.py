"""Answers that fit: whatever there is, some of it is told, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distprof.launch.agents.bounded import MOST_BYTES, answer

# long ones repeat: to draw each letter takes most of the time
TEXTS = st.text(max_size=8) | st.builds(str.__mul__, st.text(min_size=1, max_size=4), st.integers(0, 500))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(TEXTS, inner, max_size=40), max_leaves=60)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=30), st.lists(VALUES, max_size=60),
       st.integers(0, 80))
def test_an_answer_is_never_too_long_and_always_json(head, rows, offset):
    for text in (answer(head), answer(head, "rows", rows, offset=offset, hint="x" * 500)):
        assert len(text.encode()) <= MOST_BYTES
        json.loads(text)


@pytest.mark.parametrize("letter", ["k", "é", "\x01"])
def test_long_names_of_lists_that_were_cut_do_not_make_an_answer_too_long(letter):
    many = {f"{letter * 57}{number}": list(range(100)) for number in range(29)}
    many |= {f"{letter * 40}{number}": list(range(100)) for number in range(20)}
    text = answer(many, "findings", [{"text": "y" * 10}] * 400, hint="h" * 200)
    assert len(text.encode()) <= MOST_BYTES
    left_out = json.loads(text)["left_out"]
    assert left_out["hint"] and left_out["rows"]["next_offset"]
    assert len(left_out["shortened_lists"]) + left_out["more_shortened_lists"] == len(many)


def test_all_rows_are_read_page_by_page():
    rows = [{"rank": number, "text": "x" * 90} for number in range(400)]
    seen, offset = [], 0
    while offset is not None:
        found = json.loads(answer({"a": 1}, "ranks", rows, offset=offset, hint="offset=N"))
        assert found["num_ranks"] == 400 and found["left_out"]["hint"] == "offset=N"
        seen += found["ranks"]
        offset = found["left_out"]["rows"].get("next_offset")
    assert seen == rows


def test_what_is_short_is_whole():
    assert answer({"a": None, "b": [], "c": 0, "d": float("nan")}, "rows", [{"x": 1.5}]) == (
        '{"rows":[{"x":1.5}],"c":0,"num_rows":1}')


def test_a_list_that_was_cut_is_named():
    found = json.loads(answer({"kinds": [{"op": "a" * 40}] * 1000}))
    assert len(found["kinds"]) == 12 and found["left_out"]["shortened_lists"] == {"kinds": "12 of 1000"}


def test_a_row_that_is_too_long_by_itself_is_cut():
    found = json.loads(answer({}, "rows", [{"many": list(range(10_000)), "rank": 3}, {"rank": 4}]))
    assert found["rows"][0]["rank"] == 3 and len(found["rows"][0]["many"]) == 12
    assert found["left_out"]["shortened_lists"] == {"rows.many": "12 of 10000"}
