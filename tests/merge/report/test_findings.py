"""Findings: what is said, what is not said where it may be wrong, and in which order."""

from __future__ import annotations

import re
from html import unescape

import pytest

from distprof.merge.report.document import document
from distprof.merge.report.resource_findings import (
    Finding,
    bandwidth,
    compilations,
    data_loading,
    device_idle,
    host_waits,
    memory_imbalance,
)
from distprof.merge.text.findings import plain, render
from support.simulator.engine import Simulation
from support.simulator.run_folder import Recorder
from support.simulator.shapes import SHAPES, Plant, programs

MS = 1_000_000
LATE = Plant(2, "forward", "layers.1", ns=40 * MS)
KIND = {"op": "all_reduce", "num_measured": 9, "size_bucket": 1 << 20, "group_description": "dp", "num_ranks": 4}


def simulated(path, *plants, recorder=None, ranks=4, steps=9, name="ddp"):
    job = programs(SHAPES[name], ranks, steps, 1, plants=plants, jitter=0.01)
    return document((recorder or Recorder()).write(Simulation(job, lanes=1), path / "run"))


def of(found, section):
    return [one for one in found["findings"] if one["section"] == section]


@pytest.mark.long
def test_the_late_rank_comes_first_with_its_module_and_cost(tmp_path):
    found = simulated(tmp_path, LATE)
    first = found["findings"][0]
    assert (first["severity"], first["rank"], first["module"]) == ("bad", 2, "layers.1")
    assert first["text"].startswith(found["blame"]["culprits"][0]["sentence"])
    assert re.match(r"Rank 2 delays every step by \d\d\.\d ms \(\d\d\.\d %\): `layers\.1` forward takes ",
                    first["text"])
    assert first["detail"].startswith("Fixing it would cut the step from ")
    assert f"--step {first['step']} " in first["next"]
    assert not any(one["severity"] == "good" for one in found["findings"])


@pytest.mark.long
def test_a_balanced_job_is_called_good_and_nobody_late(tmp_path):
    found = simulated(tmp_path)
    assert not any(one["severity"] == "bad" for one in found["findings"])
    assert not any(re.search(r"Rank \d delays", one["text"]) for one in found["findings"])


@pytest.mark.long
def test_a_delay_that_may_be_chance_is_in_doubt_as_comms_words_it(tmp_path):
    found = simulated(tmp_path, Plant(2, "forward", "layers.1", ns=40 * MS, once=4))
    said, = of(found, "blame")
    assert said["severity"] == "note" and said["text"].startswith("No straggler: ")
    assert all(one["sentence"] is None for one in found["blame"]["culprits"])


@pytest.mark.long
def test_the_worst_is_said_first(tmp_path):
    weights = ["bad", "warn", "note", "good"]
    found = [one["severity"] for one in simulated(tmp_path, LATE)["findings"]]
    assert found == sorted(found, key=weights.index)


@pytest.mark.long
def test_clocks_that_are_worse_than_what_they_show(tmp_path):
    found = simulated(tmp_path, recorder=Recorder(clock_off_ns={1: 5 * MS, 3: -7 * MS}), steps=4)
    said, = of(found, "clock")
    assert said["severity"] == "warn"
    assert re.fullmatch(r"Clocks of two ranks agree within .+, and (\d+) of \1 arrival spreads are smaller than that, "
                        r"so .+\.", said["text"])


@pytest.mark.parametrize(("data_ns", "source", "found"), [
    (20 * MS, "trace", ["20.0 % of a traced step is spent loading data (mean over all ranks)."]),
    (19 * MS, "trace", []), (None, "time", [])])
def test_loading_data(data_ns, source, found):
    parts = {"source": source, "mean": {"data_ns": data_ns, "duration_ns": 100 * MS}}
    said = list(data_loading({"step_parts": parts}, "runs/a"))
    assert [one.text for one in said] == found
    assert all((one.severity, one.next) == ("warn", "distprof comms runs/a") for one in said)
    assert not list(data_loading({"step_parts": None}, "runs/a"))


def waits(**row):
    usual = {"waits_for": "device", "file": "/a/train.py", "line": 57, "op": "aten::item", "module": None,
             "slowest_rank": 1, "step_ratio": 0.1, "blocking_calls": 8, "mean_ns": 2.5e6}
    totals = {"recompile": 0, "graph_break": 0, "duration_ns": 0}
    return {"waits": {"rows": {name: [value] for name, value in (usual | row).items()},
                      "compilations": {"totals": totals}}}


def test_a_line_that_waits_for_the_device():
    said, = host_waits(waits(), "runs/a")
    assert said.text == ("`train.py:57 aten::item` waits for the device for 10.0 % of the time of the steps examined "
                         "(8 calls, 2.50 ms each).")
    assert (said.severity, said.rank, said.next) == ("warn", 1, "distprof waits runs/a")


@pytest.mark.parametrize("row", [{"step_ratio": 0.01}, {"step_ratio": None}, {"waits_for": "communication"}])
def test_waits_that_are_short_or_for_other_ranks_are_not_named(row):
    assert not list(host_waits(waits(**row), "runs/a"))


def test_compilations_that_were_done_again():
    document = waits()
    document["waits"]["compilations"]["totals"] = {"recompile": 3, "graph_break": 1, "duration_ns": 4 * 10**9}
    said, = compilations(document, "runs/a")
    assert said.severity == "warn" and "recompiled 3 times" in said.text and "4.00 s" in said.text
    assert not list(compilations(waits(), "runs/a"))


def test_a_group_between_hosts_that_is_much_slower():
    inside = {**KIND, "between_hosts": False, "busbw_median": 100e9}
    between = {**KIND, "between_hosts": True, "busbw_median": 10e9}
    said, = bandwidth({"bandwidths": [inside, between]})
    assert said == Finding(severity="note", section="bandwidths",
                           text="all_reduce of 1.05 MB reaches 10 GB/s between hosts but 100 GB/s within a host "
                                "(busbw, median).")
    for other in ({"busbw_median": 60e9}, {"size_bucket": 7}, {"num_measured": 2}, {"op": "broadcast"}):
        assert not list(bandwidth({"bandwidths": [inside, between | other]}))
    assert not list(bandwidth({"bandwidths": None}))


def test_a_rank_with_more_memory_than_the_others():
    def peaks(*sizes):
        return {"memory": {"ranks": {"rank": list(range(len(sizes))), "peak_bytes": list(sizes)}}, "peak_memory": None}

    def always(*sizes):
        return {"memory": None, "peak_memory": [{"rank": rank, "host_bytes": 10 * (rank + 1), "device_bytes": size}
                                                for rank, size in enumerate(sizes)]}

    said, = memory_imbalance(peaks(100, 100, 100, 150), "runs/a")
    assert said.rank == 3 and "1.50 x" in said.text
    assert not list(memory_imbalance(peaks(100, 110, 105), "runs/a"))
    assert not list(memory_imbalance(peaks(100), "runs/a"))
    said, = memory_imbalance(always(100, 100, 100, 150), "runs/a")
    assert said.rank == 3 and "1.50 x" in said.text and said.next == "distprof run --steps memory=1 ..."
    assert not list(memory_imbalance(always(None, None), "runs/a"))
    assert not list(memory_imbalance({"memory": None, "peak_memory": None}, "runs/a"))


@pytest.mark.long
def test_markdown_says_the_same(tmp_path):
    found = simulated(tmp_path, LATE)
    lines = render(found).splitlines()
    assert lines[0] == "### run: 4 ranks = dp 4 x tp 1"
    for one in found["findings"]:
        assert any(unescape(line).replace("\\", "").endswith(one["text"]) for line in lines)
    assert any(line.startswith("| waiting for other ranks | ") for line in lines)


@pytest.mark.parametrize("name", [
    "<script>alert(1)</script>", "a|b", "*x* _y_ `z` [a](b) ~~c~~", "@team #12 :tada: $x$", "two\nlines",
    "\u202eturned", "&lt;", "back\\slash"])
def test_names_are_text_in_markdown(name):
    shown = plain(name)
    assert not {"<", ">", "\n", "\u202e"} & set(shown)
    bare = re.sub(r"\\.", "", shown)
    assert not set("`*_[]#|~@$") & set(bare)
    read = unescape(re.sub(r"\\([\\`*_\[\]#|~@$:])", r"\1", shown))
    assert read == name.replace("\n", r"\n").replace("\u202e", r"\u202e")


def device_document(*, usual_ms=None, kind="backward", passes=("time",)):
    """A device that is busy for 6 of 20 ms, and waits for its host for 13."""
    mean = {"duration_ns": 20 * MS, "idle_ns": 14 * MS, "host_idle_ns": 12 * MS, "sync_idle_ns": MS}
    meanwhile = [{"kind": kind, "where": None, "ratio": 0.4}, {"kind": "data", "where": None, "ratio": 0.1}]
    step = {"time_ns": None if usual_ms is None else usual_ms * MS, "low_ns": 0, "high_ns": 0, "num_steps": 3,
            "passes": list(passes)}
    return {"step": step, "step_parts": {"source": "device", "doubts": [], "mean": mean, "meanwhile": meanwhile}}


def test_a_device_that_waits_for_its_host_is_named_with_what_the_host_does():
    one, = device_idle(device_document(), "runs/a")
    assert one.severity == "warn" and one.text == (
        "For 65.0 % of its step, with the profiler on, the device waits for the host (mean over all ranks); the "
        "largest part: backward (40.0 %).")
    unknown, = device_idle(device_document(kind=None), "runs/a")
    assert unknown.text.endswith("(mean over all ranks).")  # what no slice tells is the largest part
    loading, = device_idle(device_document(kind="data"), "runs/a")
    assert loading.text.startswith("For 50.0 % of its step the device is idle while the host is loading data")
    assert not list(device_idle({"step_parts": None}, "runs/a"))
    assert not list(data_loading(device_document(kind="data"), "runs/a"))


def test_a_device_that_waits_because_the_profiler_slows_its_host_is_not():
    assert not list(device_idle(device_document(usual_ms=7), "runs/a"))  # busy for 6 of 7 ms without it
    assert list(device_idle(device_document(usual_ms=12), "runs/a"))
    assert list(device_idle(device_document(usual_ms=7, passes=["trace"]), "runs/a"))  # with it as well
