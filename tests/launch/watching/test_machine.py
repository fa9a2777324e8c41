"""What a machine says about itself, and how it is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from distprof.contract.conditions import MARK, READINGS, encoded, moments, reading_of
from distprof.launch.watching.machine import SHARE, MachineReader, MachineSample, _Reading, _share_out
from distprof.launch.watching.readings import processes, rates, traffic
from distprof.launch.watching.readings.processes import Others, Ranks
from distprof.launch.watching.readings.rates import Rates, numbers
from distprof.launch.watching.reasons import MOMENTS, ConditionsFile, MachineWatch, folder_of
from distprof.merge.watch.machines import HOLDS_MOMENTS, MOST_MOMENTS, Conditions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="jobs are watched on Linux")
BUSY = [sys.executable, "-c", "while True: pass", "--secret=hunter2"]


def sample(second: int, **values: float) -> MachineSample:
    return MachineSample(time_ns=second * 10**9, values=values, others="python" if second % 2 else "")


def test_moments_are_kept_as_they_were(tmp_path):
    file = ConditionsFile(tmp_path / "hosts" / "a-1", "a")
    for second in range(1, MOMENTS + 4):
        file.add(sample(second, psi_memory=second / 100, **({"gpu_mhz/3": 1980.0} if second % 3 else {})))
    file.write()
    conditions = Conditions()
    conditions.look(tmp_path)
    conditions.look(tmp_path)
    host = conditions.hosts["a"]
    assert host.num_processors == os.cpu_count()
    assert list(host.times()) == [second * 10**9 for second in range(1, MOMENTS + 4)]
    assert host.column("psi_memory") == pytest.approx([second / 100 for second in range(1, MOMENTS + 4)])
    assert list(host.column("gpu_mhz/3")) == [1980] * (MOMENTS + 3)  # held where it was not read
    assert host.others[:3] == ["python", "", "python"]


def test_news_of_a_file_is_taken_in_once(tmp_path):
    folder = tmp_path / "hosts" / "a-1"
    file, conditions = ConditionsFile(folder, "a"), Conditions()
    for second in (1, 2):
        file.add(sample(second, runnable=second))
        file.write()
        conditions.look(tmp_path)
    with next(folder.iterdir()).open("ab") as end:
        end.write(encoded("a", 2, [3 * 10**9], [{"runnable": 3.0}], [""])[:-4])  # torn
    conditions.look(tmp_path)
    assert list(conditions.hosts["a"].column("runnable")) == [1, 2]


def test_damage_costs_what_is_in_it():
    frames = [encoded("a", 2, [second * 10**9], [{"runnable": float(second)}], [""]) for second in (1, 2, 3)]
    broken = bytearray(frames[1])
    broken[20] ^= 255
    found = [one.times_ns for _, one in moments(frames[0] + bytes(broken) + MARK + frames[2])]
    assert found == [[10**9], [3 * 10**9]]


def test_the_oldest_files_are_removed(tmp_path):
    file = ConditionsFile(tmp_path, "a", most_bytes=4000)
    for second in range(3000):
        file.add(sample(second, runnable=second % 7, busy=second % 11 / 11))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 4000
    assert not (tmp_path / "conditions-000.bin").exists()
    last = max(tmp_path.iterdir())
    assert list(moments(last.read_bytes()))[-1][1].times_ns[-1] > 2900 * 10**9


def many_files(folder):
    """Files that are full after each moment, past the number 999; the time of the next moment, in s."""
    file = ConditionsFile(folder, "a", most_bytes=1)
    file._number = 996
    for second in range(1, 8):
        file.add(sample(second, runnable=second))
        file.write()
    return 8


def test_a_new_file_follows_the_newest_when_numbers_begin_again(tmp_path):
    folder = tmp_path / "hosts" / "a-1"
    second = many_files(folder)
    before = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert {"conditions-999.bin", "conditions-000.bin", "conditions-002.bin"} <= before.keys()
    again = ConditionsFile(folder, "a")  # the watcher of a restarted job
    again.add(sample(second, runnable=second))
    again.write()
    after = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert after.keys() - before.keys() == {"conditions-003.bin"}
    assert {name: after[name] for name in before} == before
    conditions = Conditions()
    conditions.look(tmp_path)
    assert list(conditions.hosts["a"].column("runnable")) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_file_that_takes_the_number_of_a_removed_one_is_read_from_its_start(tmp_path):
    folder = tmp_path / "hosts" / "a-1"
    first, conditions = ConditionsFile(folder, "a"), Conditions()
    for second in (1, 2):
        first.add(sample(second, runnable=second))
    first.write()
    conditions.look(tmp_path)
    next(folder.iterdir()).unlink()
    conditions.look(tmp_path)
    anew = ConditionsFile(folder, "a")
    anew.add(sample(3, runnable=3))
    anew.write()
    conditions.look(tmp_path)
    assert list(conditions.hosts["a"].column("runnable")) == [1, 2, 3]


def test_what_is_not_read_for_long_is_unknown():
    conditions = Conditions()
    for second in range(1, 40):
        conditions.add("a", 2, second * 10**9, {"runnable": 1.0} if second == 1 else {})
    column = conditions.hosts["a"].column("runnable")
    assert list(column[:HOLDS_MOMENTS + 1]) == [1] * (HOLDS_MOMENTS + 1)
    assert column[HOLDS_MOMENTS + 1] != column[HOLDS_MOMENTS + 1]


def test_an_address_that_is_no_longer_talked_to_is_forgotten():
    conditions = Conditions()
    for second in range(1, 2 * MOST_MOMENTS + 11):
        link = {"link_bytes/10.0.0.9": 1.0} if second < 9 else {}
        conditions.add("a", 2, second * 10**9, {"runnable": 1.0, **link})
    assert conditions.hosts["a"].names() == ["runnable"]


def test_old_moments_are_forgotten():
    conditions = Conditions()
    for second in range(1, 2 * MOST_MOMENTS + 11):
        conditions.add("a", 2, second * 10**9, {"runnable": float(second)})
    host = conditions.hosts["a"]
    assert host.count == MOST_MOMENTS + 10 == len(host.others)
    kept = list(range(MOST_MOMENTS + 1, 2 * MOST_MOMENTS + 11))
    assert list(host.column("runnable")) == kept
    assert list(host.times() // 10**9) == kept


def test_all_that_is_read_has_a_meaning():
    reader = MachineReader(lambda: {0: os.getpid()})
    reader.read()
    time.sleep(0.1)
    for reading in reader._readings:
        reading.due_s = 0
    values = reader.read().values
    assert {reading_of(column)[0] for column in values} <= READINGS.keys()
    assert {"runnable", "busy", "memory_available", "swap_bytes", "others", "rank_processors/0"} <= values.keys()
    assert 0 <= values["memory_available"] <= 1


def test_a_reading_that_fails_is_not_made_again():
    reader, asked = MachineReader(dict), []

    def broken(values):
        asked.append(1)
        values["runnable"] = 5.0
        raise ValueError("a new kernel")

    reader._readings = [_Reading(read=broken), _Reading(read=lambda values: values.update(busy=0.5))]
    assert dict(reader.read().values) == {"busy": 0.5}
    reader.read()
    assert asked == [1]
    assert reader.num_readings == 1


def test_costly_readings_are_made_less_often():
    readings = [_Reading(read=dict, cost_s=0.0005), _Reading(read=dict, cost_s=0.05), _Reading(read=dict, cost_s=0.02)]
    _share_out(readings)
    assert sum(one.cost_s / one.every_s for one in readings) == pytest.approx(SHARE, rel=0.01)
    assert readings[0].every_s < readings[2].every_s < readings[1].every_s
    cheap = [_Reading(read=dict, cost_s=0.001)]
    _share_out(cheap)
    assert cheap[0].every_s == 1


def test_counters_that_begin_anew_are_unknown():
    rates = Rates()
    assert rates.grown("x", 5) is None
    assert rates.grown("x", 9) == 4
    assert rates.grown("x", 3) is None
    assert numbers("0-2,7\n") == {0, 1, 2, 7}


def port(folder, adapter, number, **counters):
    """A port of an InfiniBand adapter, as the kernel shows it."""
    own = folder / adapter / "ports" / str(number)
    (own / "counters").mkdir(parents=True, exist_ok=True)
    (own / "rate").write_text("200 Gb/sec (4X HDR)\n")
    for name in ("port_xmit_data", "port_rcv_data", "symbol_error", "link_downed", "port_rcv_errors"):
        (own / "counters" / name).write_text(f"{counters.get(name, 0)}\n")


def test_ports_of_one_adapter_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(traffic, "INFINIBAND", tmp_path)
    every = []
    for second, sent in enumerate((0, 250)):
        port(tmp_path, "mlx4_0", 1, port_xmit_data=1000 * sent)
        port(tmp_path, "mlx4_0", 2, port_rcv_data=sent, symbol_error=sent)
        port(tmp_path, "mlx5_0", 1, port_xmit_data=2 * sent)
        every = every or traffic._ports(Rates())
        monkeypatch.setattr(rates, "time", SimpleNamespace(monotonic=lambda now=second: now))
        values = {}
        for one in every:
            one.read(values)
    assert values == {
        "net_bytes/mlx4_0:1": 1e6, "net_bytes/mlx4_0:2": 1e3, "net_bytes/mlx5_0": 2e3,
        "net_errors/mlx4_0:1": 0, "net_errors/mlx4_0:2": 250, "net_errors/mlx5_0": 0,
        "net_most_bytes/mlx4_0:1": 25e9, "net_most_bytes/mlx4_0:2": 25e9, "net_most_bytes/mlx5_0": 25e9}


@pytest.mark.job
def test_others_are_named_without_arguments():
    mine, other = subprocess.Popen(BUSY), subprocess.Popen(["setsid", *BUSY])
    try:
        others = Others(lambda: {mine.pid})
        others.read({})
        for _ in range(5):  # on a busy machine it gets little of its first second
            time.sleep(1)
            others.read(values := {})
            if values["others"] > 0.1 / os.cpu_count():
                break
        assert values["others"] > 0.1 / os.cpu_count()
        assert "python" in others.names
        assert "hunter2" not in others.names
        assert mine.pid in others.of_job
        assert other.pid not in others.of_job
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()


@pytest.mark.job
def test_a_rank_whose_processor_others_use():
    processor = min(os.sched_getaffinity(0))
    both = [subprocess.Popen(["taskset", "-c", str(processor), *BUSY]) for _ in range(2)]
    try:
        others = Others(set)
        ranks = Ranks(lambda: {4: both[0].pid, 5: 2**22 + 1}, others)  # rank 5 has ended
        for _ in range(2):
            time.sleep(1)
            others.read({})
            ranks.read(values := {})
        assert values["rank_processors/4"] == 1
        if os.cpu_count() > 1:
            assert values["rank_others/4"] > 0.2
        assert values["rank_waits/4"] > 0.2
        assert not any(column.endswith("/5") for column in values)
    finally:
        for process in both:
            process.kill()
            process.wait()


@pytest.mark.job
def test_what_a_rank_started_is_not_others():
    processor = min(os.sched_getaffinity(0))
    child = f"'{sys.executable}' -c 'while True: pass' & wait"
    rank = subprocess.Popen(["taskset", "-c", str(processor), "sh", "-c", child], start_new_session=True)
    try:
        others = Others(set)
        ranks = Ranks(lambda: {4: rank.pid}, others)
        for _ in range(2):
            time.sleep(1)
            others.read({})
            used = others.used_s(rank.pid)
            ranks.read({})
        assert used > 0.1
        before = others.used_s(rank.pid)
        ranks.read(values := {})
        assert "rank_others/4" not in values  # others have not been looked at since
        assert before == used
    finally:
        os.killpg(rank.pid, 9)
        rank.wait()


def test_quotas_of_both_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(processes, "CGROUPS", tmp_path / "groups")
    (tmp_path / "7").mkdir()
    inner = tmp_path / "groups" / "job" / "step"
    inner.mkdir(parents=True)
    (tmp_path / "7" / "cgroup").write_text("4:memory:/x\n0::/job/step\n")
    (inner / "cpu.stat").write_text("usage_usec 5\n")
    limited = tmp_path / "groups" / "job" / "cpu.stat"
    limited.write_text("usage_usec 5\nnr_periods 10\nnr_throttled 2\n")
    ranks = Ranks(lambda: {0: 7}, Others(set))
    assert ranks._stopped(7) is None
    limited.write_text("usage_usec 5\nnr_periods 20\nnr_throttled 6\n")
    assert ranks._stopped(7) == 0.4


@pytest.mark.job
def test_a_watch_keeps_what_is_said(tmp_path):
    told = []
    folder = folder_of(tmp_path, "a-1")
    watch = MachineWatch(MachineReader(dict), ConditionsFile(folder, "a"), told.append)
    watch.start()
    time.sleep(1.5)
    watch.stop()
    conditions = Conditions()
    conditions.look(tmp_path)
    assert conditions.hosts["a"].count == len(told) >= 2
    assert watch.problem is None


@pytest.mark.job
def test_a_folder_that_is_gone_ends_the_keeping_alone(tmp_path):
    told = []
    file = ConditionsFile(tmp_path / "gone", "a")
    (tmp_path / "gone").rmdir()
    watch = MachineWatch(MachineReader(dict), file, told.append)
    watch.start()
    time.sleep(0.3)
    watch.stop()
    assert told
    assert "no longer stored" in watch.problem
