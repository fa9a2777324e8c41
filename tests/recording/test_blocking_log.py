"""Waits added up by line and step."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from distprof.recording.blocking.blocking_log import BlockingLog, Wait

READ = Wait("aten::item", "device", "cpu", blocking=True)
WOULD = Wait("aten::nonzero", "device", "cpu", blocking=False)


def test_calls_of_a_line_are_added_up_in_each_step_and_what_follows_the_last_one_is_dropped():
    step = [0]
    owners = SimpleNamespace(where=lambda: ("layers.1", "forward"))
    log = BlockingLog(owners, guard=lambda function: function, step=lambda: step[0], phase=lambda: None)
    log.start()
    for number, durations in enumerate(((5, 9, 7), (4,), (100,))):
        step[0] = number
        for wait in (READ, WOULD):
            for ns in durations:
                log.add(wait, ns, sys._getframe())
        if number < 2:
            log.next_step()
    log.forget_step()
    rows = log.rows()
    assert [(row["step"], row["op"], row["calls"], row["blocked_ns"], row["longest_ns"]) for row in rows] == [
        (0, "aten::item", 3, 21, 9), (0, "aten::nonzero", 3, 0, 0), (1, "aten::item", 1, 4, 4),
        (1, "aten::nonzero", 1, 0, 0)]
    assert {(row["module_path"], row["phase"], row["thread"]) for row in rows} == {("layers.1", "forward", "steps")}
    assert {row["file"].rpartition("/")[2] for row in rows} == {"test_blocking_log.py"}
