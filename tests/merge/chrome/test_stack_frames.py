"""Stack frames beside the events of several ranks, whose numbers are the same, stay apart and complete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.rank_traces import merge, slice_of
from support.trace_texts import exact_ns

NAMES = st.text(max_size=3)
LINKS = st.sampled_from(("1", "2", "30", "leaf", 1, 2, 30, None))


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
