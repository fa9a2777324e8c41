"""`distprof watch`: a run directory, a URL of one, a launcher; once, as JSON, and live on a terminal."""

from __future__ import annotations

import functools
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

from distprof.contract.watch_state import FORMAT, WatchState, write_state
from distprof.launch.watching import watched_job
from distprof.launch.watching.metrics import MetricsServer
from distprof.launch.watching.watched_job import LauncherSource, RunSource, source_of
from support.jobs import called
from support.made_up_states import job_state
from support.ports import free_port
from support.terminal import Screen, on_terminal_of_its_own
from support.watched_ranks import MadeUpRank, PlainEngine, make_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def plain_engine(monkeypatch):
    monkeypatch.setattr(watched_job, "_job_watch", PlainEngine)


def test_what_the_watcher_wrote_is_shown(run):
    write_state(run, job_state())
    done = called("watch", run)
    assert done.returncode == 0 and f"{run}\nrunning: 7,000 steps; 4 ranks;" in done.stdout
    assert json.loads(called("watch", run, "--once", "--json").stdout)["findings"][0]["ranks"] == [1]


@pytest.mark.parametrize("hours", [-1, 1])
def test_where_the_watcher_is_gone_the_files_tell(run, hours, plain_engine):
    write_state(run, job_state(time_ns=time.time_ns() + hours * 3600 * 10**9))
    MadeUpRank(run, 0).steps(30)
    assert json.loads(called("watch", run, "--json").stdout)["num_steps"] == 30


def test_the_last_word_on_a_job_that_is_over_stays(run):
    write_state(run, job_state(running=False, time_ns=1))
    MadeUpRank(run, 0).steps(30)
    assert "over: 7,000 steps" in called("watch", run).stdout


@pytest.mark.parametrize(("fields", "word"), [({}, "running"), ({"end_ns": 1}, "over")])
def test_a_run_without_a_watcher_is_read_from_its_files(tmp_path, fields, word, plain_engine):
    run = make_run(tmp_path / "run", **fields)
    for rank in (MadeUpRank(run, rank) for rank in range(3)):
        rank.steps(30)
    assert f"{word}: 30 steps; 3 ranks" in called("watch", run).stdout


def test_files_are_read_once(run, plain_engine):
    rank, source = MadeUpRank(run, 0), RunSource(run)
    rank.steps(30)
    assert source.state().num_steps == 30
    rank.steps(30)
    assert source.state().num_steps == 60


def test_a_run_of_which_nothing_was_watched_is_one_line(run):
    MadeUpRank(run, 0)
    done = called("watch", run)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "no step was watched yet" in done.stderr


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_what_is_no_run_is_one_line(tmp_path, name):
    (tmp_path / "file").write_text("x")
    done = called("watch", tmp_path / name)
    assert done.returncode == 1 and f"{name} is not a run directory" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("content", "words"), [
    (b"{", "is damaged"), (b'{"format": 1}', "is damaged"), (b"\xff\xfe", "is damaged"),
    (b'{"x":' * 100_000, "is damaged"),
    (b'{"format": %d}' % (FORMAT + 1), "--upgrade distprof")])
def test_a_state_that_cannot_be_read_is_one_line(run, content, words):
    (run / "watch").mkdir()
    (run / "watch" / "state.json").write_bytes(content)
    done = called("watch", run)
    assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1


def test_a_launcher_is_asked_by_host_and_port():
    server = MetricsServer("127.0.0.1", 0)
    try:
        place = f"127.0.0.1:{server.server_port}"
        assert "no step was watched yet" in called("watch", place).stderr
        server.state = job_state()
        assert called("watch", place).stdout.startswith(f"{place}\nrunning: 7,000 steps")
        assert called("watch", f"http://{place}/").stdout.startswith(place)
    finally:
        server.shutdown()
        server.server_close()


def test_a_launcher_that_is_not_there_is_one_line():
    done = called("watch", f"127.0.0.1:{free_port()}")
    assert done.returncode == 1 and "does not answer: Connection refused  hint:" in done.stderr


def test_another_server_is_one_line(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = called("watch", f"127.0.0.1:{server.server_port}")
        server.shutdown()
    assert done.returncode == 1 and "answers 404: it is no launcher with --metrics" in done.stderr


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_run_on_a_web_server_is_read_by_its_url(tmp_path, run, plain_engine):
    write_state(run, job_state())
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/run"
        first = called("watch", url)
        shutil.rmtree(run / "watch")
        rank = MadeUpRank(run, 0)
        rank.steps(30)
        source = source_of(url)
        steps = [source.state().num_steps]
        rank.steps(30)
        steps.append(source.state().num_steps)
        server.shutdown()
    assert "7,000 steps" in first.stdout and steps == [30, 60]


@pytest.mark.parametrize(("text", "kind"), [
    ("host7:9464", LauncherSource), ("http://host7:9464", LauncherSource), ("[::1]:9464", LauncherSource),
    ("runs/a", RunSource), ("runs/a:1", RunSource), ("host7", RunSource)])
def test_places(text, kind):
    assert type(source_of(text)) is kind


def test_a_folder_is_taken_before_a_host_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a:1")
    assert type(source_of("a:1")) is RunSource
    assert watched_job.ANSWER_S <= 5


@pytest.mark.job
def test_on_a_terminal_it_draws_until_the_job_is_over_and_leaves_the_last_screen(run):
    with written_again_and_again(run) as written:
        def watch(text: str) -> None:
            screen = Screen()
            screen.feed(text)
            shown = "\n".join(line.rstrip() for line in screen.screen.display)
            if "running: 7,000 steps" in shown and "+18.00 ms, forward" in shown:
                written.state = job_state(num_steps=7111)
            if "running: 7,111 steps" in shown:
                written.state = job_state(num_steps=7222, running=False)

        code, text = on_terminal_of_its_own("watch", run, watch=watch)
    assert code == 0 and written.state.num_steps == 7222
    after = text.rpartition("\x1b[?1049l")[2]
    assert "over: 7,222 steps" in after and "rank 1 slow from step 6,204 on" in after


class Written:
    """What a watcher would write now."""

    def __init__(self, state: WatchState) -> None:
        self.state = state


@contextmanager
def written_again_and_again(run: Path) -> Iterator[Written]:
    written, over = Written(job_state()), threading.Event()

    def write() -> None:
        while not over.wait(0.2):
            write_state(run, replace(written.state, time_ns=time.time_ns()))

    write_state(run, written.state)
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()
