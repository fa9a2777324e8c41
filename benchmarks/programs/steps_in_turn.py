"""Runs steps of `measuring.watched_steps` under any watch, in blocks that the benchmark requests.

    steps_in_turn.py PORT NAME STEP_MS

It connects to PORT of this machine and sends NAME. For each number of steps that it receives, it runs them and answers
with processor seconds per step, over all threads, and bytes of memory.
"""

from __future__ import annotations

import socket
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).parents[1]))
from measuring.watched_steps import cpu_of, rss_bytes, sleepy_step


def main(port: str, name: str, step_ms: str) -> None:
    """Answers requests until the connection closes."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    model, step = sleepy_step(float(step_ms))
    around: Any = nullcontext
    if name == "TraceML":
        import traceml_ai

        traceml_ai.init(mode="auto")
        around = partial(traceml_ai.trace_step, model)

    def watched() -> None:
        inside: AbstractContextManager[Any] = around()
        with inside:
            step()

    with socket.create_connection(("127.0.0.1", int(port))) as asker, asker.makefile("rw") as lines:
        print(name, file=lines, flush=True)
        for number in lines:
            seconds = cpu_of(watched, int(number))
            print(seconds, rss_bytes(), file=lines, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
