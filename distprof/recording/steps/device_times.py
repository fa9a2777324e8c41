"""How long steps take on the device: where the host runs ahead of it, its own steps tell little."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from distprof.contract.tables import TableRow
from distprof.process.accelerators import CPU, device_type, is_capturing
from distprof.timing.stopwatch import comes, has_events


class DeviceTimes:
    """Marks on the current stream where steps begin and end; they become times once the device has come to them."""

    def __init__(self) -> None:
        self._began: torch.Event | None = None
        self._ended: list[tuple[TableRow, torch.Event, torch.Event]] = []

    def begin(self) -> None:
        """The step begins."""
        self._began = _mark()

    def end(self, row: TableRow) -> None:
        """It ends, with this row."""
        began, self._began = self._began, None
        end = _mark() if began is not None else None
        if began is not None and end is not None and began.device == end.device:
            self._ended.append((row, began, end))

    def settle(self) -> None:
        """Fills in `device_ns` of the rows; waits for the device, unless it hangs or has failed."""
        ended, self._ended = self._ended, []
        with suppress(RuntimeError):  # the script's error, which torch repeats
            for row, began, end in ended:
                if not comes(end):
                    return
                row["device_ns"] = round(began.elapsed_time(end) * 1e6)


def _mark() -> torch.Event | None:
    kind = device_type()
    if kind == CPU or is_capturing() or not has_events(kind):
        return None
    event: Any = torch.Event(kind, enable_timing=True)
    event.record()
    return event  # type: ignore[no-any-return]
