"""The arrivals pass: when this rank comes to each collective and waits for it, over many steps."""

from __future__ import annotations

import torch.distributed as dist

from distprof.contract.passes import ARRIVALS
from distprof.recording.passes.labelled import LabelledSteps


class ArrivalSteps(LabelledSteps):
    """Steps in which collectives are labelled, and nothing else is on; of one rank, whose calls wait for nobody, steps
    that nothing slows down."""

    name = ARRIVALS

    def start(self) -> None:
        if dist.is_available() and not (dist.is_initialized() and dist.get_world_size() == 1):
            self._collectives.start()
        self._lines.start()

    def stop(self) -> None:
        self._lines.stop()
        self._collectives.stop()
