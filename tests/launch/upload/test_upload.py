"""`distprof upload`, and what `run --out s3://...` does beside the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from distprof.storage.retrying import VARIABLE
from support import forked
from support.faulty_proxy import answers, faulty_proxy, waits
from support.jobs import PATIENCE_S, ROOT, SCRIPTS, called, clean_environ
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server, use

STEPS = ("--steps", "wait=1,count=0,time=1,trace=1,arrivals=0")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two ranks that are complete, one that was killed, and an earlier attempt; merged."""
    made = write_run(tmp_path / "run", *([slice_of("op", 10 * number, 5) for number in range(9)] for _ in range(3)))
    (made / "rank00002").rename(made / "rank00002.partial")
    write_run(made / "attempt0000", [slice_of("op", 1, 2)])
    (made / ".hidden").write_text("x")
    (made / "run.json").write_text("{}")
    return made


def _files(run: Path) -> dict[str, int]:
    return {file.relative_to(run).as_posix(): file.stat().st_size for file in run.rglob("*")
            if file.is_file() and not file.name.startswith(".")}


def _objects(server: S3Server, url: str) -> dict[str, int]:
    return {name: size for name, size in server.objects(url).items() if not name.endswith(".upload.json")}


@pytest.mark.long
def test_all_of_a_run_arrives_with_checksums(run: Path, server: S3Server, bucket: str) -> None:
    done = called("upload", run, f"{bucket}/a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"Next: distprof merge '{bucket}/a b'\n")
    assert _objects(server, f"{bucket}/a b") == _files(run)
    manifest = json.loads(server.client().get_object(Bucket="jobs", Key="a b/rank00001/.upload.json")["Body"].read())
    assert manifest["files"] == {
        file.name: {"size": file.stat().st_size, "sha256": sha256(file.read_bytes()).hexdigest()}
        for file in (run / "rank00001").iterdir()}


@pytest.mark.long
def test_what_is_there_is_not_moved_again(run: Path, server: S3Server, bucket: str,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty_proxy(server.address) as proxy:
        use(monkeypatch, server, proxy.address)
        assert called("upload", run, f"{bucket}/a").returncode == 0
        assert proxy.num_seen("PUT", ".*") > 5
        proxy.seen.clear()
        again = called("upload", run, f"{bucket}/a")
        assert "everything was already there" in again.stdout
        assert proxy.num_seen("PUT|POST|DELETE", ".*") == 0
        for content in (b"changed", b"CHANGED"):  # of another size, and of the same one
            (run / "rank00001" / "trace.json.gz").write_bytes(content)
            proxy.seen.clear()
            assert called("upload", run, f"{bucket}/a").returncode == 0
            assert {path.rpartition("/")[2].partition("?")[0] for method, path in proxy.seen if method == "PUT"} == {
                "trace.json.gz", ".upload.json", "rank.json"}
            there = server.client().get_object(Bucket="jobs", Key="a/rank00001/trace.json.gz")["Body"].read()
            assert there == content


@pytest.mark.parametrize("content", [b"{", b'{"files": {"\xff": 1}}', b'{"x":' * 100_000])
def test_a_manifest_that_cannot_be_read_is_written_again(run: Path, server: S3Server, bucket: str,
                                                         content: bytes) -> None:
    assert called("upload", run, f"{bucket}/a").returncode == 0
    place = {"Bucket": "jobs", "Key": "a/rank00001/.upload.json"}
    before = server.client().get_object(**place)["Body"].read()
    server.client().put_object(**place, Body=content)
    assert called("upload", run, f"{bucket}/a").returncode == 0
    assert server.client().get_object(**place)["Body"].read() == before


@pytest.mark.long
def test_files_of_a_rank_that_was_cut_off_are_not_moved_again(run: Path, server: S3Server, bucket: str,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no manifest yet is known by its etag, an object of several parts as well."""
    monkeypatch.setattr("distprof.storage.writing.writable.PART_BYTES", 1 << 23)
    (run / "rank00001" / "trace.json.gz").write_bytes(os.urandom((1 << 23) + 5))
    with faulty_proxy(server.address) as proxy:
        use(monkeypatch, server, proxy.address)
        proxy.add(answers(403, "AccessDenied"), method="PUT", path=r".*rank00001/(\.upload|rank\.json).*", times=1)
        first = called("upload", run, f"{bucket}/a")
        assert first.returncode == 1
        assert "parts of" in first.stderr
        assert "rank00001/rank.json" not in server.objects(f"{bucket}/a")
        proxy.seen.clear()
        assert called("upload", run, f"{bucket}/a").returncode == 0
        assert proxy.num_seen("PUT", ".*rank00001/trace.*") == 0
    assert _objects(server, f"{bucket}/a") == _files(run)


@pytest.mark.long
def test_a_bucket_that_may_not_be_written_is_said_in_a_line(run: Path, server: S3Server, bucket: str,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty_proxy(server.address) as proxy:
        use(monkeypatch, server, proxy.address)
        proxy.add(answers(403, "AccessDenied"), method="PUT")
        done = called("upload", run, f"{bucket}/a")
    line, = done.stderr.splitlines()
    assert done.returncode == 1
    assert "were not uploaded: attempt0000/rank00000: " in line
    assert "access was denied (403 AccessDenied)  hint: can these credentials write there?" in line


@pytest.mark.parametrize("words", [("no run", "s3://jobs/a"), ("", "s3://jobs/a"), ("run", "elsewhere")])
def test_what_cannot_be_uploaded_is_said(words: tuple[str, str], run: Path, bucket: str) -> None:
    done = called("upload", run.parent / words[0], words[1])
    assert done.returncode in (1, 2)
    assert len(done.stderr.splitlines()) == 1


def _uploader(run: Path, url: str, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    from distprof.launch.upload.job_upload import PROGRAM

    return forked.popen([sys.executable, "-c", PROGRAM, "\n".join(sys.path), str(run), url, "meanwhile"],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environ() | environ)


def _wait_until(holds: object) -> None:
    until = time.monotonic() + PATIENCE_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.job
def test_ranks_go_as_they_are_complete_and_the_rest_at_the_end(run: Path, server: S3Server, bucket: str) -> None:
    url = f"{bucket}/a"
    with _uploader(run, url, server.environ()) as process:
        _wait_until(lambda: "rank00001/rank.json" in server.objects(url))
        assert not any(name.startswith("rank00002") or name == "run.json" for name in server.objects(url))
        (run / "rank00002.partial").rename(run / "rank00002")
        _wait_until(lambda: "rank00002/rank.json" in server.objects(url))
        said, _ = process.communicate()
    assert json.loads(said) == {"missing": [], "why": ""}
    assert _objects(server, url) == _files(run)


@pytest.mark.job
def test_what_a_killed_uploader_left_is_finished(run: Path, server: S3Server, bucket: str) -> None:
    url = f"{bucket}/a"
    with faulty_proxy(server.address) as proxy:
        proxy.add(waits(0.3), method="PUT")
        for moments in (0.4, 0.8, 1.2, 1.6):
            with _uploader(run, url, server.environ(proxy.address)) as process:
                assert process.stdin is not None
                process.stdin.close()
                time.sleep(1.0 + moments)
                process.send_signal(signal.SIGKILL)
            whole = {name.rpartition("/")[0] for name in server.objects(url) if name.endswith("rank.json")}
            for rank in whole:
                assert {name for name in _objects(server, url) if name.startswith(f"{rank}/")} == {
                    name for name in _files(run) if name.startswith(f"{rank}/")}
    assert called("upload", run, url).returncode == 0
    assert _objects(server, url) == _files(run)


@pytest.mark.job
def test_a_job_is_recorded_and_uploaded(tmp_path: Path, server: S3Server, bucket: str) -> None:
    url = f"{bucket}/runs/a"
    done = _run(tmp_path, url, server.environ())
    assert done.returncode == 0, done.stderr
    spool, = (tmp_path / "runs").iterdir()
    assert f"distprof: uploaded to {url}; runs/{spool.name} holds the same files" in done.stderr
    assert _objects(server, url) == _files(spool)
    assert called("stats", url).stdout == called("stats", spool).stdout.replace(str(spool), url)
    again = _run(tmp_path, url, server.environ())
    assert (again.returncode, again.stderr) == (
        1, f"distprof: there is already a run at {url}  hint: replace it with --force\n")


@pytest.mark.job
def test_an_upload_that_fails_changes_nothing_for_the_job(tmp_path: Path, server: S3Server, bucket: str) -> None:
    url = f"{bucket}/runs/a"
    with faulty_proxy(server.address) as proxy:
        proxy.add(answers(503, "SlowDown"), method="PUT")
        done = _run(tmp_path, url, server.environ(proxy.address) | {VARIABLE: "1"})
    assert done.returncode == 0, done.stderr
    spool, = (tmp_path / "runs").iterdir()
    assert "distprof: not uploaded: rank00000, " in done.stderr
    assert f"    distprof upload runs/{spool.name} {url}" in done.stderr
    assert called("upload", spool, url).returncode == 0
    assert _objects(server, url) == _files(spool)


def _run(folder: Path, url: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-m", "distprof", "run", "--out", url, "--nproc-per-node", "2", *STEPS,
         str(SCRIPTS / "job.py"), "plain", "5"], cwd=folder, capture_output=True, text=True,
        timeout=PATIENCE_S, env=clean_environ() | {"PYTHONPATH": str(ROOT)} | environ, check=False)
