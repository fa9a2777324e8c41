"""gzip, archives and their sizes: traps of joining traces."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import pytest

from distprof.merge.writing import merge as commands
from support.jobs import distprof
from support.perfetto import ERRORS, PLACES, ask
from support.rank_traces import files, merge, slice_of, text_of, write_run


def members(path: Path) -> list[bytes]:
    """What each gzip member of a file holds."""
    rest, found = path.read_bytes(), []
    while rest:
        unpacker = zlib.decompressobj(31)
        found.append(unpacker.decompress(rest))
        assert unpacker.eof
        rest = unpacker.unused_data
    return found


def test_ranks_are_members_of_one_gzip_file_that_all_read(tmp_path):
    """Python, zcat and Perfetto read on behind the first member."""
    ranks = [[slice_of(f"s{rank}", 10, 5)] for rank in range(4)]
    found = merge(tmp_path, *ranks)
    parts = members(found.path)
    assert b"".join(parts) == gzip.decompress(found.path.read_bytes())
    assert [sum(f'"s{rank}"'.encode() in part for part in parts) for rank in range(4)] == [1] * 4
    assert subprocess.run(["zcat", found.path], check=True, capture_output=True).stdout == b"".join(parts)
    answer = ask(found.path, ERRORS, PLACES)
    assert answer.results[0] == [] and sorted(row["slice"] for row in answer.results[1]) == ["s0", "s1", "s2", "s3"]


def test_a_trace_of_several_members_is_read_to_its_end(tmp_path):
    """Members behind the first are read here too."""
    text = text_of([slice_of(f"s{number}", 10 * number, 5) for number in range(9)])
    run = write_run(tmp_path / "run", text)
    files(run)[0].write_bytes(b"".join(gzip.compress(text[at:at + 100]) for at in range(0, len(text), 100)))
    done = distprof("merge", run)
    assert done.returncode == 0 and "9 slices" in done.stdout and "incomplete" not in done.stdout, done.stdout


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_the_encoding_is_seen_behind_a_member_that_is_empty(tmp_path, encoding):
    """A writer that flushes before it begins leaves one."""
    text = text_of([slice_of("a", 1, 2)]).decode().encode(encoding)
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(b"") + gzip.compress(text))
    assert "1 of 1 rank, 1 slice," in commands.merge(tmp_path)


@pytest.mark.parametrize("suffix", [".json.gz", ".tar", ".tar.gz"])
def test_what_is_before_the_damage_of_a_small_trace_is_merged(tmp_path, suffix):
    """A checksum that is wrong, and bytes that no decompressor takes: what stands before is not lost."""
    text = text_of([slice_of(f"s{number}", 10 * number, 5) for number in range(200)])
    wrong, broken = bytearray(gzip.compress(text)), bytearray(gzip.compress(text, 0))
    wrong[-6] ^= 1
    broken[broken.index(b's150')] ^= 1
    packer = zlib.compressobj(1, wbits=31)
    cut = packer.compress(text) + packer.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 50
    for rank, content in enumerate((wrong, broken, cut)):
        if suffix == ".json.gz":
            (tmp_path / f"rank{rank}.json.gz").write_bytes(content)
            continue
        with tarfile.open(tmp_path / f"rank{rank}{suffix}", "w:gz" if suffix.endswith("gz") else "w") as archive:
            entry = tarfile.TarInfo(f"rank{rank}.json.gz")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    told = commands.merge(tmp_path)
    assert "3 of 3 ranks, 600 slices" in told and told.count("incomplete: rank ") == 3, told


@pytest.mark.long
def test_memory_is_that_of_a_chunk_and_not_of_the_trace(tmp_path):
    """Who decompresses a trace whole, or makes an object of each event, needs several times its text."""
    events = b",".join(json.dumps(slice_of(f"name {number}", number, 1, args={"x": "y" * 1000})).encode()
                       for number in range(5000))
    program = ("import re, sys; from pathlib import Path; from distprof.merge.writing import merge as merging;"
               "merging.merge(Path(sys.argv[1]));"
               "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])")
    peaks = []
    for repeat in (1, 40):  # 5.4 and 217 MB of text
        run = write_run(tmp_path / f"run{repeat}", b"[" + b",".join([events] * repeat) + b"]")
        done = subprocess.run([sys.executable, "-c", program, run], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
        shutil.rmtree(run)
    assert peaks[1] - peaks[0] < 100_000, peaks


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar"])
def test_members_of_archives_are_found_by_what_they_hold(tmp_path, suffix):
    """An archive of traces is a folder of them; what is hidden in it, and what is no trace, is left out."""
    path = tmp_path / f"traces{suffix}"
    with tarfile.open(path, "w:gz" if suffix.endswith("gz") else "w") as archive:
        for name, content in (("job/rank0.json", text_of([slice_of("a", 1, 2)])), ("job/._rank0.json", b"\0\5\x16\7"),
                              ("job/rank1.json.gz", gzip.compress(text_of([slice_of("b", 1, 2)]))),
                              ("job/notes.txt", b"nothing")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    done = distprof("merge", path, "--out", tmp_path / "merged")
    assert done.returncode == 0 and "2 of 2 ranks, 2 slices" in done.stdout, done.stderr
    answer = ask(tmp_path / "merged" / "trace.json.gz", ERRORS, PLACES)
    assert answer.results[0] == [] and [row["slice"] for row in answer.results[1]] == ["a", "b"]


def test_an_archive_for_perfetto_has_the_files_as_they_are_and_says_what_joins_them(tmp_path):
    """A machine a rank, since processes are of a machine; names short, none hidden; offsets."""
    base = 1_790_858_000_000_000_000
    ranks = [text_of({"traceEvents": [slice_of(f"s{rank}", 10 + rank, 5)], "baseTimeNanoseconds": base + 7000 * rank})
             for rank in range(3)]
    found = merge_tar(tmp_path, *ranks)
    with tarfile.open(found) as archive:
        names = archive.getnames()
        content = {name: archive.extractfile(name).read() for name in names}  # type: ignore[union-attr]
    assert names[0] == "perfetto_manifest.json" and all(len(name) < 99 and name[0] != "." for name in names)
    manifest = json.loads(content.pop("perfetto_manifest.json"))["perfetto_manifest"]
    assert list(content.values()) == ranks and [file["path"] for file in manifest["files"]] == list(content)
    assert manifest["version"] == 1 and manifest["attributes"] == {"distprof.run_id": "made", "distprof.world_size": 3}
    assert len({file["machine"]["name"] for file in manifest["files"]}) == 3
    assert "clocks" not in manifest["files"][0]
    assert [file["clocks"] for file in manifest["files"][1:]] == [
        {"sync_to": {"file": names[1]}, "offset_ns": offset} for offset in (7000, 14_000)]


def merge_tar(folder: Path, *ranks: bytes) -> Path:
    run = write_run(folder / "run", *ranks)
    done = distprof("merge", run, "--format", "perfetto-tar")
    assert done.returncode == 0 and "ranks, unchanged, " in done.stdout, done.stderr
    (found,) = run.glob("merged/*.tar")
    return found


def test_the_archive_takes_ranks_and_no_choice_of_events(tmp_path):
    """Only newer engines read it, and it holds whole files."""
    run = write_run(tmp_path / "run", *([slice_of(f"s{rank}", 10, 5)] for rank in range(3)))
    done = distprof("merge", run, "--format", "perfetto-tar", "--min-duration", "5us")
    assert done.returncode == 2 and "only --ranks can be used" in done.stderr
    done = distprof("merge", run, "--format", "perfetto-tar", "--ranks", "0,2")
    assert done.returncode == 0, done.stderr
    with tarfile.open(next(run.glob("merged/*.tar"))) as archive:
        assert archive.getnames()[1:] == ["rank00000.json", "rank00002.json"]
    assert "Perfetto 58" in " ".join(distprof("merge", "--help").stdout.split())


@pytest.mark.long
def test_a_bomb_is_left_out_where_a_size_is_given(tmp_path):
    """1 MB that holds 1 GB: memory stays flat, and with --max-size the others are merged."""
    bomb = b'{"traceEvents":[' + b" " * (300 << 20) + b"]}"
    run = write_run(tmp_path / "run", [slice_of("a", 10, 5), slice_of("b", 20, 5)], bomb)
    assert files(run)[1].stat().st_size < 2 << 20
    found = distprof("merge", run, "--max-size", "1MB")
    assert found.returncode == 0 and "dropped ranks 1" in found.stdout, found.stdout + found.stderr
    assert "1 of 2 ranks, 2 slices" in found.stdout
