"""A damaged or odd trace beside good ones: the good ranks are whole, what can be read is merged, the rest is named."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from distprof.errors import DataError
from distprof.launch.commands.stats import stats_text
from distprof.merge.scan.engine import is_compiled
from distprof.merge.writing.merge import merge
from support.jobs import clean_environ, distprof

ABOUT = b'"distributedInfo":{"rank":1,"world_size":3},'


def event(more: bytes = b"", name: bytes = b'"a"') -> bytes:
    return b'{"ph":"X","cat":"c","name":' + name + b',"pid":1,"tid":1,"ts":5,"dur":1' + more + b"}"


def trace(*events: bytes, head: bytes = ABOUT, tail: bytes = b"}") -> bytes:
    return b'{"schemaVersion":1,' + head + b'"traceEvents":[' + b",".join(events or (event(),)) + b"]" + tail


def good(rank: int) -> bytes:
    events = [event(b',"args":{"n":%d}' % number) for number in range(5)]
    return trace(*events, head=ABOUT.replace(b'"rank":1', b'"rank":%d' % rank))


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "traces").mkdir()
    for rank in (0, 2):
        (tmp_path / "traces" / f"rank{rank}.json").write_bytes(good(rank))
    return tmp_path / "traces"


def merged(folder: Path) -> tuple[dict[int, int], list[dict], str]:
    """Slices of each rank in the merged trace, problems of the summary, and what was printed."""
    said = merge(folder, out=folder.parent / "merged", force=True)
    text = gzip.decompress((folder.parent / "merged" / "trace.json.gz").read_bytes())
    found = json.loads(text, parse_constant=pytest.fail)
    slices: dict[int, int] = {}
    for one in found["traceEvents"]:
        if one["ph"] == "X":
            rank = one["pid"] >> 14
            slices[rank] = slices.get(rank, 0) + 1
    assert slices.get(0) == slices.get(2) == 5, "ranks beside the damaged one are whole"
    summary = json.loads((folder.parent / "merged" / "summary.json").read_text())
    return slices, [one for one in summary["problems"] if one["code"] != "clocks_not_aligned"], said


HUGE = b"9" * 5000


@pytest.mark.parametrize("text", [
    trace(event(name=b'"a\\"b\xff"'), event(b',"args":{"Process Group Name":"\\n\\u0041\xff"}')),
    trace(event(), event(), head=ABOUT + b'"x":"\xff","deviceProperties":[{"name":["a"]},{"name":{}}],'),
    trace(event(), event(), head=ABOUT + b'"x":1e400,"y":' + HUGE + b',"baseTimeNanoseconds":1e400,'),
    trace(event(), event(), head=b'"distributedInfo":{"rank":1,"world_size":3,"x":[1e400,"\xff",' + HUGE + b"]},"),
    trace(event(), event(), head=b'"distributedInfo":{"rank":"' + HUGE + b'","world_size":3},'),
    trace(event(), event(), head=ABOUT + b'"job":"C:\\Users",'),
    trace(event(), event(), head=ABOUT + b'"metadata":{"distprof":5},'),
    trace(event(), event()).decode().encode("utf-32-le"), trace(event(), event()).decode().encode("utf-32-be"),
    trace(event(), tail=b',"traceEvents":[' + event() + b"]}"),
], ids=range(10))
def test_what_is_odd_costs_nothing(folder, text):
    (folder / "rank1.json").write_bytes(text)
    slices, problems, said = merged(folder)
    assert slices[1] == 2 and problems == [] and "3 of 3 ranks" in said


@pytest.mark.long
@pytest.mark.parametrize(("text", "lost"), [
    (trace(head=ABOUT + b'"deep":' + b"[" * 10**5 + b"]" * 10**5 + b","), "values of deep"),
    (trace(tail=b',"deep":' + b"[" * 10**5 + b"]" * 10**5 + b"}"), "values of deep"),
    (trace(head=b'"job":"C:,' + ABOUT), "bytes lost"), (trace(head=ABOUT[:-1] + b"},"), "bytes lost"),
    (trace(head=b"x" + ABOUT), "1 byte lost"), (trace(head=ABOUT[:-2] + b","), "values of distributedInfo"),
    (trace(tail=b',"more":"'), "cut off after"), (trace(event(), b'{"ph":"X",x}'), "damaged at 1 place: "),
], ids=range(8))
def test_what_is_damaged_is_named_and_the_rank_stays(folder, text, lost):
    (folder / "rank1.json").write_bytes(text)
    slices, problems, said = merged(folder)
    assert slices[1] == 1 and "3 of 3 ranks" in said
    assert [(one["code"], one["rank"]) for one in problems] == [("trace_damaged", 1)]
    assert lost in said and distprof("merge", "--strict", "--force", folder).returncode == 3


VALUES = [b"", b" ", b"\x0b1", b"[" * 10**5 + b"]" * 10**5, b"[" * 10**5, b'{"rank":1,', b"]"]
KEYS = [("distributedInfo", True), ("distributedInfo", False), ("metadata", False), ("host_name", True)]


@pytest.mark.long
@pytest.mark.parametrize(("key", "closed", "value"), [
    pytest.param(*key, value, marks=() if number % len(KEYS) == other else pytest.mark.stress)
    for number, value in enumerate(VALUES) for other, key in enumerate(KEYS)])
def test_what_stands_behind_the_events_ends_nothing(folder, key, closed, value):
    tail = b',"%s":%s' % (key.encode(), value) + (b"}" if closed else b"")
    (folder / "rank1.json").write_bytes(trace(event(), event(), head=b"", tail=tail))
    slices, problems, _ = merged(folder)
    assert slices[1] == 2 and any(one["code"] == "trace_damaged" for one in problems)


@pytest.mark.parametrize("text", [b"", b'{"schemaVersion":1,', b'{"schemaVersion":1,"traceEvents":', b"\xff" * 50])
def test_a_trace_without_events_is_named(folder, text):
    (folder / "rank1.json").write_bytes(text)
    slices, problems, _ = merged(folder)
    assert 1 not in slices and [one["code"] for one in problems] == ["unreadable", "ranks_missing"]


def test_links_that_lead_nowhere_pipes_and_sockets_are_left_out(folder, tmp_path):
    (folder / "rank1.json").symlink_to("rank1.json")
    (folder / "rank3.json").symlink_to("gone.json")
    os.mkfifo(folder / "rank4.json")
    os.mkfifo(folder / "x.tar")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / "rank5.json"))
        slices, problems, said = merged(folder)
    assert set(slices) == {0, 2} and [one["code"] for one in problems] == ["unreadable", "unreadable", "ranks_missing"]
    assert "2 files skipped: a pipe (rank4.json, x.tar)" in said and "1 file skipped: a socket (rank5.json)" in said


@pytest.mark.long
def test_a_pipe_as_the_trace_is_refused_with_a_hint(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(DataError, match=r"is a (pipe|device), not a file or folder"):
            merge(path, out=tmp_path / "out")
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m distprof merge <(cat /dev/null) --out {tmp_path / 'x'}"],
                          capture_output=True, text=True, env=clean_environ(), check=False)
    assert done.returncode == 1 and "is a pipe, not a file or folder" in done.stderr
    assert "hint: write its output" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not is_compiled(), reason="only root can become somebody who may not "
                    "read; workers of the plain engine cannot read Python then")
def test_folders_that_may_not_be_read_are_named(folder):
    merged(folder)  # all is imported: others may not read the files of Python
    (folder / "sub").mkdir()
    (folder / "sub" / "rank1.json").write_bytes(trace())
    for path in (folder, *folder.parents[:-2]):
        path.chmod(0o777)
    shutil.rmtree(folder.parent / "merged")
    (folder / "sub").chmod(0)
    os.seteuid(65534)
    try:
        slices, problems, said = merged(folder)
    finally:
        os.seteuid(0)
    assert set(slices) == {0, 2} and [one["code"] for one in problems] == ["unreadable", "ranks_missing"]
    assert f"{folder / 'sub'} cannot be read: Permission denied" in said


def test_names_that_are_no_utf8_are_read_and_written_as_text(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/j\xffb"))
    folder.mkdir()
    for rank in range(2):
        (folder / os.fsdecode(b"\xfe-rank%d.json" % rank)).write_bytes(good(rank))
    (folder / os.fsdecode(b"\xfe.json")).write_bytes(b"nothing")
    said = merge(folder)
    summary = json.loads((folder / "merged" / "summary.json").read_text())
    assert summary["run_id"] == "j\ufffdb" and summary["ranks"] == [0, 1]
    assert "\ufffd.json is not a Chrome trace but text that is not JSON" in said


@pytest.mark.job
def test_a_run_directory_may_have_a_name_that_is_no_utf8(ddp, tmp_path):
    run = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff"))
    shutil.copytree(ddp, run, ignore=shutil.ignore_patterns("merged"))
    assert "4 of 4 ranks" in merge(run)
    assert json.loads(stats_text(run, as_json=True))["per_gpu"]["fwd_flops"]["mean"] > 0
    (run / "merged" / "summary.json").unlink()
    assert json.loads(stats_text(run, as_json=True))["ranks"] == [0, 1, 2, 3]


def archive(path: Path, *members: tuple[str, bytes | tuple[bytes, str]]) -> None:
    with tarfile.open(path, "w:gz" if path.suffix == ".tgz" else "w") as tar:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                entry.type, entry.linkname = content
                tar.addfile(entry)
            else:
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def test_links_in_an_archive_are_read_or_named(folder, tmp_path):
    plain = trace().replace(ABOUT, b"")
    members = [("a/rank1.json", plain), ("a/rank3.json", (tarfile.LNKTYPE, "a/rank1.json")),
               ("b/rank4.json", (tarfile.SYMTYPE, "../a/rank1.json")), ("b/rank5.json", (tarfile.SYMTYPE, "gone.json"))]
    archive(folder / "x.tar", *members)
    slices, _, said = merged(folder)
    assert slices == {0: 5, 1: 1, 2: 5, 3: 1, 4: 1} and "x.tar: b/rank5.json cannot be read: it is a link" in said
    (folder / "x.tar").unlink()
    archive(folder / "x.tgz", *members)
    slices, _, said = merged(folder)
    assert slices == {0: 5, 1: 1, 2: 5} and said.count("it is a link; unpack the archive") == 3


def below_0(content: bytearray, at: int) -> None:
    """Makes a size negative in a header that is right otherwise."""
    content[at + 124:at + 136] = b"\xff" * 12
    content[at + 148:at + 156] = b" " * 8
    content[at + 148:at + 156] = b"%06o\0 " % sum(content[at:at + 512])


def one_bit(content: bytearray, at: int) -> None:
    content[at + 5] ^= 1


def cut(content: bytearray, at: int) -> None:
    del content[at + 100:]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize(("damage", "found"), [
    (below_0, r"a size below 0|invalid offset"),  # tarfile sees it itself by now
    (one_bit, "bad checksum"), (cut, "truncated header")])
def test_a_damaged_archive_is_named(folder, first, name, damage, found):
    archive(folder / "x.tar", *[(f"rank{rank}.json", good(rank)) for rank in ((1,) if first else (1, 3))])
    content = bytearray((folder / "x.tar").read_bytes())
    damage(content, 0 if first else 1024)
    (folder / "x.tar").unlink()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    slices, problems, said = merged(folder)
    assert (1 in slices) == (not first) and re.search(found, said) and problems[0]["code"] == "unreadable"


def test_a_number_of_thousands_of_digits_in_a_name_is_no_rank(folder):
    archive(folder / "x.tar", ("rank" + "1" * 5000 + ".json", trace()), ("a10.json", b"{}"), ("a9.json", b"{}"))
    slices, problems, _ = merged(folder)
    assert slices == {0: 5, 1: 1, 2: 5} and problems == []


def test_a_merged_trace_is_no_rank(folder, tmp_path):
    merge(folder, out=tmp_path / "first")
    whole = tmp_path / "first" / "trace.json.gz"
    with pytest.raises(DataError, match="is a merged trace, not the trace of one rank"):
        merge(whole, out=tmp_path / "second")
    for name, content in (("rank1.json.gz", whole.read_bytes()), ("rank3.json", gzip.decompress(whole.read_bytes()))):
        (folder / name).write_bytes(content)
    found = json.loads(gzip.decompress(whole.read_bytes()))
    (folder / "rank4.json").write_text(json.dumps(dict(reversed(found.items())), indent=2))
    slices, _, said = merged(folder)
    assert set(slices) == {0, 2} and said.count("is a merged trace, not the trace of one rank") == 1
    assert "2 files skipped: a merged trace (rank3.json, rank4.json)" in said


@pytest.mark.long
def test_ranks_of_very_large_jobs_are_numbered(tmp_path):
    for rank in (0, 5, 1_000_000):
        about = b'"distributedInfo":{"rank":%d,"world_size":1048575},' % rank
        (tmp_path / f"{rank}.json").write_bytes(trace(head=about))
    assert "3 of 1048575 ranks" in merge(tmp_path)
    found = json.loads(gzip.decompress((tmp_path / "merged" / "trace.json.gz").read_bytes()))["traceEvents"]
    pids = {one["pid"] for one in found if one["ph"] == "X"}
    assert len(pids) == 3 and max(max(one["pid"], one.get("tid", 0)) for one in found) < 2**31
