"""`--format linked` as the real chakra_converter takes it: kinds, sizes, groups and counts of communication."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distprof.contract.collective_ops import COLLECTIVE_OPS
from distprof.merge.execution.communication import Communication
from distprof.merge.execution.dependencies.storage_dependencies import edges
from distprof.merge.execution.formats.chakra_nodes import ExportContext
from distprof.merge.execution.formats.linked_json import FIRST_ID, write_linked
from distprof.merge.execution.process_groups import ProcessGroups
from distprof.merge.execution.rank_execution import RankExecution
from distprof.merge.execution.rank_graph import RankGraph
from distprof.merge.operators.timeline.rank_timeline import KERNEL, OPERATOR
from distprof.merge.run.run_model import Rank
from support.chakra_tools import chakra, needs_chakra
from support.execution_traces import read_et
from support.jobs import SCRIPTS, called, record_run

pytestmark = needs_chakra
METADATA, COMP, SEND, RECV, COLLECTIVE = 1, 4, 5, 6, 7
READ = {"all_reduce": 0, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}
"""Ops that the converter knows -> their number in its schema."""
KINDS = {"send": SEND, "recv": RECV, **dict.fromkeys(READ, COLLECTIVE)}
NAMES = ("gloo:all_reduce", "gloo:send", "gloo:recv", "gloo:reduce", "c10d::send", "c10d::recv_", "c10d::reduce_",
         "record_param_comms", "nccl:all_to_all", "nccl:send 0->1", "ncclDevKernel_SendRecv(ncclDevComm*)",
         "ncclKernel_AllReduce_RING_LL_Sum_float", "ncclDevKernel_ReduceScatter_Sum_f32",
         "ncclDevKernel_Reduce_Sum_f32", "aten::mm", "ampere_sgemm", "Optimizer.step#SGD.step")
CALLS = st.lists(st.tuples(
    st.sampled_from(NAMES), st.booleans(), st.integers(-1, 20),
    st.none() | st.tuples(st.sampled_from([*COLLECTIVE_OPS, "unknown"]), st.integers(0, 1 << 40) | st.none(),
                          st.sampled_from([None, (0, 1), (1,)]), st.integers(-1, 20))), min_size=1, max_size=20)
"""Name, whether it ran on a device, how many places before the call around it is, and its communication: op, bytes,
group, how many places before it the operator is that issued it."""


def _execution(calls):
    parent = [place - 1 - back if 0 <= back < place else -1 for place, (_, _, back, _) in enumerate(calls)]
    found = [(place, comm) for place, (_, _, _, comm) in enumerate(calls) if comm is not None]
    names, nothing = sorted({name for name, *_ in calls}), np.zeros(len(calls), np.int64)
    graph = RankGraph(
        name=np.array([names.index(name) for name, *_ in calls]), names=names,
        type=np.array([KERNEL if on_device else OPERATOR for _, on_device, *_ in calls]),
        start_ns=np.arange(len(calls)) * 1000, duration_ns=nothing + 1000, self_ns=nothing + 1000, thread=nothing,
        parent=np.array(parent), node=nothing - 1, slice=np.arange(len(calls)), inside_until=np.arange(len(calls)),
        table=None, timeline=None, links=None)
    rows = pl.DataFrame({
        "op": [comm[0] for _, comm in found], "size_bytes": [comm[1] for _, comm in found],
        "group": [None for _ in found], "group_ranks": [comm[2] and ", ".join(map(str, comm[2])) for _, comm in found],
        "collective": list(range(len(found)))}, schema={
            "op": pl.String, "size_bytes": pl.Int64, "group_ranks": pl.String, "collective": pl.Int64,
            "group": pl.String})
    issued = [place - 1 - comm[3] if 0 <= comm[3] < place else -1 for place, comm in found]
    return RankExecution(
        rank=Rank(number=0, folder=Path()), graph=graph,
        edges=edges(len(calls), [(nothing[:0], nothing[:0])]), communication=Communication(
            place=np.array([place for place, _ in found], np.int64), rows=rows, issued_by=np.array(issued, np.int64)))


def converted(path):
    """The nodes that the converter makes of a file."""
    from chakra.src.converter.pytorch_converter import PyTorchConverter

    PyTorchConverter().convert(str(path), str(path.with_suffix(".et")), simulate=False)
    return read_et(path.with_suffix(".et"))[1]


@given(CALLS)
@example([("gloo:all_reduce", False, -1, ("reduce_scatter", 8, (0, 1), -1))])
@example([("c10d::send", False, -1, None), ("gloo:send", False, 0, ("send", 8, (0, 1), 0)),
          ("gloo:recv", False, 0, ("recv", 8, (0, 1), -1))])
@example([("c10d::send", False, -1, None),
          ("ncclDevKernel_SendRecv(ncclDevComm*)", True, 0, ("all_to_all", 8, None, 0))])
@example([("record_param_comms", False, -1, None), ("ncclDevKernel_SendRecv(ncclDevComm*)", True, 0,
                                                    ("recv", None, None, -1))])
def test_the_converter_makes_of_each_call_what_it_is(calls):
    execution = _execution(calls)
    context = ExportContext(target="replay", groups=ProcessGroups(((0, 1), (1,)), {}), sizes={})
    with TemporaryDirectory() as folder:
        path = Path(folder) / "job.0.json"
        written = write_linked(path, execution, context, lambda times: times)
        nodes = converted(path)
    by_id = {node["id"]: node for node in nodes}
    assert len(nodes) == written.nodes + 2  # the thread, and the list of groups
    assert [node["type"] for node in nodes if "process_group" in node["name"]] == [METADATA]
    for place, (_, on_device, _, comm) in enumerate(calls):
        node = by_id[place * 2 + FIRST_ID]
        op, size, group, _ = comm or ("", None, None, -1)
        assert node["type"] == KINDS.get(op, COMP), (node, op)
        assert node["attributes"].get("comm_type") == READ.get(op)
        assert node["attributes"]["is_cpu_op"] == int(not (on_device or op in KINDS))
        if op in KINDS:
            assert node["attributes"].get("pg_name") == {None: None, (0, 1): "0", (1,): "1"}[group]
            assert node["attributes"]["comm_size"] == (size or 0)
    made = [node for node in nodes if node["type"] in (SEND, RECV, COLLECTIVE)]
    assert written.communication == len(made)
    assert written.unread == Counter(comm[0] for *_, comm in calls if comm and comm[0] not in KINDS)


@pytest.mark.parametrize(("around", "nodes"), [("c10d::send", 2), ("aten::mm", 3)])
def test_a_send_is_put_into_its_operator_or_a_node_of_its_own(tmp_path, around, nodes):
    calls = [(around, False, -1, None), ("gloo:send", False, -1, ("send", 8, (0, 1), 0))]
    path = tmp_path / "job.0.json"
    written = write_linked(path, _execution(calls), ExportContext(
        target="replay", groups=ProcessGroups((), {}), sizes={}), lambda at: at)
    found = {node["id"]: node for node in converted(path)}
    assert written.nodes == nodes
    assert [found[one]["name"] for one in found[FIRST_ID + 2]["control"]] == ["c10d::send"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of ours that calls each kind in each step."""
    folder = tmp_path_factory.mktemp("kinds") / "run"
    record_run(folder, 2, SCRIPTS / "observed_kinds.py", flags=("--execution-trace",))
    return folder


CALLED = {"all_reduce": 2, "broadcast": 1, "reduce": 1, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1,
          "gather": 1, "send": 1, "recv": 1, "barrier": 1}
"""What `observed_kinds.py` calls in a step."""


@pytest.mark.job
def test_the_converter_makes_of_a_recorded_step_what_the_script_called(recorded, tmp_path):
    done = called("export", recorded, "--out", tmp_path, "--prefix", "job", "--format", "linked")
    assert done.returncode == 0, done.stderr
    assert "written as computation (barrier 2, gather 2, reduce 2); --format chakra has them" in done.stdout
    for rank in (0, 1):
        chakra("converter", "PyTorch", "--input", f"job.{rank}.json", "--output", f"job.{rank}.et", cwd=tmp_path)
        nodes = [node for node in read_et(tmp_path / f"job.{rank}.et")[1] if node["type"] > COMP]
        kinds = Counter((node["type"], node["attributes"].get("comm_type")) for node in nodes)
        assert kinds == {(KINDS[op], READ.get(op)): number for op, number in CALLED.items() if op in KINDS}
        row = next(line.split() for line in done.stdout.splitlines() if line.startswith(f"{rank} "))
        assert int(row[2]) == len(nodes)
        sizes = {node["attributes"]["comm_type"]: node["attributes"]["comm_size"] for node in nodes
                 if node["type"] == COLLECTIVE}
        assert sizes == {0: 24, 2: 24, 5: 24, 6: 24, 7: 48}  # floats: 6 of each rank, and 6 for each to scatter


@pytest.mark.job
def test_the_list_of_groups_is_what_simulators_look_up(recorded, tmp_path):
    called("export", recorded, "--out", tmp_path, "--prefix", "job", "--format", "linked")
    chakra("converter", "PyTorch", "--input", "job.1.json", "--output", "job.1.et", cwd=tmp_path)
    nodes = read_et(tmp_path / "job.1.et")[1]
    (listed,) = [node for node in nodes if node["type"] == METADATA]
    groups = {one["pg_name"]: one for one in json.loads(listed["inputs"][0][2:-2])}
    assert {node["attributes"]["pg_name"] for node in nodes if node["type"] > COMP} <= groups.keys()
    assert groups["0"]["group_size"] == 2 and [1] in [one["ranks"] for one in groups.values()]
