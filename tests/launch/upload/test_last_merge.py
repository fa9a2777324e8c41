"""A run that several hosts upload is merged by the launcher that ends last, which says the answer."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distprof.errors import StorageError
from distprof.launch.job_end import merge_uploaded
from distprof.launch.upload.job_upload import claimed, mark_uploaded, unclaimed
from distprof.storage.remote_path import RemotePath
from support import forked
from support.jobs import PATIENCE_S, ROOT, SCRIPTS, called, clean_environ
from support.ports import free_port
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server, use


@pytest.mark.long
def test_only_one_launcher_merges_and_only_once_all_ranks_are_there(tmp_path: Path, server: S3Server, bucket: str,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, server)
    run = write_run(tmp_path / "run", *([slice_of("op", 1, 5)] for _ in range(2)))
    (other := tmp_path / "other").mkdir()
    (run / "rank00001").rename(other / "rank00001")
    target = RemotePath.given(f"{bucket}/a")
    assert not claimed(target)
    assert called("upload", run, target.url).returncode == 0
    mark_uploaded(target, run)
    assert not claimed(target)
    assert called("upload", other, target.url).returncode == 0
    assert not claimed(target)  # the other host may still upload something beside its ranks
    mark_uploaded(target, other)
    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(lambda _: claimed(target), range(8))) == [False] * 7 + [True]
    unclaimed(target)
    assert claimed(target)


def test_a_storage_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch, server: S3Server) -> None:
    use(monkeypatch, server)
    with pytest.raises((StorageError, OSError)):
        claimed(RemotePath.given("s3://no-such-bucket/a"))


@pytest.mark.parametrize("content", [b"{", b'{"status": "\xff"}', b'{"x":' * 100_000])
def test_a_rank_that_cannot_be_read_leaves_the_merge_to_others(server: S3Server, bucket: str, content: bytes,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    server.client().put_object(Bucket="jobs", Key="a/rank00000/rank.json", Body=content)
    merge_uploaded(RemotePath.given(f"{bucket}/a"), ())
    said = capsys.readouterr().err
    assert "not merged here: cannot check whether all hosts have uploaded" in said and "distprof merge" in said


@pytest.mark.job
def test_a_job_on_two_nodes_has_one_merge_in_the_bucket_and_one_answer(tmp_path: Path, server: S3Server,
                                                                       bucket: str) -> None:
    url, port, jobs = f"{bucket}/runs/a", free_port(), []
    for node in range(2):
        (tmp_path / f"node{node}").mkdir()
        jobs.append(forked.popen(
            [sys.executable, "-m", "distprof", "run", "--out", url, "--nnodes", "2", "--node-rank", str(node),
             "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port), "--steps",
             "wait=2,count=1,time=1,trace=4,arrivals=4", str(SCRIPTS / "two_hosts_job.py")],
            cwd=tmp_path / f"node{node}", stderr=subprocess.PIPE, text=True,
            env=clean_environ() | {"PYTHONPATH": str(ROOT)} | server.environ()))
    told = [job.communicate(timeout=PATIENCE_S)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], "\n".join(told)
    merged, other = sorted(told, key=lambda text: "Merging" not in text)
    assert "all hosts have uploaded their files. Merging" in merged and "2 ranks = dp 2" in merged, told
    assert "all 2 ranks complete" in merged and f"distprof report {url}" in merged, "\n".join(told)
    assert "not merged here: " in other and "2 ranks = dp 2" not in other, told
    names = server.objects(url)
    assert "merged/trace.json.gz" in names and {"rank00000/rank.json", "rank00001/rank.json"} <= names.keys()
    assert not any(name.startswith("rank00001.partial") for name in names)
