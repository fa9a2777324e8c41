"""Merges that are written to a bucket: whole or not at all, by one client at a time."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from distprof.storage.writing import claims
from distprof.storage.writing.uploading import begin, put_part
from support.faulty_proxy import faulty_proxy, held_until
from support.jobs import PATIENCE_S, called, clean_environ
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server

EVENTS = [[slice_of(f"op{rank}", 10 * number, 5) for number in range(50)] for rank in range(3)]


@pytest.fixture
def run(tmp_path: Path, server: S3Server, bucket: str) -> str:
    """URL of a run of three ranks with timelines."""
    return server.put(write_run(tmp_path / "run", *EVENTS), f"{bucket}/runs/a b")


def _trace(server: S3Server, key: str) -> bytes:
    return gzip.decompress(server.client().get_object(Bucket="jobs", Key=key)["Body"].read())


@pytest.mark.long
def test_a_merge_beside_a_run_is_that_of_the_same_run_here(run: str, tmp_path: Path, server: S3Server) -> None:
    here, there = called("merge", tmp_path / "run"), called("merge", run)
    assert (there.returncode, here.returncode) == (0, 0), there.stderr
    quoted = here.stdout.replace(f"stats {tmp_path / 'run'}", f"stats '{run}'").replace(
        f"view {tmp_path / 'run'}", f"view '{run}'")
    assert there.stdout == quoted.replace(str(tmp_path / "run"), run)
    merged = tmp_path / "run" / "merged"
    assert server.objects(f"{run}/merged") == {
        file.relative_to(merged).as_posix(): file.stat().st_size for file in merged.rglob("*") if file.is_file()}
    assert _trace(server, "runs/a b/merged/trace.json.gz") == gzip.decompress((merged / "trace.json.gz").read_bytes())


@pytest.mark.long
def test_a_merge_is_replaced_with_force_alone(run: str, server: S3Server, bucket: str) -> None:
    assert called("merge", run, "--out", f"{bucket}/m", "--operators").returncode == 0
    again = called("merge", run, "--out", f"{bucket}/m")
    assert (again.returncode, again.stderr) == (
        1, f"distprof: {bucket}/m already holds a merge  hint: replace it with --force\n")
    assert "operators.parquet/rank00000.parquet" in server.objects(f"{bucket}/m")
    assert called("merge", run, "--out", f"{bucket}/m", "--force", "--ranks", "1").returncode == 0
    assert not any(name.startswith("operators") for name in server.objects(f"{bucket}/m"))
    assert b"op0" not in _trace(server, "m/trace.json.gz")


@pytest.mark.long
def test_what_is_no_merge_is_never_replaced(run: str, server: S3Server, bucket: str) -> None:
    server.client().put_object(Bucket="jobs", Key="m/thesis.tex", Body=b"x")
    done = called("merge", run, "--out", f"{bucket}/m", "--force")
    assert done.returncode == 1
    assert "s3://jobs/m has other files" in done.stderr
    assert called("merge", run, "--out", run, "--force").returncode == 1
    assert server.objects(f"{bucket}/m") == {"thesis.tex": 1}


@pytest.mark.long
def test_what_a_killed_merge_left_is_replaced(run: str, server: S3Server, bucket: str) -> None:
    server.client().put_object(Bucket="jobs", Key="m/modules.parquet", Body=b"half")
    put_part(begin(f"{bucket}/m/trace.json.gz"), 1, b"half")
    assert called("merge", run, "--out", f"{bucket}/m").returncode == 0
    assert "summary.json" in server.objects(f"{bucket}/m")
    assert "Uploads" not in server.client().list_multipart_uploads(Bucket="jobs")


@pytest.mark.long
def test_a_claim_that_nobody_renews_ends(run: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claims.Claim(f"{bucket}/m", "m")._put(only_new=True)
    refused = called("merge", run, "--out", f"{bucket}/m")
    assert refused.returncode == 1
    assert refused.stderr.startswith("distprof: process ") and " is already writing s3://jobs/m" in refused.stderr
    monkeypatch.setattr(claims, "STALE_S", -1)
    assert called("merge", run, "--out", f"{bucket}/m").returncode == 0


@pytest.mark.long
def test_one_of_two_merges_into_one_place_wins_whole(run: str, server: S3Server, bucket: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    from distprof.merge.chrome.options import MergeOptions, NumberRanges
    from distprof.merge.writing.merge import merge
    from distprof.storage.places import place

    start, outcomes = threading.Barrier(2), dict[int, str]()

    def client(rank: int) -> None:
        options = MergeOptions(ranks=NumberRanges.of(str(rank), "--ranks"))
        start.wait()
        try:
            merge(place(run), options=options, out=place(f"{bucket}/m"))
            outcomes[rank] = "won"
        except Exception as error:
            outcomes[rank] = str(error)

    clients = [threading.Thread(target=client, args=(rank,)) for rank in (0, 1)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    (winner,) = [rank for rank, outcome in outcomes.items() if outcome == "won"]
    assert any(words in outcomes[1 - winner] for words in ("is already writing", "already holds a merge"))
    text = _trace(server, "m/trace.json.gz")
    assert f'"op{winner}"'.encode() in text
    assert f'"op{1 - winner}"'.encode() not in text
    assert set(server.objects(f"{bucket}/m/events.parquet")) == {f"rank{winner:05d}.parquet"}
    assert claims.NAME not in server.objects(f"{bucket}/m")


@pytest.mark.long
def test_reports_and_tables_are_written_to_urls(run: str, server: S3Server, bucket: str) -> None:
    assert called("merge", run).returncode == 0
    page = called("report", run)
    assert (page.returncode, page.stdout) == (0, f"{run}/merged/report.html\n"), page.stderr
    assert called("report", run, "--out", f"{bucket}/x/r.html").returncode == 0
    assert called("report", run, "--out", f"{bucket}/x/r.html").returncode == 1
    assert called("ops", run, "--parquet", f"{bucket}/x/ops.parquet").returncode == 0
    assert set(server.objects(f"{bucket}/x")) == {"r.html", "ops.parquet"}


@pytest.mark.job
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_merge_that_a_signal_ends_leaves_nothing(number: signal.Signals, run: str, server: S3Server, bucket: str,
                                                   tmp_path: Path) -> None:
    """It comes while the merge is uploaded."""
    (tmp_path / "temporary").mkdir()
    with faulty_proxy(server.address) as proxy:
        sent = threading.Event()
        proxy.add(held_until(sent), method="PUT", path=r".*/m/(?!\.).*")
        command = [sys.executable, "-m", "distprof", "merge", run, "--out", f"{bucket}/m"]
        environ = clean_environ() | server.environ(proxy.address) | {"TMPDIR": str(tmp_path / "temporary")}
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
            until = time.monotonic() + PATIENCE_S
            while not proxy.num_seen("PUT", r".*/m/(?!\.).*"):
                assert time.monotonic() < until
                time.sleep(0.05)
            process.send_signal(number)
            time.sleep(1)  # it finds the upload under way
            sent.set()
            said = process.communicate()[1]
    assert (process.returncode, said) == (128 + number, b"")
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not {"summary.json", claims.NAME} & server.objects(f"{bucket}/m").keys()
    assert called("merge", run, "--out", f"{bucket}/m").returncode == 0
