"""Entry points that Lightning calls for each Trainer; if nothing is recorded, they import nothing."""

from __future__ import annotations

import os
import sys
from typing import Any

OUT = "DISTPROF_OUT"


def callbacks() -> list[Any]:
    """Entry point of `lightning.pytorch.callbacks_factory`: returns a callback if something is or will be recorded."""
    return _callbacks("lightning.pytorch")


def callbacks_of_pytorch_lightning() -> list[Any]:
    """Entry point for the package `pytorch_lightning`."""
    return _callbacks("pytorch_lightning")


def _callbacks(package: str) -> list[Any]:
    if os.environ.get("DISTPROF_DISABLE") or not (os.environ.get(OUT) or _is_recorded()):
        return []
    from distprof.integrations.lightning import callback_class

    return [callback_class(package)()]


def _is_recorded() -> bool:
    """Returns whether a recording runs in this process."""
    recorder = sys.modules.get("distprof.recording.active")
    return recorder is not None and bool(recorder.active())
