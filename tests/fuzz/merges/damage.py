"""Damage: of events before they are text, of tokens, of bytes, and of the file around the text."""

from __future__ import annotations

import re
from typing import Any

from fuzz.merges.chance import Chance
from fuzz.merges.traces import Literal, Trace

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.0-9A-Za-z]+|[{}\[\],:]', re.DOTALL)
FALSE_LINE = "incomplete: nothing"
"""What a name must not print in a line of its own."""
ODD = tuple(Literal(text) for text in (
    "NaN", "-Infinity", "inf", "nan", "1e400", "-1e400", "1e-400", "01", "+1", ".5", "5.", "-", "1e", "--1", "0x1f",
    "nul", "None", "True", "undefined", "'x'", "18446744073709551615", "9223372036854775808", "-9223372036854775809",
    "9" * 40, "9" * 5000, "-0", "0.0000000001", "1" + "0" * 400, "{}", "[]", "[{}]", '""', "null", "true", "-1", "1e18",
    "4611686018427387.904", "9223372036854775.807", "1e15", "-86400000001", "86400000001", '"\\ud83d"', '"\\u0000"',
    '"\\x1b[31m"', '"a\x1b[31mb\x07"', '"a\nb"', '"a\\\\"', '"a\\"', '"\\', '"', '"\\u00', '"\u2028\u202e"',
    "[" * 300, "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300, "[" * 3000, "/* x */ 1", '"X" "Y"', "[1,]",
    '{"a":1,}', "1 2", '"X"', '"B"', '"E"', '"M"', '"s"', '"f"', '"b"', '"e"', '"C"', '"XX"', "7", '"7"',
    '"process_name"', f'"a\\n{FALSE_LINE}"'))
"""Values in the place of others."""
KEYS = ("ph", "ts", "dur", "name", "args", "id", Literal('"p\\u0068"'), Literal('"\\u0074s"'), "PH", "", "s", "bind_id")
HEADS = ("distributedInfo", "baseTimeNanoseconds", "host_name", "deviceProperties", "traceEvents", "metadata",
         "distprof", "traceName", "é", "\x1b[2J")
GROUP = {"pg_name": "0", "pg_desc": "mesh_tp", "ranks": [0, 1], "pg_size": 2}
INFOS = (
    {"rank": "1", "world_size": "2"}, {"rank": -1}, {"rank": 10**6}, {"rank": 2**20 - 1, "world_size": 2**20},
    {"rank": None}, {"rank": [1]}, {"rank": 1.5}, {"rank": True}, {"world_size": 10**5}, {"world_size": -2}, [], "x",
    '{"rank": 1}', "{'rank': 1}", "(" * 500, {"rank": 0, "world_size": 1},
    {"rank": 1, "world_size": 2, "pg_config": [GROUP]}, {"rank": 1, "pg_config": {"a": 1}},
    {"rank": 1, "pg_config": "[{]"}, {"rank": 1, "pg_config": [1, None, {"ranks": "x"}]})
PIECES = (
    b"", b"\0", b"\0" * 50, b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\\", b'"', b"{", b"}", b"[", b"]",
    b",", b":", b"}]", b"},{", b'{"ph":', b'"ph": "X"', b'"traceEvents": [', b"]}", b"\n", b"\x1b[31m", b"\x01", b"\r",
    b" ", b"//", b"NaN", b"\\u12", b"\\ud83d", b'"args": {', b'"name": "', b"\x1f\x8b", b"<html>", b"<<<<<<< HEAD\n")


def damaged_trace(trace: Trace, chance: Chance) -> None:
    """Other values, keys and orders, in place."""
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        chance.call([_other_value, _other_value, _other_value, _other_key, _twice, _without_key, _shuffled, _swallowed,
                     _other_head, _other_info, _nested, _far], trace, chance)


def _event(trace: Trace, chance: Chance) -> list[tuple[str, Any]]:
    return chance.choice(trace.events) if trace.events else []


def _other_value(trace: Trace, chance: Chance) -> None:
    one = _event(trace, chance)
    if one:
        place = chance.randrange(len(one))
        one[place] = one[place][0], chance.choice(ODD)


def _other_key(trace: Trace, chance: Chance) -> None:
    one = _event(trace, chance)
    if one:
        place = chance.randrange(len(one))
        one[place] = chance.choice(KEYS), one[place][1]


def _twice(trace: Trace, chance: Chance) -> None:
    one = _event(trace, chance)
    if one:
        one.insert(chance.randrange(len(one) + 1), (chance.choice(one)[0], chance.choice([*ODD, one[0][1]])))


def _without_key(trace: Trace, chance: Chance) -> None:
    one = _event(trace, chance)
    if one:
        del one[chance.randrange(len(one))]


def _shuffled(trace: Trace, chance: Chance) -> None:
    chance.shuffle(trace.events)


def _swallowed(trace: Trace, chance: Chance) -> None:
    """An event within the args of another one."""
    one, other = _event(trace, chance), _event(trace, chance)
    if one is not other:
        one.append(("args", {"inner": [dict(other)]}))


def _other_head(trace: Trace, chance: Chance) -> None:
    keys = chance.choice([trace.head, trace.tail])
    keys.insert(chance.randrange(len(keys) + 1), (chance.choice(HEADS), chance.choice([*ODD, [], {}])))


def _other_info(trace: Trace, chance: Chance) -> None:
    chance.choice([trace.head, trace.tail]).append(("distributedInfo", chance.choice(INFOS)))


def _nested(trace: Trace, chance: Chance) -> None:
    one = _event(trace, chance)
    depth = chance.choice([100, 255, 256, 257, 300, 5000])
    opening, closing = chance.choice([("[", "]"), ('{"a":', "}")])
    one.append((chance.choice(["args", "x", "pid"]), Literal(opening * depth + "1" + closing * depth)))


def _far(trace: Trace, chance: Chance) -> None:
    """A time far away, or a duration below 0."""
    one = _event(trace, chance)
    times = [-1, -1000, -86_400_000_001, 10**12, 10**15, -(10**15), 2**62, 10**18, 1e300, 0]
    one.append((chance.choice(["ts", "dur"]), chance.choice(times)))


def damaged_text(text: bytes, chance: Chance) -> bytes:
    """Other tokens and bytes."""
    for _ in range(chance.choice([0, 0, 1, 1, 2, 4])):
        text = chance.call([_cut, _flipped, _spliced, _spliced, _repeated, _swapped, _token, _token, _tokens_swapped,
                            _tokens_lost, _zeroed], text, chance)
    return text


def _span(text: bytes, chance: Chance) -> tuple[int, int]:
    begin = chance.randrange(len(text) + 1)
    return begin, min(len(text), begin + chance.choice([0, 1, 2, 7, 40, 500]))


def _cut(text: bytes, chance: Chance) -> bytes:
    place = chance.randrange(len(text) + 1)
    return text[:place] if chance.randrange(5) else text[place:]


def _flipped(text: bytes, chance: Chance) -> bytes:
    if not text:
        return text
    place = chance.randrange(len(text))
    return text[:place] + bytes([text[place] ^ (1 << chance.randrange(8))]) + text[place + 1:]


def _spliced(text: bytes, chance: Chance) -> bytes:
    begin, end = _span(text, chance)
    return text[:begin] + chance.choice(PIECES) + text[end:]


def _repeated(text: bytes, chance: Chance) -> bytes:
    begin, end = _span(text, chance)
    place = chance.randrange(len(text) + 1)
    return text[:place] + text[begin:end] + text[place:]


def _swapped(text: bytes, chance: Chance) -> bytes:
    begin, end = _span(text, chance)
    place = min(len(text), end + chance.randrange(200))
    return text[:begin] + text[end:place] + text[begin:end] + text[place:]


def _zeroed(text: bytes, chance: Chance) -> bytes:
    begin, end = _span(text, chance)
    return text[:begin] + b"\0" * (end - begin) + text[end:]


def _token(text: bytes, chance: Chance) -> bytes:
    found = list(TOKEN.finditer(text))
    if not found:
        return text
    one = chance.choice(found)
    new = chance.choice([*(odd.encode() for odd in ODD), *PIECES, found[0][0], chance.choice(found)[0]])
    return text[:one.start()] + new + text[one.end():]


def _tokens_swapped(text: bytes, chance: Chance) -> bytes:
    found = list(TOKEN.finditer(text))
    if len(found) < 2:
        return text
    a, b = sorted(chance.sample(range(len(found)), 2))
    a, b = found[a], found[b]
    return text[:a.start()] + b[0] + text[a.end():b.start()] + a[0] + text[b.end():]


def _tokens_lost(text: bytes, chance: Chance) -> bytes:
    found = list(TOKEN.finditer(text))
    if not found:
        return text
    first = chance.randrange(len(found))
    last = min(len(found) - 1, first + chance.choice([0, 0, 1, 2, 20]))
    return text[:found[first].start()] + text[found[last].end():]


def damaged_file(data: bytes, chance: Chance) -> bytes:
    """Other bytes of a compressed file or an archive."""
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        data = chance.call([_cut, _flipped, _spliced, _repeated, _zeroed, _swapped], data, chance)
    return data
