"""What ends a script is noted in its recording, whoever started it; which processes the start hook waits for."""

from __future__ import annotations

import importlib
import os
import py_compile
import sys
import zipapp
from types import SimpleNamespace

import pytest
from torch import nn

from distprof.launch.start_hook import MODEL, RECORDED_BY, StartHook, _failure_of
from distprof.launch.worker import Worker, run_script
from support.recording import Recorded

SCRIPT = """
import sys, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
sys.exit({code!r})
"""


@pytest.fixture(autouse=True)
def process_as_before(monkeypatch):
    """What runs a script changes these."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "argv", sys.argv[:])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID", RECORDED_BY):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.long
@pytest.mark.parametrize(("code", "failed", "steps", "status"), [
    (None, False, 9, "partial"), (0, False, 1, "complete"), (1, True, 1, "complete"), (1, True, 9, "partial"),
    ("no data", True, 9, "partial")])
def test_an_exit_of_the_script_is_a_failure_unless_its_code_is_0(tmp_path, monkeypatch, code, failed, steps, status):
    (tmp_path / "train.py").write_text(SCRIPT.format(code=code))
    monkeypatch.setenv("DISTPROF_OUT", str(tmp_path / "run"))
    monkeypatch.setenv("DISTPROF_STEPS", f"wait=1,count=1,time={steps},trace=0,arrivals=0")
    with pytest.raises(SystemExit):
        Worker().run([str(tmp_path / "train.py")])
    about = Recorded(tmp_path / "run").info
    assert about["status"] == status
    if failed:
        assert about["failure"]["what"].startswith(f"SystemExit in the script: {code} (train.py:")
        assert status == "complete" or about["why"].startswith(f"SystemExit in the script: {code} (train.py:8) after 4")
    else:
        assert about["failure"] is None and "SystemExit" not in (about["why"] or "")


def exit_of(raised: BaseException | None, code: object) -> SystemExit:
    """As mp.spawn leaves a process: it catches what was raised and prints it itself."""
    try:
        try:
            if raised is not None:
                raise raised
        finally:
            sys.exit(code)
    except SystemExit as ended:
        return ended


def test_a_spawned_rank_ended_with_the_exception_that_was_being_handled():
    raised = ValueError("bad sample")
    assert _failure_of(exit_of(raised, 1)) is raised and _failure_of(raised) is raised
    ended = exit_of(None, 3)
    assert _failure_of(ended) is ended
    assert _failure_of(exit_of(None, 0)) is _failure_of(exit_of(None, None)) is _failure_of(None) is None


@pytest.mark.parametrize(("given", "waits"), [({}, True), ({RECORDED_BY: "77"}, False)])
def test_a_process_that_a_recorded_one_started_is_recorded_for_no_model_of_its_own(monkeypatch, given, waits):
    signs: list[str] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)  # it would stay for the life of this process
    monkeypatch.setattr(StartHook, "_begin", lambda _, sign: signs.append(sign))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    hook = StartHook()
    hook.watch()
    try:
        nn.Linear(2, 2)
    finally:
        hook._stop_waiting()
    assert (MODEL in signs) == waits and set(signs) <= {MODEL}
    seen = len(signs)
    nn.Linear(2, 2)
    assert len(signs) == seen, "it waits no more"


PROGRAM = """
import sys
from beside import VALUE
seen = VALUE, __name__, sys.path[0], vars(sys.modules["__main__"]) is globals()
"""


@pytest.mark.parametrize("kind", ["script.py", "script.pyc", "folder", "program.pyz"])
def test_what_python_runs_is_run(tmp_path, monkeypatch, kind):
    """A file, one that is compiled, and the `__main__.py` of a folder or an archive."""
    monkeypatch.syspath_prepend("")  # the folder of the worker
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("__main__.py", "script.py"):
        (folder / name).write_text(PROGRAM)
    (folder / "beside.py").write_text("VALUE = 42\n")
    py_compile.compile(str(folder / "script.py"), str(folder / "script.pyc"), doraise=True)
    zipapp.create_archive(folder, tmp_path / "program.pyz")
    given = {"folder": folder, "program.pyz": tmp_path / kind}.get(kind, folder / kind)
    importlib.invalidate_caches()
    run_script(str(given))
    seen = sys.modules["__main__"].seen
    assert seen == (42, "__main__", str(given if kind in ("folder", "program.pyz") else folder), True)
    sys.modules.pop("beside")


@pytest.mark.parametrize(("raised", "found"), [(None, None), (ValueError("bad"), ValueError)])
def test_the_hook_finds_what_ended_the_script_without_a_hook_of_python(monkeypatch, raised, found):
    """As Python keeps it before it prints it; nobody sees an excepthook of ours."""
    ended: list[object] = []
    monkeypatch.setattr("distprof.recording.active.end", lambda _, error: ended.append(error))
    monkeypatch.setattr("time.sleep", lambda _: None)
    before, hook = sys.excepthook, StartHook()
    monkeypatch.setattr("atexit.register", lambda _: None)
    hook._watch_end()
    assert sys.excepthook is before
    monkeypatch.setattr(sys, "last_value", raised, raising=False)
    hook._recorder = SimpleNamespace()
    hook._end()
    assert (type(ended[0]) if ended[0] is not None else None) is found
