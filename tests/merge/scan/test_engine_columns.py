"""What the merge engines find in events, and write, is what JSON's own rules say; each engine for itself."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.merge.scan.repair import repaired
from distprof.merge.scan.scanned_columns import (
    BAD_TIME,
    ENCLOSING,
    FLOW_IN,
    FLOW_OUT,
    GLOBAL,
    LINKED,
    NO_ARROW,
    NON_ASCII,
    NONE,
    REPAIR,
    Status,
)
from support.engines import ENGINES, found, new_numbers, scans, texts
from support.trace_texts import (
    WANTED_INTEGERS,
    WANTED_TEXTS,
    damaged_traces,
    events,
    exact_ns,
    repetitive_traces,
    traces,
)

WANTED = {"integers": WANTED_INTEGERS, "texts": WANTED_TEXTS}


def is_text_of(interned: bytes, value: Any) -> bool:
    """True where an interned text stands for a value: strings lose their quotes."""
    return json.loads(b'"' + interned + b'"') == value if isinstance(value, str) else json.loads(interned) == value


def expected_integer(value: Any) -> int:
    if isinstance(value, str) and value.isascii():
        digits = value.removeprefix("-")
        value = int(value) if digits.isdigit() else None
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and -(2**63) < value < 2**63 else NONE


def holds_odd(value: Any) -> bool:
    """True where a viewer trips over the value: integers above 64 bits."""
    if isinstance(value, dict):
        return any(map(holds_odd, value.values()))
    if isinstance(value, list):
        return any(map(holds_odd, value))
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def literals_of(event: bytes) -> dict[str, str]:
    """The values of an event as they stand in its text."""
    fields = msgspec.json.decode(event, type=dict[str, msgspec.Raw])
    return {key: bytes(value).decode() for key, value in fields.items()}


def check_row(scanner: Any, text: bytes, row: int) -> None:
    """Compares a row with what JSON says of the event."""
    columns = {name: values[row] for name, values in found(scanner).items()}
    raw = text[columns["start"]:columns["end"]]
    event = json.loads(raw)
    if columns["flags"] & REPAIR:
        assert holds_odd(event) or rb"\ud" in raw.lower() or json.loads(repaired(raw)) == event
        return  # it is scanned once more, repaired
    assert not holds_odd(event) and repaired(raw) == raw
    literals = literals_of(raw)
    phase = event.get("ph")
    assert columns["phase"] == (phase.encode()[0] if isinstance(phase, str) and phase else 0)
    for name in ("ts", "dur"):
        wanted = exact_ns(literals[name]) if name in literals else None
        assert columns[f"{name}_ns"] == (NONE if wanted is None else wanted)
    bad_time = any(exact_ns(literals[name]) is None for name in ("ts", "dur") if name in literals)
    assert bool(columns["flags"] & BAD_TIME) == bad_time
    assert bool(columns["flags"] & GLOBAL) == (phase in ("i", "I") and event.get("s") == "g")
    for key, value, flag in (("bp", '"e"', ENCLOSING), ("flow_in", "true", FLOW_IN), ("flow_out", "true", FLOW_OUT)):
        is_marked = json.dumps(event.get(key)) == value and (key == "bp" or "bind_id" in event)
        assert bool(columns["flags"] & flag) == is_marked
    assert bool(columns["flags"] & NON_ASCII) == (not raw.isascii())
    names, categories, threads, interned = texts(scanner)
    assert is_text_of(names[columns["name"]], event["name"]) if "name" in event else not names[columns["name"]]
    assert is_text_of(categories[columns["category"]], event["cat"]) if "cat" in event else columns["category"] == -1
    assert threads[columns["thread"]].decode() == f"{literals.get('pid', '')} {literals.get('tid', '')}"
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    for key in WANTED_INTEGERS:
        assert columns[key] == (expected_integer(args[key]) if key in args else NONE)
    for key in WANTED_TEXTS:
        assert is_text_of(interned[columns[key]], args[key]) if key in args else columns[key] == -1


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@given(text=traces | repetitive_traces())
def test_columns_are_what_json_says(engine, text):
    for scanner, status, _, part in scans(engine, text, [], **WANTED):
        assert status in (Status.MORE, Status.ENDED)
        for row in range(scanner.num_rows):
            check_row(scanner, part, row)
    rest = text.rstrip(b"\n]").rstrip(b",")
    assert scanner.num_rows == len(json.loads(b"[" + rest + b"]"))


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@given(text=damaged_traces())
def test_what_is_taken_for_an_event_can_be_made_strict_json(engine, text):
    for scanner, _, _, part in scans(engine, text, []):
        rows = found(scanner)
        for start, end, flags in zip(rows["start"], rows["end"], rows["flags"], strict=True):
            raw = part[start:end]
            fixed = repaired(raw)
            assert isinstance(json.loads(fixed, parse_constant=pytest.fail), dict)
            again = engine.new_scanner()
            assert again.scan(fixed + b"]", 0, len(fixed) + 1)[0] is Status.ENDED and again.num_rows == 1
            assert not again.column("flags")[0] & REPAIR
            assert flags & (REPAIR | NON_ASCII) or fixed == raw


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("literal", "ns"), [
    ("0", 0), ("-0", 0), ("1", 1000), ("0.001", 1), ("0.0009", 0), ("-0.0019", -1), ("1.5e3", 1_500_000), ("1e-3", 1),
    ("1E-4", 0), ("1.23456e3", 1_234_560), ("4416093774864.0941", 4416093774864094),
    ("1694128201556123", 1694128201556123000),
    ("123456.789e-3", 123456), ("0.000000000000000000001e21", 1000), ("4611686018427387.903", 2**62 - 1),
    ("4611686018427387.904", None), ("-4611686018427387.903", 1 - 2**62), ("1e999999999999999999999", None),
    ("0e999999999999999999999", 0), ("1e-999999999999999999999", 0), ("99999999999999999999", None),
    ("9223372036854775807", None), ('"12.5"', 12500), ('"x"', None), ('""', None), ("null", None), ("true", None),
    ("[1]", None), ("NaN", None)])
def test_times_are_exact(engine, literal, ns):
    text = f'{{"ts":{literal}}}]'.encode()
    scanner = engine.new_scanner()
    assert scanner.scan(text, 0, len(text))[0] is Status.ENDED
    assert scanner.column("ts_ns")[0] == (NONE if ns is None else ns)
    assert bool(scanner.column("flags")[0] & BAD_TIME) == (ns is None)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("literal", "value", "is_repaired"), [
    ("9223372036854775807", 2**63 - 1, False), ("9223372036854775808", NONE, True),
    ("-9223372036854775807", 1 - 2**63, False), ("-9223372036854775808", NONE, False),
    ("-9223372036854775809", NONE, True), ("18446744073709551557", NONE, True),
    ('"18446744073709551557"', NONE, False), ('"0012"', 12, False), ("1.0", NONE, False), ("1e3", NONE, False),
    ("-7", -7, False), ("99999999999999999999.5", NONE, False), ("007", 7, True)])
def test_integers_of_64_bits(engine, literal, value, is_repaired):
    text = f'{{"args":{{"a":{literal}}}}}]'.encode()
    scanner = engine.new_scanner(integers=("a",))
    assert scanner.scan(text, 0, len(text))[0] is Status.ENDED
    assert scanner.integers["a"][0] == value
    assert bool(scanner.column("flags")[0] & REPAIR) == is_repaired


@pytest.mark.parametrize("engine", ENGINES)
def test_ids_are_equal_only_where_they_are_the_same(engine):
    literals = ["7", '"7"', '"007"', "2147483647", "2147483648", '"2147483648"', '"0x1f"', "-7", '"-7"', "7.0", "1e3",
                '"x"', '""', "18446744073709551557"]
    linked = [f'{{"ph":"s","id":{literal}}}' for literal in literals]
    text = ",".join([*linked, '{"ph":"X","id":7},{"ph":"s"}]']).encode()
    scanner = engine.new_scanner()
    scanner.scan(text, 0, len(text))
    links = scanner.links(text).tolist()
    assert links[:4] == [7, 7, 7, 2**31 - 1] and links[-2:] == [NONE, NONE]
    others = links[4:-2]
    assert others == [2**31 + number for number in (0, 0, 1, 2, 2, 3, 4, 5, 6, 7)]
    assert scanner.links(text).tolist() == links


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@given(found_events=st.lists(events, max_size=4), seed=st.integers(0, 99))
def test_only_numbers_are_rewritten(engine, found_events, seed):
    found_events = [repaired(event.encode("utf-8", "surrogatepass")) for event in found_events]
    text = b",".join(found_events) + b"]"
    scanner = engine.new_scanner()
    scanner.scan(text, 0, len(text))
    numbers = new_numbers(scanner.num_rows, seed=seed)
    written = b"[" + bytes(scanner.rewrite(text, first_id=5 << 32, **numbers)) + b"]"
    links = scanner.links(text).tolist()
    wanted = [expected_event(json.loads(event), {name: values[row].item() for name, values in numbers.items()}, link)
              for row, (event, link) in enumerate(zip(found_events, links, strict=True)) if numbers["keep"][row]]
    assert [without_other_ids(event) for event in json.loads(written)] == [without_other_ids(event) for event in wanted]
    rewritten = msgspec.json.decode(written, type=list[msgspec.Raw])
    kept = [event for event, keep in zip(found_events, numbers["keep"], strict=True) if keep]
    assert [literals_of(event).get("args") for event in kept] == [
        literals_of(bytes(event)).get("args") for event in rewritten], "arguments pass through as they are"


def expected_event(event: dict[str, Any], numbers: dict[str, int], link: int) -> dict[str, Any]:
    """An event with its numbers replaced, by hand."""
    new = {"pid": numbers["pid"], "tid": numbers["tid"]}
    if "ts" in event and numbers["ts_ns"] != NONE:
        new["ts"] = microseconds(numbers["ts_ns"])
    if numbers["dur_ns"] != NONE:
        new["dur"] = microseconds(numbers["dur_ns"])
    if "id" in event and is_linked(event):
        new["id"] = link + (5 << 32) if numbers["links"] == NONE else numbers["links"]
    if isinstance(event.get("ph"), str) and event["ph"][:1] in ("i", "I") and event.get("s") == "g":
        new["s"] = "p"
    return event | new


def microseconds(ns: int) -> float:
    return float(f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03d}")


def is_linked(event: dict[str, Any]) -> bool:
    return isinstance(event.get("ph"), str) and event["ph"].encode()[:1] in {bytes([code]) for code in LINKED}


def without_other_ids(event: dict[str, Any]) -> dict[str, Any]:
    """All kinds of ids are one row of numbers, in the order in which they stand."""
    others = {key: ... for key in ("id2", "bind_id") if key in event}
    return event | others


@pytest.mark.parametrize("engine", ENGINES)
def test_ids_of_all_kinds_are_one_row_of_numbers(engine):
    text = (b'{"ph":"s","bind_id":"a","id":"b"},{"ph":"f","id":"a","bind_id":3},{"ph":"X","bind_id":"b","id":"kept"},'
            b'{"ph":"b","id2":{"local":"a","global":"b"}},{"ph":"b","id2":{"local":"a"}},{"ph":"X","bind_id":"b"},'
            b'{"ph":"X","bind_id":"b"}]')
    scanner = engine.new_scanner()
    scanner.scan(text, 0, len(text))
    keep = np.array([1, 1, 1, 1, 1, NO_ARROW, 1], np.uint8)
    numbers = new_numbers(7) | {"keep": keep, "links": np.array([NONE] * 6 + [77])}
    written = json.loads(b"[" + bytes(scanner.rewrite(text, first_id=0, **numbers)) + b"]")
    first, second = 2**31, 2**31 + 1
    assert [{key: event[key] for key in ("id", "bind_id", "id2") if key in event} for event in written] == [
        {"id": second, "bind_id": first}, {"id": first, "bind_id": 3}, {"id": "kept", "bind_id": second},
        {"id2": {"local": "a", "global": str(second)}}, {"id2": {"local": "a"}}, {"bind_id": None}, {"bind_id": 77}]


@pytest.mark.parametrize("engine", ENGINES)
def test_slices_are_linked_by_the_arrow_they_are_bound_to(engine):
    text = b'{"ph":"X","bind_id":"7"},{"ph":"X","bind_id":"a","id":3},{"ph":"b","id2":{"global":"9"}}]'
    scanner = engine.new_scanner()
    scanner.scan(text, 0, len(text))
    assert scanner.links(text).tolist()[:2] == [7, 2**31] and scanner.ids.texts()[:1] == [b"a"]


@pytest.mark.parametrize("engine", ENGINES)
def test_keys_are_what_they_stand_for_however_they_are_spelled(engine):
    text = (br'{"\u0070h":"X","\u0074s":1.5,"ts\u0000":2,"p\u0069d":7,"args":{"\u0061":3,"External\u0020id":4,'
            br'"Input\/Dims":5,"\u0061b":6}}]')
    scanner = engine.new_scanner(**WANTED)
    scanner.scan(text, 0, len(text))
    assert [scanner.column(name).tolist() for name in ("phase", "ts_ns")] == [[ord("X")], [1500]]
    assert scanner.threads.texts() == [b"7 "]
    assert [scanner.integers[key][0] for key in ("a", "External id")] == [3, 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_of_an_id_that_is_there_twice_the_last_one_counts(engine):
    text = br'{"ph":"b","id2":{"global":1,"local":2,"glob\u0061l":"9"},"id":"3","id":4}]'
    scanner = engine.new_scanner()
    scanner.scan(text, 0, len(text))
    numbers = new_numbers(1) | {"keep": np.ones(1, np.uint8), "links": np.full(1, NONE)}
    event = json.loads(bytes(scanner.rewrite(text, first_id=100, **numbers)))
    assert event["id2"] == {"global": "109", "local": 2} and event["id"] == 104


@pytest.mark.parametrize("engine", ENGINES)
def test_keys_of_args_that_are_no_utf8_are_no_error(engine):
    text = b'{"ph":"X","args":{"\xec":1,"a":2},"id2":{"\xec":1}}]'
    scanner = engine.new_scanner(**WANTED)
    assert scanner.scan(text, 0, len(text))[0] is Status.ENDED
    assert scanner.integers["a"][0] == 2 and scanner.column("flags")[0] & NON_ASCII
