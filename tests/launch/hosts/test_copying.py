"""Files of one host arrive at the first one as they are; who is not of the job, or wants more, is refused."""

from __future__ import annotations

import random
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from distprof.contract import rank_json
from distprof.contract.rank_json import RankJson
from distprof.contract.run_json import RunJson
from distprof.contract.watch_state import WindowRequest
from distprof.errors import DataError, UsageError
from distprof.launch.hosts import copy_process
from distprof.launch.hosts import sender as sending
from distprof.launch.hosts.changes import Changes
from distprof.launch.hosts.connection import connected
from distprof.launch.hosts.first_host import FirstHost
from distprof.launch.hosts.hosts_process import asked
from distprof.launch.hosts.protocol import End, FromHosts, HostsOrder, Meet
from distprof.launch.hosts.received_files import ReceivedFiles, take_request
from distprof.launch.hosts.sender import Sender
from distprof.launch.hosts.wire import CHUNK_BYTES, PROTOCOL, Announcement, Drop, Hello, Move, Put, server_context
from support.jobs import PATIENCE_S

STEM, HERE, THERE = "host-b-12345678", "aaaa", "bbbb"


def a_run(folder: Path, directory_id: str) -> Path:
    folder.mkdir()
    rank_json.write(folder / "run.json", RunJson(run_id="r", directory_id=directory_id))
    return folder


def a_rank(folder: Path, *, boot_id: str = "12345678", **files: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    about = RankJson(run_id="r", status="recording", rank=1, world_size=2, host="host-b", boot_id=boot_id)
    rank_json.write(folder / "rank.json", about)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


def a_file(path: str, content: bytes = b"x", *, offset: int = 0, appends: bool = False) -> Put:
    return Put(path=path, offset=offset, content=content, appends=appends, is_last=True)


def content_of(run: Path) -> dict[str, bytes]:
    return {file.relative_to(run).as_posix(): file.read_bytes() for file in run.rglob("rank*/*")
            if not file.name.startswith(".")}


@pytest.fixture
def received(tmp_path: Path) -> ReceivedFiles:
    return ReceivedFiles(a_run(tmp_path / "run", HERE), STEM, THERE, {})


def copied(changes: Changes, to: ReceivedFiles, *, at_end: bool = True) -> list[str]:
    """Copies changes as `Sender` does; gives the reasons why some were refused."""
    refused = []
    for change in changes.look(at_end=at_end):
        does = {Put: to.put, Move: to.move, Drop: to.drop}[type(change.said)]
        answer = does(change.said)
        if answer.size is not None:
            changes.differs(change, answer.size)
        elif answer.refused:
            refused.append(answer.refused)
        else:
            changes.copied(change)
    return refused


@pytest.mark.parametrize("path", [
    "../x", "rank00001/../../x", "/etc/x", "rank00001", "rank00001/", "rank00001/a/b", "rank00001/.hidden", "run.json",
    "rank1/x", "rank00001\n/x", "rank00001/x\n", "rank9999999/x", "watch/state.json", "merged/x", ".claim/x",
    "windows/0001/run.json", "windows/1/rank00001/x", "attempt0000/x", "hosts/host-a-1/conditions-000.bin",
    "hosts/../x", "columns/host-a-1.bin", "columns/../rank00001/x", "rank00001.partial.partial/x", ""])
def test_files_that_no_host_sends_are_refused(received: ReceivedFiles, tmp_path: Path, path: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert received.put(a_file(path)).refused
    assert received.drop(Drop(path=path)).refused
    assert received.move(Move(path=path, to="rank00001")).refused
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("path", [
    "rank00001/x", "rank00001.partial/rank.json", "attempt0001/rank00001/x", "windows/0001/rank00001/x",
    "windows/0001/attempt0001/rank00001.partial/x", f"hosts/{STEM}/conditions-000.bin", f"columns/{STEM}.bin"])
def test_files_of_ranks_hosts_and_summaries_are_taken(received: ReceivedFiles, tmp_path: Path, path: str) -> None:
    assert not received.put(a_file(path)).refused
    assert (tmp_path / "run" / path.replace(f"{STEM}.bin", f"{STEM}-{THERE}.bin")).read_bytes() == b"x"


def test_neither_ranks_of_this_host_nor_those_of_a_third_one_are_overwritten(tmp_path: Path) -> None:
    run, owners = a_run(tmp_path / "run", HERE), {}
    a_rank(run / "rank00000", x=b"mine")
    second, third = (ReceivedFiles(run, STEM, name, owners) for name in (THERE, "cccc"))
    assert not second.put(a_file("rank00001.partial/x", b"second")).refused
    for path in ("rank00000/x", "rank00000.partial/x"):
        assert "is recorded on this host" in second.put(a_file(path)).refused
    for path in ("rank00001/x", "rank00001.partial/x"):
        assert "belongs to another host" in third.put(a_file(path)).refused
    assert third.move(Move(path="rank00001.partial", to="rank00002")).refused
    assert second.move(Move(path="rank00001.partial", to="rank00000")).refused
    found = content_of(run)
    assert found.pop("rank00000/rank.json")
    assert found == {"rank00000/x": b"mine", "rank00001.partial/x": b"second"}


def test_a_link_in_the_way_is_not_followed(received: ReceivedFiles, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"theirs")
    assert not received.put(a_file("rank00001/y")).refused
    (tmp_path / "run" / "rank00001" / "x").symlink_to(outside / "x")
    assert received.put(a_file("rank00001/x", b"ours", offset=6, appends=True)).refused
    (tmp_path / "run" / "windows").symlink_to(outside)
    assert received.put(a_file("windows/0001/rank00001/x")).refused
    assert [(file.name, file.read_bytes()) for file in outside.iterdir()] == [("x", b"theirs")]


def test_a_run_directory_that_was_removed_is_not_made_again(received: ReceivedFiles, tmp_path: Path) -> None:
    (tmp_path / "run" / "run.json").unlink()
    (tmp_path / "run").rmdir()
    assert received.put(a_file("rank00001/x")).refused
    assert not (tmp_path / "run").exists()


def test_no_room_is_said(received: ReceivedFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.launch.hosts.received_files.FREE_BYTES", 1 << 62)
    assert "is full" in received.put(a_file("rank00001/x")).refused


def test_bytes_that_do_not_fit_behind_what_is_there_are_not_written(received: ReceivedFiles, tmp_path: Path) -> None:
    assert received.put(a_file("rank00001/watch-000.bin", b"abc", appends=True)).size is None
    for offset in (2, 4):
        assert received.put(a_file("rank00001/watch-000.bin", b"x", offset=offset, appends=True)).size == 3
    assert (tmp_path / "run/rank00001/watch-000.bin").read_bytes() == b"abc"


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_in_a_folder_of_a_rank_arrives(tmp_path: Path, seed: int) -> None:
    """Files grow, are replaced and removed; the folder becomes whole, and then one of an earlier attempt."""
    random_ = random.Random(seed)
    there = a_run(tmp_path / "there", THERE)
    received = ReceivedFiles(a_run(tmp_path / "here", HERE), STEM, THERE, {})
    changes = Changes(there, STEM, "host-b", "12345678")
    folder = a_rank(there / "rank00001.partial")
    for step in range(30):
        name = random_.choice(["watch-000.bin", "watch-001.bin", "steps.ndjson", "trace.json.gz", "ops.parquet"])
        what, file = random_.random(), folder / name
        if what < 0.6:
            with file.open("ab") as grown:
                grown.write(random_.randbytes(random_.choice([1, 1000, CHUNK_BYTES + 5])))
        elif what < 0.7:
            file.write_bytes(random_.randbytes(random_.randrange(100, 5000)))  # the inode is that of the one before
        elif what < 0.8:
            (folder / ".new").write_bytes(random_.randbytes(random_.randrange(3000)))
            (folder / ".new").replace(file)
        else:
            file.unlink(missing_ok=True)
        if step == 15:
            folder = folder.rename(there / "rank00001")
        if step == 24:
            (there / "attempt0000").mkdir()
            folder = folder.rename(there / "attempt0000" / "rank00001")
            a_rank(there / "rank00001.partial", x=b"of the next attempt")
        if random_.random() < 0.5:
            assert not copied(changes, received, at_end=random_.random() < 0.5)
    assert not copied(changes, received)
    assert content_of(tmp_path / "here") == content_of(there)


def test_what_a_watch_reads_does_not_wait_for_a_timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "EVERY_S", 0.0)
    monkeypatch.setattr(sending, "BULK_BYTES_S", 1e12)
    there = a_run(tmp_path / "there", THERE)
    a_rank(there / "rank00000", trace__json=bytes(4 * CHUNK_BYTES))
    watch = a_rank(there / "rank00001") / "watch-000.bin"
    sender, asked = Sender(there, host="host-b", stem=STEM, boot_id="12345678", say=print, uploaded=False), list[str]()

    def ask(said: object) -> SimpleNamespace:
        path = getattr(said, "path", "")
        if path.endswith("trace.json") and path not in asked:
            watch.write_bytes(b"rows")
        asked.append(path)
        return SimpleNamespace(size=None, refused="", files={})

    connection = SimpleNamespace(ask=ask)
    sender._send(connection, at_end=False)  # a timeline is sent once it no longer changes
    sender._send(connection, at_end=False)
    timeline = [place for place, path in enumerate(asked) if path.endswith("trace.json")]
    row = next(place for place, path in enumerate(asked) if path.endswith("watch-000.bin"))
    assert len(timeline) == 4 and timeline[0] < row < timeline[-1]


def test_ranks_of_another_machine_are_not_brought(tmp_path: Path) -> None:
    there = a_run(tmp_path / "there", THERE)
    a_rank(there / "rank00001", boot_id="another", x=b"x")
    assert not list(Changes(there, STEM, "host-b", "12345678").look(at_end=True))


def test_a_folder_is_whole_only_once_all_of_it_is_there(tmp_path: Path) -> None:
    there = a_run(tmp_path / "there", THERE)
    a_rank(there / "rank00001", trace=b"large")
    here = a_run(tmp_path / "here", HERE)
    received, changes = ReceivedFiles(here, STEM, THERE, {}), Changes(there, STEM, "host-b", "12345678")
    assert not copied(changes, received, at_end=False)  # the trace may still be written
    assert (here / "rank00001.partial").is_dir() and not (here / "rank00001").exists()
    assert not copied(changes, received)
    assert content_of(here) == content_of(there)


def test_the_newer_request_counts(tmp_path: Path) -> None:
    def content(number: int, stacks: int = 0) -> bytes:
        return msgspec.json.encode(WindowRequest(number=number, first_step=5, steps="trace=1", stacks=stacks))

    run = a_run(tmp_path / "run", HERE)
    assert take_request(run, content(2)) and not take_request(run, content(2)) and not take_request(run, content(1, 9))
    assert take_request(run, content(2, 1)) and take_request(run, content(3))
    assert not take_request(run, b"\xff{") and not take_request(run, b'{"number": "x"}')
    assert (run / "watch" / "request.json").read_bytes() == content(3)


# --- over a connection --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that nobody signed, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=job", "-keyout",
                    folder / "key.pem", "-out", folder / "cert.pem"], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    return both


def announced(run: Path, certificate: Path | None = None) -> tuple[FirstHost, Announcement]:
    context, shown = server_context(certificate, None) if certificate is not None else (None, "")
    first = FirstHost(run, HERE, context)
    port = first.listen("127.0.0.1", 0)
    return first, Announcement(protocol=PROTOCOL, addresses=["127.0.0.1"], port=port, token=first.token,
                               certificate=shown, host="host-a")


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_host_sends_its_ranks_and_hears_what_the_watch_knows(tmp_path: Path, certificate: Path,
                                                               encrypted: bool) -> None:
    here, there = a_run(tmp_path / "here", HERE), a_run(tmp_path / "there", THERE)
    (here / "watch").mkdir()
    (here / "watch" / "state.json").write_bytes(b"state")
    folder = a_rank(there / "rank00001.partial", trace=random.Random(0).randbytes(3 * CHUNK_BYTES + 1))
    first, to = announced(here, certificate if encrypted else None)
    said = list[str]()
    sender = Sender(there, host="host-b", stem=STEM, boot_id="12345678", say=said.append, uploaded=False)
    sender.meet(to, 1)
    until = time.monotonic() + PATIENCE_S
    while not (there / "watch" / "state.json").exists() or not (here / "rank00001.partial").exists():
        assert time.monotonic() < until, said
        time.sleep(0.02)
    folder.rename(there / "rank00001")
    sender.finish(End(exit_code=3, failed={"failed_rank": 1}))
    assert sender.state == "copied" and sender.place == f"host-a:{here}" and not said
    assert content_of(here) == content_of(there)
    done = first.hosts[1].done
    assert done is not None and done.exit_code == 3 and done.failed == {"failed_rank": 1}
    assert (there / "watch" / "state.json").read_bytes() == b"state"


def test_one_directory_that_both_record_into_is_left_alone(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", HERE)
    a_rank(run / "rank00001", x=b"x")
    first, to = announced(run)
    sender = Sender(run, host="host-b", stem=STEM, boot_id="12345678", say=print, uploaded=False)
    sender.meet(to, 1)
    sender.finish(End(exit_code=0))
    assert sender.state == "shared" and not first.places


@pytest.mark.parametrize("wrong", ["token", "certificate"])
def test_who_is_not_of_the_job_is_refused(tmp_path: Path, certificate: Path, wrong: str) -> None:
    first, to = announced(a_run(tmp_path / "run", HERE), certificate)
    other = msgspec.structs.replace(to, **{wrong: "0" * 64})
    with pytest.raises(OSError), connected(other):
        pass
    assert not first.hosts
    with connected(to) as connection:
        assert connection.ask(Hello(host="b", stem=STEM, node=1, directory_id=THERE)).place


def test_what_is_no_host_of_the_job_is_not_told_the_token(tmp_path: Path) -> None:
    """Something that repeats what it gets, for instance."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:
        def repeat() -> None:
            wire, _ = server.accept()
            with wire:
                wire.sendall(b"dphosts1" + bytes(32))
                heard.extend(wire.recv(1 << 16))
                wire.sendall(heard[-32:])

        thread = threading.Thread(target=repeat)
        thread.start()
        to = Announcement(protocol=PROTOCOL, addresses=["127.0.0.1"], port=server.getsockname()[1], token="secret" * 9,
                          certificate="", host="a")
        with pytest.raises(OSError, match="does not know the token"), connected(to):
            pass
        thread.join()
    assert heard and b"secret" not in heard


def test_messages_that_were_changed_repeated_or_are_nonsense_end_the_connection(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", HERE)
    _, to = announced(run)
    hello = Hello(host="b", stem=STEM, node=1, directory_id=THERE)

    def changed(content: bytes) -> bytes:
        return content[:-1] + bytes([content[-1] ^ 1])

    for spoil in (changed, lambda content: content[20:], lambda content: b"\xff" * 20 + content):
        with connected(to) as connection:
            connection.ask(hello)
            connection._wire = _Spoiling(connection._wire, spoil)
            with pytest.raises((OSError, DataError)):
                connection.ask(a_file("rank00001/x"))
    assert not (run / "rank00001").exists()
    with connected(to) as connection:  # and the next one is served
        connection.ask(hello)
        assert not connection.ask(a_file("rank00001/x")).refused


@pytest.mark.parametrize(("limit", "most"), [("MOST_HOST_BYTES", 5), ("MOST_HOST_FILES", 1)])
def test_what_a_host_may_send_does_not_begin_again_with_each_connection(tmp_path: Path, limit: str, most: int,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"distprof.launch.hosts.received_files.{limit}", most)
    _, to = announced(a_run(tmp_path / "run", HERE))
    refused = []
    for number, directory_id in ((1, THERE), (1, "cccc"), (2, THERE)):
        with connected(to) as connection:
            connection.ask(Hello(host="b", stem=STEM, node=1, directory_id=directory_id))
            refused.append(connection.ask(a_file(f"columns/{STEM}-{number}.bin", b"abc")).refused)
    assert refused == ["", "", "this is more than a host may send"]


class _Spoiling:
    """A connection that sends something else."""

    def __init__(self, wire, spoil) -> None:
        self._wire, self._spoil = wire, spoil

    def sendall(self, content: bytes) -> None:
        self._wire.sendall(self._spoil(content))

    def __getattr__(self, name: str):
        return getattr(self._wire, name)


def test_a_host_that_is_silent_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distprof.launch.hosts.first_host.PROVES_S", 0.3)
    monkeypatch.setattr("distprof.launch.hosts.first_host.SILENT_S", 0.3)
    _, to = announced(a_run(tmp_path / "run", HERE))
    with socket.create_connection(("127.0.0.1", to.port)) as wire:
        wire.settimeout(PATIENCE_S)
        assert wire.recv(100) and wire.recv(100) == b""
    with connected(to) as connection:
        connection.ask(Hello(host="b", stem=STEM, node=1, directory_id=THERE))
        assert connection._wire.recv(1) == b""


def test_a_first_host_that_is_not_there_is_said_once_and_the_files_stay(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "GIVEN_UP_S", 0.5)
    there = a_run(tmp_path / "there", THERE)
    a_rank(there / "rank00001", x=b"x")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    to = Announcement(protocol=PROTOCOL, addresses=["127.0.0.1"], port=port, token="t", certificate="", host="host-a")
    said = list[str]()
    sender = Sender(there, host="host-b", stem=STEM, boot_id="12345678", say=said.append, uploaded=False)
    sender.meet(to, 1)
    sender.finish(End(exit_code=0))
    assert sender.state == "kept"
    line, = said
    assert "cannot copy files to host-a" in line and "Connection refused" in line and "hint:" in line


def test_a_first_host_whose_packets_are_dropped_is_said_while_the_job_runs(tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt then ends only after the timeouts of all addresses."""
    now_s, said_s, said = 0.0, list[float](), list[str]()

    def attempt(_: Announcement) -> None:
        nonlocal now_s
        now_s += 12.0
        if now_s > 200.0:
            sender._end = End(exit_code=0)
        raise OSError("timed out")

    monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(sending, "connected", attempt)
    sender = Sender(a_run(tmp_path / "there", THERE), host="host-b", stem=STEM, boot_id="12345678",
                    say=lambda line: (said.append(line), said_s.append(now_s)), uploaded=False)
    monkeypatch.setattr(sender, "_changed", SimpleNamespace(wait=lambda _: None, clear=lambda: None))
    sender._to = Announcement(protocol=PROTOCOL, addresses=["a"], port=1, token="t", certificate="", host="host-a")
    sender._work()
    assert said_s == [48.0], "by the first attempt that ends 30 s or more after the first failure"
    assert "cannot copy files to host-a" in said[0] and "timed out" in said[0]


@pytest.mark.parametrize(("host", "announced"), [("127.0.0.2", ["127.0.0.2", "127.0.0.1", "host-a"]),
                                                 ("127.0.0.1", ["127.0.0.1", "host-a"]), ("", ["127.0.0.1", "host-a"]),
                                                 ("0.0.0.0", ["127.0.0.1", "host-a"])])
def test_a_host_that_listens_on_one_address_is_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str,
                                                           announced: list[str]) -> None:
    told = list[FromHosts]()
    monkeypatch.setattr(copy_process, "tell", told.append)
    order = HostsOrder(directory=str(a_run(tmp_path / "run", HERE)), uploaded=False, listen=(host, 0))
    copy_process.CopyProcess(order).meet(Meet(node=0, num_nodes=2, addresses=["127.0.0.1", "host-a"]))
    serving = told[0].serving
    assert serving is not None and serving.addresses == announced
    with connected(serving) as connection:
        assert connection.ask(Hello(host="b", stem=STEM, node=1, directory_id=THERE)).place


def test_files_that_arrive_while_the_first_host_waits_are_among_those_that_others_upload(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left there, they would be uploaded as an unfinished rank of the first host."""
    here, there, told = a_run(tmp_path / "here", HERE), a_run(tmp_path / "there", THERE), list[FromHosts]()
    a_rank(there / "rank00001.partial")
    monkeypatch.setattr(copy_process, "tell", told.append)
    first = copy_process.CopyProcess(HostsOrder(directory=str(here), uploaded=True, listen=("127.0.0.1", 0)))
    first.meet(Meet(node=0, num_nodes=2, addresses=["127.0.0.1"]))
    assert told[0].serving is not None
    sender = Sender(there, host="host-b", stem=STEM, boot_id="12345678", say=print, uploaded=True)
    with ThreadPoolExecutor(1) as waiting:
        gathered = waiting.submit(first.finish, End(exit_code=0))
        time.sleep(0.2)
        sender.meet(told[0].serving, 1)
        sender.finish(End(exit_code=0))
        assert gathered.result(PATIENCE_S).places == ["rank00001"]
    assert (here / "rank00001.partial").is_dir()


def test_flags_are_checked_before_the_job(certificate: Path, tmp_path: Path) -> None:
    assert asked("off", None, None) is None
    order = asked("29600", str(certificate), None)
    assert order is not None and order.listen == ("", 29600) and order.certificate == str(certificate)
    (tmp_path / "x.pem").write_text("no certificate")
    for words in (("yes", None, None), ("on", str(tmp_path / "x.pem"), None), ("on", None, str(certificate)),
                  ("on", str(tmp_path / "none"), None)):
        with pytest.raises(UsageError) as error:
            asked(*words)
        assert error.value.hint
