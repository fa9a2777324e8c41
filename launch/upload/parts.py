"""What a run directory is made of for an upload: folders that are there whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distprof.contract.paths import MERGED, PARTIAL_SUFFIX, RANK_JSON, RUN_JSON, SUMMARY_JSON

_RANK = re.compile(rf"rank(\d+)({re.escape(PARTIAL_SUFFIX)})?")
_ATTEMPT = re.compile(r"attempt\d{4,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A folder with the files in it."""

    name: str
    """Its path from the run directory; "" for the files that lie in that itself."""
    folder: Path
    last: str
    """The file without which nobody takes the part for one: it comes last."""

    @property
    def is_rank(self) -> bool:
        """True for what a rank recorded, in the last attempt or an earlier one."""
        return _RANK.fullmatch(self.folder.name) is not None

    @property
    def is_complete_rank(self) -> bool:
        """True where the rank will write nothing more."""
        return self.is_rank and not self.name.endswith(PARTIAL_SUFFIX) and (self.folder / self.last).is_file()

    def files(self) -> dict[str, Path]:
        """Those that belong to it, by their path in it; what comes last is last."""
        found = self.folder.iterdir() if not self.name else self.folder.rglob("*")
        files = {file.relative_to(self.folder).as_posix(): file for file in sorted(found) if file.is_file()}
        shown = {name: file for name, file in files.items()
                 if not any(one.startswith(".") for one in name.split("/"))}
        return {**{name: file for name, file in shown.items() if name != self.last},
                **{name: file for name, file in shown.items() if name == self.last}}


def parts_of(run: Path) -> list[Part]:
    """All parts of a run directory, in the order in which they go: ranks, what was made of them, run.json."""
    return [*ranks_of(run), *_others(run), Part(name="", folder=run, last=RUN_JSON)]


def ranks_of(run: Path) -> Iterator[Part]:
    """Folders of ranks, earlier attempts before the last one."""
    for folder in [*sorted(child for child in run.iterdir() if _ATTEMPT.fullmatch(child.name)), run]:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and _RANK.fullmatch(child.name):
                yield Part(name=child.relative_to(run).as_posix(), folder=child, last=RANK_JSON)


def _others(run: Path) -> Iterator[Part]:
    for child in sorted(run.iterdir()):
        known = _RANK.fullmatch(child.name) or _ATTEMPT.fullmatch(child.name) or child.name.startswith(".")
        if child.is_dir() and not known:
            yield Part(name=child.name, folder=child, last=SUMMARY_JSON if child.name == MERGED else "")
