"""The file in which the ranks of a host put their summaries: a sequence of framed records.

A frame has a magic number, the rank, and lengths and CRC-32 of two blocks of compressed msgpack: the summary without
its arrivals, and the arrivals. Torn or damaged bytes cost the summary of one rank.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from isal import isal_zlib
from msgspec.structs import replace

from distprof.contract.rank_json import RankJson
from distprof.contract.rank_summary import SUMMARIES, SUMMARY_FORMAT, SUMMARY_SUFFIX, Arrivals, RankSummary
from distprof.contract.run_json import MOST_RANKS
from distprof.errors import FormatError
from distprof.files import append_whole, escaped
from distprof.own import time
from distprof.system import lock

MAGIC = b"\x93dpcol\r\n"
"""Not text, and damaged by conversion of line ends."""
HEAD = struct.Struct("<8sIIII")
"""Magic, rank, bytes of the summary, bytes of its arrivals, CRC-32 of both."""
PATIENCE_S = 2.0
"""Time in seconds that a rank waits for another one that writes, before it writes a file of its own."""
LOOK_AGAIN_S = 0.005
MOST_RAW_BYTES, SOME_RAW_BYTES, MOST_RATIO = 1 << 30, 1 << 26, 100
"""Limits of an unpacked block: larger than the first is damage, as is larger than the second with a higher compression
ratio than the third."""
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems without locks, where appending a frame in one write has to suffice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Position of a rank's summary in a file."""

    rank: int
    path: Path
    offset: int
    """Position of its first block."""
    head_bytes: int
    arrivals_bytes: int


def packed_frame(summary: RankSummary) -> bytes:
    """Returns the bytes that are appended to a file for a rank."""
    head, arrivals = _compressed(replace(summary, arrivals=None)), _compressed(summary.arrivals)
    check = zlib.crc32(arrivals, zlib.crc32(head))
    return HEAD.pack(MAGIC, summary.about.rank, len(head), len(arrivals), check) + head + arrivals


def _compressed(value: RankSummary | Arrivals | None) -> bytes:
    try:
        content = msgspec.msgpack.encode(value)
    except UnicodeEncodeError:  # a name with a byte that is not UTF-8
        content = msgspec.msgpack.encode(escaped(msgspec.to_builtins(value, builtin_types=(bytes,))))
    return bytes(isal_zlib.compress(content, 1))


def append(run: Path, summary: RankSummary) -> Path:
    """Appends the summary of a rank to the file of its host.

    Returns:
        The file.

    Raises:
        OSError: It cannot be written; the file is unchanged, except for a torn frame if its file system has no locks.
    """
    about, frame = summary.about, packed_frame(summary)
    folder = run / SUMMARIES
    folder.mkdir(exist_ok=True)
    path = folder / f"{file_stem(about)}{SUMMARY_SUFFIX}"
    if not _append(path, frame):
        path = folder / f"{file_stem(about)}-rank{about.rank:05d}{SUMMARY_SUFFIX}"
        if not _append(path, frame):
            raise OSError(errno.EWOULDBLOCK, "another process has locked it", str(path))
    return path


def file_stem(about: RankJson) -> str:
    """Returns the host and the beginning of its boot id, with characters allowed in file names."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", about.host)[:64].lstrip(".") or "host"
    return f"{host}-{re.sub(r'[^A-Za-z0-9]', '', about.boot_id)[:8] or '0'}"


def _append(path: Path, frame: bytes) -> bool:
    """Appends a frame; False if another process locks the file for too long."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        is_locked = _locked(handle)
        if is_locked:
            append_whole(handle, frame)
        elif is_locked is None and os.write(handle, frame) < len(frame):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # others may have appended behind it
        return is_locked is not False
    finally:
        os.close(handle)  # releases the lock


def _locked(handle: int) -> bool | None:
    """Returns whether this process has the lock now; None if the file system has no locks."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            lock(handle)
            return True
        except OSError as error:
            if error.errno in NO_LOCKS:
                return None
            if error.errno not in (errno.EWOULDBLOCK, errno.EINTR) or time.monotonic() > until:
                return False
        time.sleep(LOOK_AGAIN_S)


def frames_in(path: Path, content: bytes) -> tuple[list[Frame], int]:
    """Returns the intact frames of a file in file order, and the number of bytes outside of them."""
    found, at, lost = list[Frame](), 0, 0
    while at < len(content):
        frame = _frame_at(path, content, at)
        if frame is not None:
            found.append(frame)
            at = frame.offset + frame.head_bytes + frame.arrivals_bytes
            continue
        following = content.find(MAGIC, at + 1)
        following = len(content) if following < 0 else following
        lost, at = lost + following - at, following
    return found, lost


def _frame_at(path: Path, content: bytes, at: int) -> Frame | None:
    if at + HEAD.size > len(content):
        return None
    magic, rank, head, arrivals, check = HEAD.unpack_from(content, at)
    offset = at + HEAD.size
    end = offset + head + arrivals
    if magic != MAGIC or rank >= MOST_RANKS or end > len(content):
        return None
    if zlib.crc32(memoryview(content)[offset:end]) != check:
        return None
    return Frame(rank=rank, path=path, offset=offset, head_bytes=head, arrivals_bytes=arrivals)


_HEADS, _ARRIVALS = msgspec.msgpack.Decoder(RankSummary), msgspec.msgpack.Decoder(Arrivals | None)
_VERSION = msgspec.defstruct("_Version", [("format", int)])


def head_of(frame: Frame, content: bytes) -> RankSummary:
    """Returns the summary without its arrivals.

    Args:
        frame: A frame of the file.
        content: The whole file.

    Raises:
        FormatError: A newer distprof wrote it.
        ValueError: It has another content than what distprof writes.
    """
    text = _unpacked(memoryview(content)[frame.offset:frame.offset + frame.head_bytes])
    try:
        found = _HEADS.decode(text)
    except msgspec.MsgspecError:
        _refuse_newer(frame, msgspec.msgpack.decode(text, type=_VERSION).format)  # type: ignore[attr-defined]
        raise
    _refuse_newer(frame, found.format)
    return found


def _refuse_newer(frame: Frame, version: int) -> None:
    if version > SUMMARY_FORMAT:
        raise FormatError(f"this distprof reads summaries of format {SUMMARY_FORMAT} and older, but {frame.path} has "
                          f"format {version}", hint="install a newer distprof")


def arrivals_of(frame: Frame, content: bytes) -> Arrivals | None:
    """Returns the arrivals of a summary; None if it has none.

    Raises:
        ValueError: They have another content than what distprof writes.
    """
    begin = frame.offset + frame.head_bytes
    found: Arrivals | None = _ARRIVALS.decode(_unpacked(memoryview(content)[begin:begin + frame.arrivals_bytes]))
    return found


def _unpacked(content: memoryview) -> bytes:
    """Raises a ValueError for what cannot be unpacked, or is too large to have been written by distprof."""
    machine = isal_zlib.decompressobj()
    try:
        found = bytes(machine.decompress(content, min(MOST_RAW_BYTES, max(SOME_RAW_BYTES, MOST_RATIO * len(content)))))
    except isal_zlib.error as error:  # type: ignore[misc]
        raise ValueError(str(error)) from error
    if not machine.eof:
        raise ValueError("a block of the summary is truncated or too large")
    return found


def files_of(run: Path) -> Iterator[Path]:
    """Yields files with summaries in a run directory, sorted by name."""
    try:
        yield from sorted(path for path in (run / SUMMARIES).iterdir() if path.suffix == SUMMARY_SUFFIX)
    except OSError:
        return  # a run without summaries


def summary_of(frame: Frame, content: bytes) -> RankSummary:
    """Returns the whole summary; see `head_of` and `arrivals_of`."""
    return replace(head_of(frame, content), arrivals=arrivals_of(frame, content))
