"""A forked Python does what one that starts does: the same script both ways."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import forked
from support.fork_server import SPAWNED
from support.jobs import SCRIPTS, clean_environ, distprof

SHOWS = """
import json, os, sys, threading
shown = {"argv": sys.argv, "path": [one for one in sys.path if one][:2], "name": __name__,
         "file": globals().get("__file__"),
         "folder": os.getcwd(), "environ": dict(os.environ), "session": os.getsid(0) == os.getpid(),
         "files": sorted(int(one) for one in os.listdir("/proc/self/fd"))[:-1],
         "streams": [(one.encoding, one.errors, one.line_buffering, one.isatty(), one is sys.stdin or one.write_through)
                     for one in (sys.stdin, sys.stdout, sys.stderr)],
         "signals": [str(__import__("signal").getsignal(number)) for number in (2, 15, 17)],
         "main": sys.modules["__main__"].__dict__ is globals(), "threads": threading.active_count(),
         "read": sys.stdin.read()}
print(json.dumps(shown))
"""
"""Prints what a program sees of its process."""
ENDS = {
    "returns": "print('x')", "exits": "raise SystemExit(3)", "says": "raise SystemExit('why')",
    "raises": "def f():\n    raise ValueError('bad')\nf()", "interrupted": "raise KeyboardInterrupt",
    "is killed": "import os; os.kill(os.getpid(), 9)", "is told to end": "import os; os.kill(os.getpid(), 15)",
    "leaves at once": "import os; print('lost', end=''); os._exit(4)",
    "cleans up": "import atexit, threading; atexit.register(print, 'at exit')\n"
                 "threading.Timer(0.2, print, ['thread']).start()",
    "does not parse": "x = = 1",
}


def both(words: list[object], **options) -> tuple[subprocess.CompletedProcess, subprocess.CompletedProcess]:
    command = [sys.executable, *map(str, words)]
    options = {"env": clean_environ()} | options
    assert forked._is_alike(command, {}), "or it is started both times"
    return tuple(run(command, capture_output=True, text=True, timeout=600, **options)
                 for run in (subprocess.run, forked.run))


@pytest.mark.parametrize("unbuffered", [(), ("-u",)])
@pytest.mark.parametrize("how", ["script", "module", "code"])
def test_a_program_sees_the_same(tmp_path, how, unbuffered):
    (tmp_path / "shows.py").write_text(SHOWS)
    words = {"script": ["shows.py"], "module": ["-m", "shows"], "code": ["-c", SHOWS]}[how]
    started, ours = both([*unbuffered, *words, "a", "--b=c d"], cwd=tmp_path, input="given", start_new_session=True,
                         env=clean_environ() | {"OF_A_TEST": "x\udcff"})
    assert started.returncode == 0, started.stderr
    assert json.loads(ours.stdout) == json.loads(started.stdout) and ours.stderr == started.stderr


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_alike(tmp_path, how):
    script = tmp_path / "ends.py"
    script.write_text(ENDS[how])
    started, ours = both([script])
    assert (ours.returncode, ours.stdout, ours.stderr) == (started.returncode, started.stdout, started.stderr)


def test_it_can_be_waited_for_and_ended():
    with forked.popen([sys.executable, "-c", "import time; time.sleep(600)"], env=clean_environ()) as process:
        assert isinstance(process, forked.Forked) and process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.terminate()
        assert process.wait(600) == -signal.SIGTERM == process.poll()


def test_files_are_inherited_at_their_numbers(tmp_path):
    with (tmp_path / "a").open("w") as one, (tmp_path / "b").open("w") as other:
        numbers = [one.fileno(), other.fileno()]
        code = (f"import os; os.write({numbers[0]}, b'1'); os.write({numbers[1]}, b'2')\n"
                "print(os.listdir('/proc/self/fd'))")
        for done in both(["-c", code], pass_fds=numbers):
            assert len(json.loads(done.stdout.replace("'", '"'))) == 6, (done.stdout, done.stderr)
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("11", "22")


SPAWNS = """
import multiprocessing, sys

def told(number, pipe):
    pipe.send((number, len(sys.argv), __name__))
    sys.exit(number)

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    get, put = spawn.Pipe(False)
    processes = [spawn.Process(target=told, args=(number, put)) for number in (0, 3)]
    for one in processes:
        one.start()
    print(sorted(get.recv() for _ in processes))
    for one in processes:
        one.join()
    print([one.exitcode for one in processes])
"""


def test_what_it_spawns_is_forked_and_ends_alike(tmp_path):
    (tmp_path / "spawns.py").write_text(SPAWNS)
    started, ours = both([tmp_path / "spawns.py"], env=clean_environ() | {SPAWNED: "1"})
    assert (ours.returncode, ours.stdout) == (started.returncode, started.stdout), ours.stderr
    assert started.stdout.count("__mp_main__") == 2 and "[0, 3]" in started.stdout, started.stderr


@pytest.mark.parametrize(("words", "options"), [
    (["-W", "error", "-c", "1"], {}), (["-c", "1"], {"env": clean_environ() | {"OMP_NUM_THREADS": "2"}}),
    (["-c", "1"], {"preexec_fn": print})])
def test_what_is_decided_before_a_fork_starts_a_python(words, options):
    assert not forked._is_alike([sys.executable, *words], options)
    assert not forked._is_alike(["/usr/bin/env", *words], {})


def test_a_program_of_a_shell_is_forked(tmp_path):
    (tmp_path / "ends.py").write_text(
        "import os, sys\nprint(sys.argv, 'torch' in sys.modules, flush=True)\nos.kill(os.getpid(), 9)")
    forked.write_program(tmp_path / "ends", "-m", "ends")
    done = subprocess.run(["sh", "-c", "./ends 'a b'; echo $?"], cwd=tmp_path, capture_output=True, text=True,
                          check=True, env=clean_environ())
    assert done.stdout == f"['{tmp_path / 'ends.py'}', 'a b'] True\n137\n"


@pytest.mark.job
@pytest.mark.parametrize(("how", "ranks"), [("fine", 1), *(
    pytest.param(how, 2, marks=pytest.mark.stress) for how in ("fine", "raises"))])
def test_a_job_is_recorded_alike(tmp_path, how, ranks):
    """Exit code, output, files, and all that was counted."""
    flags = ("--nproc-per-node", ranks, "--steps", "wait=1,count=1,time=1,trace=1,arrivals=0", SCRIPTS / "job.py", how)
    started, ours = (distprof("run", "--out", tmp_path / name, *flags, real=name == "started")
                     for name in ("started", "forked"))
    assert ours.returncode == started.returncode == (how == "raises")
    assert sorted(ours.stdout.splitlines()) == sorted(started.stdout.splitlines())
    assert said(ours) == said(started)
    assert recorded(tmp_path / "forked") == recorded(tmp_path / "started")


def said(done: subprocess.CompletedProcess) -> list[str]:
    """Lines of ours, and of the rank that fails, without what differs from job to job."""
    return sorted(re.sub(r"\b(forked|started)\b|[\d.]+ [mu]?s\b", "RUN", line) for line in done.stderr.splitlines()
                  if line.startswith(("distprof: ", "[rank1]: ")))


def recorded(run: Path) -> dict[str, object]:
    """Files of a run, and what does not depend on time of its ranks."""
    import polars as pl

    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    found: dict[str, object] = {"files": files}
    for folder in sorted(run.glob("rank*")):
        about = json.loads((folder / "rank.json").read_text())
        found[folder.name] = {name: about[name] for name in (
            "rank", "local_rank", "world_size", "status", "topology", "num_steps") if name in about}
        ops = pl.read_parquet(folder / "ops.parquet")
        found[f"{folder.name} ops"] = ops.select("op", "phase", "module_path", "flops").sort(pl.all()).rows()
        found[f"{folder.name} steps"] = pl.read_parquet(folder / "steps.parquet").select("step", "pass").rows()
    return found
