"""Collectives of traces that other programs made: real ones of NCCL and gloo, and made ones for what these lack."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from distprof.contract.collective_ops import text_of
from distprof.contract.problems import MatchingInferred, TraceDamaged
from distprof.merge.clock.choose import on_one_host
from distprof.merge.cost.collective_sums import bandwidths, per_collective
from distprof.merge.cost.matrix import bytes_between
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.difference.split import is_communication
from distprof.merge.match.backend_names import dtype_of, item_bytes, may_communicate, op_of
from distprof.merge.match.matched_run import rows_of_ranks
from distprof.merge.run.group_ranks import with_lists
from distprof.merge.run.open_run import open_run
from distprof.merge.run.run_model import Run
from support.jobs import ROOT, distprof
from support.kineto_files import kineto, write

SHARED = ROOT.parent / "shared" / "traces"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the traces of ../shared")
EPOCH_US = 1_700_000_000_000_000


def measured(run: Run) -> tuple[Run, pl.DataFrame]:
    """The run with its remarks, and its collectives."""
    found = measured_run(run)
    return found.run, found.collectives


def members(run: Run) -> list[list[int]]:
    """The ranks of the group of each row."""
    return with_lists(rows_of_ranks(run).rows)["group_ranks"].to_list()


# --- real traces ------------------------------------------------------------------------------------------------------


@needs_shared
def test_eight_gpus_as_others_have_measured_them():
    """NCCL 2.18 or so: neither ids nor sizes at the kernels, which are found by their launches."""
    with on_one_host():
        run, rows = measured(open_run(SHARED / "dlrm8" / "kineto"))
    assert len(rows) == 64 and rows["complete"].all() and set(rows["matched_by"]) == {"label"}
    assert rows["dtype"].null_count() == rows["size_bytes"].null_count() == rows["enqueue_ns"].null_count() == 0
    assert set(rows["step"]) == {10}
    each = rows.unique("collective", maintain_order=True)
    found = [(op, *(value // 1000 for value in times)) for op, *times in each.select(
        "op", "arrival_spread_ns", "end_spread_ns", "clock_free_transfer_ns").iter_rows()]
    assert found == [
        ("all_to_all", 7624, 2, 10), ("all_to_all", 1101, 2, 8), ("all_to_all", 168, 1, 7), ("all_to_all", 125, 2, 7),
        ("all_reduce", 223, 5, 86), ("all_to_all", 534, 3, 10), ("all_reduce", 584, 5, 20), ("all_reduce", 885, 7, 69)]
    # both ways to tell waiting from moving agree to within the spread of the ends
    apart = (rows["wait_ns"] - rows["clock_free_wait_ns"]).abs()
    assert (apart <= rows["end_spread_ns"]).all() and not rows["disagrees"].any()
    assert not rows["unsure"].any(), "they are told to read one clock"
    assert {"label", "group"} <= {one.what for one in run.remarks if isinstance(one, MatchingInferred)}
    assert set(bandwidths(per_collective(rows))["op"]) == {"all_reduce", "all_to_all"}


@needs_shared
def test_one_of_three_hundred_ranks_of_gloo():
    _, rows = measured(open_run(SHARED / "gloo_rank34_of_300.json.gz"))
    assert set(rows["op"]) == {"all_reduce"} and len(rows) == 10 and set(rows["num_ranks"]) == {1}
    assert not rows["complete"].any() and rows["mismatch"].null_count() == 10, "who is not there is not to blame"
    assert rows["group"].null_count() == 10 and set(with_lists(rows)["group_ranks"].list.len()) == {300}
    assert sorted(set(rows["size_bytes"])) == [4 * 321271, 4 * 2082411]
    assert rows["arrival_spread_ns"].null_count() == rows["busbw"].null_count() == 10
    assert bytes_between(rows)["target"].to_list() == [35]


def test_a_timeline_without_labels_tells_what_the_labels_do(ddp, tmp_path):
    """The same job, once as distprof has labelled it and once as its traces alone tell."""
    for rank in range(4):
        shutil.copy(ddp / f"rank{rank:05d}" / "trace.json.gz", tmp_path / f"rank{rank}.json.gz")
    labelled, told = (measured(open_run(path))[1] for path in (ddp, tmp_path))
    assert len(labelled) == len(told) and labelled["complete"].all() and told["complete"].all()
    for column in ("collective", "rank", "op", "group", "group_description", "group_ranks", "size_bytes", "dtype",
                   "num_ranks", "between_hosts"):
        assert labelled[column].to_list() == told[column].to_list(), column
    assert set(labelled["matched_by"]) == {"sequence"} and set(told["matched_by"]) == {"label"}
    # the call, as the recorder and as the profiler saw it
    assert (labelled["enqueue_ns"] - told["enqueue_ns"]).abs().median() < 50_000_000


# --- made traces ------------------------------------------------------------------------------------------------------


def kernel(name: str, start: float, dur: float, *, stream: int = 20, **args) -> dict:
    return {"ph": "X", "cat": "kernel", "name": f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)", "pid": 0,
            "tid": stream, "ts": EPOCH_US + start, "dur": dur, "args": args}


def cpu(name: str, start: float, dur: float, *, cat: str = "cpu_op", tid: int = 7, **args) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": EPOCH_US + start, "dur": dur, "args": args}


def told(op: str, elements: int, sequence: int, ranks: list[int], *, group: str = "5", comms_id: int | None = None,
         **more) -> dict:
    """What torch 2.13 writes to a kernel."""
    shown = str(ranks) if len(ranks) < 5 else f"[{', '.join(map(str, ranks[:4]))}, ..., {ranks[-1]}]"
    return {"Collective name": op, "In msg nelems": elements, "Out msg nelems": elements, "Group size": len(ranks),
            "dtype": "BFloat16", "Process Group Name": group, "Process Group Description": "mesh_tp",
            "Process Group Ranks": shown, "Seq": sequence, **({} if comms_id is None else {"Comms Id": comms_id}),
            **more}


def traces(folder: Path, *events: list[dict], groups: list[tuple[str, list[int]]] | None = None,
           host: str = "one") -> Run:
    folder.mkdir()
    for rank, some in enumerate(events):
        known = {} if groups is None else {"pg_count": len(groups), "pg_config": [
            {"pg_name": name, "pg_desc": f"group_{name}", "pg_size": len(ranks), "ranks": ranks}
            for name, ranks in groups if rank in ranks]}
        (folder / f"rank{rank}.json").write_text(json.dumps({
            "distributedInfo": {"rank": rank, "world_size": len(events), "backend": "nccl", **known},
            "host_name": host, "traceEvents": some or [cpu("aten::mm", 0, 1)]}))
    return open_run(folder)


def test_labels_that_kernels_carry(tmp_path):
    of = list(range(8))
    events = [[cpu("ProfilerStep#4", 0, 500, cat="user_annotation"),
               kernel("AllGather_RING_LL", 1000 + rank, 50 - rank, correlation=9, **told(
                   "_allgather_base", 6, 3, of, comms_id=2**64 - 59)),
               cpu("cudaLaunchKernelExC", 30, 5, cat="cuda_runtime", correlation=9),
               cpu("c10d::_allgather_base_", 20, 40),
               cpu("record_param_comms", 25, 30, **told("_allgather_base", 6, 3, of)),
               {**cpu("nccl:_allgather_base", 1000, 50, cat="gpu_user_annotation"), "pid": 0}] for rank in of]
    run = traces(tmp_path / "t", *events, groups=[("5", of)])
    run, rows = measured(run)
    assert len(rows) == 8 and set(rows["matched_by"]) == {"id"} and rows["complete"].all()
    one = rows.row(0, named=True)
    assert (one["op"], one["group"], one["group_description"], one["group_ranks"]) == (
        "all_gather", "5", "mesh_tp", text_of(of))
    assert (one["dtype"], one["num_elements"], one["size_bytes"], one["group_sequence"]) == ("bfloat16", 6, 12, 3)
    assert one["comms_id"] == str(2**64 - 59) and one["timed_by"] == "timeline"
    assert one["enqueue_ns"] == (EPOCH_US + 20) * 1000 and one["start_ns"] == (EPOCH_US + 1000) * 1000
    assert one["step"] == 4, "the step in which it was issued, not that in which it ran"
    assert (one["arrival_spread_ns"], one["late_rank"], one["unsure"]) == (7000, 7, False)
    assert not any(isinstance(one, MatchingInferred) for one in run.remarks)


def test_members_of_groups_come_from_where_they_are_whole(tmp_path):
    of = list(range(6))
    events = [[kernel("AllReduce_Sum_bf16_RING_LL", 0, 9, **told("allreduce", 4, 1, of))] for _ in of]
    assert members(traces(tmp_path / "a", *events, groups=[("5", of)])) == [of] * 6
    assert rows_of_ranks(traces(tmp_path / "b", *events)).rows["group_ranks"].null_count() == 6, "the list was cut"
    spread = [[kernel("AllReduce", 0, 9, **told("allreduce", 4, 1, of), **{
        "Global rank start": 0, "Global rank stride": 1})] for _ in of]
    assert members(traces(tmp_path / "c", *spread)) == [of] * 6
    two = [[kernel("AllReduce", 0, 9, **told("allreduce", 4, 1, [0, 1]))] for _ in range(2)]
    assert members(traces(tmp_path / "d", *two)) == [[0, 1]] * 2


def test_sends_of_a_group_name_global_ranks(tmp_path):
    send = kernel("SendRecv", 0, 9, **told("send", 8, 1, [1, 3], **{"Dst Rank": 3}))
    recv = kernel("SendRecv", 2, 9, **told("recv", 8, 4, [1, 3], **{"Src Rank": 1}))
    _, rows = measured(traces(tmp_path / "t", [], [send], [], [recv], groups=[("5", [1, 3])]))
    assert rows["op"].to_list() == ["send", "recv"] and rows["peer"].to_list() == [3, 1]
    assert rows["complete"].all() and set(rows["matched_by"]) == {"peer"} and set(rows["size_bytes"]) == {16}
    assert bytes_between(rows).rows() == [(1, 3, "send", "exact", 16.0, 1)]


def test_splits_are_rows_of_the_first_dimension(tmp_path):
    events = [[kernel("SendRecv", 0, 9, **told("all_to_allv", 12, 1, [0, 1], **{"In split size": split}))]
              for split in ("[1, 2]", "[]")]
    rows = rows_of_ranks(traces(tmp_path / "t", *events)).rows
    assert rows["op"].to_list() == ["all_to_all"] * 2
    assert rows["split_bytes"].to_list() == [[8, 16], None]


def test_numbers_without_ids_and_a_hang_at_the_end(tmp_path):
    names = [["allreduce", "allreduce"], ["allreduce", "_allgather_base"]]
    events = [[kernel("Generic", 10 * place, 9, **told(name, 4, 7 + place, [0, 1])) for place, name in enumerate(mine)]
              for mine in names]
    _, rows = measured(traces(tmp_path / "t", *events))
    assert set(rows["matched_by"]) == {"sequence"} and rows["complete"].to_list() == [True, True, False, False]
    assert rows["mismatch"][2] in ("rank 1 called all_gather where rank 0 called all_reduce",
                                   "rank 0 called all_reduce where rank 1 called all_gather")


def test_kernels_that_say_nothing_are_found_by_their_launch(tmp_path):
    def rank(first: int, stream: int) -> list[dict]:
        calls = [("allreduce_", "all_reduce", [[5, 2]], ["float"]),
                 ("alltoall_base_", "all_to_all", [[6]], ["c10::Half"])]
        found = []
        for place, (call, note, shapes, types) in enumerate(calls):
            at = 100 * place
            found += [cpu(f"c10d::{call}", at, 50), cpu(f"nccl:{note}", at + 5, 40, cat="user_annotation", **{
                "Input Dims": shapes, "Input type": types}), cpu("cudaLaunchKernel", at + 9, 3, cat="cuda_runtime",
                                                                correlation=1 + place)]
            found.append(kernel("SendRecv" if place else "AllReduce", at + 1000, 50, stream=stream,
                                correlation=1 + place))
        return found[4 * first:]

    run = traces(tmp_path / "t", rank(0, 20), rank(0, 24), rank(1, 20))
    run, rows = measured(run)
    assert rows["op"].to_list() == ["all_reduce"] * 2 + ["all_to_all"] * 3
    assert rows["size_bytes"].to_list() == [40] * 2 + [12] * 3
    assert rows["complete"].to_list() == [False] * 2 + [True] * 3
    assert rows["enqueue_ns"].null_count() == 0
    alone = rows_of_ranks(traces(tmp_path / "u", [kernel("SendRecv", 0, 5)], [kernel("Generic", 0, 5)])).rows
    assert alone["op"].to_list() == ["send_recv", "unknown"] and alone["enqueue_ns"].null_count() == 2


@pytest.mark.parametrize(("launched", "issued"), [
    (5, 0), (13, 12), (18, 10), (30, 0), (47, 40), (50, 0), (51, None), (70, 60)])
def test_a_call_that_has_ended_inside_another_does_not_hide_it(tmp_path, launched, issued):
    calls = [cpu("c10d::allreduce_coalesced_", 0, 50), cpu("c10d::allreduce_", 10, 10), cpu("c10d::allreduce_", 12, 3),
             cpu("c10d::allreduce_", 40, 8), cpu("c10d::allreduce_", 60, 20)]
    launch = cpu("cudaLaunchKernel", launched, 3, cat="cuda_runtime", correlation=1)
    run = traces(tmp_path / "t", [*calls, launch, kernel("AllReduce", 1000, 50, correlation=1)])
    (called,) = rows_of_ranks(run).rows["enqueue_ns"].to_list()
    assert called == (None if issued is None else (EPOCH_US + issued) * 1000)


def test_gloo_is_joined_with_its_calls_where_they_can_only_be_these(tmp_path):
    def rank(late: int) -> list[dict]:
        return [cpu("ProfilerStep#2", 0, 1000, cat="user_annotation"), cpu("c10d::allreduce_", 10, 5),
                cpu("c10d::_reduce_scatter_base_", 20, 5), cpu("c10d::barrier", 30, 5),
                cpu("gloo:all_reduce", 12 + late, 90, cat="user_annotation", tid=8, **{
                    "Input Dims": [[3]], "Input type": ["double"]}),
                cpu("gloo:all_reduce", 25 + late, 80, cat="user_annotation", tid=9),
                cpu("gloo:barrier", 120, 80, cat="user_annotation", tid=8)]

    run = traces(tmp_path / "t", rank(0), rank(5), groups=[("0", [0, 1])])
    run, rows = measured(run)
    assert rows["op"].to_list() == ["all_reduce"] * 2 + ["reduce_scatter"] * 2 + ["barrier"] * 2
    assert rows["complete"].all() and set(rows["group"]) == {"0"}
    issued_us = [value // 1000 - EPOCH_US for value in rows["enqueue_ns"].to_list()]
    assert issued_us == [10, 10, 20, 20, 30, 30]
    assert rows["size_bytes"].to_list() == [24, 24, None, None, 0, 0] and rows["algbw"].is_not_null().sum() == 2
    early = [one for one in rank(0) if one["name"] != "c10d::allreduce_"]
    rows = rows_of_ranks(traces(tmp_path / "u", early, rank(0), groups=[("0", [0, 1])])).rows
    assert rows.filter(pl.col("rank") == 0)["enqueue_ns"].null_count() == 2, "one call for two slices"


def test_gloo_in_several_groups_is_not_matched_by_guessing(tmp_path):
    slices = [cpu("gloo:all_reduce", 12, 9, cat="user_annotation", tid=8)]
    run = traces(tmp_path / "t", *[slices] * 4, groups=[("0", [0, 1, 2, 3]), ("1", [0, 1]), ("2", [2, 3])])
    run, rows = measured(run)
    assert rows["matched_by"].null_count() == 4 and rows["collective"].n_unique() == 4
    assert set(rows["mismatch"]) == {"its process group is unknown"}
    assert MatchingInferred(what="none", num_rows=4, total=4) in run.remarks


def test_a_trace_that_cannot_be_read_is_not_a_rank_that_never_entered(tmp_path):
    events = [kernel("AllReduce", 0, 9, **told("allreduce", 4, 1, [0, 1, 2]))]
    traces(tmp_path / "t", events, events, events)
    (tmp_path / "t" / "rank2.json").write_text('{"distributedInfo": {"rank": 2, "world_size": 3}, "traceEvents": 3}')
    _, rows = measured(open_run(tmp_path / "t"))
    assert set(rows["num_ranks"]) == {2} and rows["mismatch"].null_count() == 2 and not rows["complete"].any()


def test_what_is_lost_of_a_trace_is_a_problem_and_is_said_once_where_it_is_merged(tmp_path):
    events = [kernel("AllReduce", 0, 9, **told("allreduce", 4, 1, [0, 1]))]
    traces(tmp_path / "t", events * 2, events)
    file = tmp_path / "t" / "rank0.json"
    file.write_text(file.read_text().replace('"dtype": ', '"dtype": ,', 1))
    run, _ = measured(open_run(tmp_path / "t"))
    damaged = [one for one in run.problems if isinstance(one, TraceDamaged)]
    assert [(one.rank, one.what, one.places) for one in damaged] == [(0, "places", 1)]
    done = distprof("merge", "--collectives", tmp_path / "t", "--out", tmp_path / "out")
    assert done.returncode == 0 and done.stdout.count("rank0.json is damaged at 1 place") == 1, done.stdout


KERNELS = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)":
        "all_reduce",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8>(float**, float*)": "all_reduce",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)": "all_reduce",
    "void sglang::cross_device_reduce_2stage<half, 4>(sglang::RankData*)": "all_reduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>(...)": "all_reduce",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(tensorrt_llm::kernels::AllReduceParams)": "all_reduce",
    "quickreduce::allreduce_prototype_twoshot<...>(...)": "all_reduce",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": "all_to_all",
    "void deep_ep::internode_ll::combine<true, 7168, 9>(void*)": "all_to_all",
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*)": "all_to_all",
    "nvshmemi_transfer_put_signal(void*)": "unknown",
}
NO_COMMUNICATION = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(...)", "sm90_xmma_gemm_bf16bf16_bf16f32(...)",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(...)", "_scatter_gather_elementwise_kernel",
    "triton_red_fused_add_all_0", "void dispatch_kernel<int>(int*)", "index_reduce_cuda", "splitKreduce_kernel<32>(..)",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)", "triton_poi_fused_all_reduce_0",
    "triton_red_fused_add_all_gather_into_tensor_wait_tensor_3")


def test_kernels_that_communicate_are_known_by_their_names(tmp_path):
    events = [{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": EPOCH_US + 10 * place, "dur": 4}
              for place, name in enumerate([*KERNELS, *NO_COMMUNICATION])]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    rows = rows_of_ranks(open_run(tmp_path)).rows.sort("start_ns")
    assert rows["op"].to_list() == list(KERNELS.values())
    for name in (*KERNELS, *NO_COMMUNICATION):
        assert is_communication(name) == (name in KERNELS)
    assert not any(map(may_communicate, (*KERNELS, *NO_COMMUNICATION)))
    assert all(map(may_communicate, ("my_p2p_push", "void trtllm::oneShotPush<half>()", "intranode_send_tokens",
                                     "nvls_kernel", "custom_ar_v2<8>")))


@pytest.mark.parametrize(("call", "size_bytes"), [("c10d::_allgather_base_", None), ("symm_mem::all_gather", 32)])
def test_sizes_come_from_a_call_only_if_its_input_comes_first(tmp_path, call, size_bytes):
    shapes = {"Input Dims": [[8], [1]], "Input type": ["float", "float"]}
    launch = cpu("cudaLaunchKernel", 9, 3, cat="cuda_runtime", correlation=1)
    run = traces(tmp_path / "t", [cpu(call, 0, 50, **shapes), launch, kernel("AllGather", 1000, 50, correlation=1)])
    assert rows_of_ranks(run).rows["size_bytes"].to_list() == [size_bytes]


@needs_shared
def test_a_server_s_all_reduce_over_symmetric_memory_is_communication():
    """73 calls, 2.12 ms of 87; sizes by the inputs of the operator that launched them."""
    _, rows = measured(open_run(SHARED / "gpu" / "b200_eager_vllm.json.gz"))
    custom = rows.filter(pl.col("op") == "all_reduce")
    assert len(custom) == 73 and custom["size_bytes"].null_count() == 0
    assert (custom["end_ns"] - custom["start_ns"]).sum() == pytest.approx(2.12e6, rel=0.005)


def test_names_of_ops_and_types():
    for name, op in {
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "all_reduce", "ncclKernel_ReduceScatter_RING_LL_Sum_float":
            "reduce_scatter", "c10d::_reduce_scatter_base_": "reduce_scatter", "c10d::alltoall_base_": "all_to_all",
            "all_to_allv": "all_to_all", "allgather_into_tensor_coalesced": "all_gather", "_broadcast_oop": "broadcast",
            "ncclDevKernel_Reduce_Sum_f32": "reduce", "c10d::recv_any_source_": "recv", "scatter": "scatter",
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t": "send_recv", "wait": None, "ncclDevKernel_Generic": None,
    }.items():
        assert op_of(name) == op, name
    for name, (dtype, size) in {"Float": ("float32", 4), "c10::BFloat16": ("bfloat16", 2), "long int": ("int64", 8),
                                "Float8_e4m3fn": ("float8_e4m3fn", 1), "c10::complex<float>": ("complex64", 8),
                                "Bool": ("bool", 1), "UInt16": ("uint16", 2), "unsigned char": ("uint8", 1)}.items():
        assert dtype_of(name) == dtype and item_bytes(dtype) == size
    assert dtype_of("TensorList") is None and dtype_of(None) is None and item_bytes(None) is None


def test_a_rank_whose_trace_cannot_be_read_any_more_is_said(tmp_path):
    for rank in range(3):
        write(tmp_path / f"rank{rank}.json", kineto(rank, 3))
    run = open_run(tmp_path)
    write(tmp_path / "rank1.json", "no trace any more")
    (problem,) = measured_run(run).run.problems
    assert isinstance(problem, TraceDamaged) and (problem.rank, problem.what) == (1, "all")
    assert "rank1.json is not a Chrome trace" in problem.detail


@pytest.mark.parametrize(("types", "size_bytes"), [(["float", "float"], 32), (["float", "double"], None)])
def test_all_inputs_of_a_coalesced_call_count(tmp_path, types, size_bytes):
    """As for the same call when it is recorded: 3 and 5 floats are 32 bytes."""
    work = cpu("gloo:all_reduce", 12, 90, cat="user_annotation", tid=8, **{
        "Input Dims": [[3], [5]], "Input type": types})
    run = traces(tmp_path / "t", [cpu("c10d::allreduce_coalesced_", 10, 5), work], groups=[("0", [0])])
    assert rows_of_ranks(run).rows["size_bytes"].to_list() == [size_bytes]
