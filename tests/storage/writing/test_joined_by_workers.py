"""Workers of a cluster upload what they write of a trace; the object is that of a merge without a cluster."""

from __future__ import annotations

import base64
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import forked
from support.dask_cluster import PATIENT, DaskCluster, apart_from, wait_for
from support.faulty_proxy import FaultyProxy, answers, faulty_proxy, held_until, waits
from support.jobs import clean_environ, distprof
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server

pytestmark = pytest.mark.job
MIB = 1 << 20
SIZES = (11 * MIB, 100, 0, 5 * MIB + 1, 12 * MIB)
"""Of what is written of each rank, as compressed, or a bit more."""
FEW = SIZES[0], SIZES[1], SIZES[3]
TRACE, TABLES = "m/trace.json.gz", [f"m/events.parquet/rank{rank:05}.parquet" for rank in range(len(SIZES))]
"""What workers write."""
PART = r".*trace\.json\.gz\?.*partNumber=(\d+).*"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks that are longer and shorter than what S3 takes as a part, one of them without events."""
    return _written(tmp_path_factory.mktemp("many") / "run", SIZES)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three such ranks: less is uploaded."""
    return _written(tmp_path_factory.mktemp("run") / "run", FEW)


def _written(run: Path, sizes: tuple[int, ...]) -> Path:
    chance = random.Random(1)
    return write_run(run, *(
        [slice_of("op", 10 * at, 5, args={"text": base64.b64encode(chance.randbytes(min(size, 1 << 14))).decode()})
         for at in range(-(-size >> 14))] for size in sizes))


@pytest.fixture(scope="module")
def expected(run: Path) -> dict[str, bytes]:
    return _merged_here(run, FEW)


@pytest.fixture(scope="module")
def expected_of_many(many: Path) -> dict[str, bytes]:
    return _merged_here(many, SIZES)


def _merged_here(run: Path, sizes: tuple[int, ...]) -> dict[str, bytes]:
    """Without a cluster, to a folder."""
    out = run.parent / "expected"
    assert distprof("merge", run, "--out", out).returncode == 0
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert sum(sizes) < len(found["trace.json.gz"]) < 1.1 * sum(sizes)
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path / "cluster") as found:
        yield found


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(server.address) as started:
        yield started


def _start(run: Path, out: str, cluster: DaskCluster, tmp_path: Path, *words: str, **environ: str) -> (
        subprocess.Popen[str]):
    """A merge whose temporary folder is in one of the test."""
    (tmp_path / "temporary").mkdir(exist_ok=True)
    return forked.popen([sys.executable, "-m", "distprof", "merge", run, "--out", out, "--scheduler",
                         cluster.address, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                        env=clean_environ() | PATIENT | environ | {"TMPDIR": str(tmp_path / "temporary")})


def _objects(server: S3Server, bucket: str) -> dict[str, bytes]:
    return {name: server.client().get_object(Bucket="jobs", Key=f"m/{name}")["Body"].read()
            for name in server.objects(f"{bucket}/m")}


def _left(server: S3Server) -> list[dict]:
    return server.client().list_multipart_uploads(Bucket="jobs").get("Uploads", [])


@pytest.mark.parametrize("is_apart", [pytest.param(False, marks=pytest.mark.stress), True])
def test_members_do_not_pass_through_the_client(many: Path, expected_of_many: dict[str, bytes], tmp_path: Path,
                                                bucket: str, server: S3Server, cluster: DaskCluster,
                                                proxy: FaultyProxy, is_apart: bool) -> None:
    """Whether or not workers see its folder."""
    expected = expected_of_many
    apart = apart_from(tmp_path / "temporary") if is_apart else None
    cluster.add_worker(number=2, apart=apart, **server.environ())
    merge = _start(many, f"{bucket}/m", cluster, tmp_path, **server.environ(proxy.address))
    out, err = merge.communicate()
    assert (merge.returncode, err) == (0, "")
    assert out.startswith(f"{bucket}/m/trace.json.gz: 5 of 5 ranks, ")
    assert _objects(server, bucket) == expected
    assert _left(server) == [] and [*(tmp_path / "temporary").iterdir()] == []
    parts = {int(found[1]): size for path, size in proxy.sent.items() if (found := re.fullmatch(PART, path))}
    # the head and the begin of rank 0, the short rank and the begin of rank 3, and the end
    assert len(parts) == 3 and max(parts) == 9901
    assert sum(parts.values()) < 11 * MIB < len(expected["trace.json.gz"]) // 2
    assert not [path for path in proxy.sent if re.fullmatch(r".*\.parquet/rank.*partNumber.*", path)]


def test_only_traces_of_clusters_are_joined(run: Path, expected: dict[str, bytes], tmp_path: Path, bucket: str,
                                            server: S3Server, cluster: DaskCluster) -> None:
    """Another format and another storage, as ever; workers have no keys for it."""
    cluster.add_worker()
    done = distprof("merge", run, "--out", f"{bucket}/m", "--format", "perfetto-tar", "--scheduler", cluster.address,
                    **server.environ())
    assert (done.returncode, done.stderr) == (0, "")
    assert "trace.tar" in server.objects(f"{bucket}/m")
    done = distprof("merge", run, "--out", f"file://{tmp_path}/there", "--scheduler", cluster.address, TEST="")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "there" / "trace.json.gz").read_bytes() == expected["trace.json.gz"]


def test_a_worker_is_killed_while_it_uploads(run: Path, expected: dict[str, bytes], tmp_path: Path, bucket: str,
                                             server: S3Server, cluster: DaskCluster, proxy: FaultyProxy) -> None:
    killed = threading.Event()
    proxy.add(held_until(killed), method="PUT", path=PART)
    cluster.add_worker(number=2, comes_back=True, **server.environ(proxy.address))
    merge = _start(run, f"{bucket}/m", cluster, tmp_path, **server.environ())
    wait_for(lambda: proxy.num_seen("PUT", PART) >= 2 or merge.poll() is not None)
    for process in cluster.processes():
        os.kill(process, signal.SIGKILL)
    killed.set()
    _, err = merge.communicate()
    assert (merge.returncode, err) == (0, "")
    assert len([path for _, path in proxy.seen if re.fullmatch(PART, path)]) > len(
        {path for path in proxy.sent if re.fullmatch(PART, path)})  # some were written twice
    assert _objects(server, bucket) == expected
    assert _left(server) == []


@pytest.mark.stress
def test_workers_are_killed_at_20_moments(run: Path, expected: dict[str, bytes], tmp_path: Path, bucket: str,
                                          server: S3Server, cluster: DaskCluster, proxy: FaultyProxy) -> None:
    proxy.add(waits(0.2), method="PUT", path=PART)
    apart = apart_from(tmp_path / "temporary")
    cluster.add_worker(number=2, comes_back=True, apart=apart, **server.environ(proxy.address))
    chance, killed = random.Random(2), 0
    while killed < 20:
        merge = _start(run, f"{bucket}/m", cluster, tmp_path, "--force", **server.environ())
        before = len(proxy.seen)
        wait_for(lambda: len(proxy.seen) > before or merge.poll() is not None)  # noqa: B023 (it ends here)
        for _ in range(2):
            time.sleep(chance.uniform(0, 2))
            if (known := cluster.processes()) and merge.poll() is None:
                os.kill(chance.choice(known), signal.SIGKILL)
                killed += 1
        _, err = merge.communicate()
        assert (merge.returncode, err) == (0, "")
        assert _objects(server, bucket) == expected
        assert _left(server) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_of_the_upload(number: signal.Signals, run: Path, tmp_path: Path, bucket: str,
                                               server: S3Server, cluster: DaskCluster, proxy: FaultyProxy) -> None:
    sent = threading.Event()
    proxy.add(held_until(sent), method="PUT", path=PART)
    cluster.add_worker(**server.environ(proxy.address))
    merge = _start(run, f"{bucket}/m", cluster, tmp_path, **server.environ())
    wait_for(lambda: proxy.num_seen("PUT", PART) or merge.poll() is not None)
    assert TRACE in {one["Key"] for one in _left(server)} <= {TRACE, *TABLES}
    merge.send_signal(number)
    time.sleep(1)  # it finds the upload under way
    sent.set()
    _, err = merge.communicate()
    assert (merge.returncode, err) == (128 + number, "")
    assert _left(server) == [] and server.objects(f"{bucket}/m") == {}
    assert [*(tmp_path / "temporary").iterdir()] == []


def test_a_killed_client_leaves_what_the_next_merge_removes(run: Path, expected: dict[str, bytes], tmp_path: Path,
                                                            bucket: str, server: S3Server, cluster: DaskCluster,
                                                            proxy: FaultyProxy) -> None:
    killed = threading.Event()
    proxy.add(held_until(killed), method="PUT", path=PART, times=1)
    cluster.add_worker(**server.environ(proxy.address))
    merge = _start(run, f"{bucket}/m", cluster, tmp_path, **server.environ())
    wait_for(lambda: proxy.num_seen("PUT", PART) or merge.poll() is not None)
    merge.kill()
    merge.communicate()
    left = {one["Key"] for one in _left(server)}
    killed.set()
    server.client().delete_object(Bucket="jobs", Key="m/.distprof-writing")  # as if half an hour had passed
    again = _start(run, f"{bucket}/m", cluster, tmp_path, **server.environ())
    _, err = again.communicate()
    assert (again.returncode, err) == (0, "")
    assert _objects(server, bucket) == expected
    assert _left(server) == [] and TRACE in left <= {TRACE, *TABLES}


def test_what_a_storage_does_to_workers(run: Path, tmp_path: Path, expected: dict[str, bytes], bucket: str,
                                        server: S3Server, cluster: DaskCluster, proxy: FaultyProxy) -> None:
    cluster.add_worker(**server.environ(proxy.address))
    for faults, code, said in FAULTS:
        proxy.faults.clear()
        for status, name, times in faults:
            proxy.add(answers(status, name), method="PUT", path=PART, times=times)
        merge = _start(run, f"{bucket}/m", cluster, tmp_path, **server.environ())
        _, err = merge.communicate()
        assert merge.returncode == code, err
        assert _left(server) == []
        if code:
            assert re.fullmatch(rf"distprof: {said}.*  hint: workers write there .+\n", err), err  # . is no newline
            assert server.objects(f"{bucket}/m") == {}
        else:
            assert err == "" and _objects(server, bucket) == expected


FAULTS: list[tuple[list[tuple[int, str, int | None]], int, str]] = [
    ([(403, "AccessDenied", None)], 1, r"cannot write s3://jobs/m from a worker on \S+: access was denied"),
    ([(403, "ExpiredToken", None)], 1,
     r"cannot write s3://jobs/m from a worker on \S+: .*the credentials were refused"),
    ([(404, "NoSuchUpload", None)], 1, r"cannot write s3://jobs/m from a worker on \S+: it does not exist"),
    ([(503, "SlowDown", 2), (500, "InternalError", 1)], 0, "")]
"""Answers, the code of the merge, and what it says."""
