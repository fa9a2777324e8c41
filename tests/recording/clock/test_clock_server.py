"""The rank that is asked for the time: whom it answers, and what it keeps."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
import traceback
from pathlib import Path

import pytest

from distprof.recording.clock import responder as room
from distprof.recording.clock.exchange import ANSWER, ASK
from distprof.recording.clock.responder import TOKEN_BYTES, ClockResponder


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


def open_files() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


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
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"0" * 64, bytes(64), responder.token[:-1].encode() + b"g"):
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
    monkeypatch.setattr(room, "MAX_CLIENTS", 2)
    with connect(responder) as one, connect(responder) as other, connect(responder) as third:
        for client in (one, other):
            client.sendall(responder.token.encode())
            ask(client)
        third.sendall(responder.token.encode())
        assert third.recv(1) == b""
        one.close()
        with connect(responder) as fourth:  # there is room again
            fourth.sendall(responder.token.encode())
            assert ask(fourth)


def test_nothing_tells_a_stranger_how_much_of_a_token_is_right(responder):
    """Of guesses that begin right and wrong none is judged before it is whole."""
    token = responder.token.encode()
    guesses = [token[:number] + b"~" * (TOKEN_BYTES - 1 - number) for number in range(TOKEN_BYTES)]
    strangers = [connect(responder) for _ in guesses]
    for stranger, guess in zip(strangers, guesses, strict=True):
        for byte in guess:
            stranger.sendall(bytes([byte]))
    with connect(responder) as client:
        client.sendall(token)
        ask(client)  # all that was sent before is read by now
    for stranger in strangers[1:]:  # the oldest made room for the client
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.recv(1)
        stranger.setblocking(True)
        stranger.sendall(b"~")
        assert stranger.recv(1) == b""
        stranger.close()
    strangers[0].close()


def test_idle_strangers_are_sent_away_and_leave_room_for_ranks(responder, monkeypatch):
    monkeypatch.setattr(room, "STRANGER_S", 0.3)
    before = len(open_files())
    crowd = [connect(responder) for _ in range(4 * room.MAX_STRANGERS)]
    with connect(responder) as client:
        client.sendall(responder.token.encode())
        ask(client)
        assert len(open_files()) - before - len(crowd) <= room.MAX_STRANGERS + 2
        with connect(responder) as late:
            late.sendall(b"half")
            assert late.recv(1) == b"", "its time was up"
        ask(client)
    for stranger in crowd:
        stranger.close()


def test_without_file_descriptors_it_waits_for_some(responder, monkeypatch):
    monkeypatch.setattr(room, "PAUSE_S", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = connect(responder)
    client.sendall(responder.token.encode())
    ask(client)
    late = socket.socket()
    late.settimeout(10)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_files()) - 1, hard))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        late.connect(("127.0.0.1", responder.port))
        late.sendall(responder.token.encode())
        ask(client)
        began = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - began < 0.2, "it sleeps meanwhile"
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ask(late) and ask(client), "both are answered when there are some again"
    client.close()
    late.close()


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


@pytest.mark.parametrize("meets_somebody", [False, True])
def test_files_of_the_script_in_the_places_of_its_sockets_are_let_alone(tmp_path, meets_somebody):
    child = os.fork()  # numbers of files belong to all threads of a process
    if not child:
        try:
            reuses_numbers(tmp_path, meets_somebody=meets_somebody)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def reuses_numbers(folder, *, meets_somebody):
    responder = ClockResponder(remote=False)
    with connect(responder) as client:
        client.sendall(responder.token.encode())
        ask(client)
        ours = {key.fileobj.fileno() for key in responder._selector.get_map().values()} | {responder._waker.fileno()}
        assert len(ours) == 4
        for number in ours:
            with contextlib.suppress(OSError):  # it has noticed, and closed the rest
                os.close(number)
        files = [os.open(folder / str(number), os.O_CREAT | os.O_RDWR) for number in range(4)]
        assert set(files) == ours, "the numbers that are free, the smallest first"
        if meets_somebody:
            with contextlib.suppress(OSError):
                connect(responder).close()
        responder.close()
    for file in files:
        assert os.write(file, b"x") == 1 and os.fstat(file).st_size == 1
        os.close(file)
