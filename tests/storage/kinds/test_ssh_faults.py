"""What an SSH server does to a command: it is overcome, or said in one line with a hint."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distprof.storage import stream
from distprof.storage.places import place
from distprof.storage.retrying import VARIABLE
from support.jobs import PATIENCE_S, called
from support.missing import missing
from support.rank_traces import slice_of, write_run
from support.ssh_server import SshServer, make_key, ssh_server, why_not
from support.storages import use

if reason := missing("sshfs") or why_not():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    with ssh_server(tmp_path / "ssh") as started:
        use(monkeypatch, started.environ())
        monkeypatch.setenv(VARIABLE, "0.5")
        yield started
    use(monkeypatch, {})


@pytest.fixture
def run(server: SshServer, tmp_path: Path) -> str:
    here = write_run(tmp_path / "run", *([slice_of(f"op{number}", 10 * number, 5) for number in range(2000)]
                                         for _ in range(2)))
    return f"ssh://{server.host}{here}"


def _one_line(*words: object) -> str:
    done = called(*words)
    assert done.returncode == 1, done.stdout
    line, = done.stderr.splitlines()
    assert "  hint: " in line
    return line


@pytest.mark.long
@pytest.mark.parametrize("changed", [False, True])
def test_a_host_whose_key_is_not_known_is_not_trusted(changed: bool, run: str, server: SshServer,
                                                          tmp_path: Path) -> None:
    known = server.home / ".ssh" / "known_hosts"
    known.unlink()
    if changed:
        make_key(tmp_path / "other")
        known.write_text(f"[127.0.0.1]:{server.port} {(tmp_path / 'other.pub').read_text()}")
    line = _one_line("stats", run)
    assert line.startswith(f"distprof: cannot reach {run}: its host key is unknown (")
    assert "hint: is it the right host?" in line


def test_a_key_that_is_refused_is_said(run: str, server: SshServer) -> None:
    make_key(server.home / ".ssh" / "id_ed25519")
    line = _one_line("stats", run)
    assert line.startswith(f"distprof: cannot reach {run}: the credentials were refused (Permission denied for user ")
    assert "hint: are credentials set" in line


def test_a_server_that_is_not_there_is_said(run: str, server: SshServer) -> None:
    server.kill()
    assert _one_line("stats", run).startswith(f"distprof: cannot reach {run}: the connection failed (")


def test_a_server_that_goes_in_the_middle_is_said(run: str, server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FIRST_BYTES", 1 << 12)
    with (place(run) / "rank00001" / "trace.json.gz").open("rb") as file:
        file.read(100)
        server.kill()
        with pytest.raises(Exception, match=r"cannot reach ssh://.*the connection failed"):
            file.read()


def test_a_server_that_is_started_again_is_connected_to_again(run: str, server: SshServer,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "60")
    monkeypatch.setattr(stream, "FIRST_BYTES", 1 << 12)
    path = place(run) / "rank00001" / "trace.json.gz"
    with path.open("rb") as file:
        first = file.read(100)
        server.kill()
        again = threading.Thread(target=lambda: (time.sleep(0.3), server.start()))
        again.start()
        whole = first + file.read()
        again.join()
    assert whole == Path(path.url.partition(str(server.port))[2]).read_bytes()


def test_a_folder_that_may_not_be_written_is_noticed_before_the_work(run: str, server: SshServer,
                                                                     tmp_path: Path) -> None:
    server.kill()
    server.start(more="-R")
    there = f"ssh://{server.host}{tmp_path}/m"
    line = _one_line("merge", run, "--out", there)
    assert line.startswith(f"distprof: cannot write {there}: access was denied (")
    assert "hint: can these credentials write there?" in line
    assert not (tmp_path / "m").exists()


def test_what_is_no_folder_is_said(run: str, server: SshServer, tmp_path: Path) -> None:
    assert "does not exist" in _one_line("stats", f"{run}/no folder")
    (tmp_path / "file").write_text("x")
    assert "cannot write" in _one_line("merge", run, "--out", f"ssh://{server.host}{tmp_path}/file/m")


@pytest.mark.long
def test_half_of_what_is_written_never_has_its_name(server: SshServer, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    from distprof.storage.kinds.schemes import backend_of
    from distprof.storage.writing.uploading import put_file

    (tmp_path / "long").write_bytes(bytes(300 << 20))  # it takes far longer than to notice its first part
    url = f"ssh://{server.host}{tmp_path}/there/x"
    backend_of(url).put(url, b"old")
    ended = threading.Thread(target=lambda: (_wait_for_part(tmp_path / "there"), server.kill()))
    ended.start()
    with pytest.raises(Exception, match="the connection failed"):
        put_file(tmp_path / "long", url)
    ended.join()
    assert (tmp_path / "there" / "x").read_bytes() == b"old"


def _wait_for_part(folder: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while not [part for part in folder.glob(".x.*.tmp") if part.stat().st_size]:
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.long
def test_links_are_followed_and_go_in_no_circles(run: str, tmp_path: Path) -> None:
    local = called("stats", tmp_path / "run").stdout
    shutil.move(tmp_path / "run" / "rank00001", tmp_path / "elsewhere")
    (tmp_path / "run" / "rank00001").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "up").symlink_to(tmp_path / "run")
    (tmp_path / "run" / "nowhere").symlink_to(tmp_path / "nothing")
    done = called("stats", run)
    assert (done.returncode, done.stdout.replace(run, str(tmp_path / "run"))) == (0, local), done.stderr
