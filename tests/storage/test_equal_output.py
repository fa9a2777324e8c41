"""Every command says of a run in a bucket what it says of the same run here."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from pathlib import Path
from urllib.request import urlopen

import pytest

from distprof.contract.paths import MERGED
from distprof.merge.scan.engine import PLAIN
from distprof.storage.places import place
from distprof.terminal import quoted
from support.jobs import called, distprof
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server, use

RUN = "my runs é/run"
COMMANDS = (
    ("stats",), ("stats", "--modules"), ("comms",), ("ops",), ("waits",), ("critical-path",),
    ("whatif", "--free-communication"), ("report", "--json"), ("memory",), ("comms", "--timeline"),
    ("ops", "--by", "module"),
    *(pytest.param(words, marks=pytest.mark.stress) for words in (
        ("stats", "--json"), ("stats", "--peak", "1e12"), ("comms", "--json"), ("ops", "--csv"),
        ("report", "--markdown"))),
)
"""What reads the same and prints it otherwise is left for `make stress`."""


def _without(text: str, run: Path | str) -> str:
    """The text with a name in the place of a run, whether it is quoted for a shell, written in JSON, or both."""
    for name in (quoted(run), str(run)):
        text = text.replace(json.dumps(name)[1:-1], "RUN").replace(name, "RUN")
    return text


@pytest.fixture
def url(sharded: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The job in a bucket, into which the first test puts it that needs it."""
    use(monkeypatch, server)
    if "alike" not in [one["Name"] for one in server.client().list_buckets()["Buckets"]]:
        server.put(sharded, f"{server.bucket('alike')}/{RUN}")
    return f"s3://alike/{RUN}"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_prints_the_same(command: tuple[str, ...], sharded: Path, url: str) -> None:
    here, there = called(*command, sharded), called(*command, url)
    assert there.returncode == here.returncode == (1 if command == ("memory",) else 0), there.stderr
    assert _without(there.stdout, url) == _without(here.stdout, sharded)
    assert there.stderr == here.stderr.replace(str(sharded), url)


def test_a_run_that_was_not_merged_is_read_likewise(sharded: Path, server: S3Server, bucket: str,
                                                    tmp_path: Path) -> None:
    alone = tmp_path / "run"
    shutil.copytree(sharded, alone, ignore=shutil.ignore_patterns(MERGED))
    url = server.put(alone, f"{bucket}/{RUN}")
    for command in (("stats",), ("comms", "--json"), ("ops",), ("export", "--format", "dot")):
        out = [("--out", folder) if command[0] == "export" else () for folder in (tmp_path / "et", f"{bucket}/et")]
        here, there = called(*command, alone, *out[0]), called(*command, url, *out[1])
        assert there.returncode == here.returncode == 0, there.stderr
        if command[0] != "export":  # its table is as wide as the names of files
            assert _without(there.stdout, url) == _without(here.stdout, alone)
    assert server.objects(f"{bucket}/et") == {file.name: file.stat().st_size for file in (tmp_path / "et").iterdir()}


def test_runs_are_compared_wherever_they_lie(sharded: Path, server: S3Server, bucket: str, tmp_path: Path) -> None:
    shutil.copytree(sharded, tmp_path / "b")
    urls = server.put(sharded, f"{bucket}/a"), server.put(sharded, f"{bucket}/b")
    here, mixed = called("diff", sharded, tmp_path / "b", "--json"), called("diff", sharded, urls[1], "--json")
    there = called("diff", *urls, "--json", "--html", f"{bucket}/page.html")
    assert there.returncode == mixed.returncode == here.returncode == 0, there.stderr
    for found, names in ((mixed, (str(sharded), urls[1])), (there, urls)):
        plain = here.stdout.replace(str(sharded), names[0]).replace(str(tmp_path / "b"), names[1])
        assert found.stdout == plain
    assert server.objects(f"{bucket}/page.html")


@pytest.mark.job
@pytest.mark.long
@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_workers_of_a_merge_open_what_lies_elsewhere(engine: str, server: S3Server, bucket: str,
                                                     tmp_path: Path) -> None:
    """Those of the plain engine are processes."""
    run = write_run(tmp_path / "run", *([slice_of(f"op {rank}", 10 * at, 5) for at in range(300)] for rank in range(3)))
    url = server.put(run, f"{bucket}/{RUN}")
    environ = server.environ() | ({PLAIN: "1"} if engine == "plain" else {})
    done = distprof("merge", url, "--out", tmp_path / "there", **environ)
    assert done.returncode == called("merge", run, "--out", tmp_path / "here").returncode == 0, done.stderr
    there, here = (json.loads(gzip.decompress((tmp_path / name / "trace.json.gz").read_bytes()))
                   for name in ("there", "here"))
    assert there == here and len(there["traceEvents"]) > 900


def test_a_notebook_reads_urls(sharded: Path, url: str) -> None:
    import distprof as package

    here, there = package.read_run(sharded), package.read_run(url)
    assert there.ranks == here.ranks
    for name in ("ops", "modules", "steps", "collectives", "events", "waits"):
        assert getattr(there, name)().equals(getattr(here, name)()), name


def test_traces_of_other_programs_are_read_likewise(profiled: Path, server: S3Server, bucket: str) -> None:
    url = server.put(profiled, f"{bucket}/traces")
    for command in ("comms", "ops"):
        here, there = called(command, profiled), called(command, url)
        assert there.returncode == here.returncode == 0, there.stderr
        assert there.stdout == here.stdout.replace(str(profiled), url)


def test_a_merge_elsewhere_is_viewed(sharded: Path, url: str) -> None:
    from distprof.launch.view.merged_trace import merged_trace, text_bytes, trace_metadata
    from distprof.launch.view.server import Served, TraceServer, serving
    from distprof.launch.view.steps import TracedSteps

    def refuse(_: Path) -> None:
        raise AssertionError("it is merged already")

    here, there = (merged_trace(path, refuse) for path in (sharded, place(url)))
    assert text_bytes(there.file) == text_bytes(here.file)
    about = trace_metadata(there.file)
    assert about == trace_metadata(here.file)
    steps = [TracedSteps.of(trace, about["origin_ns"]).rows for trace in (here, there)]
    assert steps[0].equals(steps[1])
    served = Served(content=there.file, type="application/octet-stream")
    with TraceServer({"trace": served}, 0) as viewer, serving(viewer), urlopen(f"{viewer.address}trace") as answer:
        assert answer.read() == here.file.read_bytes()


def test_large_tables_are_read_from_files_without_a_name(sharded: Path, server: S3Server, bucket: str, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.storage.fetching.HELD_BYTES", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    shutil.copytree(sharded, tmp_path / "run", ignore=shutil.ignore_patterns(MERGED))
    url = server.put(tmp_path / "run", f"{bucket}/{RUN}")
    for command in ("stats", "comms"):
        here, there = called(command, tmp_path / "run"), called(command, url)
        assert there.returncode == here.returncode == 0, there.stderr
        assert _without(there.stdout, url) == _without(here.stdout, tmp_path / "run")
    assert list((tmp_path / "temporary").iterdir()) == []
