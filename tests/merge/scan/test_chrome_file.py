"""Chrome trace files that are whole, cut and damaged: every event that is whole arrives, and lost bytes are counted."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.scan import chrome_file, compiled, plain, text_window
from distprof.merge.scan.chrome_file import ChromeFile
from support.engines import ENGINES, needs_compiled

HEAD, TAIL = b'{"schemaVersion":1,"traceEvents":[', b'],"traceName":"x [1,2]","more":[{"a":1},{"b":[2]}]}\n'


def event(number: int, *, lines: bool = False, first: str = "ph") -> bytes:
    """An event that no other one equals."""
    fields = {"ph": "X", "cat": "c", "name": f"event {number} \" {{}}[],:", "pid": 1, "tid": "t", "ts": number + 0.125,
              "dur": 2, "args": {"a": [{"b": number}, {"c": []}], "d": {"e": None}, "f": "}, {"}}
    fields = {first: fields[first], **fields}
    return json.dumps(fields, indent=2 if lines else None, separators=None if lines else (",", ":")).encode()


def read(engine: Any, text: bytes, *, chunk: int = 1 << 17, max_rows: int = 50) -> tuple[ChromeFile, list[bytes]]:
    """A file that was read, and its events."""
    chunks = [text[at:at + chunk] for at in range(0, len(text), chunk)]
    file = ChromeFile("trace.json", chunks, engine.new_scanner(max_rows=max_rows))
    events = []
    for part in file.scanned():
        events += [bytes(part[start:end]) for start, end in zip(
            file.scanner.column("start").tolist(), file.scanner.column("end").tolist(), strict=True)]
    return file, events


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few events."""
    monkeypatch.setattr(text_window, "CHUNK_BYTES", 300)


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lines", [False, True])
def test_a_file_cut_anywhere_gives_what_is_whole(engine, lines):
    events = [event(number, lines=lines) for number in range(4)]
    text = HEAD + b",".join(events) + TAIL
    ends = [len(HEAD) + len(b",".join(events[:count])) for count in range(1, 5)]
    for cut in range(len(HEAD), len(text) + 1):
        file, found = read(engine, text[:cut], chunk=100)
        whole = sum(end <= cut for end in ends)
        assert found == events[:whole] and file.num_bytes == cut
        inside = cut < ends[-1]
        rest = max(cut - (ends[whole - 1] if whole else len(HEAD)) - (1 if whole else 0), 0)
        assert file.losses.lost_bytes == (rest if inside else 0)
        assert file.losses.is_cut == (cut < len(text.rstrip())) and file.losses.damaged_events == 0
    assert file.metadata == {"schemaVersion": 1, "traceName": "x [1,2]", "more": [{"a": 1}, {"b": [2]}]}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("end", "is_cut"), [
    (b"]", False), (b",]", False), (b"\n]\n\n", False), (b"", False), (b",\n", False), (b"  ", False), (b",{", True)])
def test_an_array_needs_no_bracket_at_its_end(engine, end, is_cut):
    events = [event(number) for number in range(3)]
    file, found = read(engine, b" [ " + b",".join(events) + end)
    assert found == events and file.losses.is_cut == is_cut and file.losses.lost_bytes == is_cut


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("element", [b"1", b"null", b'"a ] , {\\" b"', b"NaN", b"[1,2]", b'[{"x":1},{"y":2}]', b"-"])
def test_what_is_no_event_costs_no_event(engine, element):
    events = [event(number) for number in range(3)]
    for place in range(4):
        parts = [*events[:place], element, *events[place:]]
        file, found = read(engine, HEAD + b",".join(parts) + TAIL)
        assert [one for one in found if one in events] == events
        assert file.losses.damaged_events == 1 and len(element) <= file.losses.lost_bytes <= len(element) + 2
        assert not file.losses.is_cut and file.metadata["traceName"] == "x [1,2]"


DAMAGE = st.tuples(
    st.integers(0, 10**6), st.integers(0, 5),
    st.binary(max_size=2) | st.sampled_from([b'"', b"{", b"}", b"[", b"]", b"},{", b"]}", b"}],", b"\\", b":"]))


@pytest.mark.parametrize("engine", ENGINES)
@given(damages=st.dictionaries(st.integers(0, 11), DAMAGE, max_size=4), lines=st.booleans(),
       tail=st.sampled_from([TAIL, b"]"]), chunk=st.sampled_from([64, 700, 10**6]))
def test_damage_costs_the_events_it_is_in(engine, damages, lines, tail, chunk):
    whole = [event(number, lines=lines) for number in range(12)]
    parts = list(whole)
    for number, (place, gone, new) in damages.items():
        part = parts[number]
        place = 1 + place % (len(part) - 2)  # the braces around stay
        parts[number] = part[:place] + new + part[min(place + gone, len(part) - 1):]
    head = HEAD if tail is TAIL else b"["
    text = head + b",".join(parts) + tail
    file, found = read(engine, text, chunk=chunk)
    untouched = [one for number, one in enumerate(whole) if number not in damages]
    assert [one for one in found if one in untouched] == untouched
    assert file.num_bytes == len(text)
    if not damages:
        assert found == whole and file.losses == chrome_file.Losses()
    may_end_early = tail == b"]" and any(b"]" in new for *_, new in damages.values())  # then the rest is no loss
    if not file.losses.repaired_events and not may_end_early:
        others = file.num_bytes - sum(map(len, found)) - file.losses.lost_bytes
        assert len(head) <= others <= len(head) + len(tail) + len(found) + file.losses.damaged_events


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("literal", "is_value"), [
    (b"NaN", True), (b"+nan", True), (b"-Infinity", True), (b"01", True), (b"+1", True), (b".5", True), (b"5.", True),
    (b"Null", True), (b"abc", True), (b"nulll", True), (b"0x5", True), (b"", True), (b'"a"b"', True),
    (b"+null", False), (b"-true", False), (b"1e", False), (b"+", False), (b".", False), (b".e3", False),
    (b"..5", False), (b"+-1", False), (b"0x", False), (b"a b", False), (b"[}", False)])
def test_what_is_no_value_and_is_no_word_either_is_damage(engine, literal, is_value):
    odd = b'{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2,"args":{"e":%s}}' % literal
    file, found = read(engine, HEAD + odd + b"," + event(1) + b" " * 5000 + TAIL)
    assert (len(found), file.losses.repaired_events) == ((2, 1) if is_value else (1, 0))


@pytest.mark.long
@needs_compiled
@given(damages=st.dictionaries(st.integers(0, 39), DAMAGE, max_size=12), lines=st.booleans(),
       first=st.sampled_from(["ph", "name"]), max_rows=st.sampled_from([3, 50]))
def test_both_engines_pass_over_damage_alike(damages, lines, first, max_rows):
    parts = [event(number, lines=lines, first=first) for number in range(40)]
    for number, (place, gone, new) in damages.items():
        place %= len(parts[number])
        parts[number] = parts[number][:place] + new + parts[number][place + gone:]
    text = HEAD + b",".join(parts) + b"," + event(-1) + b" " * 5000 + TAIL  # enough to see what follows damage
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_window, "CHUNK_BYTES", 1 << 16)
        ours, theirs = (read(engine, text, max_rows=max_rows) for engine in (compiled, plain))
    assert ours[1] == theirs[1] and ours[0].losses == theirs[0].losses and ours[0].metadata == theirs[0].metadata


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bracket_that_is_never_closed_takes_one_event_along(engine, monkeypatch):
    monkeypatch.setattr(chrome_file, "MOST_EVENT_BYTES", 4000)
    events = [event(number) for number in range(200)]
    broken = b'{"ph":"X","args":{"a":[1'
    for first in ([broken], [broken, b"]"]):
        text = HEAD + b",".join([*events[:3], *first, *events[3:]]) + TAIL
        file, found = read(engine, text)
        assert found == events and not file.losses.is_cut
        assert len(broken) < file.losses.lost_bytes < len(broken) + 5


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("first", ["ph", "name"])
def test_a_long_file_with_many_damages(engine, monkeypatch, first):
    monkeypatch.setattr(text_window, "CHUNK_BYTES", 1 << 16)
    chance = random.Random(0)
    whole = [event(number, lines=number % 3 == 0, first=first) for number in range(4000)]
    parts, broken = list(whole), set(chance.sample(range(4000), 60))
    for number in broken:
        place = chance.randrange(3, len(parts[number]) // 2)
        parts[number] = parts[number][:place] + b"\0" * 9 + parts[number][place + 9:]
    file, found = read(engine, HEAD + b",\n".join(parts) + TAIL, max_rows=1000)
    fixed = file.losses.repaired_events  # zeros within a string
    assert len(found) >= 4000 - len(broken) and file.losses.damaged_events >= len(broken) - fixed
    assert set(found) >= {one for number, one in enumerate(whole) if number not in broken}


@pytest.mark.parametrize("engine", ENGINES)
def test_keys_beside_the_events_are_text_however_they_are_written(engine):
    about = {"host": "caf\u00e9 \u4e2d \U0001f600", "half": "x\ud83d", "n\u00e9": [{"\u4e2d": "\u00e9"}]}
    for ascii_only in (True, False):
        text = json.dumps(about, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        file, found = read(engine, text[:-1] + b',"traceEvents":[' + event(0) + b'],"last":"\xe9 \xc3\xa9"}', chunk=5)
        assert found == [event(0)] and file.metadata["last"] == "\ufffd \u00e9"
        assert file.metadata["host"] == about["host"] and file.metadata["n\u00e9"] == about["n\u00e9"]
        json.dumps(file.metadata, ensure_ascii=False).encode()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("between", [b"", b",", b" , "])
def test_events_behind_an_end_that_is_none_are_read(engine, between):
    events = [event(number) for number in range(4)]
    text = HEAD + b",".join(events[:2]) + b"]" + between + b",".join(events[2:]) + TAIL
    file, found = read(engine, text)
    assert found == events and file.losses.damaged_events == 1 and file.metadata["traceName"] == "x [1,2]"
