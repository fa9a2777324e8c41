"""Merging and splitting by rank gives back every event, byte for byte in `args`."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.rank_traces import merge
from support.trace_texts import in_any_layout, in_kineto_layout, objects_of, plain_text, quoted, scalars

NAMES = st.one_of(st.sampled_from(["aten::mm", "nccl:all_reduce", "a \\ b"]), plain_text.filter(bool))
KEYS = quoted.filter(lambda key: json.loads(key) not in ("", "args"))
PLAIN = re.compile(r"-?\d{19,}|\\u[dD]|\\\\\"")
"""What no viewer reads as it stands, and is repaired."""
arguments = objects_of(scalars.filter(lambda text: not PLAIN.search(text)), KEYS).filter(
    lambda text: not PLAIN.search(text))


@st.composite
def timed_events(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    """An event, and its text in one of two layouts."""
    phase = draw(st.sampled_from("XXXXiC"))
    event: dict[str, Any] = {"ph": phase, "cat": draw(st.sampled_from(["cpu_op", "kernel", "x"])), "name": draw(NAMES),
                             "pid": draw(st.sampled_from([7, -1, "Spans", 2**33])), "tid": draw(st.integers(0, 3))}
    start_ns = draw(st.integers(10**6, 10**10))
    texts = {key: json.dumps(value) for key, value in event.items()}
    texts["ts"] = f"{start_ns // 1000}.{start_ns % 1000:03d}"
    if phase == "X":
        texts["dur"] = draw(st.sampled_from(["0", "0.001", "5.25"]))
    if phase == "i":
        texts["s"] = '"t"'
    texts["args"] = draw(arguments) if phase != "C" else '{"v": 1.50}'
    order = draw(st.permutations(sorted(texts)))
    layout = draw(st.sampled_from([in_kineto_layout, in_any_layout]))
    spaces = draw(st.lists(st.sampled_from(["", " ", "\n"]), min_size=1))
    text = layout([(f'"{key}"', texts[key]) for key in order], spaces)
    return event | {"start_ns": start_ns, "dur": texts.get("dur"), "args": next(arguments_of(text))}, text


traces = st.lists(timed_events(), max_size=6)


def arguments_in(text: str) -> Iterator[str]:
    """The text of the arguments of every event of a list, in order."""
    decoder = json.JSONDecoder()
    for start in (match.start() for match in re.finditer(r"\{", text)):
        try:
            event, end = decoder.raw_decode(text, start)
        except ValueError:
            continue
        if isinstance(event, dict) and "ph" in event and "pid" in event and event["ph"] != "M":
            yield from arguments_of(text[start:end])


def arguments_of(event: str) -> Iterator[str]:
    """The value behind the key at the first level."""
    decoder, place = json.JSONDecoder(), 1
    while match := re.compile(r"[\s,]*(?=\")").match(event, place):
        key, place = decoder.raw_decode(event, match.end())
        place = re.compile(r"\s*:\s*").match(event, place).end()
        start, (_, place) = place, decoder.raw_decode(event, place)
        if key == "args":
            yield event[start:place]


@pytest.mark.long
@given(ranks=st.lists(traces, min_size=1, max_size=3), separator=st.sampled_from([",", ",\n  "]))
def test_merging_and_splitting_gives_back_every_event(tmp_path_factory, ranks, separator):
    texts = [f'{{"traceEvents": [{separator.join(text for _, text in found)}]}}' for found in ranks]
    merged = merge(tmp_path_factory.mktemp("round"), *texts)
    origin = merged.whole["metadata"]["distprof"]["origin_ns"]
    written = gzip.decompress(merged.path.read_bytes()).decode()
    body = written[written.index('"traceEvents":[') + 15:written.rindex('],"metadata"')]
    assert list(arguments_in(body)) == [event["args"] for found in ranks for event, _ in found]
    threads: dict[tuple[int, int], tuple[int, Any, int]] = {}
    for rank, found in enumerate(ranks):
        back = merged.of(rank)
        assert len(back) == len(found)
        for new, (old, _) in zip(back, found, strict=True):
            assert [new[key] for key in ("ph", "cat", "name")] == [old[key] for key in ("ph", "cat", "name")]
            assert round(new["ts"] * 1000) + origin == old["start_ns"]
            if not merged.found.total("num_cut"):
                assert new.get("dur") == (None if old["dur"] is None else float(old["dur"]))
            if not merged.found.total("num_side"):
                place = (rank, old["pid"], old["tid"])
                assert threads.setdefault((new["pid"], new["tid"]), place) == place
