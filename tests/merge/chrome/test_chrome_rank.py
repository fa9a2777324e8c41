"""Members of the merged trace: the same text gives the same bytes, and stack frames of several ranks stay apart."""

from __future__ import annotations

import gzip
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.chrome.chrome_rank import FIRST_BYTES, GzipMember, packed
from support.rank_traces import merge, slice_of
from support.trace_texts import exact_ns

NAMES = st.text(max_size=3)
LINKS = st.sampled_from(("1", "2", "30", "leaf", 1, 2, 30, None))
MANY_ADDRESSES = """
from distprof.merge.chrome.chrome_rank import GzipMember
# both the beginning and what stands from the third byte on come again: a wrong entry at either hides or adds a match
text = b'{"ph":"X","name":"a"},' + b"-0123456789-".join([b'{"ph":"X+', b'ph":"X","n+', b"end"]) * 3
text += bytes(range(256)) * 4
kept, found = [], set()
for _ in range(9000):
    member = GzipMember()
    found.add(member.add(text) + member.end())
    kept += [member, bytearray(70_000)]
print(len({id(member._packer) >> 16 for member in kept[::2]}), len(found))
"""


@pytest.mark.long
@pytest.mark.parametrize("_", range(3))
def test_bytes_do_not_depend_on_where_the_compressor_lies(_):
    done = subprocess.run([sys.executable, "-c", MANY_ADDRESSES], capture_output=True, text=True, check=True)
    addresses, outcomes = map(int, done.stdout.split())
    assert addresses > 8000
    assert outcomes == 1


@given(texts=st.lists(st.binary(min_size=4, max_size=60), min_size=1, max_size=5))
def test_a_member_holds_the_texts(texts):
    member = GzipMember()
    assert gzip.decompress(b"".join(map(member.add, texts)) + member.end()) == b"".join(texts)


@given(text=st.binary(max_size=3 * FIRST_BYTES))
def test_a_member_of_one_text(text):
    assert gzip.decompress(packed(text)) == text


@st.composite
def traces(draw: st.DrawFn) -> dict:
    """Ranks whose slices name frames, some of which are not there."""
    frames = {}
    for number in draw(st.lists(st.sampled_from(("1", "2", "30", "leaf")), unique=True)):
        parent = draw(st.sampled_from((*frames, None))) if frames else None
        frames[number] = {"name": draw(NAMES), **({} if parent is None else {"parent": parent})}
    slices = []
    for index, links in enumerate(draw(st.lists(st.tuples(LINKS, LINKS), min_size=1, max_size=4))):
        named = {key: link for key, link in zip(("sf", "esf"), links, strict=True) if link is not None}
        slices.append(slice_of(f"op {index}", 10 * index, 5, args={"sf": 1, "large": 2**60 + 1}, **named))
    return {"traceEvents": slices, "stackFrames": frames}


def stack(trace: dict, number: object) -> list[str]:
    """Names of a frame and of those around it."""
    frames, found = trace["stackFrames"], []
    while number is not None and str(number) in frames:
        frame = frames[str(number)]
        found.append(frame["name"])
        number = frame.get("parent")
    return found


@pytest.mark.long
@given(ranks=st.lists(traces(), min_size=1, max_size=3))
def test_each_event_has_the_stack_that_it_had(tmp_path_factory, ranks):
    merged = merge(tmp_path_factory.mktemp("frames"), *ranks)
    whole = {"stackFrames": {}, **merged.whole}
    assert len(whole["stackFrames"]) == sum(len(trace["stackFrames"]) for trace in ranks)
    for rank, trace in enumerate(ranks):
        found = {event["name"]: event for event in merged.of(rank, "X")}
        assert len(found) == len(trace["traceEvents"])
        for event in trace["traceEvents"]:
            merged_event = found[event["name"]]
            assert merged_event["args"] == event["args"]
            for key in ("sf", "esf"):
                assert (key in merged_event) == (key in event)
                assert stack(whole, merged_event.get(key)) == stack(trace, event.get(key))


def test_times_of_such_events_keep_their_nanoseconds(tmp_path):
    times = ["1790000000000000.001", "1790000000000000.002"]
    slices = (f'{{"ph": "X", "name": "op", "pid": 7, "tid": 7, "ts": {ts}, "dur": 0.001, "sf": 1}}' for ts in times)
    text = f'{{"stackFrames": {{"1": {{"name": "main"}}}}, "traceEvents": [{",".join(slices)}]}}'
    first, second = merge(tmp_path, text).of(0, "X")
    assert exact_ns(str(second["ts"])) - exact_ns(str(first["ts"])) == 1
