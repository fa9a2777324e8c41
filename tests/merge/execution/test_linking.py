"""Slices by names and order, where one side has no numbers of calls, are those by numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from distprof.merge.execution.linking import FUNCTION, LEAST, linked
from distprof.merge.execution.node_table import read_table
from distprof.merge.operators.timeline.rank_timeline import Wanted, read_timeline
from distprof.merge.run.run_model import Rank
from distprof.merge.scan.trace_file import TraceFile
from support.jobs import SCRIPTS, started
from support.kineto_files import DLRM, needs_shared
from support.ports import free_port


def links_of(execution, timeline):
    """The execution trace, the timeline, and which slice each node has."""
    rank = Rank(number=0, folder=timeline.parent, trace=TraceFile(path=timeline))
    table, found = read_table(TraceFile(path=execution)), read_timeline(rank, wanted=Wanted(integers=(FUNCTION,)))
    return table, found, linked(table, found)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """What two ranks record themselves, whose backward passes run on threads of their own."""
    folder = tmp_path_factory.mktemp("demo")
    done = started(SCRIPTS / "two_observers.py", folder, free_port())
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.job
@pytest.mark.parametrize("side", ["demo_trace_r1.json", "demo_et_r1.json"])
def test_without_numbers_on_a_side_names_and_order_find_the_same_slices(demo, tmp_path, side):
    for name in ("demo_trace_r1.json", "demo_et_r1.json"):
        text = (demo / name).read_text()
        (tmp_path / name).write_text(text.replace(f'"{FUNCTION}"', '"x"').replace('"rf_id"', '"y"')
                                     if name == side else text)
    _, _, by_number = links_of(demo / "demo_et_r1.json", demo / "demo_trace_r1.json")
    _, _, by_order = links_of(tmp_path / "demo_et_r1.json", tmp_path / "demo_trace_r1.json")
    assert (by_number.linked_by, by_order.linked_by) == ("id", "order")
    assert by_number.agreement == by_number.ratio == 1
    assert np.count_nonzero(by_number.slice != by_order.slice) <= 0.01 * by_number.num_calls
    assert by_order.agreement > LEAST


@needs_shared
@pytest.mark.parametrize("rank", [0, 5])
def test_calls_of_a_public_job_without_numbers_lie_in_the_slices_of_their_callers(rank):
    (timeline,) = (DLRM / "kineto").glob(f"worker{rank}_*")
    table, found, links = links_of(DLRM / "et" / f"dlrm_eg_{rank}.json.gz", timeline)
    assert links.linked_by == "order" and links.agreement > 0.99
    rows = np.flatnonzero((links.slice >= 0) & (table.parent >= 0))
    rows = rows[links.slice[table.parent[rows]] >= 0]
    inner, outer = links.slice[rows], links.slice[table.parent[rows]]
    assert len(rows) > 1500
    assert np.all((found.start_ns[outer] <= found.start_ns[inner]) & (found.end_ns[inner] <= found.end_ns[outer]))


@needs_shared
def test_two_ranks_of_a_job_without_numbers_cannot_be_told_apart_by_names():
    (timeline,) = (DLRM / "kineto").glob("worker3_*")
    assert links_of(DLRM / "et" / "dlrm_eg_0.json.gz", timeline)[2].agreement > LEAST, "so process numbers decide"


@pytest.mark.job
def test_a_rank_that_calls_other_things_is_below_the_share(demo, tmp_path):
    nodes = json.loads((demo / "demo_et_r0.json").read_text())
    for place, node in enumerate(nodes["nodes"]):
        node["name"] = node["name"] if place % 3 else f"{node['name']} of another program"
    (tmp_path / "et.json").write_text(json.dumps(nodes))
    links = links_of(tmp_path / "et.json", demo / "demo_trace_r0.json")[2]
    assert links.agreement < LEAST and links.linked_by == "id"
