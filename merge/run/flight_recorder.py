"""Reads dumps of torch's flight recorder, which NCCL's watchdog writes when a collective does not end.

Dumps are pickles of plain containers, or JSON. Loading a pickle can run arbitrary code, so a pickle that asks for more
than containers, numbers and text is refused. The result has the form of `stuck.json`, as far as a dump has its values.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from distprof.contract.paths import FORMAT, MERGED
from distprof.contract.problems import Unreadable
from distprof.contract.run_json import MOST_RANKS
from distprof.contract.stuck import StackFrame, Stuck, StuckCollective, StuckGroup, StuckThread
from distprof.merge.run.traces.rank_from_name import natural
from distprof.storage.places import walk

LEVELS = 1
"""How many levels of folders below the given one are searched."""
NAME = re.compile(r"(?:trace|rank|dump|flight|fr)[A-Za-z_-]*[.]?(\d{1,7})(?:\.(?:json|pickle|pkl|bin))?$")
"""Matches nccl_trace_rank_3, comm_lib_trace_rank_3: torch appends the rank to a prefix that a user may choose."""
HEAD_BYTES = 4096
KEYS = (b"pg_status", b"pg_config", b"nccl_version", b"comm_lib_version", b"collective_seq_id")
"""The head of every dump contains at least one of these keys."""
KEYS_OF_TRACES = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"')
"""The head of a torch trace contains one of these keys. Such a trace also lists its groups (`pg_config`)."""
MOST_BYTES = 1 << 30
WORLD = "0"
"""torch's name of the group that contains all ranks."""


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Entry(msgspec.Struct):
    """A collective or message. Fields that some torch versions name differently may be missing."""

    process_group: tuple[str, str] = ("", "")
    profiling_name: str = ""
    collective_seq_id: int | None = None
    seq_id: int | None = None
    p2p_seq_id: int | None = None
    is_p2p: bool = False
    state: str | None = None
    retired: bool = False
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    time_created_ns: int = 0
    frames: list[_Frame] = []

    @property
    def number(self) -> int:
        number = self.p2p_seq_id if self.is_p2p else self.collective_seq_id
        return number if number is not None else self.seq_id or 0


class _Status(msgspec.Struct):
    last_enqueued_collective: int = -1
    last_started_collective: int = -1
    last_completed_collective: int = -1


class _Config(msgspec.Struct):
    name: str = ""
    desc: str = ""
    ranks: str | list[int] = "[]"

    @property
    def members(self) -> list[int]:
        listed = json.loads(self.ranks) if isinstance(self.ranks, str) else self.ranks
        return [rank for rank in listed if isinstance(rank, int)] if isinstance(listed, list) else []


class Dump(msgspec.Struct):
    """The contents of one dump file."""

    entries: list[_Entry] = []
    pg_status: dict[str, _Status] = {}
    pg_config: dict[str, _Config] = {}


class _Containers(pickle.Unpickler):
    """Unpickles only data that needs no class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it contains {module}.{name}, but a dump holds only plain containers")

    def persistent_load(self, _: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to another file")


def read_dumps(path: Path) -> tuple[dict[int, Stuck], list[Unreadable]]:
    """Reads the dumps at a path.

    Args:
        path: A folder of dumps, or a single dump.

    Returns:
        Rank -> what its dump says, and the dumps that cannot be read.
    """
    found: dict[int, tuple[Path, Dump]] = {}
    problems: list[Unreadable] = []
    for file, rank in dump_files(path):
        try:
            found.setdefault(rank, (file, _dump(file.read_bytes())))
        except (OSError, ValueError, msgspec.ValidationError, pickle.UnpicklingError, EOFError, AttributeError,
                IndexError, KeyError, TypeError, MemoryError, RecursionError, OverflowError) as error:
            problems.append(Unreadable(rank=rank, file=file.name, detail=str(error) or type(error).__name__))
    dumps = {rank: dump for rank, (_, dump) in found.items()}
    listed = _listed(dumps.values())
    members = _seen(dumps) | listed
    size = max([rank for ranks in members.values() for rank in ranks], default=-1) + 1
    return {rank: _stuck(rank, size, dump, members, [*listed], file)
            for rank, (file, dump) in sorted(found.items())}, problems


def dump_files(path: Path) -> Iterator[tuple[Path, int]]:
    """Yields the files whose names and heads mark them as dumps, with the rank of each."""
    for file in _files(path) if path.is_dir() else (path,):
        name = NAME.search(file.name)
        if name is not None and int(name[1]) < MOST_RANKS and _is_dump(file):
            yield file, int(name[1])


def _files(path: Path) -> Iterator[Path]:
    for folder, folders, names in walk(path):
        below = len(folder.relative_to(path).parts)
        folders[:] = sorted(name for name in folders if below < LEVELS and name != MERGED and not name.startswith("."))
        yield from (folder / name for name in sorted(names, key=natural))


def _is_dump(file: Path) -> bool:
    try:
        if not file.is_file() or file.stat().st_size > MOST_BYTES:
            return False
        with file.open("rb") as opened:
            head = opened.read(HEAD_BYTES)
    except OSError:
        return False
    return head.lstrip()[:1] in (b"\x80", b"{") and any(key in head for key in KEYS) and not any(
        key in head for key in KEYS_OF_TRACES)


def _dump(content: bytes) -> Dump:
    plain = msgspec.json.decode(content) if content.lstrip()[:1] == b"{" else _Containers(io.BytesIO(content)).load()
    return msgspec.convert(plain, Dump, strict=False)


def _listed(dumps: Iterable[Dump]) -> dict[str, list[int]]:
    """Returns the ranks of each group as the dumps list them; dumps of gloo list none."""
    found: dict[str, list[int]] = {}
    for dump in dumps:
        for key, config in dump.pg_config.items():
            if config.members:
                found.setdefault(config.name or key, config.members)
    return found


def _seen(dumps: Mapping[int, Dump]) -> dict[str, list[int]]:
    """Returns the ranks whose dumps mention each group. The group of all ranks contains every rank with a dump."""
    seen: dict[str, set[int]] = {WORLD: {*dumps}}
    for rank, dump in dumps.items():
        for name in {*dump.pg_status, *(entry.process_group[0] for entry in dump.entries)}:
            seen.setdefault(name, set()).add(rank)
    return {name: sorted(ranks) for name, ranks in seen.items()}


def _stuck(rank: int, world_size: int, dump: Dump, members: Mapping[str, list[int]], listed: Sequence[str],
           file: Path) -> Stuck:
    last = max(dump.entries, key=lambda entry: entry.time_created_ns, default=None)
    names = [name for name, ranks in members.items() if rank in ranks]
    groups = [_group(name, members[name], dump, known=name in listed) for name in names]
    frames = [StackFrame(file=frame.filename, line=frame.line, function=frame.name)
              for frame in reversed(last.frames if last is not None else [])]
    return Stuck(
        format=FORMAT, rank=rank, world_size=world_size, cause="dump", why="a dump of torch's flight recorder",
        time_ns=max(file.stat().st_mtime_ns, last.time_created_ns if last is not None else 0),
        waiting=any(not one.completed for group in groups for one in group.collectives), recording=False, step=0,
        pass_name=None, phase=None, module_path=None, since_ns=last.time_created_ns if last is not None else None,
        groups=groups, open_calls=[],
        threads=[StuckThread(name="", native_id=None, main=True, frames=frames)] if frames else [])


def _group(name: str, ranks: list[int], dump: Dump, *, known: bool) -> StuckGroup:
    entries = [entry for entry in dump.entries if entry.process_group[0] == name]
    status = dump.pg_status.get(name, _Status())
    called = [entry.number for entry in entries if not entry.is_p2p]
    description = next((entry.process_group[1] for entry in entries), "") or _description(name, dump.pg_config.values())
    return StuckGroup(
        name=name, description=description, backend=None, ranks=ranks, ranks_known=known,
        last_called=max([*called, status.last_enqueued_collective], default=0),
        last_started=status.last_started_collective, last_completed=status.last_completed_collective,
        collectives=[StuckCollective(
            number=entry.number, name=entry.profiling_name, op=entry.profiling_name.rpartition(":")[2],
            point_to_point=entry.is_p2p, state=entry.state, completed=entry.retired or entry.state == "completed",
            input_sizes=entry.input_sizes, input_dtypes=entry.input_dtypes, output_sizes=entry.output_sizes,
            output_dtypes=entry.output_dtypes, called_ns=entry.time_created_ns) for entry in entries])


def _description(name: str, configs: Iterable[_Config]) -> str:
    return next((config.desc for config in configs if config.name == name), "")
