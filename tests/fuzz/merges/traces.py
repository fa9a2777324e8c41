"""Traces with random events, keys, orders and layouts; strict JSON that every merge has to take whole.

The name of an event holds a mark (`r1ev17~`) that no other event has: the rank and a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fuzz.merges.chance import Chance

MARK = re.compile(r"r[0-9]+ev[0-9]+~")
WORDS = ("aten::mm", "cudaLaunchKernel", "nccl:all_reduce", "ncclDevKernel_AllReduce", "train.py(3): f", "Optimizer",
         "é 中 \U0001f600", "a \"quoted\" \\ / \t name", "{[,:]}", "void f<float, 4>(T*)", "x" * 300, "")
CATEGORIES = ("cpu_op", "kernel", "cuda_runtime", "python_function", "user_annotation", "gpu_memcpy", "Operator", "")
COLLECTIVE = {"Collective name": "all_reduce", "dtype": "Float", "In msg nelems": 4, "Out msg nelems": 4,
              "Group size": 2, "Process Group Name": "0", "Process Group Description": "default_pg",
              "Process Group Ranks": "[0, 1]", "Seq": 3}


@dataclass
class Trace:
    """A file before it is text: keys beside the events, and events as fields in their order."""

    rank: int
    head: list[tuple[str, Any]]
    events: list[list[tuple[str, Any]]]
    tail: list[tuple[str, Any]] = field(default_factory=list)
    is_array: bool = False
    """Nothing but the events."""


def random_trace(chance: Chance, rank: int, *, most: int = 30) -> Trace:
    """The trace of a rank."""
    events = list(_Events(chance, rank).some(chance.randrange(1, most)))
    about = [("schemaVersion", 1), ("displayTimeUnit", "ms"), ("traceName", "x [1,2] {"),
             ("deviceProperties", [{"id": 0, "name": "NVIDIA H100", "computeMajor": 9}]),
             ("baseTimeNanoseconds", chance.choice([0, 1_700_000_000_000_000_000])), ("host_name", "host7")]
    chance.shuffle(about)
    keys = [("distributedInfo", {"rank": rank, "world_size": 2, "backend": "nccl"}), *about[:chance.randrange(6)]]
    split = chance.randrange(len(keys) + 1)
    return Trace(rank, keys[:split], events, keys[split:], is_array=chance.one_in(6))


class _Events:
    """Events of a few threads in the order of their times; slices of a thread nest."""

    def __init__(self, chance: Chance, rank: int) -> None:
        self._chance, self._rank, self._number = chance, rank, 0
        self._now = chance.choice([0, 1000, 4_416_093_774_864_094])
        self._threads = chance.choice([[(7, 7)], [(7, 7), (7, 8)], [(0, "stream 7"), ("Spans", 1)]])

    def some(self, count: int) -> Iterator[list[tuple[str, Any]]]:
        for pid, tid in self._threads:
            if self._chance.one_in(2):
                yield [("ph", "M"), ("name", "process_name"), ("pid", pid), ("tid", tid), ("args", {"name": "python"})]
        for _ in range(count):
            self._now += self._chance.choice([1, 7, 1000, 12_345])
            yield from self._chance.call([
                self._slice, self._slice, self._slice, self._pair, self._instant, self._arrow, self._asynchronous,
                self._counter])

    def _name(self) -> str:
        self._number += 1
        return f"{self._chance.choice(WORDS)} r{self._rank}ev{self._number}~"

    def _event(self, phase: str, **fields: Any) -> list[tuple[str, Any]]:
        pid, tid = self._chance.choice(self._threads)
        known = {"ph": phase, "cat": self._chance.choice(CATEGORIES), "name": self._name(), "pid": pid, "tid": tid,
                 "ts": self._time(self._now), **fields}
        found = list(known.items())
        if self._chance.one_in(3):
            self._chance.shuffle(found)
        return found

    def _time(self, ns: int) -> Any:
        return self._chance.choice([Literal(f"{ns // 1000}.{ns % 1000:03d}"), Literal(f"{ns // 1000}.{ns % 1000:03d}"),
                                    Literal(f"{ns}e-3"), f"{ns // 1000}.{ns % 1000:03d}"])

    def _slice(self) -> Iterator[list[tuple[str, Any]]]:
        inner = self._chance.randrange(3)
        dur = self._chance.choice([0, 999, 50_000])
        args = self._chance.call([dict, self._args, lambda: dict(COLLECTIVE)])
        fields = {"dur": self._time(dur), **({"args": args} if args or self._chance.one_in(3) else {})}
        one = self._event("X", **fields)
        yield one
        for _ in range(inner if dur > 10 else 0):
            at = self._now
            self._now += self._chance.randrange(dur // 3)
            more = dict(self._event("X", dur=self._time(0)))
            more |= {key: value for key, value in one if key in ("pid", "tid")}
            yield list(more.items())
            self._now = max(self._now, at)
        self._now += dur

    def _pair(self) -> Iterator[list[tuple[str, Any]]]:
        begin = self._event("B")
        yield begin
        self._now += 5
        same = {key: value for key, value in begin if key in ("pid", "tid", "name", "cat")}
        yield list({"ph": "E", "ts": self._time(self._now), **same}.items())

    def _instant(self) -> Iterator[list[tuple[str, Any]]]:
        yield self._event("i", s=self._chance.choice(["g", "p", "t"]))

    def _arrow(self) -> Iterator[list[tuple[str, Any]]]:
        one = self._chance.choice([7, "0x1f", 2**40, "é", -1])
        for phase in "sf":
            yield [(key, value if key != "name" else "ac2g") for key, value in self._event(phase, id=one, bp="e")]

    def _asynchronous(self) -> Iterator[list[tuple[str, Any]]]:
        keys = self._chance.choice([{"id": "0x1f"}, {"id2": {"global": "g"}}, {"id2": {"local": 1}}])
        one = {**dict(self._event("b")), **keys}
        yield list(one.items())
        yield list({**one, "ph": "e"}.items())

    def _counter(self) -> Iterator[list[tuple[str, Any]]]:
        yield self._event("C", args={"value": self._chance.choice([0, 1.5, -7])})

    def _args(self) -> dict[str, Any]:
        return {self._chance.choice(["External id", "Comms Id", "Input Dims", "é", "", "a\"\\"]): self.value(3)
                for _ in range(self._chance.randrange(4))}

    def value(self, levels: int) -> Any:
        """Any JSON."""
        chance = self._chance
        if levels and chance.one_in(3):
            inner = [self.value(levels - 1) for _ in range(chance.randrange(4))]
            return inner if chance.one_in(2) else {f"k{number}": value for number, value in enumerate(inner)}
        return chance.choice([0, -1, 1.5, True, None, "", "text", "\n\"\\\x7f é", 2**62, Literal("1e-3"),
                              Literal("1.50")])


class Literal(str):
    """A value as it stands in the text."""

    __slots__ = ()


def text_of(trace: Trace, chance: Chance) -> str:
    """The file in a random layout."""
    layout = chance.choice(["kineto", "compact", "compact", "spaced", "indented", "odd"])
    events = [event_text(one, layout, chance) for one in trace.events]
    odd = chance.choice([", ", ",\n", " ,\r\n\t"])
    between = {"compact": ",", "kineto": ",\n  ", "indented": ",\n"}.get(layout, odd)
    inner = chance.choice(["", "\n  "]) + between.join(events) + chance.choice(["", "\n"])
    if trace.is_array:
        return f"[{inner}]" + chance.choice(["", "\n"])
    parts = [f'"{key}": {value_text(value)}' for key, value in trace.head]
    parts += [f'"traceEvents": [{inner}]', *(f'"{key}": {value_text(value)}' for key, value in trace.tail)]
    return "{" + chance.choice([", ", ",\n  "]).join(parts) + "}" + chance.choice(["", "\n"])


def event_text(fields: list[tuple[str, Any]], layout: str, chance: Chance) -> str:
    """An event, in which a key may come twice."""
    ascii_only = chance.one_in(2)
    members = [(value_text(key, ascii_only=ascii_only), value_text(value, ascii_only=ascii_only))
               for key, value in fields]
    if layout == "kineto":
        lines = [key + ": " + (_in_lines(value) if key == '"args"' else value) for key, value in members]
        return "{\n    " + ", ".join(lines) + "\n  }"
    if layout == "compact":
        return "{" + ",".join(f"{key}:{value}" for key, value in members) + "}"
    if layout == "indented":
        return "{\n" + ",\n".join(f"    {key}: {value}" for key, value in members) + "\n}"
    blank = (lambda: "") if layout == "spaced" else (lambda: chance.choice(["", " ", "\n", "\t", "\r\n"]))
    return "{" + ", ".join(f"{blank()}{key}{blank()}: {blank()}{value}{blank()}" for key, value in members) + "}"


def _in_lines(value: str) -> str:
    return "{\n      " + value[1:-1] + "\n    }" if value.startswith("{") and len(value) > 2 else value


def value_text(value: Any, *, ascii_only: bool = True) -> str:
    """JSON, in which a `Literal` stands as it is."""
    if isinstance(value, Literal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=ascii_only)}: {value_text(one, ascii_only=ascii_only)}"
                               for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(value_text(one, ascii_only=ascii_only) for one in value) + "]"
    return json.dumps(value, ensure_ascii=ascii_only)
