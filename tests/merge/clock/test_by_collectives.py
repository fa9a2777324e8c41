"""Clocks estimated from collectives, and held against them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from distprof.merge.clock.by_collectives import check_clock, clock_by_collectives, precision_of, synchronising
from distprof.merge.clock.choose import on_one_host
from distprof.merge.cost.measured_run import measured_run
from distprof.merge.run.open_run import open_run
from support.jobs import ROOT, called
from support.true_clock import NOW, SECOND, TrueClock, clocks, error

DLRM = ROOT.parent / "shared" / "traces" / "dlrm8" / "kineto"


def table_of(seed: int, each: dict[int, TrueClock], *, num: int, held_ns: int, late_ns: int) -> pl.DataFrame:
    """Collectives of all ranks: everybody comes when he likes and leaves some time after the last has come."""
    random = np.random.default_rng(seed)
    rows, true_ns = [], NOW
    for collective in range(num):
        starts = true_ns + random.integers(0, late_ns, len(each))
        ends = starts.max() + random.integers(0, held_ns, len(each))
        rows += [(collective, rank, clock.at(int(start)), clock.at(int(end)))
                 for (rank, clock), start, end in zip(each.items(), starts, ends, strict=True)]
        true_ns = int(ends.max()) + int(random.integers(0, 10**8))
    return pl.DataFrame(rows, schema=["collective", "rank", "start_ns", "end_ns"], orient="row")


@pytest.mark.long
@given(st.integers(0, 2**32), clocks, clocks, clocks, st.integers(3, 200), st.integers(1, 10**6),
       st.integers(1, 10**7))
@example(0, TrueClock(0, 0), TrueClock(3 * SECOND, 100_000), TrueClock(-7 * SECOND, -50_000), 100, 20_000, 2_000_000)
def test_collectives_give_back_the_offsets(seed, one, two, three, num, held_ns, late_ns):
    assume(max(abs(clock.offset_ns) for clock in (one, two, three)) < 2**60)
    each = {0: one, 1: one, 2: two, 3: two, 4: three}
    table = table_of(seed, each, num=num, held_ns=held_ns, late_ns=late_ns)
    found = clock_by_collectives(table, {0: "a", 1: "a", 2: "b", 3: "b", 4: "c"})
    assert found.method == "collectives" and found.aligned and found.num_clocks == 3
    last_ns = NOW + num * 5 * 10**7
    for rank, clock in each.items():
        for true_ns in (NOW + late_ns, (NOW + last_ns) // 2):
            assert error(found.ranks[rank], clock, one, true_ns) <= found.ranks[rank].uncertainty_ns + 2
    # the ends say more than the bounds: as sharp as ranks leave together
    middle = NOW + num * 2 * 10**7
    assert error(found.ranks[4], three, one, middle) <= 2 * held_ns + 10
    said = check_clock(table, found)
    assert said.num_collectives == num and not said.contradicts
    assert said.end_spread_ns["p50"] <= said.end_spread_ns["p95"] <= said.end_spread_ns["max"]


def test_collectives_show_a_clock_that_is_wrong():
    each = {0: TrueClock(0, 0), 1: TrueClock(4_000_000, 0)}
    table = table_of(1, each, num=30, held_ns=10_000, late_ns=100_000)
    hosts = {0: "a", 1: "b"}
    right = clock_by_collectives(table, hosts)
    assert abs(right.line(1).offset_ns + 4_000_000) <= right.uncertainty_ns < 200_000
    assert not check_clock(table, right).violations and check_clock(table, right).end_spread_ns["max"] < 50_000
    wrong = clock_by_collectives(table, dict.fromkeys(each, "one host"))
    said = check_clock(table, wrong)
    assert wrong.method == "shared" and said.contradicts and said.violations == 30
    assert 3_800_000 < said.largest_violation_ns <= 4_000_000 and said.end_spread_ns["p50"] > 3_900_000
    assert not check_clock(table, wrong, precision_ns=2_000_000).contradicts


@pytest.mark.parametrize("seed", range(8))
def test_of_times_in_whole_microseconds_the_bounds_are_as_wide(seed):
    """As profilers of old wrote them: start and duration without what is below a microsecond."""
    each = {0: TrueClock(0, 0), 1: TrueClock(700, 0)}
    table = table_of(seed, each, num=50, held_ns=200, late_ns=300)
    assert precision_of(table) == 1
    whole = table.with_columns(start_ns=pl.col("start_ns") // 1000 * 1000).with_columns(
        end_ns=pl.col("start_ns") + (table["end_ns"] - table["start_ns"]) // 1000 * 1000)
    assert precision_of(whole) == 1000
    assert precision_of(whole.with_columns(pl.col("start_ns", "end_ns") + 123 * pl.col("rank"))) == 1000
    assert precision_of(whole.head(0)) == precision_of(whole.head(1).with_columns(end_ns="start_ns")) == 1
    found = clock_by_collectives(whole, {0: "a", 1: "b"}, precision_ns=precision_of(whole))
    assert error(found.ranks[1], each[1], each[0], NOW) <= found.ranks[1].uncertainty_ns and not found.excess_ns
    assert not check_clock(whole, clock_by_collectives(table, {0: "a", 1: "b"}), precision_ns=1000).violations


def kernels_of_one_clock(folder: Path, comes_later_us: float, moment_us: float = 0.0) -> Path:
    """Rank 1 comes to each all_reduce so much after rank 0 has left it."""
    for rank, start_us in enumerate((0, 100 + comes_later_us)):
        kernels = [{"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "pid": 0, "tid": 7,
                    "ts": 1000 * number + start_us + moment_us * number, "dur": 100, "args": {"stream": 7}}
                   for number in range(5)]
        (folder / f"rank{rank}.json").write_text(json.dumps({
            "deviceProperties": [], "distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"},
            "traceEvents": kernels}))
    return folder


@pytest.mark.parametrize(("comes_later_us", "moment_us", "violations"), [
    (2, 0, 0), (3, 0, 5), (2, 0.001, 5), (0.5, 0.25, 0), (1, 0.25, 5)])
def test_a_clock_is_not_contradicted_by_less_than_its_times_are_rounded_to(
        tmp_path, comes_later_us, moment_us, violations):
    with on_one_host():
        check = measured_run(open_run(kernels_of_one_clock(tmp_path, comes_later_us, moment_us))).clock.check
    assert (check.num_collectives, check.violations, check.contradicts) == (5, violations, violations > 0)


def test_too_few_collectives_align_nothing():
    table = table_of(1, {0: TrueClock(0, 0), 1: TrueClock(9, 0)}, num=2, held_ns=10, late_ns=10)
    found = clock_by_collectives(table, {0: "a", 1: "b"})
    assert (found.method, found.aligned) == ("none", False) and found.reason == "too_few_collectives"
    assert check_clock(table, found).num_collectives == 0


def test_hosts_that_meet_only_over_a_third_are_aligned_through_it():
    clocks_of = {0: TrueClock(0, 0), 1: TrueClock(10**6, 50_000), 2: TrueClock(-(10**9), -50_000)}
    near = table_of(1, {0: clocks_of[0], 1: clocks_of[1]}, num=40, held_ns=1000, late_ns=10_000)
    far = table_of(2, {1: clocks_of[1], 2: clocks_of[2]}, num=40, held_ns=1000, late_ns=10_000)
    table = pl.concat([near, far.with_columns(pl.col("collective") + 1000)])
    found = clock_by_collectives(table, {0: "a", 1: "b", 2: "c"})
    assert found.aligned and found.ranks[2].uncertainty_ns > found.ranks[1].uncertainty_ns
    assert error(found.ranks[2], clocks_of[2], clocks_of[0], NOW + SECOND) <= found.ranks[2].uncertainty_ns


@pytest.mark.skipif(not DLRM.is_dir(), reason="needs the traces of ../shared")
def test_eight_gpus_of_one_host_are_found_to_read_one_clock():
    """NCCL kernels of a real job, each rank taken for a host of its own."""
    rows = []
    for rank, path in enumerate(sorted(DLRM.glob("*.json.gz"))):
        kernels = sorted((round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000))
                         for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
                         if event["ph"] == "X" and event.get("cat") == "kernel" and "nccl" in event["name"].lower())
        rows += [(number, rank, start, end) for number, (start, end) in enumerate(kernels)]
    table = pl.DataFrame(rows, schema=["collective", "rank", "start_ns", "end_ns"], orient="row")
    found = clock_by_collectives(table, dict.fromkeys(range(8)), precision_ns=1000)  # times in whole us
    assert found.aligned and found.num_clocks == 8 and found.excess_ns == 0
    middle = sum(table["start_ns"].unique()) // len(table["start_ns"].unique())
    for rank in range(8):
        wrong = abs(found.line(rank).shift(middle) - middle)
        assert wrong <= found.ranks[rank].uncertainty_ns < 200_000 and wrong < 10_000
    assert not check_clock(table, found).violations


@pytest.mark.long
@pytest.mark.skipif(not DLRM.is_dir(), reason="needs the traces of ../shared")
def test_the_latest_of_ranks_without_hosts_is_the_one_that_their_common_host_shows():
    estimated, told = (json.loads(called("comms", "--json", *flag, DLRM).stdout) for flag in ([], ["--same-host"]))
    assert (estimated["clock"]["method"], told["clock"]["method"]) == ("collectives", "shared")
    assert (estimated["clock"]["num_hosts"], told["clock"]["num_hosts"]) == (0, 1)
    first, again = (one["culprits"][0] for one in (estimated, told))
    assert (first["rank"], first["causes"][0]["kind"]) == (again["rank"], again["causes"][0]["kind"]) == (7, "forward")
    assert abs(first["gain_ns"] - again["gain_ns"]) < 20_000
    assert "if all ranks ran on one host, --same-host settles it" in called("comms", DLRM).stdout
    text = called("comms", "--same-host", DLRM).stdout
    assert "settles it" not in text and "Next: distprof comms --timeline --step 10 --same-host " in text


@pytest.mark.job
def test_ranks_in_containers_are_compared_as_on_the_host_that_they_share(profiled, tmp_path):
    for path in profiled.glob("*.json*"):
        read = gzip.decompress if path.suffix == ".gz" else bytes
        trace = json.loads(read(path.read_bytes())) | {"host_name": f"pod-{path.stem}"}
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(trace))
    known, told, apart = (json.loads(called("comms", "--json", *words).stdout) for words in (
        [profiled], ["--same-host", tmp_path], [tmp_path]))
    for key in ("breakdown", "culprits", "kinds"):
        assert known[key] == told[key], key
    assert (apart["clock"]["method"], told["clock"]["method"]) == ("none", "shared")


def _late_on_gpus(folder: Path, late: int, late_us: float, offsets_us: list[float], seed: int) -> None:
    """Ten steps of 20 ms that end with an all_reduce of NCCL; nothing says what clocks have to do with each other."""
    random, num_ranks = np.random.default_rng(seed), len(offsets_us)
    came = 10_000 + 20_000 * np.arange(10)[:, None] + random.uniform(0, 5, (10, num_ranks))
    came[:, late] += late_us
    left = came.max(axis=1, keepdims=True) + 200 + random.uniform(0, 2, (10, num_ranks))
    for rank, offset in enumerate(offsets_us):
        events = []
        for step in range(10):
            begin, at, end = 20_000 * step, came[step, rank], left[step, rank]
            events += [{"ph": "X", "pid": pid, "tid": tid, "ts": 1.7e12 + offset + ts, "dur": dur, "name": name,
                        "cat": cat, "args": {"stream": 7, "correlation": step + 1}}
                       for pid, tid, ts, dur, name, cat in (
                (100, 1, begin + 500, 19_990, f"ProfilerStep#{step}", "user_annotation"),
                (100, 1, begin + 1000, at - begin - 1030, "aten::mm", "cpu_op"),
                (100, 1, at - 20, 5, "cudaLaunchKernel", "cuda_runtime"),
                (0, 7, begin + 1500, at - begin - 1510, "gemm", "kernel"),
                (0, 7, at, end - at, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel"))]
        (folder / f"rank{rank}.json").write_text(json.dumps({
            "deviceProperties": [{"id": 0, "name": "H100"}], "distributedInfo": {
                "rank": rank, "world_size": num_ranks, "backend": "nccl"}, "traceEvents": events}))


@pytest.mark.long
@pytest.mark.parametrize(("late", "late_us", "offsets_us"), [
    (2, 5000.0, [0.0, 3e6, -5e6, 1e3]), (1, 800.0, [0.0, 9e9]), (0, 2000.0, [0.0, 10.0, -3e3])])
def test_the_late_gpu_is_named_though_no_clock_was_ever_compared(tmp_path, late, late_us, offsets_us):
    """By causality alone clocks are known to twice the lateness."""
    _late_on_gpus(tmp_path, late, late_us, offsets_us, seed=1)
    said = json.loads(called("comms", "--json", tmp_path).stdout)
    (one,) = (one for one in said["culprits"] if one["certain"])
    assert (said["clock"]["method"], one["rank"]) == ("collectives", late)
    assert abs(one["gain_ns"] / 1000 - late_us) < 20 and one["gain_error_ns"] < 0.1 * one["gain_ns"] + 20_000
    assert "as if all ranks left a collective at the same time" in called("comms", tmp_path).stdout
    assert "as if all ranks left a collective at the same time" in called("findings", tmp_path).stdout


@pytest.mark.long
@pytest.mark.parametrize("command", ["comms", "merge"])
def test_clocks_that_are_told_to_be_one_and_are_not_are_said_to_contradict_that(tmp_path, command):
    kernels_of_one_clock(tmp_path, 3_000_000)
    told = called(command, "--same-host", tmp_path).stdout
    assert "5 before every rank has entered" in told and "incomplete: " in told
    assert "before every rank" not in called("comms", tmp_path).stdout.replace("none before every rank", "")


@pytest.mark.long
@pytest.mark.parametrize("command", ["comms", "critical-path", "whatif --no-stragglers", "findings"])
def test_commands_that_are_named_next_compare_times_as_this_one(tmp_path, command):
    _late_on_gpus(tmp_path, 1, 2000.0, [0.0, 0.0], seed=3)
    for flag in ("--same-host ", ""):
        named = [line.split("distprof ")[1] for line in called(
            *command.split(), *flag.split(), tmp_path).stdout.splitlines() if line.lstrip().startswith((
                "Next: distprof", "distprof comms --timeline", "distprof critical"))]
        assert named and all((f"--same-host {tmp_path}" in one) == bool(flag) for one in named)


@pytest.mark.long
def test_nobody_is_cleared_on_clocks_that_collectives_contradict(tmp_path):
    _late_on_gpus(tmp_path, 0, 0.0, [0.0, 3e6, -5e6], seed=2)
    told = json.loads(called("comms", "--json", "--same-host", tmp_path).stdout)
    assert told["blind"] == "wrong clock" and told["culprits"] == []
    assert "collectives contradict the clocks of the ranks: whether a rank delays others is unknown" in called(
        "comms", "--same-host", tmp_path).stdout
    assert json.loads(called("comms", "--json", tmp_path).stdout)["blind"] is None


def test_collectives_of_which_a_rank_has_neither_start_nor_call_bound_nothing():
    """In a trace of another program a slice may have been cut off."""
    same = {"matched_by": "id", "complete": True, "mismatch": None, "op": "all_reduce", "size_bytes": 8, "num_ranks": 2}
    came = [(0, 0, 1, None), (0, 1, None, 2), (1, 0, 3, 3), (1, 1, None, None)]
    found = synchronising(pl.DataFrame([
        {"collective": collective, "rank": rank, "start_ns": start, "enqueue_ns": call, "end_ns": 9, **same}
        for collective, rank, start, call in came]))
    assert found["collective"].to_list() == [0, 0] and found["start_ns"].to_list() == [1, 2]
