"""What GPUs say, by libraries that stand in for those of drivers."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from distprof.contract.watch_state import WatchFinding
from distprof.launch.watching.readings import rates
from distprof.launch.watching.readings.gpus import amd_readings
from distprof.merge.watch.conditions import explained
from distprof.merge.watch.machines import Conditions
from support.pretended_nvml import USUAL, asked

pytestmark = pytest.mark.job
ONSET_S, END_S = 200, 260


def slow_rank(onset_ns):
    return WatchFinding(id="1", kind="slow_rank", ranks=[1], hosts=["host7"], onset_step=900, onset_ns=onset_ns)


def said(*seconds):
    return [json.dumps({str(gpu): {**USUAL, **one} for gpu, one in enumerate(both)}) for both in seconds]


def test_columns_of_nvidia(tmp_path):
    first, second = map(json.loads, asked(tmp_path, said(
        ({"pid": 4321, "others": 30}, {}),
        ({"mhz": 1095, "reasons": 0x48, "corrected": 12, "link_errors": 5, "others": 30, "pid": 4321}, {}))))
    assert first["gpu_mhz/0"] == 1980
    assert first["gpu_watts/1"] == 612
    assert first["gpu_most_watts/1"] == 700
    assert first["rank_gpu/3"] == 0
    assert "gpu_ecc_corrected/0" not in first
    assert second["gpu_ecc_corrected/0"] == 12
    assert second["gpu_link_errors/0"] == 8  # four counters
    assert second["gpu_ecc_corrected/1"] == 0
    assert second["gpu_mhz/0"] == 1095
    assert (second["gpu_thermal/0"], second["gpu_slowdown/0"], second["gpu_thermal/1"]) == (1, 0, 0)
    assert second["gpu_others/0"] == 0.3


def test_what_a_gpu_cannot_say_is_left_out_for_good(tmp_path):
    bare = json.dumps({"0": {"mhz": 1980, "most_mhz": 1980}, "1": {}})
    first, second, third = map(json.loads, asked(tmp_path, [bare, bare, *said(({}, {}))]))
    assert first == second == {"gpu_mhz/0": 1980, "gpu_most_mhz/0": 1980}
    assert third == first


@pytest.mark.parametrize(("trouble", "sentence"), [
    ({"mhz": 1095, "reasons": 0x40, "celsius": 91}, "GPU 1 of host7 runs at 1,095 of 1,980 MHz: thermal"),
    ({"mhz": 1410, "reasons": 0x4}, "GPU 1 of host7 runs at 1,410 of 1,980 MHz: power limit"),
    ({"mhz": 990, "reasons": 0x88}, "GPU 1 of host7 runs at 990 of 1,980 MHz: power brake"),
    ({"corrected": 2}, "GPU 1 of host7: corrected memory errors, 2 per second"),
    ({"uncorrected": 3}, "GPU 1 of host7: 3 uncorrected memory errors"),
    ({}, None),
])
def test_trouble_of_a_gpu_is_named(tmp_path, trouble, sentence):
    """From the driver's answers to the sentence."""
    seconds, corrected = [], 0
    for second in range(END_S):
        now = dict(trouble) if second >= ONSET_S else {}
        corrected += now.pop("corrected", 0)
        seconds.append(({}, {**now, "corrected": corrected}))
    conditions = Conditions()
    for second, line in enumerate(asked(tmp_path, said(*seconds))):
        conditions.add("host7", 8, second * 10**9, json.loads(line))
    finding = slow_rank(ONSET_S * 10**9)
    hosts = {0: "host7", 1: "host7"}
    assert explained(finding, conditions, hosts, {0: 0, 1: 1}) == ([sentence] if sentence else [])
    assert explained(finding, conditions, hosts, {0: 1, 1: 0}) == []  # the other rank's


def pretended_smi():
    """AMD's library."""
    return SimpleNamespace(
        amdsmi_init=lambda: None, amdsmi_get_processor_handles=lambda: ["a"],
        AmdSmiClkType=SimpleNamespace(GFX="gfx"), AmdSmiTemperatureType=SimpleNamespace(HOTSPOT="hot"),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT="now"), AmdSmiXgmiStatus=SimpleNamespace(NO_ERRORS=0),
        amdsmi_get_clock_info=lambda gpu, kind: {"clk": 900, "max_clk": 2100},
        amdsmi_get_power_info=lambda gpu: {"current_socket_power": "N/A", "average_socket_power": 540},
        amdsmi_get_power_cap_info=lambda gpu: {"power_cap": 750_000_000},
        amdsmi_get_temp_metric=lambda gpu, kind, metric: 97,
        amdsmi_get_violation_status=lambda gpu: {"active_socket_thrm": True, "active_ppt_pwr": False},
        amdsmi_get_gpu_activity=lambda gpu: {"gfx_activity": 88},
        amdsmi_get_gpu_total_ecc_count=lambda gpu: {"correctable_count": 4, "uncorrectable_count": 0},
        amdsmi_gpu_xgmi_error_status=lambda gpu: 0, amdsmi_get_gpu_process_list=lambda gpu: [{"pid": 77}])


def test_columns_of_amd(monkeypatch):
    smi = pretended_smi()
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    read, = amd_readings(lambda: {5: 77})
    values = {}
    read(values)
    assert values == {"gpu_mhz/0": 900, "gpu_most_mhz/0": 2100, "gpu_watts/0": 540, "gpu_most_watts/0": 750,
                      "gpu_celsius/0": 97, "gpu_thermal/0": 1, "gpu_power/0": 0, "gpu_busy/0": 0.88,
                      "gpu_ecc_uncorrected/0": 0, "rank_gpu/5": 0}
    smi.amdsmi_get_clock_info = lambda gpu, kind: {}
    read(values := {})
    read(values)
    assert "gpu_mhz/0" not in values
    assert values["gpu_ecc_corrected/0"] == values["gpu_link_errors/0"] == 0


def test_a_status_of_amd_links_tells_of_errors_since_it_was_read_last(monkeypatch):
    """The driver forgets them then; at first, they are those of a time before the job."""
    smi, statuses = pretended_smi(), iter([1, 2, 0, 1])
    smi.amdsmi_gpu_xgmi_error_status = lambda gpu: next(statuses)
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    read, = amd_readings(dict)
    found = []
    for second in (0.0, 4.0, 5.0, 9.0):
        monkeypatch.setattr(rates, "time", SimpleNamespace(monotonic=lambda now=second: now))
        read(values := {})
        found.append(values.get("gpu_link_errors/0"))
    assert found == [None, 0.25, 0, 0.25]


@pytest.mark.stress
def test_throttling_and_errors_are_named_through_the_library(tmp_path):
    right, many, invented = {"throttling": 0, "ecc": 0}, 10, 0
    for seed in range(many):
        rng = np.random.default_rng(seed)
        for name in (*right, "nothing"):
            invented += _one(tmp_path, rng, name) if name == "nothing" else 0
            if name != "nothing":
                right[name] += _one(tmp_path, rng, name)
    print(f"named, of {many} each: {right}; invented: {invented} of {many}")
    assert min(right.values()) >= 0.9 * many
    assert not invented


def _one(tmp_path, rng, name):
    """1 where something is named."""
    onset, corrected, mhz = int(rng.integers(200, 400)), 0, rng.uniform(900, 1700)
    seconds = []
    for second in range(onset + int(rng.integers(20, 120))):
        now = {"mhz": 1980 - 15 * int(rng.integers(0, 3)), "reasons": int(4 * (rng.random() < 0.3)),
               "mw": int(rng.normal(600_000, 30_000)), "busy": int(rng.uniform(70, 100))}
        corrected += int(rng.random() < 1 / 1500)
        if second >= onset and name == "throttling":
            now |= {"mhz": int(rng.normal(mhz, 30)), "reasons": 0x20 if rng.random() < 0.9 else 0}
        if second >= onset and name == "ecc":
            corrected += int(rng.poisson(0.5))
        seconds.append(({}, {**now, "corrected": corrected}))
    conditions = Conditions()
    for second, line in enumerate(asked(tmp_path, said(*seconds))):
        conditions.add("host7", 8, second * 10**9, json.loads(line))
    noticed_ns = int((onset + rng.uniform(-1.5, 1.5)) * 1e9)
    return bool(explained(slow_rank(noticed_ns), conditions, {0: "host7", 1: "host7"}, {0: 0, 1: 1}))
