"""What has to hold for a merge of any folder in which rank 0 is whole.

Nothing but the folder is known: it can be looked at again without what made it.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distprof.errors import DataError, DistprofError
from distprof.launch.commands.comms import comms_text
from distprof.launch.commands.stats import stats_text
from distprof.merge.writing.merge import merge
from distprof.terminal import say, show
from fuzz.merges.damage import FALSE_LINE
from fuzz.merges.expected import canonical, must_stay
from fuzz.merges.files import decoded, unpacked
from fuzz.merges.reader import strict, whole_events
from fuzz.merges.traces import MARK

GOOD = re.compile(r"(rank|worker)0+(?!\d)")
NAMED = re.compile(r"(rank|worker)0*[012](?!\d)")
TOLD = frozenset(("trace_damaged", "unreadable", "trace_without_rank", "several_traces", "folder_left_out"))
"""Codes of problems that say that something of a trace is lost."""
CONTROL = re.compile(rf"[\x00-\x09\x0b-\x1f\x7f-\x9f]|^{FALSE_LINE}", re.MULTILINE)
"""What no terminal should get: control characters, and lines that a name makes up."""
FOUND = re.compile(r"[0-9]+ (ends? of an arrow|events? left out)")
HERE = Path(__file__).parent


class BrokenError(AssertionError):
    """A promise is broken; `kind` is equal for what looks like one fault."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Source:
    """A trace as it lies in the folder."""

    name: str
    text: str
    is_whole: bool
    """False where the file around the text is damaged."""

    @property
    def is_good(self) -> bool:
        """True for rank 0, which has to be in the merge as it is."""
        return GOOD.search(self.name) is not None


def check(folder: Path, out: Path, *, more: bool = False) -> None:
    """Merges a folder and judges the result.

    Args:
        folder: Traces, or a run directory.
        out: Where the merge goes, a new folder.
        more: Looks at `stats` and `comms` too.

    Raises:
        BrokenError: Something is not as it has to be.
    """
    sources = list(sources_of(folder))
    told = _quietly(merge, folder, out=out)
    if isinstance(told, DistprofError):
        if not _may_refuse(folder, told):
            raise BrokenError(f"refused {_form(told)}", str(told))
        return
    events = _merged(out)
    summary = _strict("summary.json", (out / "summary.json").read_bytes())
    present = Counter(canonical(one) for one in events)
    left_out = {str(one.get(key)) for one in summary["problems"] for key in ("folder", "file")}
    for source in sources:
        if not left_out & set(Path(source.name).parts):
            _check_source(source, present)
    text = " ".join(str(one.get("name")) for one in events) + json.dumps(events, ensure_ascii=False)
    _check_losses(sources, text, told, [one["code"] for one in summary["problems"]])
    if more:
        _quietly(stats_text, folder)
        _quietly(comms_text, folder)


def _quietly(command: Callable[..., str], *arguments: Any, **options: Any) -> str | DistprofError:
    """The text of a command or its error; neither it nor what it prints may hold control characters."""
    printed, result = io.StringIO(), None
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            result = command(*arguments, **options)
            show(result)
    except DistprofError as error:
        result = error
        with redirect_stderr(printed):
            say(str(error))
    except Exception as error:
        raise BrokenError(f"{command.__name__} raised {_form(error)}", traceback.format_exc()) from error
    if CONTROL.search(printed.getvalue()):
        raise BrokenError(f"{command.__name__} printed control characters", repr(printed.getvalue()))
    return result


def _form(error: BaseException) -> str:
    """Type of an error and where it was raised; the first words of one of ours."""
    if isinstance(error, DistprofError):
        return " ".join(re.sub(r"[^a-zA-Z ]", "", str(error).partition(" in ")[0]).split()[:6])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if HERE.name not in Path(frame.filename).parts]
    return f"{type(error).__name__} in {Path(frames[-1].filename).name} {frames[-1].name}"


def _may_refuse(folder: Path, error: DistprofError) -> bool:
    """Files that say, in whole JSON, what contradicts each other are refused; so are traces whose rank is a guess."""
    records = [*folder.glob("rank*/rank.json"), *folder.glob("run.json")]
    if not isinstance(error, DataError):
        return False
    if not records:
        return not all(NAMED.search(str(path.relative_to(folder))) or ".tar" in path.name for path in _files(folder))
    try:
        return all(isinstance(strict(path.read_bytes()), dict) for path in records)
    except (ValueError, RecursionError):
        return False


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "merged"]
        yield from (Path(where, name) for name in names if name.endswith((".json", ".gz", ".tar")))


def sources_of(folder: Path) -> Iterator[Source]:
    """Traces that can be read without distprof, damaged archives apart."""
    for path in _files(folder):
        name, (data, is_whole) = str(path.relative_to(folder)), unpacked(path.read_bytes())
        if path.name in ("rank.json", "run.json"):
            continue
        if ".tar" not in path.name:
            yield Source(name, decoded(data), is_whole)
        elif is_whole:
            yield from _members(data)


def _members(data: bytes) -> Iterator[Source]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            members = [(one.name, tar.extractfile(one).read()) for one in tar  # type: ignore[union-attr]  # they are files
                       if one.isreg() and one.name.endswith((".json", ".json.gz"))]
    except (tarfile.TarError, OSError, ValueError, AttributeError, EOFError):
        return
    for name, content in members:
        text, is_whole = unpacked(content)
        yield Source(name, decoded(text), is_whole)


def _merged(out: Path) -> list[dict[str, Any]]:
    path = out / "trace.json.gz"
    if not path.exists():
        raise BrokenError("no trace", f"{path} was not written")
    found: list[dict[str, Any]] = _strict("trace.json.gz", gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def _strict(name: str, text: bytes) -> Any:
    try:
        return strict(text)
    except (ValueError, RecursionError) as error:
        raise BrokenError(f"{name} is no strict JSON", f"{error}: {text[:4000]!r}") from error


def _check_source(source: Source, present: Counter[str]) -> None:
    if not NAMED.search(source.name):
        return  # of which rank it is may not be clear
    wanted = Counter(canonical(one) for one in whole_events(source.text) if must_stay(one))
    lost = [(one, count, present[one]) for one, count in wanted.items() if present[one] < count]
    if lost:
        raise BrokenError(f"{'good' if source.is_good else 'whole'} events are lost", f"{source.name}: {lost[:3]}")
    if source.is_good:
        rank = [one for one in present.elements() if '"r0ev' in one or ' r0ev' in one]
        if len(rank) != sum(1 for one in whole_events(source.text) if MARK.search(str(one.get("name")))):
            raise BrokenError("the good rank has other events", f"{source.name}: {len(rank)}")


def _check_losses(sources: list[Source], text: str, told: str, codes: list[str]) -> None:
    """What is lost is said."""
    if TOLD & set(codes) or FOUND.search(told):
        return
    for source in sources:
        if f"left out: damaged JSON, or a format without traceEvents ({source.name})" in told:
            continue
        lost = {one for one in MARK.findall(source.text) if one not in text}
        if lost:
            raise BrokenError("losses are not told", f"{source.name}: {sorted(lost)[:9]}; told: {told}")
        if not source.is_whole:
            raise BrokenError("damage is not told", f"{source.name}; told: {told}")
