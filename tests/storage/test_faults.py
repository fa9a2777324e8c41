"""What networks and storages do to a command: it is overcome, or said in one line with a hint."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.contract.parquet import write_table
from distprof.contract.tables import STEPS
from distprof.storage import stream
from distprof.storage.retrying import VARIABLE
from support.faulty_proxy import FaultyProxy, answers, cuts, does, faulty_proxy, hangs_up, waits
from support.jobs import called
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server, use

NUM_RANKS = 3
STEP = {"step": 1, "pass": "time", "start_ns": 1, "end_ns": 1001, "duration_ns": 1000}
TRACE_1 = r".*/rank00001/trace\.json\.gz.*"


@pytest.fixture
def proxy(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """What this process takes for S3."""
    with faulty_proxy(server.address) as started:
        use(monkeypatch, server, started.address)
        monkeypatch.setenv(VARIABLE, "30")
        yield started


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three ranks, whose timelines take several requests."""
    return write_run(tmp_path_factory.mktemp("faults") / "run", *(
        [slice_of(f"op{rank} {hash((rank, number))}", 10 * number, 5) for number in range(2000)]
        for rank in range(NUM_RANKS)))


@pytest.fixture(scope="module")
def truth(here: Path) -> Path:
    """The same run merged here."""
    assert called("merge", here, "--out", here.parent / "truth").returncode == 0
    return here.parent / "truth"


@pytest.fixture
def run(here: Path, server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same run in a bucket."""
    monkeypatch.setattr(stream, "FIRST_BYTES", 1 << 12)
    monkeypatch.setattr(stream, "MOST_BYTES", 1 << 13)
    return server.put(here, f"{bucket}/run")


def _merged_ranks(out: Path) -> set[str]:
    text = gzip.decompress((out / "trace.json.gz").read_bytes())
    return {event["args"]["name"].split(" |")[0] for event in json.loads(text)["traceEvents"]
            if event["name"] == "process_name" and event["args"]["name"].startswith("rank")}


def _merge_is_equal(run: str, truth: Path, tmp_path: Path) -> None:
    there = called("merge", run, "--out", tmp_path / "there")
    assert there.returncode == 0, there.stderr
    assert gzip.decompress((tmp_path / "there" / "trace.json.gz").read_bytes()) == gzip.decompress(
        (truth / "trace.json.gz").read_bytes())
    assert json.loads((tmp_path / "there" / "summary.json").read_bytes())["problems"] == []


def _one_line(done: object, code: int = 1) -> str:
    assert done.returncode == code, done.stderr
    line, = done.stderr.splitlines()
    assert "  hint: " in line
    assert "Traceback" not in line
    return line


@pytest.mark.long
@pytest.mark.parametrize("status", [500, 503, 429])
def test_bursts_of_errors_are_overcome(status: int, run: str, truth: Path, proxy: FaultyProxy, tmp_path: Path) -> None:
    faults = [proxy.add(answers(status, "SlowDown" if status == 503 else "InternalError"), after=after, times=4)
              for after in (0, 3, 8)]
    _merge_is_equal(run, truth, tmp_path)
    assert [fault.done for fault in faults] == [4, 4, 4]


@pytest.mark.long
def test_a_connection_that_ends_is_made_again(run: str, truth: Path, proxy: FaultyProxy, tmp_path: Path) -> None:
    fault = proxy.add(hangs_up, after=2, times=3)
    _merge_is_equal(run, truth, tmp_path)
    assert fault.done == 3


@pytest.mark.long
def test_a_stream_that_is_cut_goes_on_at_the_byte_that_comes_next(run: str, truth: Path, proxy: FaultyProxy,
                                                                  tmp_path: Path) -> None:
    fault = proxy.add(cuts(1000), method="GET", path=TRACE_1, after=1, times=2)
    _merge_is_equal(run, truth, tmp_path)
    assert fault.done == 2
    starts = [int(one.removeprefix("bytes=").partition("-")[0]) for one in proxy.ranges]
    assert max(starts) > 1 << 13


@pytest.mark.long
def test_a_flipped_bit_in_a_table_is_named(here: Path, server: S3Server, bucket: str, tmp_path: Path) -> None:
    flipped = Path(shutil.copytree(here, tmp_path / "flipped"))
    for rank in range(NUM_RANKS):
        folder = flipped / f"rank{rank:05d}"
        write_table(folder, STEPS, [STEP], tags={"rank": rank, "mp_size": 1, "dp_size": NUM_RANKS}, metadata={})
        about = json.loads((folder / "rank.json").read_text())
        (folder / "rank.json").write_text(json.dumps(about | {"files": about["files"] | {STEPS.file: 1}}))
    content = bytearray((flipped / "rank00001" / STEPS.file).read_bytes())
    content[len(content) // 2] ^= 4
    (flipped / "rank00001" / STEPS.file).write_bytes(content)
    done = called("stats", server.put(flipped, f"{bucket}/flipped"))
    assert done.returncode == 0 and f"rank 1: {STEPS.file} cannot be read: its checksum" in done.stdout, done.stdout


@pytest.mark.long
def test_a_slow_answer_is_waited_for(run: str, truth: Path, proxy: FaultyProxy, tmp_path: Path) -> None:
    proxy.add(waits(1.0), method="GET", path=TRACE_1, times=2)
    _merge_is_equal(run, truth, tmp_path)


def test_errors_that_do_not_end_are_said(run: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.5")
    proxy.add(answers(503, "SlowDown"), path=".*rank00001.*")
    assert _one_line(called("stats", run)).startswith(
        f"distprof: cannot reach {run}/rank00001/rank.json: the server answered 503 SlowDown  hint: is the network up")


@pytest.mark.long
def test_that_it_takes_long_is_said_once(run: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.storage.retrying.LONG_S", 0.2)
    proxy.add(answers(503, "SlowDown"), times=5)
    done = called("stats", run)
    assert done.returncode == 0
    assert done.stderr == f"distprof: {run}: the server answered 503 SlowDown; retrying for up to 30 s\n"


@pytest.mark.long
@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId"])
def test_keys_that_expire_end_the_merge(code: str, run: str, proxy: FaultyProxy, tmp_path: Path) -> None:
    fault = proxy.add(answers(400 if code == "ExpiredToken" else 403, code), method="GET", path=TRACE_1, after=1)
    line = _one_line(called("merge", run, "--out", tmp_path / "m"))
    assert line.startswith(f"distprof: cannot reach {run}/rank00001/trace.json.gz: the credentials were refused (")
    assert code in line
    assert "hint: are credentials set and not expired?" in line
    assert fault.done <= stream.AHEAD + 1  # those that were on their way
    assert not list(tmp_path.glob("*m*"))


def test_a_bucket_that_may_not_be_listed_is_said(run: str, proxy: FaultyProxy) -> None:
    fault = proxy.add(answers(403, "AccessDenied"), path=r".*list-type.*")
    line = _one_line(called("stats", run))
    assert line.startswith(f"distprof: cannot read or write {run}: access was denied (403 AccessDenied)  hint: can")
    assert fault.done == 1


@pytest.mark.long
@pytest.mark.parametrize(("status", "code", "words"), [
    (403, "AccessDenied", "access was denied (403 AccessDenied)"), (404, "NoSuchKey", "it does not exist (any more)")])
def test_an_object_that_cannot_be_read_is_damage_of_its_rank(
        status: int, code: str, words: str, run: str, proxy: FaultyProxy, tmp_path: Path) -> None:
    proxy.add(answers(status, code), method="GET", path=TRACE_1)
    done = called("merge", run, "--out", tmp_path / "m")
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert _merged_ranks(tmp_path / "m") == {"rank 0", "rank 2"}


@pytest.mark.long
@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_object_that_is_replaced_while_it_is_read_is_damage_of_its_rank(
        after: int, run: str, server: S3Server, proxy: FaultyProxy, tmp_path: Path) -> None:
    proxy.add(does(lambda: server.client().put_object(
        Bucket="jobs", Key="run/rank00001/trace.json.gz", Body=gzip.compress(b'{"traceEvents": []}'))),
        method="GET", path=TRACE_1, after=after, times=1)
    done = called("merge", run, "--out", tmp_path / "m")
    assert done.returncode == 0, done.stderr
    assert "it was replaced while being read" in done.stdout
    assert _merged_ranks(tmp_path / "m") == {"rank 0", "rank 2"}


def test_nothing_at_a_url_is_said(server: S3Server, bucket: str) -> None:
    assert _one_line(called("stats", f"{bucket}/no run")).startswith(
        f"distprof: {bucket}/no run does not exist")
    assert "there is no such bucket" in _one_line(called("stats", "s3://no-such-bucket/run"))


def test_a_server_that_is_not_there_is_said(bucket: str, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, server, "http://127.0.0.1:9")
    monkeypatch.setenv(VARIABLE, "0.5")
    line = _one_line(called("stats", f"{bucket}/run"))
    assert line.startswith(f"distprof: cannot reach {bucket}/run: the connection failed (")


def test_without_keys_a_line_says_where_they_are_looked_for(bucket: str, server: S3Server, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, server)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "hint: are credentials set" in _one_line(called("stats", f"{bucket}/run"))


@pytest.mark.long
def test_a_bucket_that_turns_read_only_is_said(run: str, proxy: FaultyProxy, server: S3Server, bucket: str) -> None:
    proxy.add(answers(403, "AccessDenied"), method="PUT|POST|DELETE", path=r".*/m/(?!\.).*")
    line = _one_line(called("merge", run, "--out", f"{bucket}/m"))
    assert line.startswith("distprof: cannot write s3://jobs/m: access was denied (403 AccessDenied)  hint: can these")
    assert "summary.json" not in server.objects(f"{bucket}/m")


@pytest.mark.long
def test_a_read_only_bucket_is_noticed_before_the_work(run: str, proxy: FaultyProxy, bucket: str) -> None:
    proxy.add(answers(403, "AccessDenied"), method="PUT")
    assert "access was denied" in _one_line(called("merge", run, "--out", f"{bucket}/m"))
    assert proxy.num_seen("GET", r".*trace\.json\.gz.*") < 2 * NUM_RANKS


@pytest.mark.long
def test_half_an_upload_of_parts_is_aborted(run: str, proxy: FaultyProxy, server: S3Server, bucket: str,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.storage.writing.writable.PART_BYTES", 1 << 13)
    proxy.add(answers(403, "AccessDenied"), method="PUT", path=".*partNumber=2.*")
    assert "access was denied" in _one_line(called("merge", run, "--out", f"{bucket}/m"))
    assert proxy.num_seen("PUT", ".*partNumber.*") > 1
    assert "Uploads" not in server.client().list_multipart_uploads(Bucket="jobs")


@pytest.mark.long
def test_what_is_written_arrives_through_bursts_and_cuts(run: str, truth: Path, proxy: FaultyProxy,
                                                         server: S3Server, bucket: str) -> None:
    faults = [proxy.add(answers(500, "InternalError"), method="PUT|POST", after=2, times=2),
              proxy.add(hangs_up, method="PUT", after=3, times=2),
              # the server has it, and the client never learns: a claim that is there is its own
              proxy.add(cuts(0), method="PUT", path=r".*/m/\.distprof-writing", times=1)]
    assert called("merge", run, "--out", f"{bucket}/m").returncode == 0
    for name in server.objects(f"{bucket}/m"):
        if name != "summary.json" and not name.startswith("events"):
            found = server.client().get_object(Bucket="jobs", Key=f"m/{name}")["Body"].read()
            assert found == (truth / name).read_bytes(), name
    assert [fault.done for fault in faults] == [2, 2, 1]
