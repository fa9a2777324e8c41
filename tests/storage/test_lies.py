"""Servers that answer anything: no command hangs, takes all memory, ends without a word of ours or says a password, and
nothing is taken for a run that is none.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest

from distprof.storage import retrying, stream
from distprof.storage.kinds.schemes import backend_of
from distprof.storage.retrying import VARIABLE
from support import azure_server, gcs_server, s3_server, storages
from support.faulty_proxy import FaultyProxy, faulty_proxy
from support.jobs import called
from support.lies import LIES, MOST_S
from support.rank_traces import slice_of, write_run
from support.s3_server import S3Server

USER, PASSWORD = "alice", "p@ss/w0rd:Mark4"
TOLD = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
SECRETS = re.compile("|".join(map(re.escape, (PASSWORD, quote(PASSWORD, safe=""), "Mark4", TOLD, "Ev3sS3cr3t")))
                     + r"|\bsig=(?!\*)[^&\s]+")
"""The last is what Azure signs access with, which is in the query of each request."""
NUM_RANKS = 3
WEB = {"page": r"/run/?", "page of a rank": r"/run/rank00001/?", "head": r"/run/rank00001/trace\.json\.gz",
       "rank.json": r"/run/rank00001/rank\.json", "timeline": r"/run/rank00001/trace\.json\.gz"}
S3 = {"page": r".*list-type.*", "rank.json": r".*/rank00001/rank\.json.*",
      "timeline": r".*/rank00001/trace\.json\.gz.*"}
MOST_MB = 400
"""More than a process that has read a run takes; far less than what servers send here."""
GS = {"page": r".*/o/?\?.*prefix.*", "rank.json": r".*/o/.*rank00001%2Frank\.json\?.*alt=media.*",
      "timeline": r".*/o/.*rank00001%2Ftrace\.json\.gz\?.*alt=media.*"}
AZURE = {"page": r".*comp=list.*", "rank.json": r".*/rank00001/rank\.json\?.*",
         "timeline": r".*/rank00001/trace\.json\.gz\?.*"}
CLOUDS = ("gs", "abfs")
PLACES = {"web": WEB, "s3": S3, "gs": GS, "abfs": AZURE}
CASES = [(kind, place, lie) for kind, places in PLACES.items() for place in places for lie in LIES]
SAMPLE = [
    *(("web", "page", lie) for lie in ("status 401", "status 403", "status 404", "status 500", "redirects to itself",
                                       "redirects to a user", "repeats its links", "floods with links")),
    ("web", "page of a rank", "is a bomb"), ("web", "head", "claims 4 EB"), ("web", "head", "echoes"),
    *(("web", "rank.json", lie) for lie in ("status 401", "is cut", "hangs up", "trickles")),
    *(("web", "timeline", lie) for lie in ("status 404", "is another part", "is the whole", "hangs in its body")),
    ("gs", "page", "status 403"), ("gs", "rank.json", "echoes"), ("abfs", "page", "echoes"),
    ("abfs", "timeline", "status 401"), ("s3", "page", "floods"),
    ("s3", "rank.json", "echoes"), ("s3", "timeline", "is another part")]


pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Libraries leave connections of answers that nobody waits for any more to the garbage collector."""


class Guarded(SimpleHTTPRequestHandler):
    """Shows folders to one user, and sends parts of files."""

    protocol_version = "HTTP/1.1"

    def send_head(self):
        if self.headers.get("Authorization") != f"Basic {TOLD}":
            self.send_error(401)
            return None
        return super().send_head()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose timelines take several requests."""
    return write_run(tmp_path_factory.mktemp("lies") / "run", *(
        [slice_of(f"op{rank} {hash((rank, number))}", 10 * number, 5) for number in range(300)]
        for rank in range(NUM_RANKS)))


@pytest.fixture(scope="module")
def truth(here: Path) -> bytes:
    assert called("merge", here, "--out", here.parent / "truth").returncode == 0
    return gzip.decompress((here.parent / "truth" / "trace.json.gz").read_bytes())


@pytest.fixture(scope="module")
def web(here: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Guarded, directory=str(here.parent)))
    server.daemon_threads = True
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def buckets(here: Path, server: S3Server) -> S3Server:
    server.bucket("lies")
    server.put(here, "s3://lies/run")
    return server


@pytest.fixture(scope="module")
def gs(here: Path) -> Iterator[tuple[str, dict[str, str], str]]:
    """Address, environment, and the URL of the run; it asks for no keys."""
    if why := gcs_server.why_not():
        pytest.skip(why)
    with gcs_server.gcs_server() as address:
        storage = storages.Storage(url="gs://jobs", environ={"STORAGE_EMULATOR_HOST": address},
                                   options={"endpoint_url": address, "token": "anon"})
        yield address, {**storage.environ}, storage.put(here, "gs://jobs/lies/run")


@pytest.fixture(scope="module")
def abfs(here: Path) -> Iterator[tuple[str, dict[str, str], str]]:
    """The same; access is signed in the query of each request."""
    if why := azure_server.why_not():
        pytest.skip(why)
    with azure_server.azure_server() as address:
        storage = storages.Storage(url="abfs://lies", environ={},
                                   options={"connection_string": azure_server.connection(address)})
        storage.filesystem().mkdir("lies")
        yield address, {"AZURE_STORAGE_CONNECTION_STRING": azure_server.signed_connection(address)}, storage.put(
            here, "abfs://lies/run")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.4")
    monkeypatch.setattr(retrying, "LEAST_S", 2.0)
    monkeypatch.setattr(stream, "FIRST_BYTES", 1 << 10)
    monkeypatch.setattr(stream, "MOST_BYTES", 1 << 12)


def _proxied(kind: str, request: pytest.FixtureRequest,
             monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FaultyProxy, str]]:
    """A server that may lie, and the URL of the run there, with a password."""
    if kind == "web":
        storages.use(monkeypatch, {})
        with faulty_proxy(request.getfixturevalue("web")) as proxy:
            yield proxy, f"http://{USER}:{quote(PASSWORD, safe='')}@{proxy.address.removeprefix('http://')}/run"
        return
    if kind in CLOUDS:
        address, environ, url = request.getfixturevalue(kind)
        with faulty_proxy(address) as proxy:
            storages.use(monkeypatch, {name: words.replace(address, proxy.address) for name, words in environ.items()})
            yield proxy, url
        storages.use(monkeypatch, {})
        return
    server = request.getfixturevalue("buckets")
    with faulty_proxy(server.address) as proxy:
        s3_server.use(monkeypatch, server, proxy.address)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
        backend_of("s3://lies/run").filesystem.connect()  # which takes longer than any request here
        yield proxy, "s3://lies/run"


def _peak_mb() -> int:
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) >> 10


def _survives(url: str, out: Path, truth: bytes) -> bool:
    """Whatever the server says, a merge ends soon, with the truth or a word that it is not all; whether it has one."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = _peak_mb(), time.monotonic()
    done = called("merge", url, "--out", out)
    # clients of clouds try again by themselves, and read answers whole: docs/object-storage.md says so
    assert time.monotonic() - began < (MOST_S if url.startswith(CLOUDS) else MOST_S / 2), done.stderr
    assert url.startswith(CLOUDS) or _peak_mb() - before < MOST_MB
    assert done.returncode in (0, 1), done.stderr
    assert "unexpected" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert "hint: " in done.stderr.splitlines()[-1]
        assert not (out / "trace.json.gz").exists()
    elif gzip.decompress((out / "trace.json.gz").read_bytes()) != truth:
        assert json.loads((out / "summary.json").read_bytes())["problems"], "what is not all is said"
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    for said in (done.stdout, done.stderr, written.decode("latin-1")):
        assert not SECRETS.search(said), SECRETS.findall(said)
    return done.returncode == 0


def _tell(case: tuple[str, str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, out: Path,
          truth: bytes) -> None:
    kind, place, lie = case
    for proxy, url in _proxied(kind, request, monkeypatch):
        fault = proxy.add(LIES[lie], path=PLACES[kind][place], method="HEAD" if place == "head" else "GET")
        is_merged = _survives(url, out / "merged", truth)
        assert fault.done or not is_merged, "the server was asked, unless the machine was too slow to come to that"
        monkeypatch.setenv("DISTPROF_DEBUG", "1")
        done = called("report", url, "--out", out / "page.html")
        page = (out / "page.html").read_text() if (out / "page.html").exists() else ""
        assert not SECRETS.search(done.stdout + done.stderr + page), done.stderr


@pytest.mark.long
@pytest.mark.parametrize("case", SAMPLE, ids=": ".join)
def test_a_lie_is_survived(case: tuple[str, str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
                           tmp_path: Path, truth: bytes) -> None:
    _tell(case, request, monkeypatch, tmp_path, truth)


@pytest.mark.stress
@pytest.mark.parametrize("case", [case for case in CASES if case not in SAMPLE], ids=": ".join)
def test_any_lie_is_survived(case: tuple[str, str, str], request: pytest.FixtureRequest,
                             monkeypatch: pytest.MonkeyPatch, tmp_path: Path, truth: bytes) -> None:
    _tell(case, request, monkeypatch, tmp_path, truth)
