"""Uploads and merges into a bucket that are killed at any time: what is there is whole or not there, and goes on."""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import time
from pathlib import Path

import pytest

from support import forked
from support.jobs import PATIENCE_S, called, clean_environ
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server

SECRET = "Mark4SecretKey"
SEED, KILLS = int(os.environ.get("KILLS_SEED", "0")), int(os.environ.get("KILLS", "200"))


@pytest.fixture
def bucket(bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return bucket


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = write_run(tmp_path / "run", *([slice_of(f"op{number}", 10 * number, 5) for number in range(50)]
                                         for _ in range(4)))
    (made / "run.json").write_text("{}")
    return made


def _killed(words: tuple[object, ...], server: S3Server, seconds: float) -> str:
    """What a command says that is killed after so long; it may have ended before."""
    command = [sys.executable, "-m", "distprof", *map(str, words)]
    environ = clean_environ() | server.environ() | {"AWS_SECRET_ACCESS_KEY": SECRET}
    with forked.popen(command, stdout=-1, stderr=-1, text=True, env=environ) as process:
        time.sleep(seconds)
        process.kill()
        out, err = process.communicate(timeout=PATIENCE_S)
    return out + err


def _content(server: S3Server, name: str) -> bytes:
    return server.client().get_object(Bucket="jobs", Key=name)["Body"].read()


def _is_whole_or_absent(server: S3Server, run: Path, key: str) -> None:
    """Of each rank that is there with its rank.json all files are there, as they are here."""
    there = server.objects(f"s3://jobs/{key}")
    for name in [name for name in there if name.endswith("rank.json")]:
        folder = name.removesuffix("rank.json")
        for file in (run / folder).iterdir():
            assert _content(server, f"{key}/{folder}{file.name}") == file.read_bytes()
    if "run.json" in there:
        assert sum(name.endswith("rank.json") for name in there) == 4, "run.json comes last"


def _kill_uploads(number: int, server: S3Server, bucket: str, run: Path) -> None:
    began = time.monotonic()
    assert called("upload", run, f"{bucket}/whole").returncode == 0
    usual_s, chance = time.monotonic() - began + 0.5, random.Random(SEED)
    for one in range(number):
        said = _killed(("upload", run, f"{bucket}/{one}"), server, chance.uniform(0, usual_s))
        assert SECRET not in said and "unexpected" not in said, said
        _is_whole_or_absent(server, run, str(one))
        again = called("upload", run, f"{bucket}/{one}")
        assert again.returncode == 0, again.stderr
        here = {file.relative_to(run).as_posix() for file in run.rglob("*") if file.is_file()}
        assert here == {name for name in server.objects(f"{bucket}/{one}") if not name.endswith(".upload.json")}
        _is_whole_or_absent(server, run, str(one))


def _kill_merges(number: int, server: S3Server, bucket: str, run: Path) -> None:
    (run / "run.json").unlink()  # which is none
    url, out = server.put(run, f"{bucket}/run"), run.parent / "merged"
    began = time.monotonic()
    assert called("merge", run, "--out", out).returncode == 0
    usual_s, chance = time.monotonic() - began + 1.5, random.Random(SEED)
    for one in range(number):
        said = _killed(("merge", url, "--out", f"{bucket}/m{one}"), server, chance.uniform(0.2, usual_s))
        assert SECRET not in said and "unexpected" not in said, said
        if "summary.json" in server.objects(f"{bucket}/m{one}"):
            assert json.loads(_content(server, f"m{one}/summary.json"))["problems"] == []
            assert gzip.decompress(_content(server, f"m{one}/trace.json.gz")) == gzip.decompress(
                (out / "trace.json.gz").read_bytes())
        again = called("merge", url, "--out", f"{bucket}/m{one}", "--force")
        assert again.returncode == 0 or "is already writing" in again.stderr, again.stderr


@pytest.mark.job
def test_an_upload_that_is_killed_leaves_nothing_half(server: S3Server, bucket: str, run: Path) -> None:
    _kill_uploads(3, server, bucket, run)


@pytest.mark.job
def test_a_merge_that_is_killed_while_it_uploads_leaves_nothing_half(server: S3Server, bucket: str, run: Path) -> None:
    _kill_merges(2, server, bucket, run)


@pytest.mark.stress
def test_uploads_are_killed_at_any_time(server: S3Server, bucket: str, run: Path) -> None:
    _kill_uploads(KILLS, server, bucket, run)


@pytest.mark.stress
def test_merges_are_killed_at_any_time(server: S3Server, bucket: str, run: Path) -> None:
    _kill_merges(KILLS // 4, server, bucket, run)
