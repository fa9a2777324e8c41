"""Hypothesis strategies for texts of Chrome events, in any notation and layout, also damaged; and the exact time of a
text."""

from __future__ import annotations

import json
import re
from decimal import Context, Decimal, InvalidOperation

from hypothesis import strategies as st

blanks = st.sampled_from(["", "", "", " ", "\n", "\t", "\r\n", "\n    "])
characters = st.one_of(
    st.sampled_from([*'{}[],:"\\/ \x7f\n', "é", "\u2028", "\U0001f600", "ts", "args"]),
    st.characters(codec="utf-8"))
plain_text = st.lists(characters, max_size=4).map("".join)
quoted = st.builds(lambda text, ascii_only: json.dumps(text, ensure_ascii=ascii_only), plain_text, st.booleans())
integers = st.one_of(
    st.integers(-10, 10**7), st.integers(-(2**64), 2**65),
    st.sampled_from([2**62, 2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 2**64, 10**18, 10**19, 10**40])).map(str)
fractions = st.builds(
    lambda whole, fraction, exponent: f"{whole}{fraction}{exponent}",
    st.integers(-(10**15), 10**15), st.sampled_from(["", ".0", ".5", ".094", ".0941", ".000999999999999999999999"]),
    st.sampled_from(["", "", "e3", "E-3", "e+2", "e0", "e-20", "e05", "e400", "e-99999999999999"]))
numbers = st.one_of(integers, fractions, st.sampled_from(["-0", "0.0", "-0.0", "4416093774864.0941", "1.5e3", "1e-3"]))
scalars = st.one_of(quoted, numbers, st.sampled_from(["true", "false", "null"]))


def joined(open_close: str, parts: list[str], spaces: list[str]) -> str:
    """Returns parts between brackets, with blanks around each."""
    blank = iter(spaces * (2 * len(parts) + 2))
    inner = ",".join(f"{next(blank)}{part}{next(blank)}" for part in parts)
    return f"{open_close[0]}{inner or next(blank)}{open_close[1]}"


def member(key: str, value: str, spaces: list[str]) -> str:
    """Returns a key with its value."""
    return f"{key}{spaces[0]}:{spaces[-1]}{value}"


def objects_of(values: st.SearchStrategy[str], keys: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Returns a strategy for objects with such keys, which may be repeated, and values."""
    spaces = st.lists(blanks, min_size=1, max_size=3)
    members = st.lists(st.builds(member, keys, values, spaces), max_size=4)
    return st.builds(joined, st.just("{}"), members, spaces)


def arrays_of(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Returns a strategy for arrays of such values."""
    return st.builds(joined, st.just("[]"), st.lists(values, max_size=4), st.lists(blanks, min_size=1, max_size=3))


anything = st.recursive(scalars, lambda inner: st.one_of(arrays_of(inner), objects_of(inner, quoted)), max_leaves=4)
WANTED_INTEGERS, WANTED_TEXTS = ("External id", "a"), ("Input Dims", "Comms Id")


def spelled(key: str, place: int) -> str:
    """Returns a key in which one character may be escaped."""
    place %= 3 * len(key)  # usually, none is
    return f'"{key}"' if place >= len(key) else f'"{key[:place]}\\u{ord(key[place]):04x}{key[place + 1:]}"'


arg_keys = st.one_of(st.builds(spelled, st.sampled_from((*WANTED_INTEGERS, *WANTED_TEXTS)), st.integers(0, 99)), quoted)
arguments = objects_of(anything, arg_keys)
times = st.one_of(
    numbers, st.integers(0, 2**62).map(lambda ns: f"{ns // 1000}.{ns % 1000:03d}"), numbers.map('"{}"'.format),
    st.sampled_from(['""', '"now"', "null", '"1e"', '"+1"', '"-"', "[]", '" 1"', '"1_0"']))
ids = st.one_of(numbers, quoted, st.integers(2**31 - 2, 2**31 + 2).map(str), st.integers(0, 99).map('"{}"'.format),
                st.sampled_from(['"0x1f"', '"007"', '"-5"', '""', "null", '{"local":"0x1"}']))
phases = st.sampled_from([*(f'"{phase}"' for phase in "XXXXXXXXMsftbeniICBE"), '""', "1", '"XY"'])
VALUES = {
    "ph": phases, "name": scalars, "cat": scalars, "pid": ids, "tid": ids, "ts": times, "dur": times, "id": ids,
    "bind_id": ids, "id2": st.one_of(objects_of(ids, st.sampled_from(['"global"', '"local"', '"x"'])), ids),
    "flow_in": st.sampled_from(["true", "false", "1"]), "flow_out": st.sampled_from(["true", "false", '"true"']),
    "s": st.sampled_from(['"g"', '"p"', '"t"', "1", '"gg"']), "bp": st.just('"e"'),
    "args": st.one_of(arguments, arguments, anything)}
members = st.one_of(
    st.sampled_from(sorted(VALUES)).flatmap(
        lambda key: st.tuples(st.builds(spelled, st.just(key), st.integers(0, 99)),
                              st.one_of(VALUES[key], VALUES[key], VALUES[key], anything))),
    st.tuples(quoted, anything))


def in_kineto_layout(fields: list[tuple[str, str]], _: list[str]) -> str:
    """Returns an event in the layout of torch.profiler."""
    lines = ",\n    ".join(f"{key}: {in_lines(value) if key == _ARGS else value}" for key, value in fields)
    return f"{{\n    {lines}\n  }}" if fields else "{}"


_ARGS = '"args"'


def in_lines(value: str) -> str:
    """Returns arguments with braces on separate lines."""
    inner = value[1:-1].strip() if value.startswith("{") else ""
    return f"{{\n      {inner}\n    }}" if inner else value


def in_any_layout(fields: list[tuple[str, str]], spaces: list[str]) -> str:
    """Returns an event in compact layout, or with blanks anywhere."""
    return joined("{}", [member(key, value, spaces) for key, value in fields], spaces)


events = st.builds(
    lambda layout, fields, spaces: layout(fields, spaces), st.sampled_from([in_kineto_layout, in_any_layout]),
    st.lists(members, max_size=7), st.lists(blanks, min_size=1, max_size=3))
"""Strict JSON objects."""
separators = st.sampled_from([",", ",\n  ", " , ", ",\n"])
traces = st.builds(
    lambda found, separator, end: (separator.join(found) + end).encode("utf-8", "surrogatepass"),
    st.lists(events, max_size=4), separators, st.sampled_from(["]", "\n]", ",]", ""]))
"""The array of events after its opening bracket."""

loose_values = st.sampled_from(["NaN", "-Infinity", "inf", "-nan", "01", "+1", ".5", "5.", "-00.250e1", str(2**64),
                                "[1,]", '{"a":NaN,}', r'"\x"', '"a\nb\x01"', r'"\ud83d"', r'"\ud83d\ude00"'])
loose_events = st.builds(
    lambda fields, key, value, spaces, end: in_any_layout([(key, value), *fields], spaces)[:-1] + end,
    st.lists(members, max_size=3), st.sampled_from([f'"{key}"' for key in sorted(VALUES)]), loose_values,
    st.lists(blanks, min_size=1, max_size=3), st.sampled_from(["}", ",}", ", }"]))
"""Objects that are not strict JSON but can be repaired."""
loose_traces = st.lists(loose_events | events, min_size=1, max_size=4).map(
    lambda found: (",".join(found) + "]").encode("utf-8", "surrogatepass"))


CHANGES = (
    lambda text, number: re.sub(r"(?<=[1-9])[0-9](?![0-9.]*\")", str(number), text, count=1),
    lambda text, _: re.sub(r"}$", ', "args": {"a": 5, "External id": 7}}', text, count=1) if len(text) > 4 else text,
    lambda text, _: re.sub(r'"args"\s*:\s*{(?=\s*")', '"args":{"a":5,', text, count=1),
    lambda text, number: text.replace('"a"', '"External id"' if number % 2 else '"b"', 1),
    lambda text, number: text.replace(" ", "", number),
    lambda text, number: re.sub(r'":(?=[^ ])', '": ', text, count=number),
    lambda text, number: re.sub(r',(?=\s*")', ", \n", text, count=number),
    lambda text, number: re.sub(r"}", " }", text, count=number),
)
"""Small changes to the text of an event; some results are not JSON."""


@st.composite
def repetitive_traces(draw: st.DrawFn) -> bytes:
    """Draws traces whose events differ from earlier ones only in some characters or members; still strict JSON."""
    found = draw(st.lists(events, min_size=1, max_size=3))
    for _ in range(draw(st.integers(1, 5))):
        event = draw(st.sampled_from(found))
        for _ in range(draw(st.integers(0, 3))):
            changed = draw(st.sampled_from(CHANGES))
            candidate = changed(event, draw(st.integers(0, 9)))
            event = candidate if is_object(candidate) else event
        found.append(event)
    return (draw(separators).join(found) + "]").encode("utf-8", "surrogatepass")


def is_object(text: str) -> bool:
    """Returns whether a text is a strict JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def exact_ns(literal: str) -> int | None:
    """Converts microseconds to nanoseconds with Python's decimals, rounding towards zero; None if it is not a time."""
    plain = literal[1:-1] if literal.startswith('"') else literal
    if not plain or plain.strip() != plain or plain[0] == "+" or "_" in plain or not set(plain) & set("0123456789"):
        return None
    try:
        value = Decimal(plain)
    except InvalidOperation:
        return None
    if not value:
        return 0
    if value.adjusted() > 20:
        return None
    if value.adjusted() < -9:
        return 0
    found = int(value.scaleb(3, Context(prec=60)))
    return found if abs(found) < 2**62 else None


LOOSE = [b"NaN", b"-Infinity", b"inf", b"-nan", b"01", b"+1", b".5", b"5.", b"-00.250e1", b"1e", b"--1", b"0x1", b"nul",
         b"tru", b"nope", b",", b"]", b"}", b"{", b"[", b":", b'"', b"\\", b"\\u12", b"\\ud83d", b"\\x", b"\n", b"\x01",
         b"\x80", b"\xff", b"\xe9", b"", b" "]
"""Texts that programs write although they are not JSON, and texts that break JSON."""


@st.composite
def damaged_traces(draw: st.DrawFn) -> bytes:
    """Draws traces with bytes changed, removed, inserted or repeated."""
    text = draw(traces)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(text)))
        gone = draw(st.sampled_from([0, 0, 1, 1, 2, 30]))
        new = draw(st.one_of(st.sampled_from(LOOSE), st.binary(max_size=3),
                             st.just(text[:60])))
        text = text[:place] + new + text[place + gone:]
    return text
