"""Files that are appended to while something runs: frames, each of a mark, a length, a checksum and a body.

The length and the CRC-32 of the body follow the mark as little-endian 32-bit integers. A frame that a kill cut short,
or that is damaged, costs what was in it: the next one is found by its mark.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

MARK_BYTES = 4
HEAD_BYTES = MARK_BYTES + 8
MOST_BODY_BYTES = 1 << 24
"""What claims to be longer is damage; nor does a body inflate to more."""


def framed(mark: bytes, content: bytes) -> bytes:
    """The frame of this content, which is compressed by zlib.

    Args:
        mark: 4 bytes that begin each frame of this kind of file.
        content: What the frame holds.
    """
    body = zlib.compress(content, 6)
    return mark + len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body


def contents(mark: bytes, file: bytes) -> Iterator[tuple[int, bytes]]:
    """What the frames in these bytes hold, each with the place behind it; what is damaged is skipped.

    Bytes behind the last place that is yielded may be the begin of a frame that is still being written.
    """
    at = file.find(mark)
    while 0 <= at <= len(file) - HEAD_BYTES:
        length = int.from_bytes(file[at + 4:at + 8], "little")
        body = file[at + HEAD_BYTES:at + HEAD_BYTES + length]
        if length <= MOST_BODY_BYTES and len(body) < length and file.find(mark, at + 1) < 0:
            return
        found = _inflated(body) if zlib.crc32(body) == int.from_bytes(file[at + 8:at + 12], "little") else None
        if found is not None:
            yield at + HEAD_BYTES + length, found
            at += HEAD_BYTES + length - 1
        at = file.find(mark, at + 1)


def _inflated(body: bytes) -> bytes | None:
    try:
        return zlib.decompressobj().decompress(body, MOST_BODY_BYTES)
    except zlib.error:
        return None
