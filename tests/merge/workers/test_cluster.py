"""A merge on a cluster of dask: the same bytes as without one, whatever happens to the cluster."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import forked
from support.dask_cluster import PATIENT, QUIET, DaskCluster, apart_from, wait_for
from support.jobs import clean_environ, distprof
from support.rank_traces import slice_of, write_run

pytestmark = pytest.mark.job
RANKS = 12
SURVEYED = ".merged.*.tmp/.work/*.survey"
"""What the first pass over a rank leaves."""
SOON = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}
LATER = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "15s"}
"""Where there is a scheduler, which a busy machine reaches in that time."""


def events(number: int, at: int) -> list[dict]:
    ends = {"id": number, "pid": 7, "tid": 7, "cat": "c", "name": "a"}
    return [slice_of(f"op{number % 50}", at, 15 if number % 100 == 0 else 5, args={"External id": number}),
            {"ph": "s", "ts": at, **ends}, {"ph": "f", "bp": "e", "ts": at + 1, **ends}]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks with slices that overlap, arrows, and a trace that is cut."""
    traces: list = [[event for number in range(3000) for event in events(number, 10 * number + rank)]
                    for rank in range(RANKS)]
    traces[3] = '{"traceEvents":[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2},{"ph":"X","na'
    return write_run(tmp_path_factory.mktemp("run") / "run", *traces)


@pytest.fixture(scope="module")
def expected(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Merged without a cluster."""
    out = tmp_path_factory.mktemp("expected") / "merged"
    assert distprof("merge", run, "--out", out).returncode == 0
    return out


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with DaskCluster(tmp_path_factory.mktemp("cluster")) as found:
        found.add_worker(number=2)
        yield found


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    """One that a test may harm."""
    with DaskCluster(tmp_path / "cluster") as found:
        yield found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def start(run: Path, out: Path, *words: object, **environ: str) -> subprocess.Popen[str]:
    return forked.popen([sys.executable, "-m", "distprof", "merge", run, "--out", out, *map(str, words)],
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                        env=clean_environ() | PATIENT | environ)


def caught(found: str, run: Path, out: Path, *words: object, **environ: str) -> subprocess.Popen[str]:
    """A merge that has made such a file beside its result, and runs."""
    while True:
        merge = start(run, out, *words, **environ)
        wait_for(lambda: [*out.parent.glob(found)] or merge.poll() is not None)  # noqa: B023 (it ends here)
        if merge.poll() is None:
            return merge
        assert (merge.communicate()[1], merge.returncode) == ("", 0)
        shutil.rmtree(out)  # it was faster


@pytest.mark.parametrize("options", [(), ("--window", "1ms:20ms"), ("--operators",), ("--format", "perfetto-tar")])
def test_a_cluster_writes_the_same_bytes(run, cluster, tmp_path, options):
    alone, together = tmp_path / "alone", tmp_path / "together"
    one = distprof("merge", run, "--out", alone, *options)
    other = distprof("merge", run, "--out", together, *options, "--scheduler", cluster.address, TEST="")
    assert (other.returncode, other.stderr) == (0, "")
    assert other.stdout == one.stdout.replace(str(alone), str(together))
    assert contents(together) == contents(alone)


def test_short_ranks_are_done_several_at_once(tmp_path, own_cluster):
    run = write_run(tmp_path / "run", *[[event for number in range(20) for event in events(number, 10 * number + rank)]
                                        for rank in range(50)])
    own_cluster.add_worker(number=2, comes_back=True)
    assert distprof("merge", run, "--out", tmp_path / "alone").returncode == 0
    merge = caught(SURVEYED, run, tmp_path / "merged", "--scheduler", own_cluster.address)
    killed = kill_at_random(own_cluster, merge, 1, 1, at_once=True)
    _, err = merge.communicate()
    assert (merge.returncode, err) == (0, "") and killed <= 1
    assert contents(tmp_path / "merged") == contents(tmp_path / "alone")


def test_relative_paths_are_those_of_the_client(run, cluster, expected):
    done = distprof("merge", run.name, "--force", "--scheduler", cluster.address, cwd=run.parent)
    assert done.returncode == 0, done.stderr
    assert contents(run / "merged") == contents(expected)
    shutil.rmtree(run / "merged")


def test_processes_write_the_same_bytes(run, expected, tmp_path):
    done = distprof("merge", run, "--out", tmp_path / "merged", "--workers", 2, TEST="")
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(tmp_path / "merged") == contents(expected)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another program: collectives of four ranks, the last of which is late."""
    folder = tmp_path_factory.mktemp("traces")
    for rank in range(4):
        late = 20 if rank == 3 else 0
        found = [slice_of("aten::mm", 1000 * step, 100 + late, cat="cpu_op", args={"Input Dims": [[4, 8], [8, 2]]})
                 for step in range(20)]
        found += [slice_of("gloo:all_reduce", 1000 * step + 100 + late, 100 - late, tid=8, cat="user_annotation",
                           args={"Input Dims": [[64]], "Input type": ["float"]}) for step in range(20)]
        about = {"rank": rank, "world_size": 4, "backend": "gloo"}
        (folder / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": about, "traceEvents": found}))
    return folder


COMMANDS = [("comms",), ("ops", "--json"), ("report", "--json")]
PLACES = [("traces", "cluster"), ("traces", "processes"), ("run", "cluster")]


@pytest.mark.parametrize(("words", "place"), [
    pytest.param(words, place, marks=() if number == other else pytest.mark.stress)
    for number, words in enumerate(COMMANDS) for other, place in enumerate(PLACES)])
def test_commands_that_read_traces_say_the_same(cluster, request, words, place):
    path, where = request.getfixturevalue(place[0]), place[1]
    alone = distprof(*words, path)
    assert alone.returncode == 0 and len(alone.stdout) > 100, alone.stderr
    done = distprof(*words, path, *(("--scheduler", cluster.address) if where == "cluster" else ("--workers", 2)),
                    TEST="")
    assert (done.returncode, done.stderr) == (0, alone.stderr)
    assert done.stdout == alone.stdout


def test_work_has_readable_names(cluster, tmp_path):
    os.mkfifo(tmp_path / "goes-on")
    asked = forked.run([sys.executable, "-c", NAMES, cluster.address, tmp_path / "goes-on"], capture_output=True,
                       text=True, check=False, env=clean_environ() | QUIET)
    assert asked.returncode == 0, asked.stderr
    key, prefix = asked.stdout.strip().split("|")
    assert key.startswith("survey-rank 12 ") and prefix == "survey"


NAMES = """
import sys, time, distributed
from pathlib import Path
from distprof.merge.workers.dask_pool import DaskPool

goes_on = Path(sys.argv[2])
pool = DaskPool(sys.argv[1], None, [])
task = pool.submit("survey rank 12", Path.read_text, goes_on)
found = []
with distributed.Client(sys.argv[1], set_as_default=False) as client:
    while not found:
        time.sleep(0.05)
        found = client.run_on_scheduler(lambda dask_scheduler: [
            (key, one.prefix.name) for key, one in dask_scheduler.tasks.items()])
print(*found[0], sep="|")
goes_on.write_text("now")
assert pool.result(task) == "now"
pool.close()
"""


# --- what is wrong with it --------------------------------------------------------------------------------------------


def refused(run: Path, out: Path, address: str, **environ: str) -> str:
    done = distprof("merge", run, "--out", out, "--scheduler", address, **(SOON | environ))
    assert done.returncode in (1, 2) and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "hint: " in done.stderr
    assert not [path for path in out.parent.iterdir() if path.name.endswith((".tmp", out.name))]
    return done.stderr


def test_no_scheduler(run, tmp_path):
    assert "no dask scheduler at tcp://127.0.0.1:1: none in 3 s" in refused(
        run, tmp_path / "merged", "tcp://127.0.0.1:1")


@pytest.mark.parametrize(("address", "why"), [
    ("tcp://host:port", ""), ("127.0.0.1", "missing port"),
    ("tcp://127.0.0.1:99999", "99999 is not a valid port number"), ("http://127.0.0.1:80", "unknown address scheme")])
def test_no_address(run, tmp_path, address, why):
    said = refused(run, tmp_path / "merged", address)
    assert f"--scheduler '{address}' is not an address" in said and why in said


def test_another_version(run, tmp_path, own_cluster):
    about = tmp_path / "other" / "distprof-9.9.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: distprof\nVersion: 9.9\n")
    own_cluster.add_worker(PYTHONPATH=f"{about.parent}{os.pathsep}{QUIET['PYTHONPATH']}")
    found = refused(run, tmp_path / "merged", own_cluster.address, **LATER)
    assert "have different versions" in found and "distprof 9.9 on tcp://" in found


def test_a_worker_that_does_not_see_the_run(run, tmp_path, own_cluster):
    own_cluster.add_worker(apart=apart_from(run))
    found = refused(run, tmp_path / "merged", own_cluster.address, **LATER)
    assert "does not see the files of the client" in found and "No such file or directory" in found


@pytest.mark.parametrize("options", [(), ("--operators",)])
def test_what_workers_write_comes_to_a_client_whose_folder_they_do_not_see(run, tmp_path, own_cluster, options):
    own_cluster.add_worker(apart=apart_from(tmp_path / "out"))
    own_cluster.add_worker()
    expected = tmp_path / "expected"
    assert distprof("merge", run, "--out", expected, *options).returncode == 0
    done = distprof("merge", run, "--out", tmp_path / "out" / "merged", *options, "--scheduler", own_cluster.address,
                    TEST="")
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(tmp_path / "out" / "merged") == contents(expected)
    assert not [*(tmp_path / "cluster").rglob("distprof-*")]


def test_what_a_worker_had_for_the_client_is_made_again_where_it_is_killed(run, expected, tmp_path, own_cluster):
    own_cluster.add_worker(number=2, comes_back=True, apart=apart_from(tmp_path / "out"))
    merge = caught(SURVEYED, run, tmp_path / "out" / "merged", "--scheduler", own_cluster.address)
    killed = kill_at_random(own_cluster, merge, 2, 1, at_once=True)
    _, err = merge.communicate()
    assert (merge.returncode, err) == (0, "") and killed
    assert contents(tmp_path / "out" / "merged") == contents(expected)


def test_both_options(run, tmp_path):
    done = distprof("merge", run, "--out", tmp_path / "merged", "--workers", 2, "--scheduler", "tcp://127.0.0.1:1")
    assert done.returncode == 2 and "--workers and --scheduler cannot be combined" in done.stderr


# --- what goes wrong --------------------------------------------------------------------------------------------------


def kill_at_random(cluster: DaskCluster, merge: subprocess.Popen[str], times: int, seed: int, *,
                   at_once: bool = False) -> int:
    """SIGKILL to a worker at random moments while a merge runs, the first one at once if asked; returns how often."""
    chance, done = random.Random(seed), 0
    while done < times and merge.poll() is None:
        time.sleep(0 if at_once and not done else chance.uniform(0, 1.5))
        known = cluster.processes()
        if known and merge.poll() is None:
            os.kill(chance.choice(known), signal.SIGKILL)
            done += 1
    return done


def test_a_worker_is_killed_and_nothing_is_lost(run, expected, tmp_path, own_cluster):
    own_cluster.add_worker(number=2, comes_back=True)
    merge = caught(SURVEYED, run, tmp_path / "merged", "--scheduler", own_cluster.address)
    killed = kill_at_random(own_cluster, merge, 1, 1, at_once=True)
    _, err = merge.communicate()
    assert (merge.returncode, err, killed) == (0, "", 1)
    assert contents(tmp_path / "merged") == contents(expected)


@pytest.mark.stress
def test_workers_are_killed_at_30_moments_and_nothing_is_lost(run, expected, tmp_path, own_cluster):
    own_cluster.add_worker(number=2, comes_back=True)
    killed = merges = 0
    while killed < 30:
        merge = start(run, tmp_path / "merged", "--force", "--scheduler", own_cluster.address)
        killed += kill_at_random(own_cluster, merge, 30 - killed, merges)
        merges += 1  # another seed: with one, a fast merge may always end before the first kill
        _, err = merge.communicate()
        assert (err, merge.returncode) == ("", 0)
        assert contents(tmp_path / "merged") == contents(expected)


@pytest.mark.stress
def test_processes_are_killed_at_30_moments_and_nothing_is_lost(run, expected, tmp_path):
    killed, chance = 0, random.Random(5)
    while killed < 30:
        merge = start(run, tmp_path / "merged", "--force", "--workers", 2)
        before = set[Path]()
        while merge.poll() is None and killed < 30:
            now = {path for path in tmp_path.rglob("*") if path.suffix in (".survey", ".part", ".parquet")}
            if now == before:  # where nothing at all gets done, a merge gives up
                time.sleep(0.05)
                continue
            before = now
            time.sleep(chance.uniform(0, 0.5))
            known = [child for child in workers_of(merge.pid) if merge.poll() is None]
            if known:
                os.kill(chance.choice(known), signal.SIGKILL)
                killed += 1
        _, err = merge.communicate()
        assert (err, merge.returncode) == ("", 0)
        assert contents(tmp_path / "merged") == contents(expected)


def workers_of(pid: int) -> list[int]:
    """Processes of a pool."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()
                      if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:
        pass
    return found


@pytest.mark.parametrize("work", ["__import__('os')._exit(9)", "[b'x' * 10**9, __import__('time').sleep(60)]"])
def test_work_that_ends_each_worker_is_given_up(tmp_path, work):
    """It exits, or takes more memory than there is."""
    with DaskCluster(tmp_path / "cluster", DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1") as cluster:
        cluster.add_worker("--memory-limit", "500MB", comes_back=True)
        done = given_up(cluster, work)
    assert (done.returncode, done.stderr) == (0, "")
    assert "that ran this task died: write rank 3  hint: out of memory?" in done.stdout


def given_up(cluster: DaskCluster, work: str) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-c", """
import sys
from distprof.errors import DataError
from distprof.merge.workers.dask_pool import DaskPool

pool = DaskPool(sys.argv[1], None, [])
try:
    pool.result(pool.submit("write rank 3", eval, sys.argv[2]))
except DataError as error:
    print(error)
pool.close()
""", cluster.address, work], capture_output=True, text=True, check=False, env=clean_environ() | QUIET | PATIENT)


def test_workers_that_do_not_come_that_are_gone_or_paused_are_one_line(run, tmp_path):
    """All three are waited for at the same time."""
    with ExitStack() as clusters:
        nobody, gone, paused = (clusters.enter_context(DaskCluster(tmp_path / f"cluster{number}"))
                                for number in range(3))
        gone.add_worker()
        paused.add_worker("--memory-limit", "1GB", DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE="0.05")
        (tmp_path / "gone").mkdir()
        merges = [caught(".merged.*.tmp", run, tmp_path / "gone" / "merged", "--scheduler", gone.address, **LATER)]
        gone.kill_workers()
        merges += [start(run, tmp_path / "merged", "--scheduler", one.address, **LATER) for one in (nobody, paused)]
        for merge, found in zip(merges, ("none", "none", "1 paused for lack of memory"), strict=True):
            out, err = merge.communicate()
            assert (merge.returncode, out) == (1, "") and len(err.splitlines()) == 1, err
            assert f"within 15 s: {found}  hint: start some with `dask worker tcp://" in err
    assert not [path for path in tmp_path.rglob("*merged*") if "cluster" not in str(path)]


def test_a_scheduler_that_is_started_again_gets_the_work_again(own_cluster):
    own_cluster.add_worker()
    client = forked.popen([sys.executable, "-c", """
import sys, time
from distprof.merge.workers.dask_pool import DaskPool

def items():
    for number in range(8):
        yield f"count {number}", (f"__import__('time').sleep(0.5) or {number}",)

pool = DaskPool(sys.argv[1], None, [])
for found in pool.in_order(eval, items()):
    print(found, flush=True)
pool.close()
""", own_cluster.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=clean_environ() | QUIET | PATIENT)
    assert client.stdout is not None and client.stdout.readline() == "0\n"
    own_cluster.kill_scheduler()
    own_cluster.kill_workers()
    own_cluster.start_scheduler()
    own_cluster.add_worker()
    out, err = client.communicate()
    assert (client.returncode, err) == (0, "")
    assert out.split() == [str(number) for number in range(1, 8)]


def lost_at(moment: str, run: Path, out: Path, cluster: DaskCluster) -> tuple[int, str, str]:
    """How a merge ends whose cluster ends as soon as a file is there."""
    cluster.add_worker()
    merge = start(run, out, "--force", "--scheduler", cluster.address, **SOON)
    wait_for(lambda: [*out.parent.glob(moment)] or merge.poll() is not None)
    cluster.end()
    printed, err = merge.communicate()
    return merge.returncode, printed, err


@pytest.mark.parametrize("moment", [".merged.*.tmp", ".merged.*.tmp/.work/*.survey"])
def test_a_scheduler_that_is_gone_is_one_line(run, tmp_path, own_cluster, moment):
    code, out, err = lost_at(moment, run, tmp_path / "merged", own_cluster)
    while code == 0:  # it had ended before
        own_cluster.start_scheduler()
        code, out, err = lost_at(moment, run, tmp_path / "merged", own_cluster)
    assert (code, out) == (1, "") and len(err.splitlines()) == 1
    assert "no dask scheduler at" in err
    assert not [*tmp_path.glob(".*merged*")]


@pytest.mark.parametrize("call", ["wait_for_workers", "get_versions", "run", "nthreads", "submit"])
def test_a_scheduler_that_ends_just_before_it_is_asked_is_one_line(run, tmp_path, own_cluster, call):
    """Every call that a client makes."""
    own_cluster.add_worker()
    done = forked.run([sys.executable, "-c", GONE, str(own_cluster.scheduler_pid), call, "merge", run, "--out",
                       tmp_path / "merged", "--scheduler", own_cluster.address], capture_output=True, text=True,
                      check=False, env=clean_environ() | QUIET | SOON)
    assert (done.returncode, done.stdout) == (1, "") and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"distprof: no dask scheduler at {own_cluster.address}: ")


GONE = """
import os, signal, sys
from distributed import Client
from distprof.launch.cli import main

pid, call, *words = sys.argv[1:]
asked = getattr(Client, call)

def ask(*args, **kwargs):
    try:
        os.kill(int(pid), signal.SIGKILL)
    except ProcessLookupError:
        pass
    return asked(*args, **kwargs)

setattr(Client, call, ask)
main(words)
"""


@pytest.mark.stress
def test_a_cluster_that_is_gone_at_any_moment_keeps_nobody_waiting(run, expected, tmp_path, own_cluster):
    chance = random.Random(3)
    for _ in range(30):
        own_cluster.add_worker()
        merge = start(run, tmp_path / "merged", "--force", "--scheduler", own_cluster.address, **SOON)
        time.sleep(chance.uniform(0, 3))
        own_cluster.end()
        _, err = merge.communicate()
        if merge.returncode == 0:
            assert contents(tmp_path / "merged") == contents(expected)
        else:
            assert merge.returncode == 1 and err.startswith("distprof: no dask scheduler") and err.count("\n") == 1
        assert not [*tmp_path.glob(".*merged*")]
        own_cluster.start_scheduler()


def test_a_client_that_is_killed_leaves_nothing_behind(run, tmp_path, cluster):
    merge = caught(SURVEYED, run, tmp_path / "merged", "--scheduler", cluster.address)
    merge.kill()
    merge.communicate()
    wait_for(lambda: not [*tmp_path.iterdir()])


def test_a_signal_ends_a_merge_and_leaves_nothing_behind(run, tmp_path, cluster):
    merge = caught(SURVEYED, run, tmp_path / "merged", "--scheduler", cluster.address)
    merge.send_signal(signal.SIGTERM)
    _, err = merge.communicate()
    assert (merge.returncode, err) == (143, "")
    assert not [*tmp_path.iterdir()]
