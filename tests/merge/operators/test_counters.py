"""`distprof ops --counters` on traces in the form of torch.profiler's: kernels with counters, and times made up."""

import json

import pytest

from support.jobs import called
from support.made_up_traces import folder, op

SASS = [f"smsp__sass_thread_inst_executed_op_{kind}{what}_pred_on.sum" for kind in "fhd" for what in (
    "add", "fma", "mul")]
RATE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


def counted(name, place, **counters):
    return op(name, 1000 * place, 1000, cat="cuda_profiler_range", tid=0, **counters)


def launches(*names):
    for place, name in enumerate(names):
        yield op(name, 10 * place, 8)
        yield op(f"{name}_inner", 10 * place + 1, 6)
        yield op("cudaLaunchKernel", 10 * place + 2, 2, cat="cuda_runtime", correlation=place + 1)
        yield op("cudaStreamIsCapturing", 10 * place + 5, 1, cat="cuda_runtime", correlation=100 + place)


def data(*words):
    done = called("ops", "--counters", "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_nth_kernel_is_of_the_nth_launch(tmp_path):
    events = [*launches("mm", "add", "mm"), counted("gemm", 2, **{SASS[0]: 5}), counted("gemm", 0, **{SASS[0]: 7}),
              counted("plus", 1, **{SASS[0]: 100})]
    found = data(folder(tmp_path, events))
    assert [(row["launched_by"], row["kernel"], row["kernels"], row[SASS[0]]) for row in found["counters"]] == [
        ("add_inner", "plus", 1, 100), ("mm_inner", "gemm", 2, 12)]
    assert found["ranks"] == [0] and found["counters"][0]["flops"] is None


def test_amounts_are_added_up_over_ranks_and_rates_are_not(tmp_path):
    ranks = [[*launches("mm"), counted("gemm", 0, **{SASS[1]: 6, RATE: rate})] for rate in (20.5, 40.5)]
    path = folder(tmp_path, *ranks)
    row, = data(path)["counters"]
    assert (row["kernels"], row[SASS[1]], row[RATE]) == (2, 12, 30.5)
    row, = data("--rank", 1, path)["counters"]
    assert (row["kernels"], row[RATE]) == (1, 40.5)
    assert "--rank 5 is not in this run" in called("ops", "--counters", "--rank", 5, path).stderr


def test_flops_need_all_counters_and_count_a_fused_one_twice(tmp_path):
    values = {name: 10 ** place for place, name in enumerate(SASS)}
    path = folder(tmp_path, [*launches("mm"), counted("gemm", 0, **values)])
    row, = data(path)["counters"]
    assert row["flops"] == sum(values.values()) + sum(value for name, value in values.items() if "fma" in name)
    shown = called("ops", "--counters", path).stdout
    assert "names are short for smsp__sass_thread_inst_executed_op_*_pred_on.sum" in shown
    assert "fadd   ffma" in " ".join(shown.split("FLOPs")[1:]) and "mm_inner" in shown


def test_operators_are_unknown_where_numbers_differ(tmp_path):
    path = folder(tmp_path, [*launches("mm", "add"), counted("gemm", 0, **{SASS[0]: 1})])
    found = data(path)
    assert found["counters"][0]["launched_by"] is None and found["ranks_without_operators"] == [0]
    assert "operators are unknown" in called("ops", "--counters", path).stdout


@pytest.mark.parametrize(("flags", "code", "told"), [
    ((), 1, "no counters of CUPTI"), (("--by", "op"), 2, "only with --rank, --top and --json"),
    (("--sequences",), 2, "only with --rank, --top and --json")])
def test_what_cannot_be_is_refused(tmp_path, flags, code, told):
    done = called("ops", "--counters", *flags, folder(tmp_path, list(launches("mm"))))
    assert done.returncode == code and told in done.stderr
