"""Slices of the timeline in which a thread of the script waits in `Work.wait`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from distprof.contract.tables import WAIT_SLICE


class WorkWaits:
    """Draws a slice around each wait of a thread for a collective, while it is on.

    What waits inside C++ is not seen: DDP at the end of backward, and functional collectives, whose `wait_tensor` is an
    operator that the timeline has anyway.
    """

    def __init__(self) -> None:
        self._wait: Any = None

    def start(self) -> None:
        """Puts itself in front of `Work.wait`."""
        wait = self._wait = dist.Work.wait
        scope = torch._C._profiler._RecordFunctionFast

        def waits(work: Any, *args: Any, **kwargs: Any) -> Any:
            with scope(WAIT_SLICE):
                return wait(work, *args, **kwargs)

        dist.Work.wait = waits  # type: ignore[assignment,method-assign]

    def stop(self) -> None:
        """Puts torch's own back."""
        if self._wait is not None:
            dist.Work.wait = self._wait  # type: ignore[method-assign]
            self._wait = None
