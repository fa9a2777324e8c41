"""Finds the traces in folders, files and archives, and notes what is left out."""

from __future__ import annotations

import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from distprof.contract.paths import MERGED, RANK_JSON, RUN_JSON
from distprof.contract.problems import FilesLeftOut, Remark, SeveralRanksInFile, TimesInNanoseconds, Unreadable
from distprof.errors import DataError
from distprof.merge.run.traces.rank_from_name import natural, place_in, rank_in
from distprof.merge.run.traces.trace_head import EXECUTION_TRACE, MERGED_TRACE, read_head
from distprof.merge.run.traces.trace_identity import TraceIdentity, identity_of
from distprof.merge.scan import nsys
from distprof.merge.scan.archives import MEMBER_SUFFIXES, Archive
from distprof.merge.scan.archives import SUFFIXES as ARCHIVE_SUFFIXES
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.trace_file import TraceFile, printable
from distprof.storage.places import real, walk

LEVELS = 4
"""How many levels of folders below the given one are searched:
runs/plugins/profile/2026_07_25_18_01_04/host0.trace.json.gz."""
SHOWN_LEVELS = 2
"""How many folders above a directly given file are kept in its path, as their names may contain the rank."""
ASCEND_FOLDER, ASCEND_RANK = "ASCEND_PROFILER_OUTPUT", re.compile(r"profiler_info_(\d{1,6})\.json")
MAYBE = (".gz", ".zst", ".bz2", ".xz", ".trace", ".json.txt")
"""Suffixes of files that, like files without a suffix, are traces if they begin like one."""
HEAD_CHUNK_BYTES = 1 << 16
_MERGED = re.compile("(?<![a-z])(merged?|combined|all[-_]?ranks|perfetto_trace)(?![a-z])", re.IGNORECASE)
OF_TORCH = frozenset(("distributedInfo", "deviceProperties"))
"""Keys beside the events; every version of Kineto writes at least one of them."""
OTHERS = {
    (nsys.REPORT_SUFFIX, ".qdrep"): "an Nsight Systems report: make it readable with nsys export --type sqlite",
    (".pftrace", ".perfetto-trace", ".pftrace.gz"): "a Perfetto trace, not a Chrome trace",
    (".fxt", ".fxt.gz"): "a Fuchsia trace, not a Chrome trace",
    (".tar.zst", ".tar.xz", ".tar.bz2", ".7z"): "an archive that has to be unpacked first",
    (".sqlite.gz", ".sqlite.zst", ".db.gz"): "a compressed database, which has to be decompressed first",
}
"""Suffixes -> what a file is that may hold a trace but is not read."""
TOLD_BY_NAME = (*MEMBER_SUFFIXES, *ARCHIVE_SUFFIXES, *chain.from_iterable(OTHERS))
ROCPD = "a rocprofv3 database: write JSON with rocprofv3 --output-format json"
LEFTOVER = "a leftover of merging that cannot be read"
NAMED = 3
"""How many file names a message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file that is a Chrome trace."""

    trace: TraceFile
    where: PurePosixPath
    """Its path relative to the given folder or archive, in which a rank may be named."""
    identity: TraceIdentity
    modified_ns: int
    of_torch: bool = True
    """True if torch.profiler wrote it, judging by the keys around its events."""
    has_several: bool = False
    """True if another tool combined traces of several ranks in it, judging by its first events."""

    @property
    def is_merged(self) -> bool:
        """True if its events or its name show that it contains several ranks."""
        return self.has_several or _is_called_merged(self.where.name)


class ExecutionTrace(NamedTuple):
    """A file that is an execution trace."""

    rank: int | None
    """The rank in its name; None if there is none."""
    trace: TraceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What was found at the given paths."""

    candidates: list[Candidate] = field(default_factory=list)
    problems: list[Unreadable] = field(default_factory=list)
    """Files that should be traces and cannot be read."""
    skipped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What files are instead of traces -> their names."""
    execution_traces: list[ExecutionTrace] = field(default_factory=list)
    leftovers: dict[str, Unreadable] = field(default_factory=dict)
    """Unreadable files that are named like the output of a script that merges traces of ranks."""

    def cannot_read(self, name: str, why: Unreadable, where: PurePosixPath, *, asked: bool) -> None:
        """Notes a file that cannot be read. `where` is its path; `asked` says that the user named it."""
        if not asked and _is_called_merged(where.name):
            self.leftovers[name] = why
        else:
            self.problems.append(why)

    def leave_out_merged(self) -> None:
        """Leaves out merged traces of other tools if there are also traces of ranks, which have the same events."""
        ranks = [one for one in self.candidates if not one.is_merged]
        if not ranks:
            self.problems.extend(self.leftovers.values())
        else:
            self.skipped[LEFTOVER] += self.leftovers
            self.skipped[MERGED_TRACE] += [one.trace.name for one in self.candidates if one.is_merged]
            self.candidates[:] = ranks
        for instead in (MERGED_TRACE, LEFTOVER):
            if not self.skipped[instead]:
                del self.skipped[instead]

    def remarks(self) -> Iterator[Remark]:
        """Yields a remark per kind of file that was left out and not paired with a timeline, and on units of times."""
        in_ns = [one.trace.name for one in self.candidates if one.trace.in_ns]
        for one in self.candidates:
            if one.has_several:
                yield SeveralRanksInFile(file=one.trace.name)
        if in_ns:
            yield TimesInNanoseconds(num_files=len(in_ns), files=tuple(in_ns[:NAMED]))
        for instead, names in self.skipped.items():
            yield FilesLeftOut(num_files=len(names), files=tuple(names[:NAMED]), instead=instead)


def _is_called_merged(name: str) -> bool:
    """Returns whether a name suggests a merge and contains no rank: lora_merged_rank0.json is of a merged model."""
    alone = PurePosixPath(name)
    return _MERGED.search(name) is not None and rank_in(alone) is None and not place_in(alone)


def first_few(names: Sequence[str], shown: int = NAMED) -> str:
    """Returns the first names and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def discover(paths: Sequence[Path], *, named: bool) -> Discovery:
    """Reads the head of every file, up to its first event.

    Args:
        paths: Folders, traces and archives.
        named: Whether the ranks will be taken from elsewhere, so that nothing is read only to find them.

    Raises:
        DataError: A path does not exist, or is a folder of run directories.
    """
    found, seen = Discovery(), set[str]()
    for path in paths:
        if path.is_dir():
            _check_no_runs(path)
        elif not path.exists():
            raise DataError(f"{path} does not exist",
                            hint="distprof run prints the directory it writes")
        elif not path.is_file():
            raise DataError(f"{path} is {_special(path)}, not a file or folder",
                            hint="write its output to a file first: distprof reads traces twice")
        here = set[str]()
        for file, where, label in _places(path, found, alone=len(paths) == 1):
            if (same := real(file)) not in seen:
                here.add(same)
                _look_at(file, where, label, found, named=named, asked=file is path)
        seen |= here  # within one folder, several links to the same file are several ranks
    return found


def _special(path: Path) -> str | None:
    """Returns what kind of special file, readable at most once, a path is; None for regular files and if stat fails."""
    try:
        mode = path.stat().st_mode
    except OSError:  # opening it raises the same error
        return None
    return None if stat.S_ISREG(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) \
        else "a device"


def _places(path: Path, found: Discovery, *, alone: bool) -> Iterator[tuple[Path, PurePosixPath, str]]:
    """Yields each file at a path, its relative path, and its label; folders that cannot be read are noted."""
    if not path.is_dir():
        yield path, PurePosixPath(*path.parts[-1 - SHOWN_LEVELS:]), str(path)
        return
    def note(error: OSError) -> None:
        found.problems.append(Unreadable(file=printable(str(error.filename)), detail=str(error.strerror)))

    for file in _files(path, note):
        where = PurePosixPath(file.relative_to(path).as_posix())
        yield file, where, str(where) if alone else str(file)


def trace_times(path: Path) -> Iterator[int]:
    """Yields when each file of a folder that may be a trace was last modified, in ns since the epoch."""
    return (file.stat().st_mtime_ns for file in _files(path) if file.exists())


def is_recorded(path: Path) -> bool:
    """Returns whether a path is a run directory as written by `distprof run` and `distprof.record`."""
    return (path / RUN_JSON).is_file() or any(path.glob(f"rank*/{RANK_JSON}"))


def _check_no_runs(path: Path) -> None:
    try:
        runs = [child for child in sorted(path.iterdir()) if child.is_dir() and _may_be_recorded(child)]
    except OSError as error:
        raise DataError(f"cannot read the folder {path}: {error.strerror}",
                        hint="check its permissions") from error
    if runs:
        raise DataError(f"{path} is a folder of several runs: {first_few([run.name for run in runs])}",
                        hint=f"choose one of them, like {runs[-1]}")


def _may_be_recorded(path: Path) -> bool:
    try:
        return is_recorded(path)
    except OSError:  # the search for traces notes it
        return False


def _files(path: Path, note: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Yields, in natural order, files whose suffix is that of a trace, archive or similar file, or that begin like a
    trace. Hidden files and our own output are skipped."""
    for folder, folders, names in walk(path, note):
        below = len(folder.relative_to(path).parts)
        shown = [name for name in folders if not name.startswith(".") and name != MERGED]
        folders[:] = sorted(shown, key=natural) if below < LEVELS else []
        for name in sorted(names, key=natural):
            if not name.startswith(".") and (name.endswith(TOLD_BY_NAME) or _begins_like_a_trace(folder / name)):
                yield folder / name


def _with_rank_beside(identity: TraceIdentity, file: Path) -> TraceIdentity:
    """Adds the rank of traces by Ascend's profiler, which writes it into the name of a file one folder above
    ASCEND_PROFILER_OUTPUT/trace_view.json."""
    if identity.rank is not None or file.parent.name != ASCEND_FOLDER:
        return identity
    names = (ASCEND_RANK.fullmatch(one.name) for one in file.parent.parent.glob("profiler_info_*.json"))
    ranks = [int(name[1]) for name in names if name is not None]
    return replace(identity, rank=ranks[0]) if len(ranks) == 1 else identity


def _begins_like_a_trace(file: Path) -> bool:
    """Decides for names that do not show what a file is. Files of other kinds are skipped silently."""
    if not (file.name.endswith((*MAYBE, *nsys.SUFFIXES)) or "." not in file.name) or _special(file) is not None:
        return False
    try:
        if file.name.endswith(nsys.SUFFIXES):
            return nsys.may_be_export(file) or nsys.is_of_rocprof(file)
        first = next(iter(ChunkReader(TraceFile(path=file), chunk_bytes=HEAD_CHUNK_BYTES)), b"")
    except (DataError, OSError):
        return False
    return b'"traceEvents"' in first or b'"ph"' in first


def _look_at(path: Path, where: PurePosixPath, label: str, found: Discovery, *, named: bool, asked: bool) -> None:
    special = _special(path)
    if special is not None:
        found.skipped[special].append(printable(label))
        return
    instead = _instead(path)
    if instead is not None:
        found.skipped[instead].append(printable(label))
        return
    try:
        if path.name.endswith(ARCHIVE_SUFFIXES):
            _look_into(Archive(path, label=label), found, named=named)
        else:
            reader = ChunkReader(TraceFile(path=path, label=label), chunk_bytes=HEAD_CHUNK_BYTES)
            _read(reader, where, found, named=named, asked=asked)
    except DataError as error:
        found.cannot_read(printable(label), _unreadable(error), where, asked=asked)


def _instead(path: Path) -> str | None:
    """Returns what a file is if it is of a known kind that is not read."""
    found = next((what for ends, what in OTHERS.items() if path.name.endswith(ends)), None)
    if found is None and path.name.endswith(nsys.SUFFIXES) and nsys.is_of_rocprof(path):
        return ROCPD
    return found


def _unreadable(error: DataError) -> Unreadable:
    return Unreadable(detail=f"{error.args[0]} ({error.hint})" if error.hint else str(error.args[0]))


def _look_into(archive: Archive, found: Discovery, *, named: bool) -> None:
    inside = Discovery(problems=found.problems, skipped=found.skipped, execution_traces=found.execution_traces,
                       leftovers=found.leftovers)
    for reader in archive:
        _read(reader, PurePosixPath(reader.trace.member or ""), inside, named=named, asked=False)
    if archive.damage is not None:
        found.problems.append(Unreadable(detail=archive.damage))
    found.problems.extend(Unreadable(
        file=printable(name), detail="it is a link; unpack the archive and merge the folder") for name in archive.links)
    found.candidates.extend(sorted(inside.candidates, key=lambda one: natural(str(one.where))))


def _read(reader: ChunkReader, where: PurePosixPath, found: Discovery, *, named: bool, asked: bool) -> None:
    name = reader.trace.name
    try:
        head = read_head(reader, through=not named and rank_in(where) is None)
    except DataError as error:
        found.cannot_read(name, _unreadable(error), where, asked=asked)
        return
    if head.instead is None:
        identity = _with_rank_beside(identity_of(head.values), reader.trace.path)
        found.candidates.append(Candidate(
            trace=replace(reader.trace, in_ns=head.in_ns), where=where, identity=identity,
            modified_ns=reader.trace.path.stat().st_mtime_ns,
            of_torch=not OF_TORCH.isdisjoint(head.values), has_several=head.has_several))
    elif head.is_damaged or (asked and head.instead != EXECUTION_TRACE) or reader.damage is not None:
        damage = f"; the file {reader.damage}" if reader.damage is not None else ""
        found.cannot_read(name, Unreadable(detail=f"{name} is not a Chrome trace but {head.instead}{damage}"), where,
                          asked=asked)
    else:
        found.skipped[head.instead].append(name)
        if head.instead == EXECUTION_TRACE:
            found.execution_traces.append(ExecutionTrace(rank_in(where), reader.trace))
