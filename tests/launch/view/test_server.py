"""The server: known files below a token, for a browser on this machine; nothing else, to nobody else."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from distprof.errors import DistprofError
from distprof.launch.view import server as served
from distprof.launch.view.server import LOADED, Served, TraceServer, serving

PERFETTO = "https://ui.perfetto.dev"
PATIENCE_S = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TraceServer]:
    trace, secret = tmp_path / "trace.json.gz", tmp_path / "secret"
    trace.write_bytes(b"trace" * 1000)
    secret.write_text("not for you")
    policy = {"Content-Security-Policy": "default-src 'none'"}
    files = {"": Served(content=b"<p>page", type="text/html", headers=policy),
             "trace.json.gz": Served(content=trace, type="application/octet-stream", origin=PERFETTO),
             "ui/main.js": Served(content=b"1", type="text/javascript"), LOADED: Served(content=b"", type="text/plain")}
    with TraceServer(files, 0) as found, serving(found):
        yield found


def ask(server: TraceServer, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    """What the server says; `{}` in the path is the token, in the host the port."""
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
    connection.putrequest(method, path.replace("{}", server.token), skip_host=True)
    for name, value in {"Host": "127.0.0.1:{}", **headers}.items():
        if value:
            connection.putheader(name, value.replace("{}", str(server.server_port)))
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def code(server: TraceServer, path: str, method: str = "GET", **headers: str) -> int:
    return ask(server, path, method, **headers)[0].status


def test_what_it_has_is_there(server):
    answer, content = ask(server, "/{}/")
    assert (answer.status, content) == (200, b"<p>page")
    assert answer.headers["Content-Security-Policy"] == "default-src 'none'"
    assert answer.headers["Referrer-Policy"] == "no-referrer"  # the address holds the token
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-store"
    assert ask(server, "/{}/trace.json.gz")[1] == b"trace" * 1000
    assert ask(server, "/{}/ui/main.js?v=1")[1] == b"1"
    answer, content = ask(server, "/{}/trace.json.gz", "HEAD")
    assert (answer.status, answer.headers["Content-Length"], content) == (200, "5000", b"")


@pytest.mark.parametrize("path", [
    "/", "/{}", "/trace.json.gz", "//trace.json.gz", "/{}x/", "/x{}/", "/{}/secret", "/{}/ui", "/{}/ui/",
    "/{}/../secret", "/{}/./trace.json.gz", "/{}/ui/../../secret", "/{}/%2e%2e/secret", "/{}/ui/%2e%2e/trace.json.gz",
    "/{}//etc/passwd", "/{}/trace.json.gz/", "/{}/TRACE.json.gz", "/{}/\\..\\secret",
    "http://127.0.0.1/{}/", "*", "/%00{}/"])
def test_nothing_else_is_there(server, path):
    answer, content = ask(server, path)
    assert (answer.status, content) == (404, b"404 Not Found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_nothing_but_reading_is_possible(server, method):
    assert code(server, "/{}/", method) == 501
    assert not server.loaded.is_set()


@pytest.mark.parametrize("host", [
    "evil.example", "evil.example:{}", "127.0.0.1.evil.example:{}", "0.0.0.0:{}", "[::1]:{}", ""])
def test_a_page_that_made_another_name_lead_here_reads_nothing(server, host):
    assert code(server, "/{}/", Host=host) == 403


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1"])
def test_a_port_that_ssh_forwards_may_have_another_number(server, host):
    assert code(server, "/{}/", Host=host) == 200


def test_only_the_page_of_perfetto_may_read_the_trace_from_elsewhere(server):
    answer, _ = ask(server, "/{}/trace.json.gz", Origin=PERFETTO)
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"], answer.headers["Vary"]) == (
        200, PERFETTO, "Origin")
    assert ask(server, "/{}/trace.json.gz")[0].headers["Access-Control-Allow-Origin"] is None
    for path, origin in (("/{}/trace.json.gz", "https://evil.example"), ("/{}/trace.json.gz", "null"),
                         ("/{}/", PERFETTO), ("/{}/loaded", PERFETTO)):
        answer, _ = ask(server, path, Origin=origin)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (403, None), (path, origin)
    assert code(server, "/{}/ui/main.js", Origin="http://127.0.0.1:{}") == 200  # modules and fonts of a page say so


def test_tokens_are_compared_in_constant_time_and_differ(server, monkeypatch):
    compared = []
    compare = served.secrets.compare_digest
    monkeypatch.setattr(served.secrets, "compare_digest", lambda *both: compared.append(both) or compare(*both))
    assert code(server, "/guess/") == 404
    assert compared == [(b"guess", server.token.encode())]
    with TraceServer({}, 0) as other:
        assert other.token != server.token and len(other.token) >= 32


def test_it_listens_on_this_machine_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_one_line(server):
    with pytest.raises(DistprofError) as failed:
        TraceServer({}, server.server_port)
    assert str(failed.value) == (f"cannot listen on --port {server.server_port}: Address already in use  hint: leave "
                                 "out --port to use any free port")


def test_it_has_ended_once_the_browser_has_all(server, monkeypatch):
    monkeypatch.setattr(served, "QUIET_S", 0.1)
    assert ask(server, "/{}/loaded", "HEAD")[0].status == 200 and not server.loaded.is_set()
    assert code(server, "/{}/loaded") == 200
    assert server.wait(PATIENCE_S)


def test_without_a_request_it_ends_after_a_while(server):
    assert not server.wait(0.1)


def test_a_browser_that_goes_away_is_noticed_and_ends_nothing():
    gone = threading.Event()
    large = Served(content=bytes(1 << 26), type="application/octet-stream", on_break=gone.set)
    with TraceServer({"large": large, "": Served(content=b"page", type="text/html")}, 0) as server, serving(server):
        with socket.create_connection(("127.0.0.1", server.server_port)) as browser:
            browser.sendall(f"GET /{server.token}/large HTTP/1.0\r\nHost: localhost:1\r\n\r\n".encode())
            assert browser.recv(10)
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert gone.wait(PATIENCE_S)
        assert ask(server, "/{}/")[1] == b"page"
