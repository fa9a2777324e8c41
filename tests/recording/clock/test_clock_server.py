"""The rank that is asked for the time: whom it answers, and what it keeps."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from distprof.recording.clock.exchange import ANSWER, ASK, ClockResponder


@pytest.fixture(params=[False, True])
def responder(request):
    before = set(threading.enumerate())
    found = ClockResponder(remote=request.param)
    yield found
    found.close()
    assert set(threading.enumerate()) <= before  # those of earlier tests may end meanwhile
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", found.port), timeout=5)


def connect(responder: ClockResponder) -> socket.socket:
    return socket.create_connection(("127.0.0.1", responder.port), timeout=10)


def ask(client: socket.socket) -> tuple[int, int]:
    client.sendall(bytes([ASK]))
    answer = b""
    while len(answer) < ANSWER.size:
        answer += client.recv(ANSWER.size) or pytest.fail("no answer")
    return ANSWER.unpack(answer)


def test_who_knows_the_token_is_told_the_time(responder):
    with connect(responder) as one, connect(responder) as other:
        for byte in responder.token.encode():  # in pieces
            one.sendall(bytes([byte]))
        other.sendall(responder.token.encode())
        for client in (one, other, one):
            before = time.time_ns()
            there, left = ask(client)
            assert before <= there <= left <= time.time_ns()
        one.sendall(bytes([3]))
        other.sendall(bytes([3]))
        responder.wait(3, num_clients=2, seconds=60)
        assert responder._finished == {3: 2}
        responder.wait(4, num_clients=1, seconds=0)  # nobody comes


def test_who_does_not_know_the_token_is_told_nothing(responder):
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"0" * 64, bytes(64)):
        with connect(responder) as stranger:
            stranger.sendall(said)
            try:
                assert stranger.recv(64) == b""
            except ConnectionResetError:
                pass
    with connect(responder) as client:
        client.sendall(responder.token.encode())
        assert ask(client)


def test_more_clients_than_a_job_has_are_turned_away(responder, monkeypatch):
    monkeypatch.setattr("distprof.recording.clock.exchange.MAX_CLIENTS", 3)
    with connect(responder) as one, connect(responder) as other, connect(responder) as third:
        for client in (one, other):
            client.sendall(responder.token.encode())
            ask(client)
        assert third.recv(1) == b""


def test_a_forked_child_holds_nothing_open(responder):
    with connect(responder) as client:
        client.sendall(responder.token.encode())
        ask(client)
        ours = {key.fileobj.fileno() for key in responder._selector.get_map().values()}
        child = os.fork()
        if not child:
            responder.forget()
            open_still = {number for number in ours if Path(f"/proc/self/fd/{number}").exists()}
            os._exit(len(open_still))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ask(client), "the parent goes on"
