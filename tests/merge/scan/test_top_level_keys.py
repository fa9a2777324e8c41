"""Keys beside the events, whole and damaged: what can be kept is kept, the events are read in any case."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.scan import plain, top_level_keys
from distprof.merge.scan.chrome_file import ChromeFile
from distprof.merge.scan.json_values import ROOM, TURNS, value_end, value_of
from distprof.merge.scan.repair import repaired
from support.engines import ENGINES

EVENTS = [json.dumps({"ph": "X", "name": f"e{number}", "pid": 1, "tid": 1, "ts": number, "dur": 1}).encode()
          for number in range(3)]
ABOUT = b'"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"ranks": [0, 3]}]}'
LIST = b'"traceEvents": [' + b",".join(EVENTS) + b"]"


def read(engine, text: bytes, chunk: int = 1 << 17) -> tuple[ChromeFile, list[bytes]]:
    file = ChromeFile("t.json", [text[at:at + chunk] for at in range(0, len(text), chunk)], engine.new_scanner())
    scanner, found = file.scanner, []
    for part in file.scanned():
        found += [bytes(part[start:end]) for start, end in zip(
            scanner.column("start").tolist(), scanner.column("end").tolist(), strict=True)]
    return file, found


@pytest.mark.parametrize("chunk", [7, 1 << 17])
@pytest.mark.parametrize(("odd", "value"), [
    (b"1e400", float("inf")), (b"9" * 5000, "9" * 5000), (b"NaN", "NaN"), (b'"a\\"b\xff"', 'a"b\ufffd'),
    (b'"C:\\Users"', "C:Users"), (b'"\\ud800"', "\ufffd"), (b"[1,]", [1]), (b'{"x": 01}', {"x": 1})])
def test_odd_values_are_kept_the_nearest_there_is(odd, value, chunk):
    odd = b'"odd": ' + odd
    for members in ([odd, ABOUT, LIST], [ABOUT, LIST, odd]):
        text = b"{" + b", ".join(members) + b"}"
        file, found = read(plain, text, chunk)
        assert found == EVENTS and file.losses.lost_key_bytes == 0 and file.losses.damaged_keys == ()
        assert file.metadata["distributedInfo"]["rank"] == 3
        assert (file.metadata["odd"].replace("\\", "") if isinstance(value, str) else file.metadata["odd"]) == value


def too_deep(depth: int) -> bool:
    """For Python, with what the value may later stand in: 3.14 reads more levels than those before."""
    try:
        json.loads("[" * (depth + ROOM) + "]" * (depth + ROOM))
    except RecursionError:
        return True
    return False


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("depth", [90, 900, 100_000])
@pytest.mark.parametrize("behind", [False, True])
def test_a_value_too_deep_is_left_out_and_named(engine, depth, behind):
    deep = b'"deep": ' + b"[" * depth + b"]" * depth
    text = b"{" + b", ".join([ABOUT, LIST, deep] if behind else [deep, ABOUT, LIST]) + b"}"
    file, found = read(engine, text)
    assert found == EVENTS and file.metadata["distributedInfo"]["world_size"] == 8
    assert file.losses.damaged_keys == (("deep",) if too_deep(depth) else ())
    json.dumps(file.metadata)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("damage", [
    b'"job": "C:, ', b'"job": "a"b", ', b'"job" 5, ', b'x, ', b'"job": , ', b'"job": [1}, ', b'"job": [1, ', b'}, ',
    b'"job": {"a": "b}, ', b'"a": 1 2, ', b"\0", b'"'])
@pytest.mark.parametrize("chunk", [5, 1 << 17])
def test_reading_goes_on_behind_damage_between_the_keys(engine, damage, chunk):
    file, found = read(engine, b'{"schemaVersion": 1, ' + damage + ABOUT + b", " + LIST + b"}", chunk)
    assert found == EVENTS and file.metadata["schemaVersion"] == 1
    assert file.metadata["distributedInfo"]["rank"] == 3
    assert file.losses.lost_key_bytes > 0 and not file.losses.is_cut


@pytest.mark.parametrize("engine", ENGINES)
def test_the_rank_is_found_in_damaged_distributed_info(engine):
    for broken in (ABOUT.replace(b"[0, 3]", b"[0, x 3]"), ABOUT[:-1], ABOUT.replace(b'"nccl"', b'nccl"')):
        for text in (b"{" + broken + b", " + LIST + b"}", b"{" + LIST + b", " + broken + b"}"):
            file, found = read(engine, text)
            about = file.metadata["distributedInfo"]
            assert found == EVENTS and (about["rank"], about["world_size"]) == (3, 8)
            assert "distributedInfo" in file.losses.damaged_keys


@pytest.mark.parametrize("engine", ENGINES)
def test_a_further_list_of_events_is_read_too(engine):
    more = b'"traceEvents": [' + EVENTS[0] + b"," + EVENTS[1] + b"]"
    for chunk in (9, 1 << 17):
        file, found = read(engine, b"{" + LIST + b", " + ABOUT + b", " + more + b', "last": 1}', chunk)
        assert found == [*EVENTS, *EVENTS[:2]] and file.losses.damaged_events == 0 and not file.losses.is_cut
        assert file.metadata["distributedInfo"]["rank"] == 3 and file.metadata["last"] == 1


@pytest.mark.parametrize("engine", ENGINES)
@given(place=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_wrong_byte_before_the_events_costs_no_event(engine, place, byte):
    head = b'{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a"}], ' + ABOUT + b', "traceEvents": [\n'
    place %= len(head)
    text = head[:place] + bytes([byte]) + head[place + 1:] + b",".join(EVENTS) + b"]}"
    file, found = read(engine, text)
    assert found == EVENTS
    losses = file.losses
    if not (losses.lost_key_bytes or losses.damaged_keys or losses.damaged_events or losses.is_cut):
        json.loads(repaired(text), strict=False)  # else something was lost in silence


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2**63, 2**63 - 1) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3))


@given(value=VALUES, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_values_end_and_mean_what_json_says(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert value_end(b"  " + text + b" ,", 2) == 2 + len(text)
    assert value_of(text) == json.loads(text)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("count", [TURNS // 2 - 1, TURNS // 2, 2 * TURNS])
def test_many_strings_between_two_brackets_are_text(engine, count):
    event = json.dumps({"ph": "X", "name": "e", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": {"of": ["["] * count}})
    assert value_end(event.encode(), 0) == len(event)
    assert read(engine, b'{"traceEvents": [%b]}' % event.encode(), chunk=999)[1] == [event.encode()]


def test_text_before_the_events_is_looked_at_a_few_times(monkeypatch):
    value, seen = json.dumps(["x" * 60] * 4000).encode(), []
    monkeypatch.setattr(top_level_keys, "value_end",
                        lambda text, at: seen.append(len(text) - at) or value_end(text, at))
    file, found = read(plain, b'{"bad": "\xff", "long":' + value + b"," + LIST + b"}", chunk=100)
    assert found == EVENTS and file.metadata["long"] == json.loads(value)
    assert sum(seen) < 12 * len(value)


@pytest.mark.long
def test_many_keys_that_are_never_closed_are_no_work():
    chance = random.Random(0)
    keys = [b'"metadata": [' if chance.random() < 0.5 else b'"host_name": {' for _ in range(20_000)]
    file = ChromeFile("t.json", [b"{" + b" ".join(keys)], plain.new_scanner())
    with pytest.raises(Exception, match="no traceEvents in"):
        list(file.scanned())
