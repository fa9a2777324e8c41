"""Numbers of processes and threads: what finding them costs does not grow with those that have one already."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from distprof.merge.chrome.numbering import Lanes


def lines_run(work: Callable[[], object]) -> int:
    """Lines of Python that a call goes through, those of comprehensions once for each element."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def main_threads(count: int) -> Lanes:
    """Processes that each have a thread with their own number."""
    lanes = Lanes(rank=0, title="rank 0", numbers=1 << 20)
    for number in range(count):
        lanes.thread(number, number)
    return lanes


def counters(count: int) -> Lanes:
    """GPUs, and processes of their counters."""
    labels = {str(number): f"GPU {number}" for number in range(count)}
    lanes = Lanes(rank=0, title="rank 0", numbers=1 << 20, labels=labels)
    lanes.settle(lanes.labels)
    for number in range(count):
        lanes.thread(f"GPU {number} Counters", number)
    return lanes


@pytest.mark.parametrize("numbered", [main_threads, counters])
def test_twice_as_many_take_twice_the_work(numbered):
    few, many = (lines_run(lambda count=count: numbered(count)) for count in (300, 600))
    assert few > 300 and many < 2.2 * few


def test_a_process_has_one_main_thread():
    lanes = main_threads(2)
    first, second = lanes.thread(0, 0), lanes.thread(1, 1)
    assert first.tid == first.pid != second.pid == second.tid
    other = lanes.thread(0, 1)
    assert other.pid == first.pid and other.tid not in (first.pid, second.pid)


def test_counters_go_to_the_first_process_with_their_label():
    lanes = Lanes(rank=0, title="rank 0", labels={"7": "CPU", "0": "GPU 0", "1": "GPU 1", "9": "GPU 1"})
    lanes.settle(["7", "0", "1", "9"])
    assert lanes.thread("GPU 1 Counters", 1).pid == lanes.thread("1", 7).pid
    assert lanes.thread("GPU 5 Counters", 1).pid not in {lanes.thread(raw, 7).pid for raw in lanes.labels}
    names = [event["args"]["name"] for event in lanes.describe() if event["name"] == "process_name"]
    assert names == ["rank 0 | gpu 1 (pid 1)", "rank 0 | GPU 5 Counters", "rank 0 | cpu (pid 7)", "rank 0 | gpu 0",
                     "rank 0 | gpu 1 (pid 9)"]
