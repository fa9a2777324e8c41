"""Runs in a bucket are read by workers of a cluster, which are told no more than where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.dask_cluster import DaskCluster
from support.jobs import distprof
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server

pytest.importorskip("distributed")
pytestmark = pytest.mark.job
EVENTS = [[slice_of(f"op{rank}", 10 * number, 15 if number == 7 else 5) for number in range(2000)] for rank in range(6)]


@pytest.fixture
def cluster(tmp_path: Path, server: S3Server) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path / "cluster") as found:
        for _ in range(2):
            found.add_worker(**server.environ())
        yield found


def test_a_merge_of_a_bucket_into_a_bucket(tmp_path: Path, server: S3Server, bucket: str, cluster: DaskCluster) -> None:
    run = server.put(write_run(tmp_path / "run", *EVENTS), f"{bucket}/runs/a")
    for name, words in (("here", ()), ("there", ("--scheduler", cluster.address))):
        done = distprof("merge", run, "--out", f"{bucket}/{name}", *words, **server.environ())
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
    alone, together = (distprof(*words, run, *more, **server.environ())
                       for more in ((), ("--scheduler", cluster.address)))
    assert (together.returncode, together.stderr, together.stdout) == (0, "", alone.stdout) and alone.stdout
