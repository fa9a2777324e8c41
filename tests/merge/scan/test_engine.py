"""The merge engines find the same events and columns, on whatever text, in windows that end anywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.compiled import build
from distprof.compiled import library as compiled_library
from distprof.compiled.library import is_built
from distprof.merge.scan import compiled, plain
from distprof.merge.scan.chrome_file import ChromeFile, Losses
from distprof.merge.scan.engine import PLAIN
from distprof.merge.scan.scanned_columns import IDS_FOR_SMALL, NO_ARROW, NONE, Status
from support.engines import ENGINES, found, needs_compiled, new_numbers, scans
from support.trace_texts import WANTED_INTEGERS, WANTED_TEXTS, damaged_traces, loose_traces, repetitive_traces, traces

WANTED = {"integers": WANTED_INTEGERS, "texts": WANTED_TEXTS}
OPTIONS = st.sampled_from([{}, WANTED, {"skims": True}, {"max_rows": 1}, {**WANTED, "max_rows": 2}])
FIRST_ID = 7 << 32
Events = list[tuple[dict[str, Any], dict[str, Any], Any]]
"""Columns of an event, with words for their numbers; the event; the event rewritten, None where it is left out."""


def read(engine: Any, chunks: list[bytes], options: dict[str, Any]) -> tuple[Events, Losses]:
    """All that an engine finds in a file, and what it loses."""
    file = ChromeFile("trace.json", chunks, engine.new_scanner(**options))
    events: Events = []
    for text in file.scanned():
        scanner: Any = file.scanner
        numbers = new_numbers(scanner.num_rows, seed=len(events))
        written = iter(json.loads(b"[" + bytes(scanner.rewrite(text, first_id=FIRST_ID, **numbers)) + b"]"))
        links = scanner.links(text).tolist()
        for row, link in enumerate(links):
            event = json.loads(bytes(text[scanner.column("start")[row]:scanner.column("end")[row]]))
            new = with_texts_for_ids(next(written), scanner.ids.texts()) if numbers["keep"][row] else None
            events.append((columns_of(scanner, row) | {"link": text_of(link, scanner.ids.texts(), 0)}, event, new))
    return events, file.losses


def columns_of(scanner: Any, row: int) -> dict[str, Any]:
    words = {"name": scanner.names, "category": scanner.categories, "thread": scanner.threads,
             **dict.fromkeys(scanner.interned, scanner.texts)}
    columns = {name: values[row] for name, values in found(scanner).items() if name not in ("start", "end")}
    return {name: words[name].texts()[value] if name in words and value >= 0 else value
            for name, value in columns.items()}


def text_of(number: Any, ids: list[bytes], first: int) -> Any:
    """The id that a number was given to; the number itself where it was not given out."""
    place = int(number) - first - IDS_FOR_SMALL if number is not None else -1
    return ids[place] if 0 <= place < len(ids) else number


def with_texts_for_ids(event: dict[str, Any], ids: list[bytes]) -> dict[str, Any]:
    """Of one event the ids may be counted in any order."""
    for fields, key in ((event, "id"), (event, "bind_id"), (event.get("id2"), "global")):
        if isinstance(fields, dict) and isinstance(fields.get(key), int | str) and str(fields[key]).isdecimal():
            fields[key] = text_of(fields[key], ids, FIRST_ID)
    return event


def in_chunks(text: bytes, ends: list[int]) -> list[bytes]:
    places = sorted({0, *(min(end, len(text)) for end in ends), len(text)})
    return [text[begin:end] for begin, end in pairwise(places)]


@pytest.mark.long
@needs_compiled
@settings(deadline=None, max_examples=40)
@given(traces | repetitive_traces() | loose_traces, st.lists(st.integers(0, 4000), max_size=4), OPTIONS)
def test_both_engines_read_the_same(text, ends, options):
    chunks = in_chunks(b"[" + text, ends)
    events, losses = read(compiled, chunks, options)
    others, other_losses = read(plain, chunks, options)
    assert events == others and losses == other_losses and not losses.damaged_events


@pytest.mark.long
@needs_compiled
@settings(deadline=None, max_examples=40)
@given(damaged_traces(), OPTIONS)
def test_both_engines_read_the_same_of_what_neither_finds_damaged(text, options):
    (events, losses), (others, other_losses) = (read(engine, [b"[" + text], options) for engine in (compiled, plain))
    if not losses.damaged_events and not other_losses.damaged_events:
        assert events == others


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=8)
@given(text=traces, options=OPTIONS)
def test_a_window_may_end_anywhere(engine, text, options):
    whole = [row for scanner, *_ in scans(engine, text, [], **options) for row in found(scanner)["start"]]
    for end in range(min(len(text), 600)):
        in_two = scans(engine, text, [end], **options)
        assert [row for scanner, *_ in in_two for row in found(scanner)["start"]] == whole


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=50)
@given(text=st.one_of(st.binary(max_size=200), st.text('{}[],:"\\ \n01-e.trufalsn').map(str.encode)), options=OPTIONS)
def test_any_bytes_are_read_to_their_end(engine, text, options):
    for given_text in (text, b'{"ts":' + text):
        for scanner, _, behind, part in scans(engine, given_text, [], **options):
            rows = found(scanner)
            places = [place for both in zip(rows["start"], rows["end"], strict=True) for place in both]
            assert places == sorted(places) and (not places or places[-1] <= behind <= len(part))


@needs_compiled
def test_text_between_the_numbers_passes_through_byte_by_byte():
    text = (b'{ "ph" :"X",\t"pid": 7 ,"tid":"a", "ts":1.5e3,"dur" : 2,"args":{"x" : [1.50, NaN , "\\u00e9"]} ,'
            b' "id": "kept" } , {"ph":"f","id":"0x1f", "bp": "e","ts":"4" }\n,{"ph":"M"}, {}]')
    scanner = compiled.new_scanner()
    assert scanner.scan(text, 0, len(text))[0] is Status.ENDED
    count = scanner.num_rows
    numbers: dict[str, Any] = {
        "keep": np.array([1, 1, 0, NO_ARROW], np.uint8), "pid": np.full(count, -1), "tid": np.arange(count),
        "ts_ns": np.array([1_000_001, NONE, 0, 0]), "dur_ns": np.array([-5, NONE, 0, 7]), "links": np.full(count, NONE)}
    assert bytes(scanner.rewrite(text, first_id=0, **numbers)) == (
        b'{ "ph" :"X",\t"pid": -1 ,"tid":0, "ts":1000.001,"dur" : -0.005,"args":{"x" : [1.50, NaN , "\\u00e9"]} ,'
        b' "id": "kept" },\n{"ph":"f","id":2147483648, "bp": "e","ts":"4" ,"pid":-1,"tid":1},\n'
        b'{"pid":-1,"tid":3,"dur":0.007}')


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("value", "is_event"), [
    ("[" * 1_000_000, False), ('{"a":' * 1_000_000, False), ("[" * 256 + "]" * 256, True),
    ("[" * 257 + "]" * 257, False), ("9" * 100_000, True), ("0." + "1" * 100_000, True), ("1e" + "9" * 100_000, True),
    ('"' + "x" * 5_000_000 + '"', True), ('"' + r"\"" * 100_000 + '"', True)], ids=lambda value: str(value)[:9])
@pytest.mark.parametrize("key", ["args", "pid", "ts"])
def test_what_is_deep_or_long(engine, value, is_event, key):
    for options in ({}, WANTED, {"skims": True}):
        text = f'{{"{key}":{value}}},{{"ph":"X"}}]'.encode()
        scanner = engine.new_scanner(**options)
        status, at = scanner.scan(text, 0, len(text))
        if is_event:
            assert (status, scanner.num_rows, at) == (Status.ENDED, 2, len(text))
        else:
            assert (status, scanner.num_rows, at) == (Status.MALFORMED, 0, 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_that_are_not_there_are_refused(engine):
    scanner = engine.new_scanner()
    for at, end in ((0, 3), (-1, 2), (2, 1)):
        with pytest.raises(ValueError, match="expected a part of 2 bytes"):
            scanner.scan(b"{}", at, end)
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (2**31 + 5,), (0,))
    with pytest.raises(ValueError, match="expected a part of 2147483647 bytes"):
        scanner.scan(huge, 0, 2**31)
    scanner.scan(b"{}]", 0, 3)
    numbers = new_numbers(1)
    with pytest.raises(ValueError, match="expected pid of 1 rows"):
        scanner.rewrite(b"{}]", first_id=0, **numbers | {"pid": np.zeros(2, np.int64)})
    with pytest.raises(ValueError, match="expected the text of 1 events"):
        scanner.rewrite(b"{", first_id=0, **numbers)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(("wheel", "how"), [(None, "by cc"), ("manylinux_2_17_m68k", "manylinux_2_17_m68k wheel")])
def test_a_library_says_how_it_was_compiled(tmp_path, monkeypatch, wheel, how):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiled_library, "LIBRARY", build.build(tmp_path / "_compiled.so", wheel=wheel))
    loaded, said = compiled_library._loaded.__wrapped__()
    assert loaded is not None and said == how
    assert [path.name for path in tmp_path.iterdir()] == ["_compiled.so"]


@pytest.mark.parametrize(("content", "said"), [
    (None, "it was not compiled when distprof was installed"), (b"of a wheel for another machine", "cannot be loaded"),
    ("source", "its C files have changed")])
def test_it_is_said_why_no_library_is_used(tmp_path, monkeypatch, content, said):
    place = tmp_path / "_compiled.so"
    if content == "source":
        place = build.LIBRARY
        monkeypatch.setattr(compiled_library, "source_id", lambda: 1)
        if not is_built():
            pytest.skip("no compiled engine")
    elif content:
        place.write_bytes(content)
    monkeypatch.setattr(compiled_library, "LIBRARY", place)
    loaded, why = compiled_library._loaded.__wrapped__()
    assert loaded is None and said in why


@pytest.mark.long
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_it_compiles_without_a_warning(tmp_path):
    command = ["cc", *build.FLAGS, "-O1", "-Werror", "-c", "-o", tmp_path / "engine.o", build.FOLDER / "engine.c"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("environ", [{}, {PLAIN: "1"}], ids=["usual", "plain wanted"])
def test_the_compiled_engine_is_taken_where_it_is_built(environ):
    program = "from distprof.merge.scan import engine as e; print(e.ENGINE.__name__, e.is_compiled())"
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True,
                             env={key: value for key, value in os.environ.items() if key != PLAIN} | environ).stdout
    name = "compiled" if is_built() and not environ else "plain"
    assert printed.split() == [f"distprof.merge.scan.{name}", str(name == "compiled")]
