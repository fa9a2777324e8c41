"""The two merge engines, in C and in Python, are equal on any bytes."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.merge.scan import compiled_engine, reference
from distprof.merge.scan.rows import Status
from support.engines import ENGINES, found, needs_compiled, new_numbers, scans, texts
from support.trace_texts import WANTED_INTEGERS, WANTED_TEXTS, damaged_traces, repetitive_traces, traces

WANTED = {"integers": WANTED_INTEGERS, "texts": WANTED_TEXTS}
OPTIONS = st.sampled_from([{}, WANTED, {"skims": True}, {"max_rows": 1}, {**WANTED, "max_rows": 2}])


def same_scans(text: bytes, ends: list[int], options: dict[str, Any]) -> list[Status]:
    """Compares both engines on a text in pieces; gives how the scans ended."""
    ids = compiled_engine.Interner(), reference.Interner()
    last, statuses = None, []
    for one, other in zip(scans(compiled_engine, text, ends, **options), scans(reference, text, ends, **options),
                          strict=True):
        last = one[0], other[0]
        assert one[1:3] == other[1:3] and found(one[0]) == found(other[0])
        links = [scanner.links(part, interner).tolist() for (scanner, _, _, part), interner in
                 zip((one, other), ids, strict=True)]
        assert links[0] == links[1]
        numbers = new_numbers(one[0].num_rows)
        written = [bytes(scanner.rewrite(part, ids=interner, first_id=7 << 32, **numbers))
                   for (scanner, _, _, part), interner in zip((one, other), ids, strict=True)]
        assert written[0] == written[1]
        statuses.append(one[1])
    assert last is not None and texts(last[0]) == texts(last[1]) and ids[0].texts() == ids[1].texts()
    return statuses


def test_both_have_the_same_interface():
    for name in ("Scanner", "Interner"):
        one, other = getattr(compiled_engine, name), getattr(reference, name)
        for public in [public for public in vars(one) if not public.startswith("_") and public != "handle"]:
            assert inspect.signature(getattr(one, public)) == inspect.signature(getattr(other, public)), public
        assert inspect.signature(one) == inspect.signature(other)
    for name in ("find_overlaps", "find_innermost"):
        assert inspect.signature(getattr(compiled_engine, name)) == inspect.signature(getattr(reference, name)), name


@needs_compiled
@settings(deadline=None, max_examples=60)
@given(traces | repetitive_traces(), st.lists(st.integers(0, 4000), max_size=4), OPTIONS)
def test_events_in_any_notation_and_any_windows(text, ends, options):
    same_scans(text, [min(end, len(text)) for end in ends], options)


@needs_compiled
@settings(deadline=None, max_examples=8)
@given(traces, OPTIONS)
def test_a_window_may_end_anywhere(text, options):
    whole = [row for scanner, *_ in scans(reference, text, [], **options) for row in found(scanner)["start"]]
    for end in range(min(len(text), 600)):
        same_scans(text, [end], options)
        in_two = scans(compiled_engine, text, [end], **options)
        assert [row for scanner, *_ in in_two for row in found(scanner)["start"]] == whole


@needs_compiled
@settings(deadline=None, max_examples=120)
@given(damaged_traces(), st.lists(st.integers(0, 3000), max_size=2), OPTIONS)
def test_damaged_events(text, ends, options):
    same_scans(text, [min(end, len(text)) for end in ends], options)


@needs_compiled
@settings(deadline=None, max_examples=100)
@given(st.one_of(st.binary(max_size=200), st.text('{}[],:"\\ \n01-e.trufalsn').map(str.encode)), OPTIONS)
def test_any_bytes(text, options):
    same_scans(text, [], options)
    same_scans(b'{"ts":' + text, [], options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("value", "is_event"), [
    ("[" * 1_000_000, False), ('{"a":' * 1_000_000, False), ("[" * 256 + "]" * 256, True),
    ("[" * 257 + "]" * 257, False), ("9" * 100_000, True), ("0." + "1" * 100_000, True), ("1e" + "9" * 100_000, True),
    ('"' + "x" * 5_000_000 + '"', True), ('"' + r"\"" * 100_000 + '"', True)], ids=lambda value: str(value)[:9])
@pytest.mark.parametrize("key", ["args", "pid", "ts"])
def test_what_is_deep_or_long(engine, value, is_event, key):
    for options in ({}, WANTED, {"skims": True}):
        text = f'{{"{key}":{value}}},{{"ph":"X"}}]'.encode()
        scanner = engine.Scanner(**options)
        status, at = scanner.scan(text, 0, len(text))
        if is_event:
            assert (status, scanner.num_rows, at) == (Status.ENDED, 2, len(text))
        else:
            assert (status, scanner.num_rows, at) == (Status.MALFORMED, 0, 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_that_are_not_there_are_refused(engine):
    scanner = engine.Scanner()
    for at, end in ((0, 3), (-1, 2), (2, 1)):
        with pytest.raises(ValueError, match="expected a part of 2 bytes"):
            scanner.scan(b"{}", at, end)
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (2**31 + 5,), (0,))
    with pytest.raises(ValueError, match="expected a part of 2147483647 bytes"):
        scanner.scan(huge, 0, 2**31)
    scanner.scan(b"{}]", 0, 3)
    numbers = new_numbers(1)
    with pytest.raises(ValueError, match="expected pid of 1 rows"):
        scanner.rewrite(b"{}]", ids=engine.Interner(), first_id=0, **numbers | {"pid": np.zeros(2, np.int64)})
    with pytest.raises(ValueError, match="expected the text of 1 events"):
        scanner.rewrite(b"{", ids=engine.Interner(), first_id=0, **numbers)


@pytest.mark.parametrize(("environ", "module"), [
    ({}, "compiled_engine"), ({"DISTPROF_REFERENCE_ENGINE": "1"}, "reference")])
def test_the_engine_in_c_is_taken_where_it_is_built(environ, module):
    program = "from distprof.merge.scan import engine as e; print(e.Scanner.__module__, e.is_compiled())"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True,
                          env=os.environ | environ).stdout.split()
    wanted = module if compiled_engine.is_built() else "reference"
    assert said == [f"distprof.merge.scan.{wanted}", str(wanted == "compiled_engine")]
