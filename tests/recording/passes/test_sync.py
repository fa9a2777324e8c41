"""The sync pass: each planted wait is found with its line, and nothing where nothing waits; waits of a line add up."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.data import DataLoader

import distprof
from distprof.model.modules import ModuleMap
from distprof.model.scopes import ModuleScopes
from distprof.recording.blocking.blocking_log import BlockingLog, Wait
from distprof.recording.blocking.functions import WaitingFunctions
from distprof.recording.blocking.operators import DdpWaits, copying
from distprof.recording.blocking.origins import NodeOwners, is_in_kernel, place_of_thread
from support.jobs import SCRIPTS, called, merged, record_run

SCRIPT = SCRIPTS / "synchronises.py"
STEPS = "wait=2,count=0,time=0,sync=4,trace=0,arrivals=0"
ALONE = "wait=0,count=0,time=0,sync=2,trace=0,arrivals=0"


def marked(*marks: str) -> set[tuple[int, str]]:
    """Line and operation of each mark in the script, as a person reads it."""
    lines = SCRIPT.read_text().splitlines()
    return {(number, found[2]) for number, line in enumerate(lines, 1)
            for found in [re.search(r"  # (\w+): (.+)$", line)] if found and found[1] in marks}


@pytest.fixture(scope="module")
def planted(recordings) -> Path:
    def record(out: Path) -> None:
        record_run(out, 2, SCRIPT, flags=("--steps", STEPS))
        merged(out)

    return recordings.get("synchronises", record)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "DISTPROF_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


def found_in(rows: pl.DataFrame, *, blocking: bool | None = None) -> set[tuple[int, str]]:
    chosen = rows if blocking is None else rows.filter(pl.col("blocking") == blocking)
    assert {Path(file).name for file in rows["file"]} <= {SCRIPT.name}
    return {(line, op.split(" in ")[0]) for line, op in chosen.select("line", "op").iter_rows()}


def test_every_planted_wait_is_found_with_its_line_on_each_rank(planted):
    rows = distprof.read_run(planted).waits()
    assert len(marked("waits", "point", "always")) >= 14
    for rank in (0, 1):
        mine = rows.filter(pl.col("rank") == rank, pl.col("step").is_in([2, 4]))
        assert found_in(mine, blocking=True) == marked("waits", "always")
        assert found_in(mine, blocking=False) == marked("point")


def test_a_step_without_one_has_none_but_those_that_are_in_each(planted):
    rows = distprof.read_run(planted).waits()
    for rank in (0, 1):
        assert found_in(rows.filter(pl.col("rank") == rank, pl.col("step").is_in([3, 5]))) == marked("always")


@pytest.mark.job
def test_a_script_in_which_nothing_waits_gives_no_row(tmp_path):
    record_run(tmp_path / "run", 2, SCRIPT, "plain", flags=("--steps", STEPS))
    assert distprof.read_run(tmp_path / "run").waits().is_empty()
    assert "2 ranks x 4 steps (2-5): no waits" in called("waits", tmp_path / "run").stdout


def test_a_wait_has_its_time_module_phase_and_what_it_waits_for(planted):
    rows = distprof.read_run(planted).waits().filter(pl.col("step").is_in([2, 4]))
    by_op = {op: part for (op,), part in rows.group_by("op")}
    for op in ("Queue.get", "Thread.join", "Lock.__enter__"):  # what they wait for takes 50 ms
        assert by_op[op]["blocked_ns"].min() > 25e6 and (by_op[op]["calls"] == 1).all(), op
    waits_for = {op: set(part["waits_for"]) for op, part in by_op.items()}
    assert waits_for["Work.wait"] == waits_for["all_reduce of DDP"] == {"communication"}
    assert (waits_for["DataLoader.__next__"], waits_for["aten::item"], waits_for["Queue.get"]) == (
        {"data"}, {"device"}, {"thread"})
    assert set(by_op["aten::nonzero"].select("module_path", "phase", "function", "device").iter_rows()) == {
        ("1", "forward", "Gate.forward", "cpu")}
    assert set(by_op["aten::item"]["phase"]) == {"forward", "backward"}
    assert set(by_op["Work.wait"]["library_call"]) == {"all_reduce", "barrier", None}
    assert rows.filter(~pl.col("blocking"))["blocked_ns"].sum() == 0
    assert set(rows["thread"]) == {"steps"}


def test_the_merge_has_the_table_and_the_command_shows_it(planted):
    assert pl.read_parquet(planted / "merged" / "waits.parquet").height == distprof.read_run(planted).waits().height
    shown = called("waits", planted).stdout
    assert "2 ranks x 4 steps (2-5):" in shown and "(20 calls)" in shown, shown
    for line, op in marked("waits", "always", "point"):
        assert re.search(rf"synchronises\.py:{line} .*{re.escape(op)}", shown), (line, op)
    data = json.loads(called("waits", "--json", "--by", "rank", "--rank", 1, planted).stdout)
    assert data["source"] == "sync pass" and data["steps"] == [2, 3, 4, 5] and data["ranks"] == [1]
    assert [row["rank"] for row in data["waits"]] == [1]
    assert data["waits"][0]["blocked_ns"] == data["totals"]["blocked_ns"]


def test_a_damaged_table_is_named_and_the_other_rank_is_shown(planted, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(planted, run)
    table = run / "rank00001" / "waits.parquet"
    table.write_bytes(table.read_bytes()[:100])
    done = called("waits", run)
    assert done.returncode == 0 and "Queue.get" in done.stdout and "1 rank x 4 steps" in done.stdout, done.stdout
    assert re.search("rank 1.*waits.parquet", done.stdout) and called("waits", "--strict", run).returncode == 3
    (run / "rank00000" / "waits.parquet").unlink()
    lost = called("waits", run)
    assert lost.returncode == 1 and "hint: record it with --steps sync=2" in lost.stderr, lost.stderr


class Reads(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.linear, self.read = nn.Linear(4, 4), read

    def forward(self, x):
        self.read(x)
        return self.linear(x)


def waits_of(tmp_path: Path, read, notes: tuple[str, ...] = ()) -> pl.DataFrame:
    """What is recorded of a model that reads its input."""
    model = Reads(read)
    optimizer = torch.optim.Adam(model.parameters())
    with distprof.record(tmp_path / "run", steps=ALONE):
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    problems = distprof.read_run(tmp_path / "run").summary["problems"]
    assert [one.get("detail") for one in problems] == list(notes)
    return distprof.read_run(tmp_path / "run").waits()


READS = (
    (lambda x: x.sum().item(), "aten::item"),
    (lambda x: bool(x.sum() > 0), "aten::item"),
    (lambda x: float(x[0, 0]), "aten::item"),
    (lambda x: x.nonzero(), "aten::nonzero"),
    (lambda x: torch.where(x > 0), "aten::nonzero"),
    (lambda x: x[x > 0], "aten::nonzero"),
    (lambda x: x.masked_select(x > 0), "aten::masked_select"),
    (lambda x: torch.equal(x, x), "aten::equal"),
    (lambda x: x.unique(), "aten::_unique2"),
    (lambda x: x.cpu(), "Tensor.cpu"),
    (lambda x: x.tolist(), "Tensor.tolist"),
    (lambda x: print(x, file=io.StringIO()), "Tensor.__repr__"),
    (lambda x: x.long().flatten().bincount(), "aten::bincount"),
    (lambda x: torch.cpu.synchronize(), "cpu.synchronize"),
)
"""A line each, and what it is."""
READ_NOTHING = (
    lambda x: x.to(torch.float64), lambda x: x + 2, lambda x: x.masked_fill(x > 0, 1), lambda x: x.clone().copy_(x),
    lambda x: nn.utils.clip_grad_norm_(nn.Linear(2, 2).parameters(), 1.0), lambda x: x.shape, lambda x: x[0, 1:])


def test_what_reads_a_value_is_a_point_of_its_line(tmp_path):
    rows = waits_of(tmp_path, lambda x: [read(x) for read, _ in READS])
    wanted = [(op, read.__code__.co_firstlineno, "", "forward", False, 1) for read, op in READS]
    for step in (0, 1):
        mine = rows.filter(pl.col("step") == step)
        assert mine.select("op", "line", "module_path", "phase", "blocking", "calls").rows() == wanted
    assert set(rows["file"]) == {__file__} and rows["step"].unique().sort().to_list() == [0, 1]


def test_what_reads_no_value_is_none(tmp_path):
    assert waits_of(tmp_path, lambda x: [read(x) for read in READ_NOTHING]).is_empty()


def test_a_data_loader_without_workers_is_work_and_a_free_lock_no_wait(tmp_path):
    import multiprocessing
    lock, over = multiprocessing.Lock(), threading.Thread(target=int)
    over.start()
    over.join()

    def read(_):
        list(DataLoader(range(4)))
        with lock:
            over.join()

    assert waits_of(tmp_path, read).is_empty()


def test_what_another_thread_waits_for_is_none_and_its_reads_are_its_own(tmp_path):
    def read(x):
        helper = threading.Thread(target=lambda: (threading.Event().wait(0.01), x.sum().item()), name="helper")
        helper.start()
        while helper.is_alive():
            pass

    rows = waits_of(tmp_path, read).filter(pl.col("op") != "Thread.start")
    assert set(rows.select("op", "thread").iter_rows()) == {("aten::item", "helper")}


def test_the_line_of_a_thread_that_waits_for_autograd_is_where_it_is():
    here = threading.get_ident()
    found = []
    helper = threading.Thread(target=lambda: found.append(place_of_thread(here)))
    helper.start()
    helper.join()
    line = test_the_line_of_a_thread_that_waits_for_autograd_is_where_it_is.__code__.co_firstlineno
    assert found[0].file == __file__ and found[0].library_call in ("Thread.start", "Thread.join")
    assert line + 4 <= found[0].line <= line + 5


def test_an_error_of_the_call_reaches_the_script_as_it_is(tmp_path):
    def read(x):
        for wrong, kind in ((lambda: torch.Tensor.cpu(3), TypeError), (lambda: torch.ones(2).item(), RuntimeError),
                            (lambda: threading.Thread().join(), RuntimeError)):
            with pytest.raises(kind):
                wrong()

    assert set(waits_of(tmp_path, read)["op"]) <= {"aten::item"}


def test_numbers_where_an_operator_takes_tensors_are_passed_on(tmp_path):
    seen = []
    waits_of(tmp_path, lambda x: seen.append((torch.add(x, 1, alpha=2), torch.where(x > 0, 1.0, 2.0),
                                              torch.arange(torch.tensor(3)))))
    assert len(seen) == 2 and seen[0][0][0, 0] == 3 and seen[0][2].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("to", "source", "flags", "device"), [
    ("cpu", "cuda", (), "cuda"), ("cuda", "cpu", (), "cuda"), ("cuda", "cpu", (False,), "cuda"),
    ("cpu", "cuda", (True,), "cuda"), ("cuda", "cpu", (True,), None), ("cuda", "cuda", (), None),
    ("cpu", "cpu", (), None), ("cpu", "meta", (), None), ("meta", "cpu", (), None)])
def test_copies_between_host_and_device_wait_unless_they_need_not(to, source, flags, device):
    with FakeTensorMode():  # tensors of a device that is not here; the one on the host is not pinned
        found = copying("aten::copy_", torch.empty(2, device=to), torch.empty(2, device=source), *flags)
    assert (found and (found.device, found.blocking)) == (device and (device, True))


def test_a_job_on_a_device_counts_no_tensor_of_the_host_and_computes_the_same(tmp_path, monkeypatch):
    for room in ("operators", "functions"):
        monkeypatch.setattr(f"distprof.recording.blocking.{room}.is_on_device", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_synchronize", lambda: None, raising=False)  # a build without CUDA lacks it
    seen = []

    def read(x):
        y = x.clone()
        y[0], y[1] = 2, x.sum().item()
        y.copy_(y.double()), y.tolist(), y.cpu(), torch._C._cuda_synchronize()
        seen.append(y[x > 0].tolist())

    rows = waits_of(tmp_path, read)
    assert seen == [[2.0] * 4 + [8.0] * 4] * 2
    assert set(rows.select("op", "device", "blocking").iter_rows()) == {("cuda.synchronize", "cuda", True)}


@pytest.mark.parametrize(("over", "calls"), [((True, True), 0), ((False, False), 0), ((False, True), 1)])
def test_on_a_device_a_work_is_waited_for_where_that_ends_it(monkeypatch, over, calls):
    class Work(torch.distributed.Work):
        answers = list(over)

        def wait(self):
            return True

        def is_completed(self):
            return self.answers.pop(0)

    monkeypatch.setattr("distprof.recording.blocking.functions.is_on_device", lambda: True)
    monkeypatch.setattr(torch.distributed, "Work", Work)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    scopes = ModuleScopes(ModuleMap(), lambda call: call, lambda _: None)
    log = BlockingLog(NodeOwners(scopes), guard=lambda call: call, step=lambda: 0, phase=lambda: None)
    functions = WaitingFunctions(log)
    log.start(), functions.start()
    try:
        assert Work().wait()
    finally:
        functions.stop()
    log.next_step()
    assert [row["calls"] for row in log.rows()] == [1] * calls


@pytest.mark.long
def test_a_compiled_model_is_recorded_too(tmp_path):
    torch.manual_seed(0)
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with distprof.record(tmp_path / "run", steps="wait=1,count=0,time=0,sync=2,trace=0,arrivals=0"):
        for _ in range(3):
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            assert loss.item() == loss.detach().clone()
            optimizer.step()
    rows = distprof.read_run(tmp_path / "run").waits()
    assert set(rows["op"]) == {"aten::item"}
    assert rows["step"].unique().sort().to_list() == [1, 2]


def test_more_lines_than_are_kept_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr("distprof.recording.blocking.blocking_log.MOST_KINDS", 3)
    note = "the sync pass found too many different waiting lines; calls not recorded: 4"
    rows = waits_of(tmp_path, lambda x: (x.sum().item(), x.tolist(), x.nonzero(), x.tolist()), (note,))
    assert rows.select("op", "calls").rows() == [("aten::item", 1), ("Tensor.tolist", 2), ("aten::nonzero", 1)]


@pytest.mark.long
def test_a_signal_in_the_midst_of_an_operator_waits_for_its_end(tmp_path):
    seen = []

    def read(x):
        seen.append(is_in_kernel())
        before = signal.signal(signal.SIGALRM, lambda *_: seen.append(is_in_kernel()))
        try:
            for number in range(10_000):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + number % 20))
                x.sum().item()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    waits_of(tmp_path, read)
    assert seen[0] is False and {True, False} <= set(seen)


def test_a_signal_in_the_midst_of_an_all_reduce_of_ddp_waits_for_its_end():
    seen: list[bool] = []

    class Operator:
        def redispatch(self, keys: object, buckets: object) -> None:
            seen.append(is_in_kernel())

    kernel = DdpWaits(BlockingLog.__new__(BlockingLog), lambda function: function)._kernel(Operator())
    kernel(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), [torch.ones(1)])
    assert seen == [True]
    assert not is_in_kernel()


READ = Wait("aten::item", "device", "cpu", blocking=True)
WOULD = Wait("aten::nonzero", "device", "cpu", blocking=False)


def test_calls_of_a_line_are_added_up_in_each_step_and_what_follows_the_last_one_is_dropped():
    step = [0]
    owners = SimpleNamespace(where=lambda: ("layers.1", "forward"))
    log = BlockingLog(owners, guard=lambda function: function, step=lambda: step[0], phase=lambda: None)
    log.start()
    for number, durations in enumerate(((5, 9, 7), (4,), (100,))):
        step[0] = number
        for wait in (READ, WOULD):
            for ns in durations:
                log.add(wait, ns, sys._getframe())
        if number < 2:
            log.next_step()
    log.forget_step()
    rows = log.rows()
    assert [(row["step"], row["op"], row["calls"], row["blocked_ns"], row["longest_ns"]) for row in rows] == [
        (0, "aten::item", 3, 21, 9), (0, "aten::nonzero", 3, 0, 0), (1, "aten::item", 1, 4, 4),
        (1, "aten::nonzero", 1, 0, 0)]
    assert {(row["module_path"], row["phase"], row["thread"]) for row in rows} == {("layers.1", "forward", "steps")}
    assert {row["file"].rpartition("/")[2] for row in rows} == {"test_sync.py"}
