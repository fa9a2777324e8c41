"""Files of Windows in traces, snapshots and recorded lines: read on any system, shown as they are or by their names."""

from __future__ import annotations

import json
import pickle

import pytest

from distprof.contract import rank_json
from distprof.contract.parquet import write_table
from distprof.contract.paths import RANK_JSON
from distprof.contract.rank_json import RankJson
from distprof.contract.stuck import StackFrame
from distprof.contract.tables import WAITS
from distprof.merge.text.phrases import file_name, short_names
from support.caching_allocator import Allocator, Frames, snapshot
from support.jobs import called
from support.made_up_traces import folder, op
from support.rank_traces import slice_of, write_run

TRAIN = r"C:\Users\me\job\train.py"
LIBRARIES = (r"C:\Python311\Lib\threading.py", r"C:\Users\me\miniconda3\envs\torch\lib\runpy.py",
             r"D:\venv\Lib\site-packages\torch\nn\modules\linear.py")


def test_names_are_as_short_as_tells_files_apart():
    assert short_names([TRAIN, r"C:\Users\me\job\net.py", "/home/me/data.py", "plain.py"]) == {
        TRAIN: "train.py", r"C:\Users\me\job\net.py": "net.py", "/home/me/data.py": "data.py", "plain.py": "plain.py"}
    assert short_names([r"C:\a\train.py", "D:/b/train.py"]) == {
        r"C:\a\train.py": "a/train.py", "D:/b/train.py": "b/train.py"}
    assert file_name("<stdin>") == "<stdin>" and file_name("") == ""


def test_functions_around_an_operator(tmp_path):
    python = {"cat": "python_function"}
    run = folder(tmp_path, [
        op(f"{TRAIN}(12): main", 0, 100, **python),
        op(r"torch\nn\modules\module.py(1747): _wrapped_call_impl", 1, 60, **python),
        op("C:/Users/me/job/net.py(5): forward", 2, 50, **python), op("aten::mm", 3, 7)])
    found = json.loads(called("ops", "--json", "--by", "stack", run).stdout)["ops"]
    assert [row["stack"] for row in found] == [f"C:/Users/me/job/net.py(5): forward < {TRAIN}(12): main"]
    assert f"< {TRAIN}(12): main" in called("ops", "--by", "stack", run).stdout
    assert f"< {TRAIN}(12): main" in called("ops", "--by", "stack", "--markdown", run).stdout


@pytest.mark.long
@pytest.mark.parametrize("engine", ["compiled", "plain"])
def test_strokes_that_old_profilers_did_not_escape(tmp_path, monkeypatch, engine):
    r"""Kineto wrote C:\Users as it is, which is no JSON."""
    if engine == "plain":
        monkeypatch.setenv("DISTPROF_PLAIN_ENGINE", "1")
    event = json.dumps(slice_of("NAME", 10, 5, cat="python_function")).replace("NAME", rf"{TRAIN}(12): main")
    run = write_run(tmp_path / "run", f'{{"traceEvents": [{event}]}}')
    done = called("merge", run)
    assert done.returncode == 0 and "1 slice" in done.stdout, done


def test_lines_of_a_snapshot(tmp_path):
    allocator, frames = Allocator(), Frames()
    allocator.alloc(1_000_000, frames(*((file, 7, "forward") for file in LIBRARIES), (TRAIN, 12, "main")))
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(snapshot(allocator)))
    done = called("memory", "--json", tmp_path / "rank0.pickle")
    assert [row["line"] for row in json.loads(done.stdout)["groups"]] == [f"{TRAIN}:12 main"], done


def test_lines_that_block(tmp_path):
    run = write_run(tmp_path / "run", [slice_of("a", 10, 5)])
    rank = run / "rank00000"
    about = rank_json.read(rank / RANK_JSON, RankJson)
    row = {"step": 3, "op": "aten::item", "waits_for": "device", "device": "cuda", "file": TRAIN, "line": 12,
           "function": "main", "thread": "steps", "blocking": True, "calls": 1, "blocked_ns": 10, "longest_ns": 10}
    write_table(rank, WAITS, [row], tags={"rank": 0, "mp_size": 1, "dp_size": 1}, metadata={})
    about.files[WAITS.file] = 1
    rank_json.write(rank / RANK_JSON, about)
    done = called("waits", run)
    assert "train.py:12 main" in done.stdout and "C:" not in done.stdout, done
    assert json.loads(called("waits", "--json", run).stdout)["waits"][0]["file"] == TRAIN


def test_where_a_rank_stands():
    from distprof.merge.blame.hang import Standing
    from distprof.merge.text.communication.hang import place

    frame = StackFrame(file=TRAIN, line=12, function="main")
    standing = Standing(rank=0, why="", cause="", frame=frame, failure=None, module_path=None, phase=None, peers=[])
    assert place(standing) == "at train.py:12 in main"
