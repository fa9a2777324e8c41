"""However a command is ended, and whatever it lacks: the right exit code, one line, nothing left behind."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from distprof.merge.writing.merge_folder import written_whole
from distprof.system import exchange
from support import forked
from support.jobs import PATIENCE_S, called, clean_environ
from support.rank_traces import slice_of, write_run

pytestmark = pytest.mark.job
COMMAND = (sys.executable, "-m", "distprof")
HOLD = """
import sys, time
from distprof.merge.chrome import rank_surveys
from distprof.merge.writing import merge_files

write = merge_files.write_merge

def held(*arguments):
    print("ready", flush=True)
    sys.stdin.readline()
    return write(*arguments)

merge_files.write_merge = held
if "threads" in sys.argv.pop(1):
    rank_surveys._survey = lambda *_: time.sleep(600)
from distprof.launch.cli import main
main()
"""
"""Merges, and waits for a line before the ranks are written; threads: while workers are busy for long."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With names enough that its collectives as JSON fill more than a pipe."""
    events = [slice_of(f"step {number}", number * 10, 5) for number in range(2000)]
    return write_run(tmp_path_factory.mktemp("run") / "run", events, events, events)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("rank"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def session(leader: int) -> list[str]:
    """Command lines of the processes that run in a session; one that has ended has none."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and os.getsid(int(process.name)) == leader:
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return [line.replace(b"\0", b" ").decode() for line in found if line]


# --- signals ----------------------------------------------------------------------------------------------------------


def heeds_hangups() -> None:
    """These tests may run under nohup, which programs inherit."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def held_merge(run: Path, *words: object, busy: str = "", before: Callable[[], object] | None = None,
               **environ: str) -> subprocess.Popen[str]:
    """A merge that waits for a line on its standard input, in a session of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, f"-{busy}", "merge", "--force", run, *words], stdin=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=before or heeds_hangups,
        env=clean_environ() | environ)
    assert process.stdout is not None and process.stdout.readline() == "ready\n", process.communicate()
    assert any(name.startswith(".merged.") for name in files_in(run))
    return process


CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}


@pytest.mark.parametrize(("engine", "busy", "number"), [
    pytest.param(engine, busy, number, marks=() if number in usual else pytest.mark.stress)
    for engine, busy, usual in (("compiled", "", CODES), ("compiled", "threads", [signal.SIGTERM]),
                                ("plain", "", [signal.SIGINT])) for number in CODES])
def test_a_signal_ends_a_merge_and_nothing_is_left(run, engine, busy, number):
    plain = {"DISTPROF_PLAIN_ENGINE": "1"} if engine == "plain" else {}
    process = held_merge(run, busy=busy, **plain)
    os.killpg(process.pid, number)  # a terminal sends it to all processes
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == CODES[number]
    assert [line for line in err.splitlines() if "merge engine: plain Python" not in line] == []
    assert [name for name in files_in(run) if name != "merged"] == []
    deadline = time.monotonic() + PATIENCE_S
    while session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session(process.pid) == []


def test_an_earlier_merge_survives_a_signal(run):
    subprocess.run([*COMMAND, "merge", "--force", run], check=True, capture_output=True, env=clean_environ())
    before = contents(run / "merged")
    process = held_merge(run)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
        process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (143, 129) and files_in(run) == ["merged"]
    assert contents(run / "merged") == before


def test_ctrl_c_while_modules_are_imported_shows_no_traceback():
    code = ("import signal, sys\n"
            "class Interrupted:\n"
            "    def find_spec(self, name, *_):\n"
            "        if name == 'click': signal.raise_signal(signal.SIGINT)\n"
            "sys.meta_path.insert(0, Interrupted())\n"
            "from distprof.__main__ import main\n"
            "main()\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_under_nohup_a_merge_goes_on(run):
    process = held_merge(run, before=partial(signal.signal, signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate("\n", timeout=PATIENCE_S)
    assert process.returncode == 0 and "3 of 3 ranks" in out, err


def test_workers_end_with_a_parent_that_is_killed(run):
    process = held_merge(run, DISTPROF_PLAIN_ENGINE="1")
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session(process.pid) == []
    for left in run.glob(".merged.*"):  # nobody could remove it
        subprocess.run(["rm", "-r", left], check=True)


def kill_merges(run: Path, number: int, seed: int) -> None:
    """At random moments; what is there afterwards is a whole merge, and no command is disturbed by what is left."""
    command = [*COMMAND, "merge", "--force", run]
    for _ in range(2):  # the first one starts the process that others are forked from
        begin = time.monotonic()
        assert forked.run(command, capture_output=True, env=clean_environ()).returncode == 0
    lasts_s, chance = time.monotonic() - begin, random.Random(seed)
    names, before = files_in(run), contents(run / "merged")
    for _ in range(number):
        process = forked.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env=clean_environ(), start_new_session=True)
        time.sleep(chance.uniform(0, 1.2 * lasts_s))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.communicate(timeout=PATIENCE_S)[1] == "" and process.returncode in (-signal.SIGKILL, 0)
        assert contents(run / "merged") == before
        assert all(name in names or name.startswith(".merged.") for name in files_in(run))
    for words in ("stats", "merge --force"):
        done = forked.run([*COMMAND, *words.split(), run], capture_output=True, text=True, env=clean_environ())
        assert (done.returncode, done.stderr) == (0, "")
    assert contents(run / "merged") == before
    for left in run.glob(".merged.*"):
        shutil.rmtree(left)


def test_kills_while_merging_leave_a_whole_merge(run):
    kill_merges(run, 3, 1)


def test_a_new_merge_takes_the_place_of_an_earlier_one_at_once(run, monkeypatch):
    assert called("merge", "--force", run).returncode == 0
    rename, seen = Path.rename, []

    def renamed(path: Path, target: Path) -> Path:
        seen.append((run / "merged" / "summary.json").exists())
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    for works in (True, False):
        monkeypatch.setattr("distprof.merge.writing.merge_folder.exchange", exchange if works else lambda *_: False)
        seen.clear()
        assert called("merge", "--force", run).returncode == 0 and files_in(run) == ["merged"]
        assert all(seen) == works, "without it there is none for a moment"


def test_an_earlier_merge_that_a_killed_one_left_under_another_name_goes_when_there_is_a_new_one(run):
    assert called("merge", "--force", run).returncode == 0
    left = (run / "merged").rename(run / ".merged.0123abcd.old")
    with pytest.raises(ZeroDivisionError), written_whole(run / "merged") as folder:
        (folder / "summary.json").write_text(str(1 // 0))
    assert files_in(run) == [left.name]
    assert called("merge", run).returncode == 0 and files_in(run) == ["merged"]


@pytest.mark.stress
def test_many_kills_while_merging_leave_a_whole_merge(everything):
    kill_merges(everything, 200, 2)


# --- standard streams -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("words", "closed"), [
    pytest.param(words, closed, marks=() if words == "merge --force" else pytest.mark.stress)
    for words in ("merge --force", "stats", "comms") for closed in ("2>&-", ">&-", "<&-", "<&- >&- 2>&-")])
def test_closed_streams_change_nothing(run, closed, words):
    done = subprocess.run(["bash", "-c", f'"$0" -m distprof {words} "$1" {closed}', sys.executable, run],
                          capture_output=True, text=True, env=clean_environ(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_with_stderr_closed_an_error_has_its_code_and_no_file_gets_it(run, tmp_path):
    done = subprocess.run(["bash", "-c", '"$0" -m distprof merge --out "$2" "$1" --ranks 99 2>&-', sys.executable, run,
                           tmp_path / "out"], capture_output=True, env=clean_environ(), check=False)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, b"", [])


@pytest.mark.parametrize("words", ["stats", "--help", *(pytest.param(words, marks=pytest.mark.stress) for words in (
    "merge --force", "comms --json", "stats --json", "merge --help"))])
def test_a_pipe_without_a_reader(run, words):
    """The code is that of SIGPIPE, as of `cat FILE | true`; nothing is said about it."""
    read, write = os.pipe()
    os.close(read)
    place = [] if "help" in words else [run]
    done = subprocess.run([*COMMAND, *words.split(), *place], stdout=write, stderr=subprocess.PIPE, text=True,
                          env=clean_environ(), check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_in_the_middle(tmp_path, unbuffered):
    events = [slice_of("gloo:all_reduce", number * 10, 5, cat="user_annotation") for number in range(500)]
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    with subprocess.Popen([*COMMAND, "comms", "--json", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          pipesize=4096, env=clean_environ() | {"PYTHONUNBUFFERED": unbuffered}) as process:
        assert process.stdout is not None and process.stderr is not None
        assert len(process.stdout.read(100)) == 100
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("words", ["stats", pytest.param("merge --force", marks=pytest.mark.stress)])
def test_a_full_disk_where_the_result_goes(run, words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, *words.split(), run], stdout=full, stderr=subprocess.PIPE, text=True,
                              env=clean_environ(), check=False)
        assert (done.returncode, done.stderr) == (
            1, "distprof: cannot write the result: No space left on device\n")


def test_a_full_disk_where_an_error_goes(run):
    with Path("/dev/full").open("w") as full:
        silent = subprocess.run([*COMMAND, "stats", f"{run}/none"], stderr=full, env=clean_environ(), check=False)
    assert silent.returncode == 1


# --- limits -----------------------------------------------------------------------------------------------------------


def limited(what: int, limit: int, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command under a limit, on two processors at most."""
    def before() -> None:
        resource.setrlimit(what, (limit, limit))
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

    # a cache that was cut by a limit on files would stay broken for ever
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, preexec_fn=before, check=False,
                          env=clean_environ() | {"PYTHONDONTWRITEBYTECODE": "1"} | environ)


def is_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> bool:
    lines = [line for line in done.stderr.splitlines() if "merge engine: plain Python" not in line]
    return len(lines) == 1 and all(part in lines[0] for part in ("distprof: ", "  hint: ", *parts)) and not done.stdout


@pytest.mark.parametrize(("words", "kilobytes"), [
    pytest.param(words, kilobytes, marks=() if kilobytes in usual else pytest.mark.stress)
    for words, usual in (("merge --force", (200_000, 600_000)), ("stats", (200_000,)), ("comms", (200_000, 1_000_000)))
    for kilobytes in (*range(200_000, 1_000_000, 100_000), *range(1_000_000, 1_200_000, 10_000))])
def test_short_memory_is_one_line(run, words, kilobytes):
    done = limited(resource.RLIMIT_AS, kilobytes << 10, *words.split(), run)
    if done.returncode:
        assert done.returncode == 1 and is_one_line(done, f"{kilobytes} KB", "ulimit -v"), done
    else:
        assert done.stdout and not done.stderr
    assert kilobytes > 200_000 or done.returncode
    assert [name for name in files_in(run) if name != "merged"] == []


@pytest.mark.parametrize("words", [("merge", "--force"), pytest.param(("stats",), marks=pytest.mark.stress), ("comms",),
                                   ("count",)],
                         ids=lambda words: words[0])
def test_the_memory_that_is_advised_is_enough(run, tmp_path, words):
    (tmp_path / "model.py").write_text("import torch\ndef build():\n    return torch.nn.Linear(2, 2), torch.ones(1, 2)")
    place = f"{tmp_path}/model.py:build" if words == ("count",) else run
    done = limited(resource.RLIMIT_AS, 2_000_000 << 10, *words, place)
    assert done.returncode == 0 and done.stdout and not done.stderr, done


def test_a_command_that_needs_torch_and_has_no_memory(tmp_path):
    (tmp_path / "model.py").write_text("import torch")
    done = limited(resource.RLIMIT_AS, 400_000 << 10, "count", f"{tmp_path}/model.py:build")
    assert done.returncode == 1 and is_one_line(done, "ulimit -v"), done


def test_under_a_limit_errors_and_signals_are_what_they_are_without(run):
    done = limited(resource.RLIMIT_AS, 2_000_000 << 10, "comms", "--op", "none", run)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and "--op" in done.stderr
    process = held_merge(run, before=partial(resource.setrlimit, resource.RLIMIT_AS, (2_000_000 << 10,) * 2))
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert [name for name in files_in(run) if name != "merged"] == []


@pytest.mark.parametrize("engine", ["compiled", "plain"])
@pytest.mark.parametrize("number", [
    8, 14, *(pytest.param(number, marks=pytest.mark.stress) for number in (6, 10, 12, 16))])
def test_few_open_files(run, number, engine):
    done = limited(resource.RLIMIT_NOFILE, number, "merge", "--force", run,
                   **({"DISTPROF_PLAIN_ENGINE": "1"} if engine == "plain" else {}))
    if done.returncode:
        assert done.returncode == 1 and is_one_line(done, f"the limit is {number}", "ulimit -n"), done
    else:
        assert "3 of 3 ranks" in done.stdout
    assert done.returncode or number > 8
    assert [name for name in files_in(run) if name != "merged"] == []


@pytest.mark.parametrize(("engine", "size"), [
    pytest.param(engine, size, marks=() if size == usual else pytest.mark.stress)
    for engine, usual in (("compiled", 4 << 10), ("plain", 0)) for size in (0, 1 << 10, 2 << 10, 4 << 10, 8 << 10)])
def test_files_that_may_not_grow(run, size, engine):
    done = limited(resource.RLIMIT_FSIZE, size, "merge", "--force", run,
                   **({"DISTPROF_PLAIN_ENGINE": "1"} if engine == "plain" else {}))
    assert done.returncode == 1 and "File too large  hint: " in done.stderr.splitlines()[-1], done
    assert [name for name in files_in(run) if name != "merged"] == []


OTHER_USER = ("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "--inh-caps", "+dac_override",
              "--ambient-caps", "+dac_override", "bash", "-c", 'ulimit -u "$0"; exec "$@"')
"""Runs a command as another user, who may read our files: `ulimit -u` counts the processes of a user."""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root may be another user, and "
                    "its own processes are not limited")
@pytest.mark.parametrize(("words", "number"), [
    pytest.param(words, number, marks=() if number in usual else pytest.mark.stress)
    for words, usual in (("stats", (1,)), ("comms", (1,)), ("merge --force", (1, 4))) for number in (1, 3, 4, 6)])
def test_few_threads(words, number):
    with TemporaryDirectory() as place:  # that of pytest is closed to others
        Path(place).chmod(0o755)
        run = write_run(Path(place) / "run", [slice_of("one", 0, 5)], [slice_of("two", 0, 5)])
        done = subprocess.run([*OTHER_USER, str(number), *COMMAND, *words.split(), run], capture_output=True, text=True,
                              check=False, env=clean_environ())
    if done.returncode:
        assert done.returncode == 1 and is_one_line(done, f"the limit is {number} processes", "ulimit -u"), done
    else:
        assert done.stdout and not done.stderr
    assert number > 1 or done.returncode
