"""Jobs that many tests look at, and what holds for every test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support import costs, forked, perfetto, rewritten
from support import shown_demo as shown_demos
from support.hooked import make_hooked
from support.jobs import EXAMPLES, SCRIPTS, merged, record_run, torchrun
from support.processes import adopt_orphans, children, is_job, left_after
from support.recordings import Recordings
from support.s3_server import S3Server, s3_server, use
from support.slurm import slurm, why_not

# workers of pytest share the processors; libraries read this when they are imported
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")

# some tests become another user, who is to read what they wrote
os.umask(0o022)

# servers of the tests are on this machine, whatever stands between it and others
HERE = "127.0.0.1,localhost,::1"
for name in ("no_proxy", "NO_PROXY"):
    os.environ[name] = ",".join(filter(None, (os.environ.get(name), HERE)))

MANY = 30
"""Modules that are worth a walk."""

# a shell ignores Ctrl-C for what it starts in the background, and processes that the tests start would inherit that
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples in every run, and no limit of time: what fails here fails everywhere; `make stress` looks for more
settings.register_profile("check", deadline=None, derandomize=True, database=None, max_examples=20,
                          suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("stress", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("check")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "recordings" in getattr(item, "fixturenames", ()):
            item.add_marker("job")
        if item.get_closest_marker("stress"):
            item.add_marker(pytest.mark.timeout(0))
    costs.leave_to_ci(items)


def pytest_configure(config: pytest.Config) -> None:
    if folder := os.environ.get(costs.FOLDER):
        config.pluginmanager.register(costs.Costs(folder))


class Imported:
    """Hides what was imported from the garbage collector, which would walk it again and again, as would recordings."""

    num_hidden = 0

    @classmethod
    def hide(cls) -> None:
        """Where many modules came since the last time."""
        if len(sys.modules) > cls.num_hidden + MANY:
            gc.collect()
            gc.freeze()
            cls.num_hidden = len(sys.modules)


def _descend(levels: int) -> None:
    if levels:
        _descend(levels - 1)


def _ignore_deep_collections() -> None:
    """Tests that read values nested too deep may have garbage collected there: what its finalizers find wrong cannot be
    told where the stack has no room left, and pytest would fail the test for that."""
    usual = sys.unraisablehook

    def hook(one: sys.UnraisableHookArgs) -> None:
        try:
            _descend(100)
        except RecursionError:
            return
        usual(one)

    sys.unraisablehook = hook


def pytest_sessionstart(session: pytest.Session) -> None:
    _ignore_deep_collections()
    if hasattr(session.config, "workerinput"):
        rewritten.share(session.config, Path(__file__).parent)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing of what is imported and collected is garbage."""
    gc.disable()
    yield
    Imported.hide()
    gc.enable()


class JobsAreMarked:
    """Fails a test that starts a job without a mark that leaves it out of `make check`, which has to stay quick.

    An audit hook would do, but Python calls one at each `id` too: a sixth of the time of tests that count.
    """

    item: pytest.Item | None = None
    start = subprocess.Popen.__init__

    @staticmethod
    def started(process: subprocess.Popen, args: Any, *more: Any, **options: Any) -> None:
        item, words = JobsAreMarked.item, [] if isinstance(args, str | bytes | os.PathLike) else args
        if item is not None and is_job(words) and not any(map(item.get_closest_marker, ("job", "stress"))):
            pytest.fail(f"expected pytest.mark.job or stress on a test that starts {' '.join(map(str, words))}")
        JobsAreMarked.start(process, args, *more, **options)


subprocess.Popen.__init__ = JobsAreMarked.started


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    JobsAreMarked.item = item
    result = yield
    if nextitem is None or nextitem.path != item.path:  # what fixtures of a file held is gone: it would stay for good
        Imported.hide()
    return result


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Those of jobs go where those of tests are: torch's agent leaves an empty folder of each launch."""
    folder = tmp_path_factory.mktemp("t")
    os.environ["TMPDIR"] = str(folder)
    yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    """No test leaves a process behind."""
    adopt_orphans()
    before = set(children())
    yield
    perfetto.close()
    forked.close()
    assert left_after(300, before) == []


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    """Tests that use this, by whatever fixture, have the mark `job`."""
    own = tmp_path_factory.getbasetemp()
    return Recordings(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own, tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="session")
def ddp(recordings: Recordings) -> Path:
    """The demo job: 4 data-parallel ranks, merged."""
    return recordings.get("ddp", lambda out: _demo(out, "train_ddp.py"))


@pytest.fixture(scope="session")
def tp(recordings: Recordings) -> Path:
    """2-way tensor parallel x 2-way data parallel, merged."""
    return recordings.get("tp", lambda out: _demo(out, "train_tp.py"))


@pytest.fixture(scope="session")
def sharded(recordings: Recordings) -> Path:
    """FSDP2 on 2 ranks, merged; a step is traced."""
    def record(out: Path) -> None:
        record_run(out, 2, SCRIPTS / "sharded.py", flags=("--steps", "wait=1,count=1,time=1,trace=1,arrivals=0"))
        merged(out)

    return recordings.get("sharded", record)


@pytest.fixture(scope="session")
def everything(recordings: Recordings) -> Path:
    """Two ranks with every pass, merged: there is something for every command that reads."""
    def record(out: Path) -> None:
        record_run(out, 2, EXAMPLES / "train_ddp.py", "--steps", 12, flags=(
            "--steps", "wait=1,count=1,time=1,sync=1,execution=1,trace=4,memory=1,arrivals=0"))
        merged(out)

    return recordings.get("everything", record)


@pytest.fixture(scope="session")
def two_late_ranks(recordings: Recordings) -> Path:
    """tp2 x dp2: rank 1 delays its pair by a module, rank 2 its own by loading data; 200 ms each."""
    return recordings.get("two_late_ranks", lambda out: record_run(
        out, 4, SCRIPTS / "stragglers.py", "mesh,module,loader", 200, 12,
        flags=("--steps", "wait=2,count=0,time=0,trace=9,arrivals=0")))


@pytest.fixture(scope="session")
def profiled(recordings: Recordings) -> Path:
    """What four real ranks wrote with torch.profiler alone."""
    out = recordings.get("profiled", lambda out: torchrun(4, SCRIPTS / "plain_profiler.py", out))
    assert len(list(out.iterdir())) == 4
    return out


@pytest.fixture(scope="session")
def alone(recordings: Recordings) -> Path:
    """The demo job on one rank, counted."""
    return recordings.get("alone", lambda out: record_run(
        out, 1, EXAMPLES / "train_ddp.py", "--steps", 1, flags=("--steps", "wait=0,count=1,time=0,trace=0")))


def _demo(out: Path, example: str) -> None:
    record_run(out, 4, EXAMPLES / example, "--steps", 9, flags=("--steps", "wait=2,count=1,time=3,trace=2,arrivals=0"))
    merged(out)


@pytest.fixture(scope="session")
def shown_demo(recordings: Recordings) -> Path:
    """Where `distprof demo` was typed."""
    return recordings.get("demo", shown_demos.record)


@pytest.fixture(scope="session")
def python(recordings: Recordings) -> Path:
    """A Python that looks for DISTPROF_OUT when it starts, as one has it that distprof was installed for."""
    return recordings.get("hooked", make_hooked) / "bin" / "python"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which `srun` finds a Slurm of one node."""
    if why_not():
        pytest.skip(why_not())
    with slurm(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """A server of S3 for all tests of a worker; it holds no test's objects after the test."""
    with s3_server() as started:
        yield started


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket that this process reaches."""
    use(monkeypatch, server)
    server.reset()
    return server.bucket("jobs")
