"""Events whose structure tells what was meant are read, and nothing is made up from damage."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.scan.damage import recovered
from support.perfetto import ERRORS, PLACES, ask
from support.rank_traces import merge

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\\", exclude_categories=["Cc", "Cs"]), max_size=20)
"""Without the backslash, which does not tell whether it was meant to escape."""


def printed(name: str, args: str = "{}") -> str:
    """As a program prints an event that does not know JSON."""
    return f'{{"ph": "X", "cat": "k", "name": "{name}", "pid": 1, "tid": 1, "ts": 5.125, "dur": 2, "args": {args}}}'


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_names_come_out_as_they_were_printed(names):
    texts = [printed(name) for name in names]
    found, places, _ = recovered(",\n".join(texts).encode())
    alike = [name for name in names if all(sign not in name for sign in ('":', '",', '"}', '{"ph"', ',"ph"')) and not
             any(f'"{blank}' in name for blank in " \u00a0")]
    if alike == names:
        assert not places and [json.loads(event)["name"] for event in found] == names
    for event in found:
        assert json.loads(event)["ph"] == "X"


@pytest.mark.parametrize(("args", "read"), [
    ('{"Datatype": ncclFloat32, "id": 0x26, "Algorithm": RING}', {
        "Datatype": "ncclFloat32", "id": 38, "Algorithm": "RING"}),
    ('{"Rank": , "Count": }', {"Rank": None, "Count": None}),
    ('{"dims": [[1, 2], [x, "a"b"]], "c": true}', {"dims": [[1, 2], ["x", 'a"b']], "c": True}),
    ("{count: 3, 'a': 1}", None), ('{"a": 1', None), ('{"a": b c}', None), ('{"a": "b}', None)])
def test_what_profilers_print_by_hand_is_read(args, read):
    found, places, lost_bytes = recovered(text := printed("a", args).encode())
    assert (places, lost_bytes) == ((0, 0) if read is not None else (1, len(text)))
    assert [json.loads(event)["args"] for event in found] == ([read] if read is not None else [])


def test_numbers_keep_their_digits():
    (event,), *_ = recovered(printed("a").replace("5.125", "1700000000000000.125").encode())
    assert b'"ts":1700000000000000.125' in event


def test_two_events_that_damage_made_one_are_not_taken_for_one():
    first, second = printed("first"), printed("second")
    found, places, _ = recovered((first[:first.index("irst")] + second[second.index("second"):]).encode())
    assert not places and len(found) == 1, "it is whole"
    found, places, _ = recovered((first[:first.index("irst")] + second).encode())
    assert found == [] and places
    found, places, _ = recovered((first[:-1] + second[second.index('"pid"'):]).encode())
    assert found == [] and places, "no comma between them"


@pytest.mark.parametrize("event", [
    '{"ph": "X", "ts": 1, "dur": 5, "pid": 1, "tid": 1, "name": "f("x", dur: "99", z: "y")"}',
    '{"ph": "X", "name": "launch(stream: "s0", dur: "99", tid: "3")", "args": {}, "ts": 1, "dur": 5, "tid": 1}',
    '{"ts": 1, "dur": 5, "ph": "X", "name": "a "x"} b", "pid": 1, "tid": 1, "args": {"stream": 7}}',
    '{"ph": "X", "ts": 1, "name": "kernel<{1, 2}, "x">{ "y" }", "args": {"stream": 7}, "tid": 1}',
    '{"ph":"X","ts":1,"args": {"kernel": "f{"a"}}", "stream": 7}, "name": "x"}',
    '{"ph": "X", "name": "__nv_static<"a", "b">::f<{"c"}>", "ts": 1010, "dur": 5, "pid": 1, "tid": 1}',
    '{"ph": "X", "name": "a", "ts": 1, "args": {"id": 1, "f": ncclF}"pid": 1, "ts": 2, "args": {"id": 2}}'])
def test_what_a_name_has_in_it_is_never_taken_for_fields(event):
    """It is all there, or nothing is."""
    truth = {"ph": "X", "ts": 1, "dur": 5, "tid": 1}
    found, places, _ = recovered(event.encode())
    for one in map(json.loads, found):
        assert one["name"] in event and len(one["name"]) > len(event) / 5 and not places
        assert all(one.get(key, value) == value for key, value in truth.items())


@pytest.mark.long
def test_one_event_that_is_lost_does_not_cost_the_others_their_name(tmp_path):
    events = [printed(f"op {number}", '{"dt": b c}' if number == 1000 else '{"dt": ncclFloat32}')
              for number in range(2000)]
    found = merge(tmp_path, '{"traceEvents":[' + ",".join(events) + "]}")
    losses = found.found.counts[0].losses
    assert (losses.damaged_events, losses.repaired_events) == (1, 1999)
    assert abs(losses.lost_bytes - len(events[1000])) < 5 and len(found.of(0, "X")) == 1999


@pytest.mark.long
def test_odd_events_of_any_length_are_read_wherever_the_text_is_cut(tmp_path):
    events = [printed(f'f<"{number}">' + "x" * (5000 + 700 * (number % 40))) for number in range(500)]
    found = merge(tmp_path, '{"traceEvents":[' + ",".join(events) + "]}")
    assert len(found.of(0, "X")) == 500 and found.found.counts[0].losses.lost_bytes == 0


@given(st.binary(max_size=200), st.integers(0, 120), st.integers(0, 40))
def test_whatever_stands_there_ends_and_gives_json_or_nothing(noise, place, gone):
    text = (printed("a", '{"b": [c, {"d": "e"f"}], "g": 0x1}') * 2).encode()
    for event in recovered(text[:place] + noise + text[place + gone:])[0]:
        json.loads(event.decode("utf-8", "replace"), strict=False)


def test_a_trace_that_was_printed_by_hand_is_merged_whole(tmp_path):
    """As NCCL's example of a profiler plugin writes it, with a comma in front of each event."""
    args = '{"SeqNum": %d, "CommHash": 0x2f6, "Datatype": ncclFloat32, "Parent": }'
    begins = [f'{{"name": "AllReduce<"{number}">", "cat": COLL, "ph": "X", "ts": {10 * number}, "dur": 5, "pid": 7, '
              f'"tid": 7, "args": {args % number}}}' for number in range(400)]
    found = merge(tmp_path, "[" + "".join(f",{event}\n" for event in begins))
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and len(answer.results[1]) == 400
    assert {event["args"]["CommHash"] for event in found.of(0, "X")} == {758}
    assert sorted(event["name"] for event in found.of(0, "X"))[0] == 'AllReduce<"0">'
    losses = found.found.counts[0].losses
    assert (losses.damaged_events, losses.lost_bytes, losses.repaired_events) == (0, 0, 400)
