"""The layout of a rank is the same, however few of its rows are in memory at once."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.layout.event_selection import EventSelection
from distprof.merge.layout.finder import LayoutFinder
from distprof.merge.layout.layout import Layout
from distprof.merge.layout.sorted_rows import ROOM
from support.engines import ENGINES

DAY = 86_400 * 10**6
"""In microseconds."""
IDS = (1, 2, "1", "0x1f", 2**40)


def made(seed: int) -> list[dict]:
    """Events of every kind that overlap, end and point at each other in all ways."""
    chance = random.Random(seed)
    last = chance.choice([30, 300, 4000])
    phases = chance.choice(["X", "XXsf", "XXstf", "XBE", "XXBEstfbeiC"])
    ids, categories = IDS[:chance.choice([1, 2, 5])], chance.choice(["u", "uv"])
    found = []
    for _ in range(chance.randrange(5, 60)):
        event = {"ph": chance.choice(phases), "ts": chance.randrange(last) / 1000, "pid": chance.choice([1, "1"]),
                 "tid": chance.randrange(2), "dur": chance.choice([0, 1, last // 9, last, 3 * last]) / 1000,
                 "id": chance.choice(ids), "bp": chance.choice(["e", ""]), "cat": chance.choice(categories)}
        more = {"name": chance.choice(["a", "b", ""]), "bind_id": chance.choice(ids), "flow_in": True, "flow_out": True}
        found.append(event | {key: value for key, value in more.items() if chance.random() < 0.3})
    return sorted(found, key=lambda event: event["ts"]) if chance.random() < 0.5 else found


selections = st.sampled_from([EventSelection(), EventSelection(min_duration_ns=20),
                              EventSelection(categories=frozenset("u"))])


def found(engine: Any, events: list[dict], selection: EventSelection, *, room: int,
          max_rows: int) -> tuple[dict[str, Any], tuple[int, int] | None]:
    """The layout as plain values, and the span."""
    text = json.dumps(events).encode()[1:]
    scanner, at, row = engine.new_scanner(max_rows=max_rows), 0, 0
    with LayoutFinder(scanner, selection, 0, None, room) as rows:
        while at < len(text):
            _, at = scanner.scan(text, at, len(text))
            rows.add(text, row)
            row += scanner.num_rows
        span, layout = rows.span(), rows.layout()
    return {field.name: np.asarray(getattr(layout, field.name)).tolist() for field in fields(Layout)}, span


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@given(seed=st.integers(0, 2**32), selection=selections, room=st.sampled_from([1, 2, 5, 12]),
       max_rows=st.integers(1, 7))
def test_a_layout_out_of_parts_is_that_of_the_whole(engine, seed, selection, room, max_rows):
    events = made(seed)
    whole = found(engine, events, selection, room=ROOM, max_rows=max_rows)
    assert found(engine, events, selection, room=room, max_rows=max_rows) == whole


@pytest.mark.parametrize("engine", ENGINES)
@given(stamps=st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 10), st.sampled_from("XiC")), min_size=1,
                       max_size=12), room=st.sampled_from([2, ROOM]))
def test_times_that_are_days_off_are_not_in_the_span(engine, stamps, room):
    """What no gap of a day parts from the middle one is in the span, however long it lasts."""
    events = [{"ph": phase, "ts": days * DAY * 3 // 4 + us, "dur": us, "pid": 1, "tid": 1}
              for days, us, phase in stamps]
    starts = [event["ts"] * 1000 for event in events]
    ends = starts + [(event["ts"] + event["dur"]) * 1000 for event in events if event["ph"] == "X"]
    wanted = min(starts), max(ends)
    if wanted[1] - wanted[0] >= DAY * 1000:
        ordered, middle = sorted(starts), (len(starts) - 1) // 2
        first = last = middle
        while first and ordered[first] - ordered[first - 1] < DAY * 1000:
            first -= 1
        while last + 1 < len(ordered) and ordered[last + 1] - ordered[last] < DAY * 1000:
            last += 1
        wanted = ordered[first], max(at for at in ends if at < ordered[last] + DAY * 1000)
    assert found(engine, events, EventSelection(), room=room, max_rows=3)[1] == wanted
