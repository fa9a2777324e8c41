"""Passwords of URLs: the client of a storage has them, and nothing that anybody sees."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.launch.upload import job_upload
from distprof.storage import credentials
from distprof.storage.credentials import exported, kept, remember, whole_host, whole_query
from distprof.storage.listing import LISTINGS, Listing
from distprof.storage.places import place
from distprof.storage.remote_path import RemotePath
from distprof.storage.retrying import VARIABLE
from support.jobs import called, clean_environ
from support.rank_traces import slice_of, write_run

SECRETS = st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters="/"), min_size=1).map(
    lambda text: f"Zq{text}qZ")
RANKS = [[slice_of("op", 10 * number, 5) for number in range(9)] for _ in range(2)]


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_WHOLE", {})


class Seen(SimpleHTTPRequestHandler):
    """A server that remembers who asked for what."""

    asked: list[tuple[str, str | None]]

    def send_head(self):
        type(self).asked.append((self.path, self.headers.get("Authorization")))
        return super().send_head()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def _served(folder: Path, handler: type[Seen]) -> Iterator[str]:
    handler.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@given(st.sampled_from(("sftp", "ftp", "http", "https", "smb")), st.sampled_from(("", "alice", "al%40ice")), SECRETS)
def test_what_is_shown_has_no_password_and_what_the_client_gets_has(scheme: str, user: str, secret: str) -> None:
    url = f"{scheme}://{user}:{secret}@host:80/a//b"
    shown = kept(url)
    assert "Zq" not in shown and kept(shown) == shown
    assert whole_host(scheme, shown.partition("://")[2].partition("/")[0]) == f"{user}:{secret}@host:80"
    told = exported(shown)
    credentials._WHOLE.clear()
    remember(told)
    assert kept(shown) == shown
    assert whole_host(scheme, shown.partition("://")[2].partition("/")[0]) == f"{user}:{secret}@host:80"


@given(SECRETS.filter(lambda text: not set("&;?#\"'<>") & set(text)))
def test_nor_has_it_secrets_of_a_query(secret: str) -> None:
    url = f"https://tok{secret}@host/f.json?id=3&X-Amz-Signature={secret}&part=1"
    shown = kept(url)
    assert shown == "https://***@host/f.json?id=3&X-Amz-Signature=***&part=1" == kept(shown)
    assert whole_query(shown) == f"https://host/f.json?id=3&X-Amz-Signature={secret}&part=1"


def test_a_path_cannot_be_made_to_show_it() -> None:
    path = RemotePath("sftp://me:Mark4Secret@host/run") / "rank00000"
    LISTINGS.add(Listing(path.parent.url, {}))
    other = pickle.loads(pickle.dumps(path.parent / "rank00001"))
    for one in (path, other, path.parent, path.with_name("x"), RemotePath(path, "y"), place("sftp://me:Mark4Secret@host")):
        for text in (str(one), repr(one), one.url, one.name, "/".join(one.parts), f"{one}", repr([one])):
            assert "Mark4Secret" not in text
    assert str(path) == "sftp://me@host/run/rank00000"


def test_a_slash_in_a_password_is_refused_without_it() -> None:
    done = called("stats", "http://alice:Mark4/Secret@host/run")
    assert done.returncode == 2
    assert done.stderr == ("distprof: the password in http://alice:***@host/run contains a slash  hint: write it as "
                           "%2F\n")


def test_a_mistake_with_a_url_is_said_without_its_password() -> None:
    for words in (("stats", "a", "http://a:Mark4Secret@h/run"), ("upload", "http://a:Mark4Secret@h/run", "runs/a"),
                  ("no-such", "http://a:Mark4Secret@h/run"), ("http://a:Mark4Secret@h/run",)):
        done = called(*words)
        assert done.returncode in (1, 2)
        assert "Mark4Secret" not in done.stderr + done.stdout, done.stderr


def test_another_host_is_not_told(tmp_path: Path) -> None:
    """A server that sends us elsewhere does not make us send the password there."""
    write_run(tmp_path / "run", *RANKS)
    told = f"Basic {b64encode(b'alice:Mark4/Secret').decode()}"

    class Elsewhere(Seen):
        asked: list[tuple[str, str | None]]

    with _served(tmp_path, Elsewhere) as other:
        class Sends(Seen):
            asked: list[tuple[str, str | None]]

            def send_head(self):
                type(self).asked.append((self.path, self.headers.get("Authorization")))
                self.send_response(302)
                self.send_header("Location", f"http://{other.replace('127.0.0.1', 'localhost')}{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()

        with _served(tmp_path, Sends) as host:
            done = called("stats", f"http://alice:{quote('Mark4/Secret', safe='')}@{host}/run")
    assert done.returncode == 0, done.stderr
    assert {who for _, who in Sends.asked} == {told}
    assert Elsewhere.asked and {who for _, who in Elsewhere.asked} == {None}


def test_a_trace_at_a_presigned_url_is_read_and_its_signature_not_shown(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", *RANKS)
    monkeypatch.setenv(VARIABLE, "0.3")
    with _served(tmp_path, Seen) as host:
        url = f"http://{host}/run/rank00000/trace.json.gz?id=a/b&sig=Mark4Secret"
        done = called("merge", url, "--out", tmp_path / "m")
        assert done.returncode == 0, done.stderr
        assert any(path.endswith("?id=a/b&sig=Mark4Secret") for path, _ in Seen.asked)
        (run / "rank00000" / "trace.json.gz").unlink()
        failed = called("merge", url, "--out", tmp_path / "n")
    assert failed.returncode == 1 and "sig=***" in failed.stderr
    written = b"".join(path.read_bytes() for path in (tmp_path / "m").rglob("*") if path.is_file())
    assert b"Mark4Secret" not in written
    assert "Mark4Secret" not in done.stdout + done.stderr + failed.stderr


@pytest.mark.long
@pytest.mark.parametrize("url", ["http://alice:Mark4Secret@127.0.0.1:9/run", "https://Mark4Secret@127.0.0.1:9/run",
                                 "ftp://alice:Mark4Secret@127.0.0.1:9/run", "sftp://alice:Mark4Secret@127.0.0.1:9/run",
                                 "webhdfs://alice:Mark4Secret@127.0.0.1:9/run", "no-such://a:Mark4Secret@127.0.0.1/run"])
@pytest.mark.parametrize("debug", [False, True])
def test_a_server_that_is_not_there(url: str, debug: bool, monkeypatch: pytest.MonkeyPatch,
                                    tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, "0.3")
    if debug:
        monkeypatch.setenv("DISTPROF_DEBUG", "1")
    for words in (("stats", url), ("upload", write_run(tmp_path / "run", *RANKS), url)):
        done = called(*words)
        assert done.returncode in (1, 2), done.stderr
        assert not re.search("Mark4Secret", done.stdout + done.stderr), done.stderr
        assert ("Traceback" in done.stderr) == debug


UPLOADER = """
import sys
from distprof.launch.upload import job_upload
from distprof.storage.credentials import whole_host
job_upload._while_recording = lambda *_, **__: sys.exit(whole_host('sftp', 'alice@host'))
job_upload.main()
"""


@pytest.mark.long
def test_an_upload_beside_a_job_gets_it_where_nobody_else_looks(tmp_path: Path) -> None:
    """Arguments of processes are for everybody to see."""
    started: list[tuple[list[str], dict[str, str]]] = []

    def popen(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.Popen[bytes]:
        started.append((command, env))
        raise OSError(11, "not started")

    target = place("sftp://alice:Mark4Secret@host/run")
    assert isinstance(target, RemotePath)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_upload.subprocess, "Popen", popen)
        job_upload.JobUpload(tmp_path, target, meanwhile=True)
    (command, environ), = started
    assert "Mark4Secret" not in " ".join(command)
    told = subprocess.run([sys.executable, "-c", UPLOADER, tmp_path, target.url, "meanwhile"], env=clean_environ() | {
        name: value for name, value in environ.items() if name.startswith("DISTPROF_")},
        capture_output=True, text=True, check=False)
    assert told.stderr == "alice:Mark4Secret@host\n"
