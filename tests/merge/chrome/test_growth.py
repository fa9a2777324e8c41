"""What a merge costs grows no faster than the trace, and memory not with its slices. `make stress`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.merge.chrome.options import MergeOptions, NumberRanges
from distprof.merge.writing.merge import merge
from support.peak_memory import peak_bytes

pytestmark = pytest.mark.stress


def event(phase: str, at: float, more: str = "", *, pid: object = 7, tid: object = 7) -> str:
    return f'{{"ph":"{phase}","pid":{pid},"tid":{tid},"ts":{at}{more}}}'


def slices(count: int) -> Iterator[str]:
    return (event("X", at, ',"dur":1,"name":"a"') for at in range(count))


def main_threads(count: int) -> Iterator[str]:
    return (event("X", number, ',"dur":1', pid=number, tid=number) for number in range(1, count))


def counters(count: int) -> Iterator[str]:
    for number in range(count):
        yield f'{{"ph":"M","name":"process_labels","pid":{number},"args":{{"labels":"GPU {number}"}}}}'
        yield event("C", number, ',"name":"a","args":{"x":1}', pid=f'"GPU {number} Counters"')


def steps(count: int) -> Iterator[str]:
    for number in range(count):
        yield event("X", 10 * number, f',"dur":9,"name":"ProfilerStep#{number}"')


def arrows_of_threads(count: int) -> Iterator[str]:
    for number in range(count):
        for phase, thread in (("s", number), ("f", -1)):
            yield event("X", 10 * number, ',"dur":5', tid=thread)
            yield event(phase, 10 * number, f',"id":{number},"bp":"e"', tid=thread)


def arrows_of_one_id(count: int) -> Iterator[str]:
    for number in range(count):
        yield event("X", 10 * number, ',"dur":5')
        yield event("sft"[number % 3], 10 * number, ',"id":1,"bp":"e"')


def ends_of_nothing(count: int) -> Iterator[str]:
    """No end has the name of a begin."""
    for number in range(count):
        yield event("B", number, ',"name":"a"')
        yield event("E", number, ',"name":"b"')


def deep(count: int) -> Iterator[str]:
    """Slices within slices, then slices that stick out of all of them."""
    for number in range(count):
        yield event("X", 10 * number, f',"dur":{20 * (2 * count - number)}')
    for number in range(count, 2 * count):
        yield event("X", 10 * number, f',"dur":{60 * count}')


def names(count: int) -> Iterator[str]:
    return (event("X", number, f',"dur":1,"name":"a {number}"') for number in range(count))


def write(folder: Path, events: Iterator[str]) -> Path:
    folder.mkdir()
    with (folder / "rank0_trace.json").open("w") as file:
        file.write("[\n")
        file.writelines(f"{one},\n" for one in events)
        file.write("{}]")
    return folder


def seconds(folder: Path, options: MergeOptions) -> float:
    """Of the processor, of the fastest of three merges."""
    found = []
    for number in range(3):
        begin = time.process_time()
        merge(folder, out=folder.with_name(f"{folder.name}-{number}"), options=options)
        found.append(time.process_time() - begin)
    return min(found)


@pytest.mark.parametrize(("kind", "count", "options"), [
    (main_threads, 10_000, {}), (counters, 10_000, {}), (steps, 10_000, {"steps": NumberRanges(((0, 10**9),))}),
    (arrows_of_threads, 5000, {}), (arrows_of_one_id, 50_000, {}), (ends_of_nothing, 10_000, {}), (deep, 10_000, {}),
    (names, 100_000, {})])
def test_four_times_as_much_takes_at_most_six_times_as_long(tmp_path, kind, count, options):
    few, many = (seconds(write(tmp_path / str(size), kind(size)), MergeOptions(**options))
                 for size in (count, 4 * count))
    assert many < 6 * few


def test_memory_does_not_grow_with_the_slices(tmp_path):
    few, many = (peak_bytes("merge", write(tmp_path / str(count), slices(count))) for count in (1_500_000, 6_000_000))
    assert many < few + 30_000_000
