"""The formats of `distprof merge --format`, a row each. What a format does is in the files of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distprof.contract.merged_tables import MERGED_EVENTS
from distprof.contract.paths import TRACE_JSON, TRACE_TAR

if TYPE_CHECKING:
    from distprof.merge.chrome.output import NewOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A way to write the merged trace."""

    files: tuple[str, ...]
    """Files and folders that it writes; first the one that a user opens."""
    outputs: Callable[[], Sequence[NewOutput]]
    """Imports and gives those who write them: what they need takes a while to import."""
    chooses_events: bool = True
    """False where files are taken as they are, so that no events can be left out."""


def _chrome() -> Sequence[NewOutput]:
    from distprof.merge.chrome.chrome_json import ChromeJson
    from distprof.merge.chrome.events_table import EventTables

    return ChromeJson, EventTables


def _perfetto_tar() -> Sequence[NewOutput]:
    from distprof.merge.chrome.perfetto_tar import PerfettoTar

    return (PerfettoTar,)


FORMATS = {
    "chrome": Format(files=(TRACE_JSON, MERGED_EVENTS.file), outputs=_chrome),
    "perfetto-tar": Format(files=(TRACE_TAR,), outputs=_perfetto_tar, chooses_events=False),
}
