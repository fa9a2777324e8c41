"""The arrivals pass: when this rank comes to each collective and waits for it, over many steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from distprof.contract.passes import ARRIVALS
from distprof.contract.tables import TableRow
from distprof.recording.passes.protocol import Pass, PassContext
from distprof.recording.thread_usage import ThreadUsage


class ArrivalSteps(Pass):
    """Steps in which collectives are labelled, and nothing else is on."""

    name = ARRIVALS
    labels_collectives = True

    def __init__(self, context: PassContext) -> None:
        self._collectives = context.collectives
        self._usage = ThreadUsage()

    def start(self) -> None:
        if dist.is_available():
            self._collectives.start()

    def stop(self) -> None:
        self._collectives.stop()

    def restart_step(self) -> None:
        self._usage.begin()

    def next_step(self) -> None:
        self._usage.end()

    def step_columns(self) -> Sequence[TableRow]:
        """What the thread used of its processor."""
        return self._usage.rows
