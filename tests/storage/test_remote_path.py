"""Paths of URLs answer like local paths do, from one listing, and go to other processes."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath
from threading import Thread
from typing import BinaryIO

import pytest

from distprof.storage import remote_path, stream
from distprof.storage.kinds import s3
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.listing import Listings
from distprof.storage.places import place, real, remote, walk
from support.faulty_proxy import FaultyProxy, faulty_proxy
from support.jobs import called, clean_environ
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server, use

WITHOUT_PACKAGES = """
import sys
sys.modules.update(gcsfs=None, sshfs=None)  # as if they were not installed
from distprof.launch.cli import main
main(sys.argv[1:])
"""
HOSTILE = ("a b", "ü", "\u202e", "'\"$(x);|", "%41%2f", "#?&=+", "\\", "~", "*", "[a]", "-rf", "\t", "a:b")


@pytest.fixture
def proxy(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with faulty_proxy(server.address) as started:
        use(monkeypatch, server, started.address)
        yield started


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Folders and files, of which some have names that a shell, a URL or a pattern would take for something else."""
    for number, name in enumerate(("run.json", "rank00000/rank.json", "rank00001/rank.json", "rank00001/deep/er/x.json",
                                   *(f"odd/{name}/f" for name in HOSTILE))):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(os.urandom(100 * number))
    return tmp_path / "tree"


def _about(root: Path) -> dict[str, object]:
    """All that is asked of a tree, by the path from its root."""
    found: dict[str, object] = {}
    for folder, folders, names in walk(root):
        folders.sort()
        for path in [folder, *(folder / name for name in sorted(names))]:
            where = PurePath(path.relative_to(root)).as_posix()
            found[where] = (path.is_dir(), path.is_file(), path.exists(), path.suffix, folder in (path, path.parent),
                            path.is_file() and (path.stat().st_size, path.read_bytes(), path.read_text("latin-1")[:7]))
    for pattern in ("*", "rank*/rank.json", "*/*/*", "nothing*", "rank0000?/*.json", "run.json"):
        found[f"glob {pattern}"] = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
    missing = root / "rank00007"
    found["missing"] = (missing.exists(), missing.is_dir(), (missing / "x").is_file())
    found["children"] = sorted(path.name for path in root.iterdir())
    return found


@pytest.mark.long
def test_a_tree_in_a_bucket_is_that_on_disk(tree: Path, server: S3Server, bucket: str) -> None:
    url = server.put(tree, f"{bucket}/a tree/é")
    assert _about(place(url)) == _about(tree)


def test_a_tree_in_memory_is_that_on_disk(tree: Path) -> None:
    import fsspec

    (tree / "odd" / "x\ny").write_bytes(b"moto knows no such key")
    fsspec.filesystem("memory").put(str(tree), "/held/tree", recursive=True)
    assert _about(place("memory://held/tree")) == _about(tree)


def test_questions_are_answered_by_one_listing(tree: Path, server: S3Server, bucket: str, proxy: FaultyProxy) -> None:
    server.put(tree, f"{bucket}/t")
    root = place(f"{bucket}/t")
    assert (root / "rank00001" / "deep").is_dir()
    seen = len(proxy.seen)
    assert [path.name for path in root.glob("rank*/rank.json")] == ["rank.json"] * 2
    assert real(root / "run.json") == f"{bucket}/t/run.json"
    assert pickle.loads(pickle.dumps(root / "rank00001")) == root / "rank00001"
    assert not (root / "rank00005" / "rank.json").exists()
    assert len(proxy.seen) == seen


@pytest.mark.long
def test_files_are_read_in_blocks_and_where_one_seeks(server: S3Server, bucket: str, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FIRST_BYTES", 1000)
    monkeypatch.setattr(stream, "MOST_BYTES", 5000)
    content = os.urandom(100_001)
    (tmp_path / "f").write_bytes(content)
    file, truth = place(server.put(tmp_path / "f", f"{bucket}/f")).open("rb"), io.BytesIO(content)
    for offset, whence, size in ((0, 0, 10), (500, 0, 3000), (-10, 2, 99), (7, 0, 20_000), (5, 1, 1), (99_000, 0, -1),
                                 (200_000, 0, 5), (3, 0, 0), (50_000, 0, 50_001)):
        assert file.seek(offset, whence) == truth.seek(offset, whence)
        assert file.read(size) == truth.read(size)
    file.seek(0)
    assert b"".join(iter(lambda: file.read(777), b"")) == content


@pytest.mark.long
def test_few_blocks_are_in_memory(server: S3Server, bucket: str, tmp_path: Path,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FIRST_BYTES", 1000)
    monkeypatch.setattr(stream, "MOST_BYTES", 4000)
    (tmp_path / "f").write_bytes(os.urandom(200_000))
    elsewhere = remote(place(server.put(tmp_path / "f", f"{bucket}/f")))
    assert elsewhere is not None and elsewhere.entry is not None
    with stream.RemoteFile(elsewhere.url, backend_of(elsewhere.url), elsewhere.entry) as file:
        while file.read(100):
            assert len(file._held) + sum(4000 for _ in file._coming) <= (stream.AHEAD + 1) * 4000


@pytest.mark.long
def test_a_head_takes_one_small_request(server: S3Server, bucket: str, tmp_path: Path, proxy: FaultyProxy) -> None:
    (tmp_path / "f").write_bytes(os.urandom(8 << 20))
    path = place(server.put(tmp_path / "f", f"{bucket}/f"))
    with path.open("rb") as file:
        file.read(100)
    assert proxy.ranges == [f"bytes=0-{stream.FIRST_BYTES - 1}"]


@pytest.mark.job
def test_another_process_opens_it_without_a_listing(tree: Path, server: S3Server, bucket: str, tmp_path: Path) -> None:
    root = place(server.put(tree, f"{bucket}/t"))
    (tmp_path / "pickled").write_bytes(pickle.dumps([root / "rank00001" / "rank.json", root / "rank00001"]))
    with faulty_proxy(server.address) as proxy:
        code = ("import pickle, sys; file, folder = pickle.load(open(sys.argv[1], 'rb'))\n"
                "sys.stdout.buffer.write(file.read_bytes() + (folder / 'deep' / 'er' / 'x.json').read_bytes())")
        done = subprocess.run([sys.executable, "-c", code, tmp_path / "pickled"], capture_output=True, check=True,
                              env=clean_environ() | server.environ(proxy.address))
        assert proxy.num_seen("GET", ".*list-type.*") == 0
    assert done.stdout == (tree / "rank00001/rank.json").read_bytes() + (tree / "rank00001/deep/er/x.json").read_bytes()


@pytest.mark.long
def test_what_takes_local_files_alone_gets_a_copy_that_goes_with_the_process(tree: Path, server: S3Server,
                                                                             bucket: str) -> None:
    path = place(server.put(tree, f"{bucket}/t")) / "rank00001" / "rank.json"
    assert Path(os.fspath(path)).read_bytes() == path.read_bytes() == (tree / "rank00001/rank.json").read_bytes()


def test_it_cannot_be_written_in_place(server: S3Server, bucket: str, tree: Path) -> None:
    path = place(server.put(tree, f"{bucket}/t")) / "run.json"
    for write in (lambda: path.open("wb"), lambda: path.write_text("x"), path.unlink):
        with pytest.raises(OSError, match="Read-only"):
            write()


def test_a_password_is_not_shown() -> None:
    from distprof.storage.remote_path import RemotePath

    assert str(RemotePath("sftp://me:secret@host/run") / "rank00000") == "sftp://me@host/run/rank00000"


@pytest.mark.long
@pytest.mark.parametrize(("url", "words"), [
    ("nothing://x/y", "distprof: nothing:// is not a usable URL like s3://bucket/run"),
    ("gs://x/y", "distprof: no installed package reads gs:// URLs"),
    ("ssh://x/y", "distprof: no installed package reads ssh:// URLs"),
    ("hdfs://x/y", "distprof: cannot reach hdfs://x: Unable to load lib"),  # Java, or Hadoop's library
    ("https://127.0.0.1:1/x", "distprof: cannot reach https://127.0.0.1:1/x: the connection failed"),
    ("s3://", "distprof: s3:// is not a URL like s3://bucket/run"),
])
def test_urls_that_cannot_be_read_are_said_in_a_line(url: str, words: str) -> None:
    # in a process of its own: fsspec keeps the classes of packages that it has once imported
    done = subprocess.run([sys.executable, "-c", WITHOUT_PACKAGES, "stats", url], capture_output=True, text=True,
                          env=clean_environ() | {"DISTPROF_STORAGE_PATIENCE": "0.5"}, check=False)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(words), done.stderr
    assert len(done.stderr.splitlines()) == 1


@contextmanager
def served(handler: type[SimpleHTTPRequestHandler], folder: Path) -> Iterator[str]:
    """URL of a folder that a server of the web shows."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A server that sends whole files alone."""
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with served(Quiet, tmp_path) as url:
        yield url


@pytest.mark.long
def test_a_run_on_the_web_is_read(web: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *([slice_of("op", 10 * number, 5) for number in range(9)] for _ in range(2)))
    for command in ("stats", "merge"):
        out = [("--out", tmp_path / name) if command == "merge" else () for name in ("a", "b")]
        here, there = called(command, run, *out[0]), called(command, f"{web}/run", *out[1])
        assert there.returncode == here.returncode == 0, there.stderr
    assert (tmp_path / "a/trace.json.gz").read_bytes() == (tmp_path / "b/trace.json.gz").read_bytes()
    assert called("stats", f"{web}/no run").returncode == 1


@pytest.mark.parametrize(("status", "times", "words"), [
    (403, 99, "access was denied (403"), (404, 99, "does not exist"), (503, 2, ""),
    (503, 99, "the server answered 503")])
def test_what_a_server_of_the_web_answers_is_said(
        status: int, times: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 a few times is waited for; one that does not end is said, as is what a server refuses."""
    write_run(tmp_path / "run", [slice_of("op", 10, 5)], [slice_of("op", 10, 5)])
    left = [status] * times

    class Refusing(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def send_head(self) -> io.BytesIO | BinaryIO | None:
            if not left:
                return super().send_head()
            self.send_error(left.pop())
            return None

    monkeypatch.setenv("DISTPROF_STORAGE_PATIENCE", "5" if not words else "0.5")
    with served(Refusing, tmp_path) as url:
        done = called("stats", f"{url}/run")
    assert done.returncode == bool(words) and words in done.stderr, done.stderr


def test_runs_in_memory_and_by_file_urls_are_read(tmp_path: Path) -> None:
    import fsspec

    run = write_run(tmp_path / "run", [slice_of("op", 10, 5)], [slice_of("op", 10, 5)])
    fsspec.filesystem("memory").put(str(run), "/held/run", recursive=True)
    here = called("comms", run).stdout
    assert called("comms", run.as_uri()).stdout == here
    assert called("comms", "memory://held/run").stdout == here.replace(str(run), "memory://held/run")


@pytest.mark.long
def test_many_objects_are_listed_side_by_side_each_once(server: S3Server, bucket: str, proxy: FaultyProxy,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "SIDE_BY_SIDE", 8)
    listed = s3.listed
    monkeypatch.setattr(s3, "listed", lambda ask, *rest: listed(partial(ask, MaxKeys=40), *rest))
    names = {"run.json", "rank", "r/x", "rank/y", "merged/summary.json", "rank00000x/z",
             *(f"rank{rank:05d}/{name}" for rank in range(30) for name in ("rank.json", "a b", "0"))}
    client = server.client()
    for name in names:
        client.put_object(Bucket="jobs", Key=f"many/{name}", Body=b"x")
    client.put_object(Bucket="jobs", Key="many-more/run.json", Body=b"x")
    found = place(f"{bucket}/many")
    there = {(folder / name).relative_to(found).as_posix() for folder, _, files in walk(found) for name in files}
    assert there == names
    assert proxy.num_seen("GET", ".*list-type.*") > 5


def test_what_is_replaced_elsewhere_is_noticed_when_it_was_read() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file("/held/changing/f", b"one")
    path = place("memory://held/changing") / "f"
    assert path.stat().st_size == 3
    memory.pipe_file("/held/changing/f", b"two")
    with pytest.raises(OSError, match="it was replaced while being read"):
        path.read_bytes()


def test_a_process_that_read_what_was_there_before_is_told_what_is_there_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker of a cluster is, which goes on from run to run."""
    import fsspec

    of_worker = Listings()
    for content in (b"one", b"other"):
        fsspec.filesystem("memory").pipe_file("/held/again/f", content)
        sent = pickle.dumps([place("memory://held/again") / "f", place("memory://held/again")])
        with monkeypatch.context() as worker:
            worker.setattr(remote_path, "LISTINGS", of_worker)
            file, folder = pickle.loads(sent)
            assert file.read_bytes() == (folder / "f").read_bytes() == Path(os.fspath(file)).read_bytes() == content
