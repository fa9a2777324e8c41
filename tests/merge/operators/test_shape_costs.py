"""FLOPs and bytes from the shapes in a trace: those that counting the same calls finds, and nothing where it cannot."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections import Counter as Sums
from contextlib import suppress
from math import prod

import polars as pl
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from distprof.formulas import has_formula
from distprof.formulas.composite_operators import is_composite
from distprof.formulas.dispatched_call import kind_without_formula
from distprof.merge.operators.run_operators import run_operators
from distprof.merge.run.open_run import open_run
from distprof.shape_formulas.estimates import ESTIMATES
from distprof.shape_formulas.traced_bytes import TRAFFIC
from distprof.shape_formulas.traced_cost import FORMULAS, has_no_flops, is_whole
from distprof.shape_formulas.traced_names import ARGUMENTS
from support.counter import Counter
from support.jobs import called
from support.kineto_files import DLRM, needs_shared
from support.made_up_traces import folder, op
from support.operators import define_libraries


def trained(make, *inputs):
    def run():
        found = make()(*inputs)
        (found[0] if isinstance(found, tuple) else found).float().sum().backward()

    return run


def transposed_and_grouped():
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ConvTranspose2d(8, 6, 3, stride=2, output_padding=1, groups=2), nn.Conv2d(6, 4, (3, 1), dilation=(2, 1)),
        nn.Conv2d(4, 4, 3, padding="same"), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def products():
    a, b, vector = torch.randn(3, 4), torch.randn(4, 5), torch.randn(4)
    batch, other = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    torch.addmm(torch.randn(5), a, b)
    torch.randn(3, 5).addmm_(a, b)
    torch.baddbmm(torch.randn(2, 3, 5), batch, other)
    torch.addbmm(torch.randn(3, 5), batch, other)
    torch.mv(a, vector), torch.dot(vector, vector + 1), torch.addr(torch.randn(3, 4), torch.randn(3), vector)
    torch.einsum("bij,bjk->ik", batch, other)
    nn.Bilinear(4, 4, 2)(a, a + 1)
    torch.mm(a, b, out=torch.empty(3, 5))
    torch.linalg.multi_dot((a, b, torch.randn(5, 2)))
    torch.mm(a.bfloat16(), b.bfloat16())


def elementwise():
    x, y = torch.randn(3, 4), torch.randn(4)
    x = x + y
    x.mul_(y).sub_(1).div_(2.0)
    x = torch.where(x > y, x, y).masked_fill(x < 0, 0)
    x.copy_(y)
    torch.addcmul(x, x.exp(), x.tanh()).addcdiv_(x.abs(), x.cos())
    x.double().sum(0), x.mean(), x.sum((0, 1), keepdim=True), x.half().mean(-1)
    x.expand(2, 3, 4).clone().zero_(), (y.expand(3, 4) * 2).fill_(1), torch.zeros(2, 2).normal_()
    F.gelu(x), F.silu(x), torch.clamp(x, 0, 1), x ** 2, x.lerp(x + 1, 0.5), torch.maximum(x, y)
    torch.isnan(x), x.logical_not(), x.bfloat16() * 2


BY_HAND = re.compile(
    r"aten::(copy_|mm|bmm|addmm_?|baddbmm_?|mv|convolution.*|_scaled.*|_?(log_)?softmax.*|sum|mean|native_.*|clone|"
    r"_to_copy|embedding.*|where|masked_fill|_(log_)?softmax_backward_data|lerp_?|pow_?|clamp_?)")
"""Not elementwise, or in the other runs."""
OF_DEVICES = {name for name in TRAFFIC if not name.startswith("aten::") or re.search(
    "scaled_mm|grouped_mm|fused_rms_norm|batch_norm|group_norm|(flash|efficient|cudnn)_attention(?!_for_cpu)", name)}
"""`test_device_bytes.py` has them."""
NUMBERS = {"clamp_min": (0.2,), "clamp_max": (0.2,), "fill": (1.0,), "threshold_backward": (0.1,),
           "leaky_relu_backward": (0.1, False)}


def each_by_name():
    """All that is elementwise, with as many tensors as it takes."""
    for name, traffic in TRAFFIC.items():
        if name in OF_DEVICES:
            continue
        packet = getattr(torch.ops.aten, name.partition("::")[2])
        if not BY_HAND.fullmatch(name):
            numbers = NUMBERS.get(name.partition("::")[2].removesuffix("_"), ())
            packet(*(torch.rand(3, 4) + 0.1 for _ in range(traffic.most)), *numbers)
    torch.ops.aten.native_dropout(torch.rand(3, 4), 0.5, True)
    torch.rand(2, 3, 5).baddbmm_(torch.rand(2, 3, 4), torch.rand(2, 4, 5))
    torch.rand(3).lerp_(torch.rand(3), 0.5), torch.rand(3).pow_(2), torch.rand(3).clamp_(0, 1)


def attention():
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, length, width, requires_grad=True)
                         for length, width in ((5, 8), (7, 8), (7, 8)))
    mask = torch.randn(2, 1, 5, 7)
    for given in ({}, {"attn_mask": mask}):
        F.scaled_dot_product_attention(query, key, value, **given).sum().backward()
    F.scaled_dot_product_attention(query, query + 1, query * 2, is_causal=True).sum().backward()


RUNS = {
    "mlp": trained(lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 4),
                                 nn.Softmax(-1)), torch.randn(3, 5, 6)),
    "convolutions": trained(transposed_and_grouped, torch.randn(2, 4, 8, 8)),
    "convolutions of 1 and 3 dimensions": lambda: (
        trained(lambda: nn.Conv1d(2, 3, 3, padding=2), torch.randn(2, 2, 9, requires_grad=True))(),
        trained(lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), torch.randn(1, 2, 4, 4, 4))(),
        trained(lambda: nn.Conv2d(2, 3, 2), torch.randn(2, 5, 5))()),
    "attention": attention,
    "transformer": trained(lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 5, 16)),
    "transformer, fast": lambda: torch.no_grad()(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval())(
        torch.randn(2, 5, 16)),
    "lstm": trained(lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True), torch.randn(5, 2, 4)),
    "gru cell": trained(lambda: nn.GRUCell(4, 6), torch.randn(2, 4)),
    "embedding": trained(lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9), nn.LogSoftmax(-1)),
                         torch.randint(9, (2, 3))),
    "products": products, "elementwise": elementwise, "each by name": each_by_name,
}


def traced(function, path, **given) -> pl.DataFrame:
    with profile(activities=[ProfilerActivity.CPU], **({"record_shapes": True} | given)) as profiler:
        function()
    profiler.export_chrome_trace(str(path / "trace.json"))
    return run_operators(open_run(path / "trace.json")).rows


@pytest.fixture(params=RUNS)
def run(request):
    return RUNS[request.param]


def test_flops_are_those_that_are_counted(run, tmp_path):
    rows = traced(run, tmp_path)
    with Counter() as counter:
        run()
    counted, causal = Sums(), Sums()
    for name, cost in counter.costs:
        counted[name] += cost.flops
        causal[name] += cost.flops - 2 * (cost.macs - cost.causal_macs)
    by_op = rows.filter(pl.col("flops") > 0).group_by("op").agg(pl.col("flops", "causal_flops").sum())
    assert dict(by_op.select("op", "flops").iter_rows()) == +counted
    assert dict(by_op.select("op", "causal_flops").iter_rows()) == +causal


SAME_IN_TORCH = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")


@pytest.mark.parametrize("name", sorted(set(RUNS) - {"convolutions", "products"}))
def test_flops_are_those_of_torch_s_own_counter(name, tmp_path):
    """It does not see products inside kernels, and counts the gradients of grouped convolutions as without groups."""
    run = RUNS[name]
    rows = traced(run, tmp_path).filter(pl.col("flops") > 0)
    with FlopCounterMode(display=False) as counter:
        run()
    theirs = {f"aten::{getattr(found, '__name__', found)}": flops
              for found, flops in counter.get_flop_counts().get("Global", {}).items()}
    for name in SAME_IN_TORCH:
        assert rows.filter(op=f"aten::{name}")["flops"].sum() == theirs.get(f"aten::{name}", 0)


@pytest.mark.parametrize("name", RUNS)
def test_bytes_are_those_that_are_counted(name, tmp_path):
    """Autograd adds gradients up in place, unless a mode looks on."""
    run, other = RUNS[name], () if name in ("products", "elementwise", "each by name") else ("aten::add", "aten::add_")
    names = set(TRAFFIC) - {*other}
    rows = traced(run, tmp_path).filter(pl.col("op").is_in(names), pl.col("flops").is_not_null())
    with Counter() as counter:
        run()
    counted, compared = Sums(), 0
    for name, cost in counter.costs:
        counted[name] += cost.io_bytes
    for (name,), each in rows.group_by("op"):
        if not each["bytes"].null_count():
            assert (name, each["bytes"].sum()) == (name, counted[name])
            compared += 1
    assert compared


NOT_ON_CPU = {"aten::convolution_overrideable", *OF_DEVICES}


@pytest.mark.long
def test_every_operator_whose_bytes_are_known_is_in_the_test(tmp_path):
    seen = set(NOT_ON_CPU)
    for number, run in enumerate(RUNS.values()):
        (tmp_path / str(number)).mkdir()
        rows = traced(run, tmp_path / str(number))
        seen |= set(rows.filter(pl.col("bytes") > 0)["op"])
    missing = sorted(set(TRAFFIC) - seen)
    assert not missing, missing


def test_names_say_what_torch_says():
    """Of operators for whom torch has tags, schemas and kernels."""
    wrong = []
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        space, bare = name.split("::")
        if space != "aten" or name in ARGUMENTS or "out" in overload:
            continue
        func = getattr(getattr(getattr(torch.ops, space), bare, None), overload or "default", None)
        if func is None or "test" in name:
            continue
        if not has_formula(func) and has_no_flops(name) != (
                name in ESTIMATES or kind_without_formula(func) != "other"):
            wrong.append(full)
    assert not wrong


def test_arguments_have_the_names_of_the_schemas():
    define_libraries()
    for name, names in ARGUMENTS.items():
        space, bare = name.split("::")
        if space == "flash_attn":  # has shorter names for the same
            continue
        packet = getattr(getattr(torch.ops, space), bare, None)
        for overload in {*packet.overloads()} - {"quantized"} if packet is not None else ():  # causal only if known
            given = [argument.name for argument in getattr(packet, overload)._schema.arguments]
            assert tuple(given[:len(names)]) == names, (name, overload)


def test_what_is_taken_apart_is_not_taken_for_a_whole():
    there = {name.split(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    for name in there - set(FORMULAS):
        packet = getattr(torch.ops.aten, name.partition("::")[2], None)
        if packet is None or not has_no_flops(name) or "test" in name:
            continue
        parts = set()
        for overload in packet.overloads():
            if "out" not in overload:
                with suppress(RuntimeError):  # of TorchScript alone
                    parts.add(is_composite(getattr(packet, overload), "cpu"))
        if len(parts) == 1:
            assert is_whole(name) is not parts.pop(), name
    for name in {*FORMULAS, *TRAFFIC} - OF_DEVICES:
        assert is_whole(name)


SEEN = {"Input type": ["float", "float"], "Input Dims": [[2, 3], [3, 4]]}


@pytest.mark.parametrize(("name", "given"), [
    ("aten::mm", {}), ("aten::mm", {"Input Dims": [[2, 3], [3, 4]]}),
    ("aten::mm", SEEN | {"Input Dims": [[2, 3], [4, 5]]}), ("aten::mm", SEEN | {"Input Dims": [[2, 3], []]}),
    ("aten::mm", SEEN | {"Input Dims": [[2, -3], [-3, 5]]}), ("aten::mm", SEEN | {"Input Dims": [[2, 3.5], [3.5, 5]]}),
    ("aten::mm", SEEN | {"Input Dims": [[2, True], [True, 5]]}), ("aten::mm", SEEN | {"Input Dims": [[2, 3]]}),
    ("aten::mm", SEEN | {"Input Dims": 7}), ("aten::mm", SEEN | {"Input Dims": {"0": 1}}),
    ("aten::mm", SEEN | {"Input Dims": [[1 << 40, 1 << 40], [1 << 40, 1 << 40]]}),
    ("aten::mm", SEEN | {"Input Strides": [[], [4, 1]]}), ("aten::mm", SEEN | {"Input type": ["", ""]}),
    ("aten::convolution", {"Input Dims": [[2, 3, 8, 8], [8, 3, 3, 3], [8]] + [[]] * 6,
                           "Input type": ["float"] * 3 + ["ScalarList"] * 3 + ["Scalar", "ScalarList", "Scalar"]}),
    ("aten::_flash_attention_forward", {"Input Dims": [[9, 2, 4]] * 3 + [[3]] * 2,
                                        "Input type": ["c10::Half"] * 3 + ["int"] * 2}),
    ("aten::_foreach_mm", {"Input Dims": [[], []], "Input type": ["TensorList", "TensorList"]}),
    ("aten::mkldnn_rnn_layer", {"Input Dims": [[9, 4], [6, 4], [6, 6], [6], [6], [6], [6], [], []],
                                "Input type": ["float"] * 7 + ["Scalar", ""]}),
    ("mylib::mm", SEEN), ("mylib::add", SEEN), ("aten::linear", SEEN)])
def test_what_shapes_do_not_tell_stays_unknown(tmp_path, name, given):
    known = op("aten::mm", 20, 5, **SEEN)
    found = json.loads(called("ops", "--json", folder(tmp_path, [op(name, 1, 5, **given), known])).stdout)
    assert sum(row["flops"] or 0 for row in found["ops"]) == 48
    assert found["coverage"]["time_ratio"] == 0.5 and found["coverage"]["unknown_calls"] == 1
    assert found["coverage"]["calls_without_shapes"] == (not given)


def test_where_an_operator_calls_itself_with_other_tensors_the_inner_one_counts(tmp_path):
    """As those of a DTensor do, with the part of this rank."""
    part = SEEN | {"Input Dims": [[1, 3], [3, 4]]}
    events = [op("aten::mm", 1, 20, **SEEN), op("aten::mm", 5, 8, **part),
              op("aten::mm", 30, 9, **SEEN), op("aten::mm", 31, 5, **SEEN)]
    found = json.loads(called("ops", "--json", "--by", "shape", folder(tmp_path, events)).stdout)
    assert {row["shapes"]: row["flops"] for row in found["ops"]} == {
        "[[2, 3], [3, 4]]": 48, "[[1, 3], [3, 4]]": 24}


def test_the_screen_says_where_flops_come_from(tmp_path):
    events = [op("aten::mm", 1, 30, **SEEN), op("aten::mm", 40, 10), op("mylib::op", 60, 10, **SEEN)]
    text = called("ops", folder(tmp_path, events)).stdout
    assert "FLOPs and bytes come from the shapes in the trace, which give FLOPs for 60.0 % of operator" in text
    assert "FLOPs of 2 calls are unknown, 1 without shapes" in text


def test_a_trace_without_shapes_says_so(tmp_path):
    text = called("ops", folder(tmp_path, [op("aten::mm", 1, 30), op("aten::relu", 40, 10)])).stdout
    assert "there is no count pass, and the trace has no shapes" in text


@pytest.mark.long
@needs_shared
def test_products_of_a_foreign_job_have_the_flops_of_their_shapes():
    """Eight ranks of a job on GPUs, of torch 2.0: without strides and values."""
    expected = Sums()
    for path in (DLRM / "kineto").iterdir():
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            if event.get("cat") == "cpu_op" and event["name"] in ("aten::mm", "aten::bmm", "aten::addmm"):
                left, right = event["args"]["Input Dims"][event["name"] == "aten::addmm":][:2]
                expected[event["name"]] += 2 * prod(left) * right[-1]
    data = json.loads(called("ops", "--json", DLRM / "kineto").stdout)
    assert {row["op"]: row["flops"] for row in data["ops"] if row["flops"]} == expected
    assert data["totals"]["flops"] == sum(expected.values()) and data["coverage"]["source"] == "shapes"
    assert 0 < data["coverage"]["time_ratio"] < 1


@pytest.mark.job
@pytest.mark.parametrize("name", ["ddp", "tp", "sharded"])
def test_without_a_count_pass_flops_are_those_that_it_counted(request, name, tmp_path):
    """Data parallel, with DTensors, and FSDP. Checkpointing breaks off what it recomputes: the last operator of a block
    begins, which is all that a trace tells, and is not done.
    """
    recorded = request.getfixturevalue(name)
    counted = run_operators(open_run(recorded)).rows
    shutil.copytree(recorded, tmp_path / "run", ignore=shutil.ignore_patterns("ops.parquet", "merged"))
    found = run_operators(open_run(tmp_path / "run"))
    keys = ("rank", "op", "phase", "module_path", "step")

    def flops(rows):
        done = rows.filter(pl.col("flops") > 0, pl.col("step").is_not_null(), pl.col("phase") != "recompute")
        return set(done.group_by(keys).agg(pl.col("flops").sum()).iter_rows())

    assert flops(found.rows) == flops(counted) and found.coverage is None
    assert found.by_shapes is not None and 0 < found.by_shapes.ratio <= 1
