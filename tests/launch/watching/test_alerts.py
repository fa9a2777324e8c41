"""`--on-finding`: commands and webhooks that hear of findings, also where others hang."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from distprof.launch.watching import alerts
from distprof.launch.watching.alerts import Alert, Alerts
from support.made_up_states import slow_rank
from support.ports import free_port

PATIENCE_S = 60.0


def alert(event: str = "new", rank: int = 1) -> Alert:
    finding = slow_rank(rank)
    return Alert(event=event, run="/runs/a", run_id="made-up", text=finding.text, finding=finding)


@contextmanager
def hook(*answers: int) -> Iterator[tuple[str, list[dict], list[dict]]]:
    """A server that gives these answers in turn, the last one for ever; 0 is none at all."""
    bodies, headers, left = list[dict](), list[dict](), list(answers)
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            headers.append(dict(self.headers))
            code = left.pop(0) if len(left) > 1 else left[0]
            if not code:
                over.wait(PATIENCE_S)
                return
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook/secret-path", bodies, headers
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def test_a_command_gets_each_finding_as_json(tmp_path):
    said = list[str]()
    told = Alerts(f"cat > {tmp_path}/$$.json", said.append)
    told.tell(alert())
    told.tell(alert("ended"))
    assert told.finish(PATIENCE_S) and said == []
    found = sorted((json.loads(file.read_text()) for file in tmp_path.glob("*.json")), key=lambda one: one["event"])
    assert [one["event"] for one in found] == ["ended", "new"]
    assert found[1]["text"] == "rank 1 slow from step 6,204 on: +18 ms per step, 68 s lost"
    assert found[1]["finding"]["ranks"] == [1] and found[1]["run_id"] == "made-up" and found[1]["run"] == "/runs/a"


def test_a_webhook_gets_each_finding_as_json():
    said = list[str]()
    with hook(200) as (url, bodies, headers):
        told = Alerts(url, said.append)
        told.tell(alert())
        assert told.finish(PATIENCE_S)
    assert said == [] and [one["finding"]["kind"] for one in bodies] == ["slow_rank"]
    assert headers[0]["Content-Type"] == "application/json" and headers[0]["User-Agent"].startswith("distprof/")


def test_the_name_and_password_of_a_webhook_are_sent_as_a_header():
    said = list[str]()
    with hook(200) as (url, bodies, headers):
        told = Alerts(url.replace("://", "://me:p%40ss@"), said.append)
        told.tell(alert())
        assert told.finish(PATIENCE_S)
    assert said == [] and len(bodies) == 1
    assert headers[0]["Authorization"] == f"Basic {base64.b64encode(b'me:p@ss').decode()}"


@pytest.mark.long
@pytest.mark.parametrize("answers", [(503, 200), (429, 500, 204)])
def test_a_webhook_that_is_busy_is_asked_again(answers):
    said = list[str]()
    with hook(*answers) as (url, bodies, _):
        told = Alerts(url, said.append)
        told.tell(alert())
        assert told.finish(PATIENCE_S)
    assert said == [] and len(bodies) == len(answers)


def test_a_webhook_that_refuses_is_named_once_without_its_secret_path():
    said = list[str]()
    with hook(404) as (url, bodies, _):
        told = Alerts(url, said.append)
        for rank in range(3):
            told.tell(alert(rank=rank))
        assert told.finish(PATIENCE_S)
    assert said == ["--on-finding failed: 127.0.0.1 answers 404"] and len(bodies) == 3


@pytest.mark.long
def test_a_url_that_is_none_is_named():
    said = list[str]()
    told = Alerts("http://127.0.0.1:port/secret", said.append)
    told.tell(alert())
    assert told.finish(PATIENCE_S)
    assert said == ["--on-finding failed: 127.0.0.1: nonnumeric port: 'port'"]


@pytest.mark.long
def test_nobody_listens():
    said = list[str]()
    told = Alerts(f"http://127.0.0.1:{free_port()}/", said.append)
    told.tell(alert())
    assert told.finish(PATIENCE_S)
    assert said == ["--on-finding failed: 127.0.0.1: Connection refused"]


def test_a_command_that_fails_is_named_once():
    said = list[str]()
    told = Alerts("exit 7", said.append)
    for _ in range(3):
        told.tell(alert())
    assert told.finish(PATIENCE_S) and said == ["--on-finding failed: exit code 7"]


def test_one_that_hangs_holds_up_neither_the_watcher_nor_the_next(tmp_path):
    told = Alerts(f"test -e {tmp_path}/hung || {{ touch {tmp_path}/hung; sleep 600; }}; cat > {tmp_path}/$$.json",
                  lambda _: None)
    told.tell(alert())
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "hung").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    told.tell(alert("ended"))
    while not (files := list(tmp_path.glob("*.json"))) or not files[0].read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not told.finish(0.1)
    assert [json.loads(file.read_text())["event"] for file in files] == ["ended"]


def test_hooks_that_hang_take_all_places_and_still_hold_up_nobody():
    with hook(0) as (url, bodies, _):
        told = Alerts(url, lambda _: None)
        for rank in range(alerts.MOST_WAITING + 50):
            told.tell(alert(rank=rank))
        assert not told.finish(0.2) and len(bodies) <= alerts.AT_ONCE


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(monkeypatch):
    monkeypatch.setattr(alerts, "COMMAND_S", 0.3)
    said = list[str]()
    told = Alerts("sleep 600 | sleep 600", said.append)
    told.tell(alert())
    assert told.finish(PATIENCE_S) and said == ["--on-finding failed: the command took more than 0 s"]


def test_a_command_that_reads_nothing_is_no_failure():
    said = list[str]()
    told = Alerts("true", said.append)
    told.tell(alert())
    assert told.finish(PATIENCE_S) and said == []
