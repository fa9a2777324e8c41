"""Who first uses what was communicated, in execution traces that are written by hand."""

from __future__ import annotations

import pytest

from distprof.errors import DataError
from distprof.merge.execution.dependencies.first_uses import UNKNOWN, UNUSED, uses_of
from distprof.merge.run.open_run import open_run
from support.execution_traces import FRESH, call, gloo_job, pair, slices, tensor

IN_PLACE = "aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)"


def inside(calls, number):
    """Numbers of the calls in a call."""
    mine = {one["id"] for one in calls if one["ctrl_deps"] == number}
    return mine.union(*(inside(calls, one) for one in mine))


def first_of(folder, nodes, *, op="allreduce_", tensors=((1,),), **work):
    """Name of the first use in calls behind an operator that issues communication of these tensors."""
    inputs = [[tensor(one) for one in group] for group in tensors]
    name = {"allreduce_": "all_reduce", "barrier": "barrier", "send": "send"}[op]
    own = [call(2, "make", outputs=[tensor(1)], schema=FRESH), call(3, f"c10d::{op}", inputs=inputs, **work),
           call(4, f"gloo:{name}", inputs=[tensor(one) for group in tensors for one in group]), *nodes]
    timeline = slices(*((one["name"], one["id"]) for one in own))
    for one in own:
        for slice_ in timeline:  # a call lasts as long as those in it
            if slice_["args"]["Record function id"] in inside(own, one["id"]):
                timeline[own.index(one)]["dur"] = slice_["ts"] + slice_["dur"] - timeline[own.index(one)]["ts"] + 1
    timeline[2] |= {"cat": "user_annotation", "tid": 7}
    timeline[2]["args"] |= {"Input Dims": [[4]], "Input type": ["float"]}
    found = uses_of(open_run(pair(folder, own, timeline)))[0]
    (number,) = found.call.tolist()
    return number if number < 0 else found.calls[number]


@pytest.mark.parametrize(("nodes", "name"), [
    ([call(5, "apart", inputs=[tensor(2)]), call(6, "reads", inputs=[tensor(1)])], "reads"),
    ([call(5, "apart"), call(6, "writes", inputs=[tensor(1)], schema=IN_PLACE)], "writes"),
    ([call(5, "outer"), call(6, "inner", parent=5, inputs=[tensor(1)])], "inner"),
    ([call(5, "in a list", inputs=[[tensor(3), tensor(1)]])], "in a list"),
    ([call(5, "has got its memory", outputs=[tensor(1)], schema=FRESH)], "has got its memory"),
    ([call(5, "_c10d_functional::wait_tensor", inputs=[tensor(1)]), call(6, "reads", inputs=[tensor(1)])], "reads"),
    ([call(5, "Work.wait"), call(6, "chunk", parent=5, inputs=[tensor(1)]), call(7, "reads", inputs=[tensor(1)])],
     "reads"),
    ([call(5, "_c10d_functional::wait_tensor"), call(6, "PythonSubclass", parent=5, inputs=[tensor(1)]),
      call(7, "_c10d_functional::wait_tensor", parent=6, inputs=[tensor(1)])], UNUSED),
    ([call(5, "_c10d_functional::_wrap_tensor_autograd", inputs=[tensor(1)], outputs=[tensor(9)]),
      call(6, "reads", inputs=[tensor(9)])], "reads"),
    ([call(5, "apart", inputs=[tensor(2)])], UNUSED)])
def test_the_first_call_that_has_a_tensor_of_it_counts(tmp_path, nodes, name):
    assert first_of(tmp_path / "run", nodes) == name


def test_what_is_sent_may_be_read_but_not_written(tmp_path):
    nodes = [call(5, "reads", inputs=[tensor(1)]), call(6, "writes", inputs=[tensor(1)], schema=IN_PLACE)]
    assert first_of(tmp_path / "run", nodes, op="send") == "writes"


def test_of_a_barrier_and_of_what_has_no_tensors_nothing_is_known(tmp_path):
    assert first_of(tmp_path / "barrier", [call(5, "reads", inputs=[tensor(1)])], op="barrier") == UNKNOWN
    assert first_of(tmp_path / "none", [call(5, "reads", inputs=[tensor(1)])], tensors=()) == UNKNOWN


def test_all_that_was_issued_has_a_place(tmp_path):
    found = uses_of(open_run(gloo_job(tmp_path / "run")))
    assert [one.ops for one in found.values()] == [["all_reduce", "send"], ["all_reduce", "recv"]]
    assert [[one.calls[number] if number >= 0 else number for number in one.call.tolist()]
            for one in found.values()] == [["use", UNUSED], ["use", UNUSED]]


def test_without_execution_traces_it_is_one_line(tmp_path):
    folder = pair(tmp_path / "run", [], slices(("make", 2)))
    (folder / "et_rank0.json").unlink()
    with pytest.raises(DataError, match="no execution traces in"):
        uses_of(open_run(folder))
