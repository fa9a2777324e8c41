"""Trace files as programs and people leave them: encodings, gzip, tar, names."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from pathlib import Path

from fuzz.merges.chance import Chance
from fuzz.merges.damage import FALSE_LINE, damaged_file, damaged_text, damaged_trace
from fuzz.merges.traces import random_trace, text_of

ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-be", "utf-16-le", "utf-32")
NAMES = ("rank{}.json", "rank{}_trace.json", "host7_123.rank{}.pt.trace.json", "rank{}/trace.json",
         "worker{}.1234.pt.trace.json")
ODD_NAMES = ("x.json", "a\x1b[31mb.json", "rank9.json", f"a\n{FALSE_LINE} rank1.json")


def write_folder(folder: Path, chance: Chance) -> None:
    """A folder with rank 0, whole, and one or two ranks that are damaged."""
    name = chance.choice(NAMES)
    good = random_trace(chance, 0)
    _write(folder / name.format(0), text_of(good, chance).encode(), chance)
    for rank in range(1, chance.choice([2, 2, 2, 3])):
        trace = random_trace(chance, rank)
        damaged_trace(trace, chance)
        text = damaged_text(text_of(trace, chance).encode("utf-8", "surrogatepass"), chance)
        if chance.one_in(8):
            text = text.decode("utf-8", "replace").encode(chance.choice(ENCODINGS))
        path = folder / (name.format(rank) if chance.randrange(12) else chance.choice(ODD_NAMES))
        chance.call([_write, _write, _write_damaged, _write_archive], path, text, chance)


def _write(path: Path, text: bytes, chance: Chance) -> None:
    path.parent.mkdir(exist_ok=True)
    if chance.one_in(3):
        path, text = path.with_name(path.name + ".gz"), packed(text, chance)
    path.write_bytes(text)


def _write_damaged(path: Path, text: bytes, chance: Chance) -> None:
    path.parent.mkdir(exist_ok=True)
    data = damaged_file(packed(text, chance), chance)
    path.with_name(path.name + chance.choice([".gz", ".gz", ""])).write_bytes(data)


def _write_archive(path: Path, text: bytes, chance: Chance) -> None:
    path.parent.mkdir(exist_ok=True)
    inside = io.BytesIO()
    with tarfile.open(fileobj=inside, mode="w", format=chance.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])) as tar:
        for name, content in (("notes.txt", b"x" * 600), (path.name, text), ("last.txt", b"y")):
            if chance.one_in(3) and content is text:
                name, content = f"{name}.gz", packed(text, chance)
            info = tarfile.TarInfo(f"logs/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    data = inside.getvalue()
    is_packed = chance.one_in(2)
    data = packed(damaged_file(data, chance), chance) if is_packed else data
    path.with_name("all.tar.gz" if is_packed else "all.tar").write_bytes(damaged_file(data, chance))


def packed(text: bytes, chance: Chance) -> bytes:
    """gzip, in one member or two, with zeros behind or not."""
    place = chance.randrange(len(text) + 1) if chance.one_in(4) else len(text)
    level = chance.choice([0, 1, 9])
    parts = [text[:place], text[place:]][:1 if place == len(text) else 2]
    return b"".join(gzip.compress(part, level, mtime=0) for part in parts) + (b"\0" * 600 if chance.one_in(10) else b"")


def unpacked(data: bytes) -> tuple[bytes, bool]:
    """What a file holds, decompressed byte by byte up to the first error; and whether there was none."""
    if not data.startswith(b"\x1f\x8b"):
        return data, True
    out = b""
    while data.lstrip(b"\0"):
        unpacker = zlib.decompressobj(31)
        try:
            for at in range(len(data)):
                out += unpacker.decompress(data[at:at + 1])
                if unpacker.eof:
                    data = data[at + 1:]
                    break
            else:
                return out, False
        except zlib.error:
            return out, False
    return out, True


def decoded(text: bytes) -> str:
    """Text in the encoding that its first bytes show; bytes that are no UTF-8 become half surrogates."""
    for mark, encoding in ((b"\xff\xfe\0\0", "utf-32"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if text.startswith(mark):
            return text.decode(encoding, "replace")
    if text[:2].count(0) == 1 and len(text) > 1:
        return text.decode("utf-16-be" if text[0] == 0 else "utf-16-le", "replace")
    return text.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
