"""Text of traces from files that are whole, cut, damaged, or something else."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import tarfile
import tracemalloc
import zlib
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import igzip

from distprof.errors import DataError
from distprof.merge.scan.archives import Archive, unpack
from distprof.merge.scan.chunk_reader import ChunkReader
from distprof.merge.scan.gunzip import STEP_BYTES
from distprof.merge.scan.trace_file import TraceFile

EVENTS = [{"ph": "X", "name": f"aten::op{index * 7919 % 1000}", "ts": index * 1.5, "args": {"x": "é𝄞" * (index % 3)}}
          for index in range(9000)]
TEXT = json.dumps({"traceEvents": EVENTS}, ensure_ascii=False).encode()
"""More than what is decompressed at a time."""
PACKED = gzip.compress(TEXT[:400_000], mtime=0) + igzip.compress(TEXT[400_000:], mtime=0)
"""Two members, by two compressors."""


@pytest.fixture(scope="module")
def folder():
    """Hypothesis calls a test many times: one folder serves all."""
    with TemporaryDirectory() as path:
        yield Path(path)


def read(path: Path, content: bytes, **options) -> tuple[bytes, ChunkReader]:
    path.write_bytes(content)
    reader = ChunkReader(TraceFile(path=path), **options)
    return b"".join(reader), reader


def test_the_text_is_larger_than_a_step():
    assert len(TEXT) > 2 * STEP_BYTES > 0 and len(PACKED) < len(TEXT) / 5


@settings(max_examples=30)
@given(st.integers(1, 2_000_000), st.sampled_from([TEXT, PACKED, PACKED + b"\0" * 777, gzip.compress(TEXT, 0)]))
def test_chunks_have_the_size_that_was_asked_for(folder, size, content):
    (folder / "a").write_bytes(content)
    reader = ChunkReader(TraceFile(path=folder / "a"), chunk_bytes=max(size, 100))
    chunks = list(reader)
    assert b"".join(chunks) == TEXT and reader.damage is None and reader.num_bytes == len(TEXT)
    assert {len(chunk) for chunk in chunks[:-1]} <= {max(size, 100)} and len(chunks[-1]) <= max(size, 100)


def by_zlib(content: bytes) -> bytes:
    """Everything that zlib gives of the members of a cut file."""
    out = b""
    while content:
        decompressor = zlib.decompressobj(wbits=31)
        out += decompressor.decompress(content)
        content = decompressor.unused_data if decompressor.eof else b""
    return out


@given(st.integers(200, len(PACKED) - 1))
def test_of_a_cut_file_everything_that_can_be_decompressed_arrives(folder, cut):
    text, reader = read(folder / "a.json.gz", PACKED[:cut])
    assert text == by_zlib(PACKED[:cut])
    between_members = zlib.decompressobj(wbits=31)
    between_members.decompress(PACKED[:cut])
    if between_members.eof and not between_members.unused_data:
        assert reader.damage is None, "a file that ends with a member is whole"
    else:
        assert reader.damage is not None and str(reader.damage).startswith(f"is cut at byte {cut}:")


@pytest.mark.long
@given(st.integers(200, len(PACKED) - 1), st.integers(0, 7))
def test_of_a_damaged_file_nothing_before_the_damage_is_lost(folder, at, bit):
    content = bytearray(PACKED)
    content[at] ^= 1 << bit
    text, reader = read(folder / "a.json.gz", bytes(content))
    # a byte at a time zlib loses only what the byte it stumbles over would have given
    whole, fed = bytearray(), zlib.decompressobj(wbits=31)
    try:
        for byte in content:
            if fed.eof:
                fed = zlib.decompressobj(wbits=31)
            whole += fed.decompress(bytes([byte]))
    except zlib.error:
        pass
    assert text.startswith(whole)
    assert reader.damage is not None or text == TEXT


def test_what_is_wrong_is_said(tmp_path):
    checksum = bytearray(gzip.compress(TEXT, mtime=0))
    checksum[-8] ^= 1
    text, reader = read(tmp_path / "a", bytes(checksum))
    assert text == TEXT and str(reader.damage).startswith("fails its checksum")
    text, reader = read(tmp_path / "a", PACKED + b"\0\0more")
    assert text == TEXT and reader.damage.at_byte == len(PACKED) + 2
    assert str(reader.damage) == (f"is followed by data that is not gzip at byte {len(PACKED) + 2}: 4 of "
                                  f"{len(PACKED) + 6} bytes cannot be read")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_other_encodings_become_utf_8(tmp_path, encoding, pack):
    text, reader = read(tmp_path / "a.json", pack(TEXT.decode().encode(encoding)), chunk_bytes=1001)
    assert text == TEXT and reader.damage is None


PACKERS = {"zstd": partial(pyarrow.compress, codec="zstd", asbytes=True), "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.long
@pytest.mark.parametrize("name", PACKERS)
def test_other_compressions_are_read_as_far_as_they_go(tmp_path, name):
    pack = PACKERS[name]
    for content in (pack(TEXT), pack(TEXT[:7]) + pack(TEXT[7:])):
        text, reader = read(tmp_path / "a", content, chunk_bytes=1001)
        assert text == TEXT and reader.damage is None and reader.is_compressed
    noise = b"[" + random.Random(1).randbytes(3_000_000)
    packed = pack(noise)
    text, reader = read(tmp_path / "a", packed[:len(packed) // 2])
    assert noise.startswith(text) and len(text) > len(noise) // 4
    assert f"is cut or damaged ({name}: " in str(reader.damage) and reader.damage.at_byte == len(packed) // 2
    text, reader = read(tmp_path / "a", packed + b"no more of it")
    assert noise.startswith(text) and len(text) > len(noise) - STEP_BYTES
    text, reader = read(tmp_path / "a", packed[:len(packed) // 2] + bytes(100) + packed[len(packed) // 2 + 100:])
    assert len(text) <= len(noise)


def test_utf_16_that_ends_in_the_middle_of_a_character_is_read(tmp_path):
    text, _ = read(tmp_path / "a.json", '{"a": "é𝄞"}'.encode("utf-16")[:-5])
    assert text.startswith('{"a": "é'.encode())


@pytest.mark.parametrize(("content", "words"), [
    (b"", "an empty file"), (b" \n" * 9000, "an empty file"), (gzip.compress(b"", mtime=0), "an empty file"),
    (gzip.compress(TEXT, mtime=0)[:15], "a file that is cut at byte 15"),
    (b"\x1f\x8b rubbish", "a file that is damaged"),
    (b"\n  <!DOCTYPE html><html>", "an HTML page"), (b"<HTML>", "an HTML page"),
    (gzip.compress(b"<html>", mtime=0), "an HTML page"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a Git LFS pointer"),
    (b"PAR1\x15\x04", "a parquet table"), (b"\x80\x04\x95", "a Python pickle"),
    (b"\n\xb2\x01\x08\x06", "Perfetto protobuf"), (b"PK\x03\x04", "a ZIP archive"), (b"SQLite format 3\0", "SQLite"),
    (b"\x28\xb5\x2f\xfd\x04", "zstd"), (bz2.compress(b"<html>"), "an HTML page"),
    (b"Traceback (most", "text that is not JSON: 'Traceback (most'"),
    (bytes(range(200, 256)), "binary data"),
])
def test_what_is_no_json_is_called_by_its_name(tmp_path, content, words):
    with pytest.raises(DataError) as caught:
        read(tmp_path / "rank3.json", content)
    assert words in str(caught.value) and "rank3.json" in str(caught.value) and caught.value.hint


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        list(ChunkReader(TraceFile(path=tmp_path / "a.json")))


def test_blanks_before_the_text_are_kept(tmp_path):
    text, _ = read(tmp_path / "a.json", b"\n" * 500_000 + b"[]")
    assert text == b"\n" * 500_000 + b"[]"


@pytest.mark.long
def test_a_bomb_takes_no_memory_and_ends_where_it_is_told(tmp_path):
    size = 200 << 20
    with gzip.open(tmp_path / "a.json.gz", "wb", compresslevel=1) as file:
        file.write(b"{")
        for _ in range(size >> 20):
            file.write(b" " * (1 << 20))
    tracemalloc.start()
    reader = ChunkReader(TraceFile(path=tmp_path / "a.json.gz"), max_bytes=size // 2 + 7)
    total = sum(map(len, reader))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == size // 2 + 7 and peak < 16 << 20
    assert str(reader.damage).startswith(f"is larger than the allowed {size // 2 + 7} bytes")
    assert (tmp_path / "a.json.gz").stat().st_size < size / 100


def test_a_limit_that_is_not_reached_is_no_damage(tmp_path):
    text, reader = read(tmp_path / "a.json.gz", PACKED, max_bytes=len(TEXT))
    assert text == TEXT and reader.damage is None


def archive(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


MEMBERS = {"t/rank0.json": TEXT, "t/notes.txt": b"mine", "t/rank1.json.gz": PACKED, "._rank0.json": b"junk",
           "t/" + "long" * 40 + "/rank2.json": TEXT[::-1]}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_members_of_archives_are_read_and_unpacked(tmp_path, mode):
    path = archive(tmp_path / "all.tar.gz", MEMBERS | {"t/" + "long" * 40 + "/rank2.json": TEXT}, mode)
    found = Archive(path)
    through = [(reader.trace, b"".join(reader)) for reader in found]
    assert found.damage is None
    assert [trace.member.rpartition("/")[2] for trace, _ in through] == ["rank0.json", "rank1.json.gz", "rank2.json"]
    assert {text for _, text in through} == {TEXT}
    assert through[0][0].name == "all.tar.gz: t/rank0.json"
    for trace, text in through:  # each by itself, in any order
        assert b"".join(ChunkReader(trace)) == text
    (tmp_path / "unpacked").mkdir()
    files = unpack([trace for trace, _ in through[1:]], tmp_path / "unpacked")
    assert len(files) == (2 if mode == "w:gz" else 0), "what is not compressed is read where it lies"
    for trace, file in files.items():
        assert b"".join(ChunkReader(file)) == TEXT and file.name == trace.name


@pytest.mark.long
@settings(max_examples=25)
@given(st.floats(0.01, 0.99), st.sampled_from(["w", "w:gz"]))
def test_of_a_cut_archive_whole_members_arrive_and_the_rest_is_said(folder, share, mode):
    path = archive(folder / "all.tar", {f"rank{rank}.json": TEXT for rank in range(3)}, mode)
    content = path.read_bytes()
    path.write_bytes(content[:int(len(content) * share)])
    found = Archive(path)
    try:
        traces = [reader.trace for reader in found]
    except DataError as error:
        assert share < 0.1 and "is not a tar archive" in str(error)
        return
    assert len(traces) == 3 or found.damage is not None
    readers = [ChunkReader(trace) for trace in traces]
    texts = [b"".join(reader) for reader in readers]
    assert all(TEXT.startswith(text) for text in texts)
    assert [text == TEXT for text in texts] == [reader.damage is None for reader in readers]
    assert all(reader.damage is None for reader in readers[:-1])


def test_a_damaged_member_of_a_whole_archive_is_said(tmp_path):
    path = archive(tmp_path / "a.tgz", {"rank0.json.gz": PACKED[:9000], "rank1.json.gz": PACKED}, "w:gz")
    readers = [ChunkReader(reader.trace) for reader in Archive(path)]
    assert b"".join(readers[0]) == by_zlib(PACKED[:9000]) and readers[0].damage.reason == "is cut"
    assert b"".join(readers[1]) == TEXT and readers[1].damage is None


def test_no_archive_is_refused(tmp_path):
    (tmp_path / "a.tgz").write_bytes(gzip.compress(b"no tar" * 999, mtime=0))
    with pytest.raises(DataError, match=r"a\.tgz is not a tar archive"):
        list(Archive(tmp_path / "a.tgz"))
