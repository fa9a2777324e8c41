"""Execution traces that end other converters with a traceback or lose what is in them, and broken ones."""

from __future__ import annotations

import gzip
import json

import pytest

from support.execution_traces import FRESH, call, file_of, gloo_job, pair, read_et, slices, tensor, values
from support.jobs import called

PLAIN = [call(2, "one", outputs=[tensor(1)], schema=FRESH), call(3, "two", inputs=[tensor(1)], schema=FRESH)]
EVENTS = slices(("one", 2), ("two", 3))


def run(folder, *options):
    return called("export", folder, "--out", folder / "out", "--prefix", "job", *options)


def nodes_of(folder):
    done = run(folder)
    assert done.returncode == 0, done.stderr
    nodes = read_et(folder / "out" / "job.0.et")[1]
    order = {node["id"]: place for place, node in enumerate(nodes)}
    assert all(order[one] < order[node["id"]] for node in nodes for one in (*node["data"], *node["control"]))
    return {node["name"]: node for node in nodes}, done.stdout


def without(text, key):
    return json.dumps({name: value for name, value in json.loads(text).items() if name != key})


KERNEL = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": 105, "dur": 3, "args": {"correlation": 1, "stream": 7}}
LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 102, "dur": 1,
          "args": {"correlation": 1}}
OF_THE_FACT_SHEET = {
    "no device events, no ProfilerStep": (PLAIN, EVENTS),
    "no numbers of calls in the timeline": (PLAIN, [one | {"args": {}} for one in EVENTS]),
    "a node without most attributes": ([call(2, "one", without=("fw_parent", "seq_id", "scope", "tid", "fw_tid")),
                                        PLAIN[1]], EVENTS),
    "a schema of later": (file_of(*PLAIN, schema="9.9.9-chakra.9.9.9"), EVENTS),
    "the schema that is listed and not read": (file_of(*PLAIN, schema="1.1.1-chakra.1.0.0"), EVENTS),
    "no finish_ts: killed while it recorded": (without(file_of(*PLAIN), "finish_ts"), EVENTS),
    "negative start_ts": (file_of(*PLAIN, start_ts=-5), EVENTS),
    "a kernel named ncclDevKernel_Reduce": (PLAIN, [*EVENTS, LAUNCH, KERNEL | {"name": "ncclDevKernel_Reduce_x"}]),
    "a kernel that sends, without the call that issued it": (
        PLAIN, [*EVENTS, KERNEL | {"name": "ncclDevKernel_SendRecv(ncclDevComm*)"}]),
    "a call that ends after the one around it": (
        [PLAIN[0], call(3, "two", parent=2, inputs=[tensor(1)])],
        [EVENTS[0], EVENTS[0] | {"name": "two", "ts": 104, "dur": 90, "args": {"Record function id": 3}}]),
    "a kernel without a launch": (PLAIN, [*EVENTS, KERNEL | {"name": "gemm"}]),
    "launches with the same correlation": (PLAIN, [*EVENTS, LAUNCH, LAUNCH | {"ts": 112}, KERNEL | {"name": "gemm"}]),
    "a launch of an unknown name": (PLAIN, [*EVENTS, LAUNCH | {"name": "cudaGraphNewLaunch"}, KERNEL | {"name": "k"}]),
}


@pytest.mark.parametrize("what", OF_THE_FACT_SHEET)
def test_what_ends_other_converters_is_exported(tmp_path, what):
    nodes, events = OF_THE_FACT_SHEET[what]
    found, _ = nodes_of(pair(tmp_path / "run", nodes, events))
    assert found["one"]["start"] == 100 and found["two"]["data"] == [found["one"]["id"]]
    assert all(node["duration"] <= 90 for node in found.values())


def test_paths_may_be_relative(tmp_path, monkeypatch):
    folder = pair(tmp_path / "run", PLAIN, EVENTS)
    monkeypatch.chdir(folder)
    done = called("export", "et_rank0.json", "rank0.json", "--out", "out", "--prefix", "job")
    assert done.returncode == 0 and len(read_et(folder / "out" / "job.0.et")[1]) == 3, done.stderr


def of_nccl(folder, *, group, world_size=4, **args):
    """The exported kernel of an all_reduce of rank 0, and what was said; `args` are those of the kernel."""
    kernel = KERNEL | {"name": "ncclDevKernel_AllReduce_Sum_f32", "args": {
        **KERNEL["args"], "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float",
        **args}}
    pair(folder, PLAIN, [*EVENTS, LAUNCH, kernel], world_size=world_size)
    file = folder / "rank0.json"
    timeline = json.loads(file.read_text())
    timeline["distributedInfo"]["pg_config"] = group
    file.write_text(json.dumps(timeline))
    found, said = nodes_of(folder)
    return found[kernel["name"]]["attributes"], said


def test_a_group_that_is_not_known_is_no_group_of_all_ranks(tmp_path):
    groups = [{"pg_name": str(number), "pg_desc": "", "pg_size": 2, "ranks": ranks} for number, ranks in
              enumerate([[0, 1], [0, 2]])]
    attributes, said = of_nccl(tmp_path / "run", group=groups)
    assert "pg_name" not in attributes and "1 node of an unknown process group" in said


def test_names_of_groups_that_are_no_numbers_get_one(tmp_path):
    name = "3ae1f09b7c5d42e8_long_id"
    groups = [{"pg_name": name, "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]}]
    attributes, _ = of_nccl(tmp_path / "run", group=groups, **{
        "Process Group Name": name, "Process Group Description": "mesh_tp", "Process Group Ranks": "[0, 1]"})
    assert attributes["pg_name"] == "1" and attributes["comm_size"] == 32


@pytest.mark.long
def test_calls_may_lie_deep_in_each_other(tmp_path):
    depth = 3000
    nodes = [call(number, f"call {number}", parent=number - 1) for number in range(2, depth)]
    events = slices(*({"ph": "X", "cat": "cpu_op", "name": f"call {number}", "pid": 1, "tid": 1, "ts": 100 + number,
                       "dur": 2 * (depth - number), "args": {"Record function id": number}}
                      for number in range(2, depth)))
    found, _ = nodes_of(pair(tmp_path / "run", nodes, events))
    assert found[f"call {depth - 1}"]["control"] == [found[f"call {depth - 2}"]["id"]]


@pytest.mark.long
def test_ranks_may_have_different_numbers_of_collectives(tmp_path):
    folder = gloo_job(tmp_path / "run")
    file = folder / "rank1.json"
    timeline = json.loads(file.read_text())
    timeline["traceEvents"] = [one for one in timeline["traceEvents"] if one["name"] != "gloo:all_reduce"]
    file.write_text(json.dumps(timeline))
    def exported():
        _, said = nodes_of(folder)
        nodes = [read_et(folder / "out" / f"job.{rank}.et")[1] for rank in (0, 1)]
        keys = "comm_type", "comm_size", "pg_name"
        return [[tuple(node["attributes"][key] for key in keys) for node in some if node["type"] == 7]
                for some in nodes], said

    kinds, said = exported()  # the execution trace has it without a time
    assert kinds[0] == kinds[1] == [(0, 100, "0")], kinds
    assert "1 call of communication has no time" in said and "missing on some" not in said
    execution = folder / "et_rank1.json"
    nodes = json.loads(execution.read_text())
    nodes["nodes"] = [one for one in nodes["nodes"] if "all" not in one["name"]]
    execution.write_text(json.dumps(nodes))
    kinds, said = exported()
    assert list(map(len, kinds)) == [1, 0] and "1 collective is missing on some of its ranks" in said


@pytest.mark.parametrize("node", [call(2, "one", without=("rf_id",)), call(2, "one") | {"attrs": []}])
def test_a_call_without_its_number_has_no_time_of_its_own(tmp_path, node):
    found, said = nodes_of(pair(tmp_path / "run", [node, PLAIN[1]], EVENTS))
    assert {"one", "two"} <= set(found) and "1 node without a time" in said and "50.0 %" in said


def alone(folder, *names):
    folder.mkdir()
    for name in names:
        (folder / name).write_text(file_of(*PLAIN))
    return folder


def test_execution_traces_without_any_timeline_have_nodes_and_dependencies(tmp_path):
    folder = alone(tmp_path / "run", "et_rank0.json", "et_rank1.json")
    found, said = nodes_of(folder)
    assert found["two"]["data"] == [found["one"]["id"]] and found["one"]["start"] == 0
    assert "no timeline has calls from the execution trace of rank 0, 1: its nodes have no times" in said
    assert (folder / "out" / "job.1.et").is_file() and "0.0 %" in said
    assert "no communication is left" in run(folder, "--format", "replay").stdout
    assert "hint: distprof export reads execution traces" in called("merge", folder).stderr


def test_a_single_execution_trace_without_a_rank_in_its_name_is_of_rank_0(tmp_path):
    found, _ = nodes_of(alone(tmp_path / "run", "trace.json"))
    assert set(found) > {"one", "two"}


def test_execution_traces_alone_have_to_tell_their_ranks(tmp_path):
    done = run(alone(tmp_path / "run", "a.json", "b.json"))
    assert done.returncode == 1 and "must contain the rank: a.json, b.json" in done.stderr
    assert done.stderr.count("\n") == 1


def test_parents_may_miss_form_a_ring_or_be_the_node_itself(tmp_path):
    nodes = [call(2, "one", parent=3), call(3, "two", parent=2), call(4, "three", parent=99), call(5, "four", parent=5)]
    found, _ = nodes_of(pair(tmp_path / "run", nodes, slices(("one", 2), ("two", 3), ("three", 4), ("four", 5))))
    assert {"one", "two", "three", "four"} <= set(found)


def test_ids_may_be_larger_than_signed_numbers(tmp_path):
    high = 2**63
    nodes = [call(high + 2, "one", rf_id=2, outputs=[tensor(1)], schema=FRESH),
             call(high + 3, "two", parent=high + 2, rf_id=3, inputs=[tensor(1)], schema=FRESH)]
    found, _ = nodes_of(pair(tmp_path / "run", nodes, EVENTS))
    assert found["two"]["data"] == [found["one"]["id"]]


def test_nodes_that_are_none_are_left_out(tmp_path):
    nodes = json.loads(file_of(*PLAIN))
    nodes["nodes"] += [{}, {"id": "x", "name": "bad"}, {"id": 2**70, "name": "far"}, {"id": -1, "name": "low"},
                       {"id": 9, "name": 7}, call(2, "repeated")]
    found, _ = nodes_of(pair(tmp_path / "run", json.dumps(nodes), EVENTS))
    assert len(found) == 3


def test_values_that_are_no_tensors_do_no_harm(tmp_path):
    odd = {"values": [[1, 2, 3, 4, 5, "cpu", 7], [1, 2], "x", None, {"a": 1}, [[[[]]]]], "shapes": 3, "types": None}
    found, _ = nodes_of(pair(tmp_path / "run", [call(2, "one") | {"inputs": odd}, call(3, "two") | {
        "inputs": 5, "outputs": values([1, 0, 0, 4, 4, "cpu"])}], EVENTS))
    assert found["two"]["data"] == [found["one"]["id"]]  # in turn


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_file_that_was_cut_gives_what_is_in_it(tmp_path, share):
    many = [call(number, f"call {number}") for number in range(2, 60)]
    text = file_of(*many)
    events = slices(*((f"call {number}", number) for number in range(2, 60)))
    found, said = nodes_of(pair(tmp_path / "run", text[:int(share * len(text))], events))
    assert "cut off on rank 0" in said and 10 < len(found) <= 60


def test_damage_inside_is_said(tmp_path):
    text = file_of(*(call(number, f"call {number}") for number in range(2, 60)))
    at = text.index('"call 30"')
    found, said = nodes_of(pair(tmp_path / "run", text[:at] + '}]"{' + text[at:],
                                slices(*((f"call {number}", number) for number in range(2, 60)))))
    assert "call 29" in found and "call 30" not in found
    assert "execution traces are damaged, and calls are missing: rank 0 (" in said


def test_a_cut_gzip_file_gives_what_is_in_it(tmp_path):
    many = [call(number, f"call {number}") for number in range(2, 400)]
    folder = pair(tmp_path / "run", many, slices(*((f"call {number}", number) for number in range(2, 400))))
    text = (folder / "et_rank0.json").read_bytes()
    (folder / "et_rank0.json").unlink()
    (folder / "et_rank0.json.gz").write_bytes(gzip.compress(text)[:-200])
    _, said = nodes_of(folder)
    assert "cut off on rank 0" in said


@pytest.mark.parametrize(("text", "found"), [
    (file_of(), "no calls"), ('{"schema": "1.0", "nodes": []}', "no calls"),
    ('{"schema": "1.0", "nodes": [{}, {}]}', "no nodes with an id and a name")])
def test_an_empty_execution_trace_is_one_line(tmp_path, text, found):
    done = run(pair(tmp_path / "run", text, EVENTS))
    assert done.returncode == 1 and found in done.stderr and done.stderr.count("\n") == 1


def test_two_steps_in_a_file_are_both_exported(tmp_path):
    steps = [call(number, f"ProfilerStep#{number}") for number in (2, 4)]
    nodes = [steps[0], call(3, "one", parent=2), steps[1], call(5, "two", parent=4)]
    found, _ = nodes_of(pair(tmp_path / "run", nodes, slices(
        ("ProfilerStep#2", 2), ("one", 3), ("ProfilerStep#4", 4), ("two", 5))))
    assert {"ProfilerStep#2", "one", "ProfilerStep#4", "two"} <= set(found)


def test_wrong_options_and_folders_are_one_line(tmp_path):
    folder = pair(tmp_path / "run", PLAIN, EVENTS)
    for options, said in ((("--rank", "7"), "no rank 7"), (("--format", "pdf"), "Invalid value")):
        done = run(folder, *options)
        assert done.returncode != 0 and said in done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no Chrome traces" in run(empty).stderr
