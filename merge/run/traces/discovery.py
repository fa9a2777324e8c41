"""Finds the traces in folders, files and archives, and what is left out."""

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
"""Folders below the given one that are looked into: runs/plugins/profile/2026_07_25_18_01_04/host0.trace.json.gz."""
SHOWN_LEVELS = 2
"""Folders above a file that was given itself: its rank may be in their names."""
ASCEND_FOLDER, ASCEND_RANK = "ASCEND_PROFILER_OUTPUT", re.compile(r"profiler_info_(\d{1,6})\.json")
MAYBE = (".gz", ".zst", ".bz2", ".xz", ".trace", ".json.txt")
"""Suffixes of files, beside none, that are traces if they begin like one."""
HEAD_CHUNK_BYTES = 1 << 16
_MERGED = re.compile("(?<![a-z])(merged?|combined|all[-_]?ranks|perfetto_trace)(?![a-z])", re.IGNORECASE)
OF_TORCH = frozenset(("distributedInfo", "deviceProperties"))
"""Keys that every version of Kineto writes beside the events, one of them at least."""
OTHERS = {
    (nsys.REPORT_SUFFIX, ".qdrep"): "an Nsight Systems report: make it readable with nsys export --type sqlite",
    (".pftrace", ".perfetto-trace", ".pftrace.gz"): "a Perfetto trace, not a Chrome trace",
    (".fxt", ".fxt.gz"): "a Fuchsia trace, not a Chrome trace",
    (".tar.zst", ".tar.xz", ".tar.bz2", ".7z"): "an archive that has to be unpacked first",
    (".sqlite.gz", ".sqlite.zst", ".db.gz"): "a compressed database, which has to be decompressed first",
}
"""Ends of names -> what such a file is that may hold a trace and is not read."""
TOLD_BY_NAME = (*MEMBER_SUFFIXES, *ARCHIVE_SUFFIXES, *chain.from_iterable(OTHERS))
ROCPD = "a rocprofv3 database: write JSON with rocprofv3 --output-format json"
LEFTOVER = "a leftover of merging that cannot be read"
NAMED = 3
"""Files that a line names of those it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file that is a Chrome trace."""

    trace: TraceFile
    where: PurePosixPath
    """Its path from the folder, or in the archive, that was given: what names can be read from."""
    identity: TraceIdentity
    modified_ns: int
    of_torch: bool = True
    """torch.profiler has written it, as what stands around its events says."""
    has_several: bool = False
    """Another tool has put the traces of several ranks into it, as its first events say."""

    @property
    def is_merged(self) -> bool:
        """True where its events, or its name, say that several ranks are in it."""
        return self.has_several or _is_called_merged(self.where.name)


class ExecutionTrace(NamedTuple):
    """A file that is an execution trace."""

    rank: int | None
    """What its name tells."""
    trace: TraceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What lies at the given paths."""

    candidates: list[Candidate] = field(default_factory=list)
    problems: list[Unreadable] = field(default_factory=list)
    """Files that should be traces and cannot be read."""
    skipped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What files are instead of traces -> their names."""
    execution_traces: list[ExecutionTrace] = field(default_factory=list)
    leftovers: dict[str, Unreadable] = field(default_factory=dict)
    """Files that cannot be read, and that are called like what a script makes of the traces of ranks."""

    def cannot_read(self, name: str, why: Unreadable, where: PurePosixPath, *, asked: bool) -> None:
        """Notes that a file cannot be read, which lies there; `asked` where the user named it."""
        if not asked and _is_called_merged(where.name):
            self.leftovers[name] = why
        else:
            self.problems.append(why)

    def leave_out_merged(self) -> None:
        """Beside traces of ranks one that another tool merged has the same events again."""
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
        """One for each sort of file that was left out and is not paired with a timeline; what times were taken for."""
        in_ns = [one.trace.name for one in self.candidates if one.trace.in_ns]
        for one in self.candidates:
            if one.has_several:
                yield SeveralRanksInFile(file=one.trace.name)
        if in_ns:
            yield TimesInNanoseconds(num_files=len(in_ns), files=tuple(in_ns[:NAMED]))
        for instead, names in self.skipped.items():
            yield FilesLeftOut(num_files=len(names), files=tuple(names[:NAMED]), instead=instead)


def _is_called_merged(name: str) -> bool:
    """Not where the name tells one rank: lora_merged_rank0.json is of a merged model."""
    alone = PurePosixPath(name)
    return _MERGED.search(name) is not None and rank_in(alone) is None and not place_in(alone)


def first_few(names: Sequence[str], shown: int = NAMED) -> str:
    """The first names and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def discover(paths: Sequence[Path], *, named: bool) -> Discovery:
    """Looks at every file as far as its first event.

    Args:
        paths: Folders, traces and archives.
        named: True where the ranks will be taken from elsewhere: nothing is read only to find them.

    Raises:
        DataError: A path is not there, or is a folder of run directories.
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
        seen |= here  # within a folder links of several names are several ranks
    return found


def _special(path: Path) -> str | None:
    """What a path is that can be read once or not at all; None for files, and where nothing can be said."""
    try:
        mode = path.stat().st_mode
    except OSError:  # opening it raises the same
        return None
    return None if stat.S_ISREG(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) \
        else "a device"


def _places(path: Path, found: Discovery, *, alone: bool) -> Iterator[tuple[Path, PurePosixPath, str]]:
    """Each file at a path, its path from there, and what to call it; folders that cannot be read are noted."""
    if not path.is_dir():
        yield path, PurePosixPath(*path.parts[-1 - SHOWN_LEVELS:]), str(path)
        return
    def note(error: OSError) -> None:
        found.problems.append(Unreadable(file=printable(str(error.filename)), detail=str(error.strerror)))

    for file in _files(path, note):
        where = PurePosixPath(file.relative_to(path).as_posix())
        yield file, where, str(where) if alone else str(file)


def trace_times(path: Path) -> Iterator[int]:
    """When the files of a folder that may be traces were written last, in ns since the epoch."""
    return (file.stat().st_mtime_ns for file in _files(path) if file.exists())


def is_recorded(path: Path) -> bool:
    """True for a run directory, as `distprof run` and `distprof.record` write it."""
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
    except OSError:  # looking for traces notes it
        return False


def _files(path: Path, note: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """Files whose names say JSON or tar, or that begin like a trace, in natural order; hidden ones and our own output
    apart.
    """
    for folder, folders, names in walk(path, note):
        below = len(folder.relative_to(path).parts)
        shown = [name for name in folders if not name.startswith(".") and name != MERGED]
        folders[:] = sorted(shown, key=natural) if below < LEVELS else []
        for name in sorted(names, key=natural):
            if not name.startswith(".") and (name.endswith(TOLD_BY_NAME) or _begins_like_a_trace(folder / name)):
                yield folder / name


def _with_rank_beside(identity: TraceIdentity, file: Path) -> TraceIdentity:
    """Ascend's profiler writes ASCEND_PROFILER_OUTPUT/trace_view.json, and the rank into the name of a file above."""
    if identity.rank is not None or file.parent.name != ASCEND_FOLDER:
        return identity
    names = (ASCEND_RANK.fullmatch(one.name) for one in file.parent.parent.glob("profiler_info_*.json"))
    ranks = [int(name[1]) for name in names if name is not None]
    return replace(identity, rank=ranks[0]) if len(ranks) == 1 else identity


def _begins_like_a_trace(file: Path) -> bool:
    """For names that do not say what a file is. Files of other kinds are passed by without a word."""
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
    """What a file is that is not read."""
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
