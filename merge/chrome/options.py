"""All options of a merge. Those that choose events are in `selection_options.py`, formats in `formats.py`."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.merge.chrome.selection_options import SelectionOptions
from distprof.merge.clock.model import Align


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions(SelectionOptions):
    """What goes into the merge and how."""

    max_bytes: int | None = None
    """Of the merged trace as text, which is what a viewer has to read."""
    format: str = "chrome"
    """One of `FORMATS`."""
    align: Align = "auto"
    """How the ranks are brought to one clock."""
    collectives: bool | None = None
    """Whether collectives are drawn and tabled; None: where distprof recorded the run."""
