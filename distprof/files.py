"""Writes files atomically: to a temporary file in the same folder, which is synced and renamed. Reads small files.

Files that are appended to while a job runs are sequences of frames. A frame has a mark, the length and the CRC-32 of
its body as little-endian 32-bit integers, and the body. If a frame is damaged or was cut short by a kill, only its
contents are lost, because the next one is found by its mark.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from distprof.errors import OutputError
from distprof.own import open_file
from distprof.storage.faults import RemoteError
from distprof.storage.places import remote
from distprof.system import open_for_sync

ROOM = "free some space there, or choose another place with --out DIR"
ACCESS = "choose a writable place with --out DIR"
HINTS = {
    errno.ENOSPC: ROOM, errno.EDQUOT: ROOM, errno.EROFS: ACCESS, errno.EACCES: ACCESS, errno.EPERM: ACCESS,
    errno.ENOENT: "was the folder removed in the meantime?", errno.EFBIG: "allow larger files: ulimit -f unlimited",
    errno.EMFILE: "allow more open files: ulimit -n", errno.ENFILE: "too many files are open on this machine",
}
"""errno -> what a user can do about it."""
NO_WAITING = getattr(os, "O_NONBLOCK", 0)
"""Flag for opening a pipe without waiting for a writer."""

MOST_BYTES, MOST_LINES_BYTES = 16 << 20, 256 << 20
"""Maximum size in bytes of a file that describes something; of a file with an entry for each step or rank."""
KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"), (stat.S_ISSOCK, "a socket"),
         (stat.S_ISDIR, "a folder"))


LEAST_READ = 1 << 20


class UnfitFileError(OSError):
    """A file that is not read, because reading it might never end or need all memory."""


def read_small(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Returns the content of a regular file of limited size.

    Raises:
        UnfitFileError: It is larger than `most_bytes`, or not a regular file.
        OSError: It cannot be read.
    """
    if remote(path) is not None:
        _check_size(path.stat().st_size, most_bytes)
        return path.read_bytes()
    _check_kind(path.stat().st_mode)  # because opening a device may have effects
    with open_file(path, "rb", opener=lambda name, flags: os.open(name, flags | NO_WAITING)) as file:
        now = os.fstat(file.fileno())
        _check_kind(now.st_mode)
        _check_size(now.st_size, most_bytes)
        content = file.read(min(most_bytes, max(now.st_size, LEAST_READ)) + 1)  # allocates this much memory at once
    _check_size(len(content), most_bytes)
    return content


def _check_kind(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise UnfitFileError(f"it is {next((name for is_kind, name in KINDS if is_kind(mode)), 'no file')}")


def _check_size(num_bytes: int, most_bytes: int) -> None:
    if num_bytes > most_bytes:
        raise UnfitFileError(f"it has {num_bytes} bytes; such a file has at most {most_bytes}")


def hint_of(error: OSError) -> str:
    """Returns what a user can do about an error."""
    if isinstance(error, RemoteError) and error.hint:
        return error.hint
    return HINTS.get(error.errno or 0, "is the file system healthy? choose another place with --out DIR")


@contextmanager
def told(place: Path) -> Iterator[None]:
    """Turns every OSError in the block, which writes to `place`, into an OutputError.

    Raises:
        OutputError: Writing failed; the message has the reason.
    """
    try:
        yield
    except OSError as error:
        # some libraries replace the system's message by their own
        reason = error.strerror if isinstance(error, RemoteError) else os.strerror(
            error.errno) if error.errno else str(error)
        raise OutputError(f"cannot write to {place}: {reason}", hint=hint_of(error)) from error


def write_whole(path: Path, write: Callable[[Path], object], *, syncs: bool = True) -> None:
    """Calls `write` with a temporary path in the same folder, syncs the file and renames it to `path`.

    A file that is soon replaced, and useless after a crash of the machine, need not be synced, because syncing delays
    other writes to the disk.

    If the path is a URL, the temporary file is local, and is uploaded.
    """
    if (elsewhere := remote(path)) is not None:
        from distprof.storage.writing.uploading import put_written

        put_written(elsewhere, write)
        return
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        if syncs:
            sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def append_whole(handle: int, content: bytes) -> None:
    """Appends all of `content` or nothing to a file opened with O_APPEND; no other process may append meanwhile.

    Raises:
        OSError: It could not be written completely; the file is unchanged.
    """
    num_bytes = 0
    try:
        while num_bytes < len(content):  # after a short write, the next one raises the reason
            written = os.write(handle, content[num_bytes:])
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            num_bytes += written
    except OSError:
        if num_bytes:
            with suppress(OSError):
                os.ftruncate(handle, os.fstat(handle).st_size - num_bytes)
        raise


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read, regardless of the umask."""
    path.unlink(missing_ok=True)  # a file left by a killed process may be readable by others
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically."""
    write_whole(path, lambda temporary: temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="ascii"))


def json_text(value: object) -> bytes:
    """Returns a msgspec struct as JSON with one line per field.

    Bytes of file names and arguments that are not UTF-8 are written as Python escapes, such as \\udcff.
    """
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = msgspec.json.encode(escaped(msgspec.to_builtins(value)))
    return msgspec.json.format(text, indent=1) + b"\n"


def escaped(value: object) -> Any:
    """Returns the value with Python escapes for bytes that are not UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {escaped(key): escaped(inner) for key, inner in value.items()}
    return [escaped(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_text(path: Path, text: str) -> None:
    """Writes a text to a file that the user named, and creates its parent folders.

    Raises:
        OutputError: The file cannot be written.
    """
    if remote(path) is not None:
        with told(path):
            write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="backslashreplace"))
        return
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", hint="choose another file") from error


def sync(path: Path) -> None:
    """Syncs a file, or the entries of a folder, to disk."""
    handle = open_for_sync(path)
    if handle is None:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # the file system does not support it
            raise
    finally:
        os.close(handle)


FRAME_MARK_BYTES = 4
FRAME_HEAD_BYTES = FRAME_MARK_BYTES + 8
MOST_FRAME_BYTES = 1 << 24
"""Maximum length of a body; a longer one is damaged. Also limits the decompressed size."""


def framed(mark: bytes, content: bytes) -> bytes:
    """Returns a frame with the zlib-compressed content.

    Args:
        mark: First 4 bytes of each frame in this kind of file.
        content: Content of the frame.
    """
    body = zlib.compress(content, 6)
    return mark + len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def frame_contents(mark: bytes, file: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the offset after each frame and its content; skips damaged frames.

    Bytes after the last yielded offset may be the start of a frame that is still being written.
    """
    at = file.find(mark)
    while 0 <= at <= len(file) - FRAME_HEAD_BYTES:
        length = int.from_bytes(file[at + 4:at + 8], "little")
        body = file[at + FRAME_HEAD_BYTES:at + FRAME_HEAD_BYTES + length]
        if length <= MOST_FRAME_BYTES and len(body) < length and file.find(mark, at + 1) < 0:
            return
        found = _inflated(body) if zlib.crc32(body) == int.from_bytes(file[at + 8:at + 12], "little") else None
        if found is not None:
            yield at + FRAME_HEAD_BYTES + length, found
            at += FRAME_HEAD_BYTES + length - 1
        at = file.find(mark, at + 1)


def _inflated(body: bytes) -> bytes | None:
    try:
        return zlib.decompressobj().decompress(body, MOST_FRAME_BYTES)
    except zlib.error:
        return None
