"""`distprof doctor` and the numbers people read."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from distprof.compiled.library import is_built
from distprof.errors import UsageError
from distprof.launch import torch_checks
from distprof.launch.doctor_checks import examine, show_peaks, with_published
from distprof.launch.torch_checks import accelerator_lines, lacking
from distprof.merge.scan.engine import PLAIN
from distprof.peaks import measured as measured_peak
from distprof.process.identity import cpu_name
from distprof.recording.hang import report
from distprof.reporters.page import Page
from distprof.units import duration, percent, si, size
from support.jobs import called, distprof


@pytest.mark.job
def test_a_healthy_machine_is_told_so(tmp_path):
    done = distprof("doctor", "--out", tmp_path)
    assert done.returncode == 0, done.stdout
    topics = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("ok", "warn", "fail"))]
    assert [topic for topic in topics if topic != "lacks"] == [
        "python", "packages", "torch", "backend", "timeline", "device", "disk", "write", "clock", "merging"]
    assert "gloo" in done.stdout and "Next: distprof run" in done.stdout


@pytest.mark.parametrize(("plain", "how"), [
    (True, "warn  merging    merge engine: plain Python, many times slower (DISTPROF_PLAIN_ENGINE is set)"),
    (False, "ok    merging    merge engine: compiled (")])
def test_it_says_which_merge_engine_it_has(tmp_path, monkeypatch, plain, how):
    monkeypatch.setenv(PLAIN, "1") if plain else monkeypatch.delenv(PLAIN, raising=False)
    if not plain and not is_built():
        pytest.skip("no compiled engine")
    assert how in examine(tmp_path, as_json=False)[0] and how[17:] in called("--version").stdout


def test_what_recording_lacks_without_the_compiled_library_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("distprof.launch.doctor_checks.is_built", lambda: False)
    lines = [line for line in examine(tmp_path, as_json=False)[0].splitlines() if line.startswith("warn  recording ")]
    assert len(lines) == 1 and "keeps only what it had already written" in lines[0] and "compiled/build.py" in lines[0]


def test_what_torch_lacks_is_a_line_each_and_no_reason_not_to_record(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "DUMPS", ("_no_such_dump",))
    monkeypatch.setattr(torch._C._dynamo, "eval_frame", None)
    text, healthy = examine(tmp_path, as_json=False)
    lines = [line.split(maxsplit=2)[2] for line in text.splitlines() if line.startswith("warn  lacks ")]
    assert healthy and lines == [f"torch has {what}" for what in lacking()]
    assert any("no flight recorder: stuck.json" in line for line in lines)
    assert any("torch.compile takes longer" in line for line in lines)


def test_an_accelerator_is_named_with_what_its_backend_lacks(monkeypatch):
    def event(_kind, *, enable_timing):
        raise NotImplementedError

    backend = SimpleNamespace(get_device_name=lambda index: "Ascend910B")
    monkeypatch.setattr(torch, "npu", backend, raising=False)
    monkeypatch.setattr(torch, "Event", event)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type="npu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    (level, first), *lacks = accelerator_lines()
    assert (level, first) == ("ok", "8 NPU: Ascend910B")
    assert [level for level, _ in lacks] == ["warn"] * 4
    told = " ".join(text for _, text in lacks)
    assert all(what in told for what in ("timed on the host", "no timeline of npu", "peak memory of devices",
                                         "peak rates of Ascend910B"))


def test_an_accelerator_that_has_all_needs_one_line(monkeypatch):
    backend = SimpleNamespace(get_device_name=lambda index: "NVIDIA H100 80GB HBM3", max_memory_allocated=int)
    monkeypatch.setattr(torch, "cuda", backend)
    monkeypatch.setattr(torch_checks, "has_events", lambda kind: kind == "cuda")
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {torch.profiler.ProfilerActivity.CUDA})
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert list(accelerator_lines()) == [("ok", "2 CUDA: NVIDIA H100 80GB HBM3")]


@pytest.mark.job
def test_a_place_that_takes_no_files_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    done = distprof("doctor", "--json", "--out", tmp_path / "file")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["healthy"] is False
    assert [one["topic"] for one in found["findings"] if one["level"] == "fail"] == ["write"]


@pytest.mark.job
def test_measured_peaks_say_how_and_are_rates_of_this_machine(tmp_path):
    done = distprof("doctor", "--peak", "--json", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    cpu = json.loads(done.stdout)["peaks"][0]
    assert cpu["device"] == cpu_name() and cpu["num_threads"] == 1  # the tests run with OMP_NUM_THREADS=1
    rates = {rate["dtype"] or rate["what"]: rate for rate in cpu["measured"]}
    assert set(rates) == {"float32", "bfloat16", "float16", "float64", "copy"}
    for name in ("float32", "float64", "copy"):
        assert 1e7 < rates[name]["per_second"] < 1e15 and "median of 9 runs" in rates[name]["how"]
    assert cpu["published"] is None or cpu["published"]["year"] > 2000
    assert "peaks" not in json.loads(distprof("doctor", "--json", "--out", tmp_path).stdout)


def test_peaks_beside_the_published_ones():
    rates = [{"what": "matmul", "dtype": "bfloat16", "per_second": 7e14, "how": "8192"},
             {"what": "matmul", "dtype": "float64", "per_second": None, "how": "no kernel"},
             {"what": "copy", "dtype": None, "per_second": 2.5e12, "how": "256 MiB"}]
    measured = {"device": "NVIDIA H100 80GB HBM3", "num_threads": None, "rates": rates}
    device = with_published(measured)
    page = Page()
    show_peaks([device], page)
    told = {line.split("  ")[0]: line for line in page.text().splitlines()}
    assert told["bfloat16"].split()[-4:] == ["989.40", "TFLOP/s", "700.00", "TFLOP/s"]
    assert told["float64"].split()[-3:] == ["66.90", "TFLOP/s", "-"] and "no kernel" in told["float64"]
    assert told["copy"].split()[-4:] == ["3.35", "TB/s", "2.50", "TB/s"]
    assert "not measured" in told["float8"] and "NVIDIA H100 whitepaper, 2022" in page.text()


@pytest.mark.long
def test_a_rate_is_work_over_the_median_time(monkeypatch):
    times = [40_000_000, 10_000_000, 20_000_000]
    monkeypatch.setattr(measured_peak, "durations", lambda call, runs, device: times[:runs])
    found = measured_peak.measure_peak(runs=3)
    rates = {rate.dtype or rate.what: rate.per_second for rate in found.rates}
    assert rates["float32"] == rates["float64"] == 2 * 256**3 / 0.02
    assert rates["copy"] == 2 * measured_peak.COPY_BYTES / 0.02


@pytest.mark.parametrize(("measure", "expected"), [
    (lambda: measured_peak.measured_peak("float32"), False), (lambda: measured_peak.measured_peak("tf32"), True),
    (lambda: measured_peak.measure_peak(runs=1), False)])
@pytest.mark.parametrize("allowed", [False, True])
def test_float32_is_measured_without_tf32_whatever_the_process_allows(monkeypatch, measure, expected, allowed):
    seen, matmul = set(), torch.backends.cuda.matmul

    def durations(call, runs, device):
        seen.add(uses_tf32(matmul))
        return [20_000_000] * runs

    monkeypatch.setattr(measured_peak, "durations", durations)
    monkeypatch.setattr(measured_peak, "COPY_BYTES", 1 << 10)
    setting, values = ("fp32_precision", ("ieee", "tf32")) if hasattr(matmul, "fp32_precision") else (
        "allow_tf32", (False, True))
    before = getattr(matmul, setting)
    try:
        setattr(matmul, setting, values[allowed])
        measure()
        assert seen == {expected}
        assert getattr(matmul, setting) == values[allowed]
    finally:
        setattr(matmul, setting, before)


def uses_tf32(settings):
    return settings.fp32_precision == "tf32" if hasattr(settings, "fp32_precision") else settings.allow_tf32


@pytest.mark.parametrize(("device", "runs"), [("meta", 3), ("cpu", 0)])
def test_a_peak_of_what_cannot_be_measured_is_refused(device, runs):
    with pytest.raises(UsageError, match="device must be a CPU or CUDA device"):
        measured_peak.measure_peak(device, runs=runs)


@pytest.mark.parametrize(("value", "text"), [
    (0, "0"), (7, "7"), (999, "999"), (1000, "1.00 K"), (1057536, "1.06 M"), (999_999, "1.00 M"), (2.5, "2.50"),
    (1.5e21, "1500.00 E"), (None, "-")])
def test_numbers(value, text):
    assert si(value) == text


def test_units():
    assert size(1106944) == "1.11 MB" and size(0) == "0 B"
    assert [duration(ns) for ns in (5, 1500, 2_500_000, 3e9, None)] == ["5 ns", "1.50 us", "2.50 ms", "3.00 s", "-"]
    assert percent(0.3322) == "33.2 %" and percent(None) == "-"
