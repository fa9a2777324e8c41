"""Runs in a bucket are read by workers of a cluster, which are told no more than where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.dask_cluster import DaskCluster
from support.jobs import called, distprof
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server

pytestmark = pytest.mark.job
EVENTS = [[slice_of(f"op{rank}", 10 * number, 15 if number == 7 else 5) for number in range(2000)] for rank in range(6)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, server: S3Server) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path_factory.mktemp("cluster")) as found:
        found.add_worker(number=2, **server.environ())
        yield found


def test_a_merge_of_a_bucket_into_a_bucket(tmp_path: Path, server: S3Server, bucket: str, cluster: DaskCluster) -> None:
    run = server.put(write_run(tmp_path / "run", *EVENTS), f"{bucket}/runs/a")
    here = called("merge", run, "--out", f"{bucket}/here")
    there = distprof("merge", run, "--out", f"{bucket}/there", "--scheduler", cluster.address, **server.environ())
    for done in (here, there):
        assert (done.returncode, done.stderr) == (0, "")
    names = server.objects(f"{bucket}/here")
    assert "trace.json.gz" in names and names == server.objects(f"{bucket}/there")
    for name in names:
        one, other = (server.client().get_object(Bucket="jobs", Key=f"{place}/{name}")["Body"].read()
                      for place in ("here", "there"))
        assert one == other, name


@pytest.mark.parametrize("words", [("ops", "--json"), ("report", "--json")])
def test_commands_that_read_a_bucket(tmp_path: Path, server: S3Server, bucket: str, cluster: DaskCluster,
                                     words: tuple[str, ...]) -> None:
    run = server.put(write_run(tmp_path / "run", *EVENTS), f"{bucket}/runs/a")
    alone, together = called(*words, run), distprof(*words, run, "--scheduler", cluster.address, **server.environ())
    assert (together.returncode, together.stderr, together.stdout) == (0, "", alone.stdout) and alone.stdout
