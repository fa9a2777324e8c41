"""Clocks that nobody can see: whatever they do, what is said of them holds."""

from __future__ import annotations

import gzip
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from distprof.contract.rank_json import ClockPair, ClockSample
from distprof.merge.clock.by_collectives import check_clock, clock_by_collectives
from distprof.merge.clock.by_samples import SampledRank, clock_by_samples
from distprof.merge.clock.fit import fit_line
from distprof.merge.clock.model import Alignment, Clock, RankClock
from distprof.merge.clock.recorded_clock import stepped_by_ns
from distprof.recording.clock.exchange import compared
from support.jobs import ROOT

DLRM = ROOT.parent / "shared" / "traces" / "dlrm8" / "kineto"
NOW = 1_795_273_665_086_560_780
SECOND = 10**9
offsets = st.integers(-(2 * 10**18), 2 * 10**18) | st.integers(-(10**7), 10**7)
drifts = st.integers(-400_000, 400_000)
"""Parts in 10^9."""


class TrueClock:
    """What a clock shows at a true time, in whole ns."""

    def __init__(self, offset_ns: int, drift_ppb: int) -> None:
        self.offset_ns, self.drift_ppb = offset_ns, drift_ppb

    def at(self, true_ns: int) -> int:
        return true_ns + self.offset_ns + (true_ns - NOW) * self.drift_ppb // 10**9

    def when(self, shown_ns: int) -> int:
        """The true time at which it shows that."""
        return NOW + (shown_ns - self.offset_ns - NOW) * 10**9 // (10**9 + self.drift_ppb)


clocks = st.builds(TrueClock, offsets, drifts)
lines = st.builds(RankClock, offset_ns=offsets, drift_ppm=st.floats(-1000, 1000),
                  reference_ns=st.integers(NOW - 10**13, NOW + 10**13))
times = st.integers(NOW - 10**13, NOW + 10**13)


# --- lines ---------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 10**6), lines, min_size=1, max_size=5), st.data())
def test_many_times_are_shifted_as_one_is(each, data):
    clock = Clock(method="samples", num_hosts=1,
                  ranks={rank: Alignment(line=line, uncertainty_ns=1) for rank, line in each.items()})
    some = data.draw(st.lists(st.tuples(st.sampled_from(sorted(each)), times), max_size=20))
    ranks, at = np.array(some, dtype=np.int64).reshape(-1, 2).T
    shifted = clock.to_common_ns(ranks, at)
    assert shifted.dtype == np.int64
    assert shifted.tolist() == [each[rank].shift(when) for rank, when in some]


@given(offsets, times)
def test_without_drift_a_shift_is_exact_to_the_nanosecond(offset_ns, at_ns):
    line = RankClock(offset_ns=offset_ns, reference_ns=NOW)
    assert line.shift(at_ns) == at_ns + offset_ns


@given(lines, times, st.integers(0, 10**10))
def test_order_and_nesting_survive(line, at_ns, later_ns):
    assert line.shift(at_ns) <= line.shift(at_ns + later_ns)


@given(lines, lines, st.integers(-(10**13), 10**13))
def test_two_lines_one_after_the_other_are_one(one, two, later_ns):
    assume(abs(one.offset_ns) < 10**15)
    at_ns = one.reference_ns + later_ns
    # rounding, and the double of the product of two slopes over three hours
    assert abs(one.then(two).shift(at_ns) - two.shift(one.shift(at_ns))) <= 4


# --- samples -------------------------------------------------------------------------------------------------------

delays = st.integers(0, 5_000_000)


@st.composite
def comparisons(draw, mine: TrueClock, other: TrueClock, *, peer: int = 0, max_size: int = 6) -> list[ClockSample]:
    """What a rank would write down, if every way took as long as it liked."""
    found, true_ns = [], NOW
    for _ in range(draw(st.integers(1, max_size))):
        true_ns += draw(st.integers(10**6, 10**11))
        there = true_ns + draw(delays)
        left = there + draw(delays)
        back = left + draw(delays)
        sample = compared(peer, mine.at(true_ns), other.at(there), other.at(left), mine.at(back))
        assert sample is not None
        found.append(sample)
        true_ns = back
    return found


def error(alignment: Alignment, mine: TrueClock, other: TrueClock, true_ns: int) -> int:
    return abs(alignment.line.shift(mine.at(true_ns)) - other.at(true_ns))


@given(clocks, clocks, st.data())
def test_one_question_bounds_the_offset_whatever_the_ways_took(mine, other, data):
    assume(abs(mine.offset_ns - other.offset_ns) < 2**62)
    for sample in data.draw(comparisons(mine, other)):
        true_ns = mine.when(sample.at_ns)
        shown = other.at(true_ns) - mine.at(true_ns)
        assert abs(sample.offset_ns - shown) <= sample.bound_ns + 2  # 2: going back from the clock to the true time


def test_a_question_during_which_a_clock_was_set_tells_nothing():
    assert compared(0, 1000, 500, 510, 900) is None, "mine went back"
    assert compared(0, 1000, 500, 400, 1100) is None, "the other went back"
    assert compared(0, 1000, 500, 9500, 1100) is None, "the other went ahead"
    assert compared(0, 1000, 500, 600, 1100).offset_ns == -500


@given(clocks, clocks, st.data())
def test_the_truth_is_within_the_uncertainty_between_the_samples(mine, other, data):
    assume(abs(mine.offset_ns - other.offset_ns) < 2**62)
    samples = data.draw(comparisons(mine, other))
    found = clock_by_samples([SampledRank(rank=0, host="a", samples=[]),
                              SampledRank(rank=1, host="b", samples=samples)])
    assert found.method == "samples" and found.aligned and found.num_clocks == found.num_hosts == 2
    one = found.ranks[1]
    assert one.uncertainty_ns <= max(sample.bound_ns for sample in samples) + 3
    for share in (0, 0.3, 0.7, 1):
        at_ns = samples[0].at_ns + round((samples[-1].at_ns - samples[0].at_ns) * share)
        true_ns = mine.when(at_ns)
        assert error(one, mine, other, true_ns) <= one.uncertainty_ns + 2
    assert found.excess_ns == 0
    drift_ppm = (1 + other.drift_ppb / 1e9) / (1 + mine.drift_ppb / 1e9) * 1e6 - 1e6
    assert abs(one.line.drift_ppm - drift_ppm) <= one.drift_uncertainty_ppm + 1e-3


@given(clocks, clocks, clocks, st.data())
def test_errors_add_up_along_a_chain(root, middle, leaf, data):
    assume(max(abs(clock.offset_ns) for clock in (root, middle, leaf)) < 2**60)
    between, end = data.draw(comparisons(middle, root)), data.draw(comparisons(leaf, middle, peer=4))
    ranks = [SampledRank(rank=4, host="b", samples=between), SampledRank(rank=5, host="c", samples=end)]
    found = clock_by_samples(ranks)  # rank 0 itself left nothing
    assert found.aligned and found.ranks[5].uncertainty_ns >= found.ranks[4].uncertainty_ns
    begin_ns, until_ns = (pick(a, b) for pick, a, b in (
        (max, middle.when(between[0].at_ns), leaf.when(end[0].at_ns)),
        (min, middle.when(between[-1].at_ns), leaf.when(end[-1].at_ns))))
    assume(begin_ns <= until_ns)  # both were recorded
    for true_ns in (begin_ns, until_ns):
        assert error(found.ranks[5], leaf, root, true_ns) <= found.ranks[5].uncertainty_ns + 4


def sample(at_s: float, offset_ns: int | None, bound_ns: int | None, peer: int = 0) -> ClockSample:
    return ClockSample(peer=peer, at_ns=NOW + round(at_s * SECOND), offset_ns=offset_ns, bound_ns=bound_ns,
                       rounds=32)


def test_ranks_of_one_host_share_a_clock_and_what_they_measured():
    rough = [sample(0, 5_000_000, 40_000), sample(10, 5_000_000, 90_000)]
    fine = [sample(1, 5_010_000, 20_000), sample(9, 5_010_000, 20_000)]
    found = clock_by_samples([SampledRank(rank=0, host="a", samples=[]),
                              SampledRank(rank=1, host="b", samples=rough),
                              SampledRank(rank=2, host="b", samples=fine),
                              SampledRank(rank=3, host="b", samples=[sample(2, 12, 800, peer=1)])])
    assert [found.ranks[rank].clock for rank in range(4)] == [0, 1, 1, 1]
    assert len({found.ranks[rank].line for rank in (1, 2, 3)}) == 1
    assert found.uncertainty_ns < 40_000
    assert found.to_common_ns([0, 3], [NOW, NOW])[0] == NOW


def test_ranks_of_one_host_that_read_different_clocks_are_told_apart():
    found = clock_by_samples([
        SampledRank(rank=0, host="a", samples=[]),
        SampledRank(rank=1, host="a", samples=[sample(0, -40, 5000), sample(1, 10, 5000)]),
        SampledRank(rank=2, host="a", samples=[sample(0, 3 * SECOND, 5000), sample(1, 3 * SECOND, 5000)])])
    assert (found.method, found.num_clocks, found.num_hosts) == ("samples", 2, 1)
    assert found.line(1) == RankClock() and found.ranks[1].uncertainty_ns == 0
    assert abs(found.line(2).offset_ns - 3 * SECOND) <= 5000


def test_ranks_of_another_host_that_read_different_clocks_are_told_apart_too():
    ranks = [SampledRank(rank=rank, host="b", samples=[sample(0, offset, 5000), sample(1, offset, 5000)])
             for rank, offset in ((1, 1000), (2, 2000), (3, SECOND))]
    found = clock_by_samples([SampledRank(rank=0, host="a", samples=[]), *ranks])
    assert found.aligned and found.num_clocks == 4 and found.excess_ns == 0
    assert abs(found.line(3).offset_ns - SECOND) <= 5000 and abs(found.line(1).offset_ns - 1000) <= 5000


def test_a_clock_that_was_set_between_two_samples_is_uncertain_by_that():
    samples = [sample(0, 0, 5000), sample(1, 0, 5000), sample(2, SECOND, 5000), sample(3, SECOND, 5000)]
    found = clock_by_samples([SampledRank(rank=0, host="a", samples=[]),
                              SampledRank(rank=1, host="b", samples=samples)])
    assert found.uncertainty_ns > SECOND // 2 and found.excess_ns > SECOND // 3


def test_a_rank_whose_peer_fell_silent_is_less_sure_of_the_rest():
    heard = [sample(0, 1000, 5000), sample(1, 1000, 5000)]
    whole, cut = (clock_by_samples([SampledRank(rank=0, host="a", samples=[]),
                                    SampledRank(rank=1, host="b", samples=[*heard, last])]).uncertainty_ns
                  for last in (sample(10, 1000, 5000), sample(10, None, None)))
    assert whole <= 5010 and 90_000 <= cut <= 100_000  # 10 us in 1 s are 10 ppm, for 9 s more


def test_ranks_that_no_sample_joins_are_not_aligned():
    here, there = SampledRank(rank=0, host="a", samples=[]), SampledRank(rank=1, host="b", samples=[])
    silent = SampledRank(rank=2, host="c", samples=[sample(0, None, None)])
    lost = SampledRank(rank=3, host="d", samples=[sample(0, 100, 10, peer=1)])
    heard = SampledRank(rank=4, host="e", samples=[sample(0, 100, 10)])
    found = clock_by_samples([here, there])
    assert (found.method, found.aligned, found.uncertainty_ns, found.num_clocks) == ("none", False, None, 2)
    found = clock_by_samples([here, there, silent, lost, heard])
    assert not found.aligned and (found.reason, found.num_samples) == ("samples_do_not_join", 2)
    assert [rank for rank, known in found.ranks.items() if known.uncertainty_ns is None] == [1, 2, 3]
    assert found.line(3) == RankClock() and found.line(4).offset_ns == 100
    unknown = [SampledRank(rank=rank, host=None, samples=[]) for rank in (0, 1)]
    assert not clock_by_samples(unknown).aligned


# --- collectives ---------------------------------------------------------------------------------------------------


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


@given(st.integers(0, 2**32), clocks, clocks, clocks, st.integers(20, 200), st.integers(1, 10**6),
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


def test_too_few_collectives_align_nothing():
    table = table_of(1, {0: TrueClock(0, 0), 1: TrueClock(9, 0)}, num=19, held_ns=10, late_ns=10)
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
def test_eight_gpus_of_one_host_are_found_to_read_one_clock(monkeypatch):
    """NCCL kernels of a real job, each rank taken for a host of its own."""
    rows = []
    for rank, path in enumerate(sorted(DLRM.glob("*.json.gz"))):
        kernels = sorted((round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000))
                         for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
                         if event["ph"] == "X" and event.get("cat") == "kernel" and "nccl" in event["name"].lower())
        rows += [(number, rank, start, end) for number, (start, end) in enumerate(kernels)]
    table = pl.DataFrame(rows, schema=["collective", "rank", "start_ns", "end_ns"], orient="row")
    monkeypatch.setattr("distprof.merge.clock.by_collectives.ENOUGH", 8)
    found = clock_by_collectives(table, dict.fromkeys(range(8)), precision_ns=1000)  # times in whole us
    assert found.aligned and found.num_clocks == 8 and found.excess_ns == 0
    middle = sum(table["start_ns"].unique()) // len(table["start_ns"].unique())
    for rank in range(8):
        wrong = abs(found.line(rank).shift(middle) - middle)
        assert wrong <= found.ranks[rank].uncertainty_ns < 200_000 and wrong < 10_000
    assert not check_clock(table, found).violations


# --- fit -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 10**11), st.integers(-(10**6), 10**6), st.integers(0, 10**6)), min_size=1,
                max_size=12), st.integers(-(10**6), 10**6))
def test_bounds_that_contradict_each_other_give_way_and_that_is_said(points, base):
    lower = [(NOW + at, base + value - bound) for at, value, bound in points]
    upper = [(NOW + at, base + value + bound) for at, value, bound in points]
    window = (min(lower)[0], max(lower)[0])
    found = fit_line(lower, upper, window=window)
    for (at_ns, low), (_, high) in zip(lower, upper, strict=True):
        offset = found.line.shift(at_ns) - at_ns
        # the line is within its uncertainty of one that keeps every bound, after they gave way
        slack = found.uncertainty_ns + found.excess_ns + 2
        assert low - slack <= offset <= high + slack


def test_a_fit_needs_bounds_on_both_sides():
    with pytest.raises(ValueError, match="both sides"):
        fit_line([(NOW, 1)], [], window=(NOW, NOW))


def test_a_host_whose_clock_stepped_is_taken_apart_with_all_that_asked_it():
    stepped = [sample(0, 0, 20_000), sample(1, 0, 20_000), sample(2, 50_000_000, 20_000), sample(3, 0, 20_000)]
    behind = [sample(0, 0, 20_000, peer=2), sample(3, 0, 20_000, peer=2)]
    found = clock_by_samples([
        SampledRank(rank=rank, host=host, samples=samples)
        for host, ranks, samples in (("a", (0, 1), []), ("b", (2, 3), stepped), ("c", (4, 5), behind))
        for rank in ranks])
    assert found.aligned and all((found.ranks[rank].uncertainty_ns or 0) > 10_000_000 for rank in (2, 3, 4, 5))


def test_beyond_the_peers_own_samples_its_drift_is_not_known():
    """Both drift by 38 ppm, which their samples of one second allow; after a minute that is 4.52 ms."""
    middle = SampledRank(rank=1, host="b", samples=[sample(0, 0, 20_000), sample(1, 0, 20_000)])
    last = SampledRank(rank=2, host="c", samples=[
        sample(0, 0, 20_000, peer=1), sample(1, 0, 20_000, peer=1), sample(60, None, None, peer=1)])
    found = clock_by_samples([SampledRank(rank=0, host="a", samples=[]), middle, last])
    assert (found.ranks[2].uncertainty_ns or 0) >= 2 * (38_000 * 60 - 19_000)


def test_a_clock_that_was_set_between_two_samples_is_not_sure():
    """A step of 5 ms looks like a drift of 250 ppm, which the truth differs from by up to 5 ms."""
    samples = [sample(0, 0, 20_000), sample(20, 5_000_000, 20_000)]
    for here, there in ((5_000_000, 0), (0, 5_000_000)):
        found = clock_by_samples([SampledRank(rank=0, host="a", samples=[], set_by_ns=there),
                                  SampledRank(rank=1, host="b", samples=samples, set_by_ns=here)])
        assert (found.ranks[1].uncertainty_ns or 0) > 5_000_000
    found = clock_by_samples([SampledRank(rank=0, host="a", samples=[], set_by_ns=9_000),
                              SampledRank(rank=1, host="b", samples=samples, set_by_ns=9_000)])
    assert (found.ranks[1].uncertainty_ns or 0) < 50_000


def test_a_step_is_told_from_a_drift():
    pairs = [(at, at * SECOND + at * 100_000) for at in range(6)]  # 100 ppm
    drifting = [ClockPair(realtime_ns=real, monotonic_ns=at * SECOND) for at, real in pairs]
    assert stepped_by_ns(drifting) == 0 and stepped_by_ns(drifting[:2]) == 100_000
    for number in range(1, 6):
        stepped = drifting[:number] + [
            ClockPair(realtime_ns=pair.realtime_ns + 5_000_000, monotonic_ns=pair.monotonic_ns)
            for pair in drifting[number:]]
        assert 4_999_000 <= stepped_by_ns(stepped) <= 10_000_000


def test_the_uncertainty_of_two_ranks_counts_each_clock_once():
    """Ranks 0 and 1 read one clock, 2 and 3 another: what two of one clock are wrong by, they are wrong by together."""
    known = {rank: Alignment(uncertainty_ns=off, clock=clock) for rank, (off, clock) in enumerate(
        [(0, 0), (0, 0), (700, 1), (900, 1), (40, 2)])}
    clock = Clock(method="samples", num_hosts=3, ranks=known)
    assert clock.pair_uncertainty_ns([2, 3]) == clock.pair_uncertainty_ns([0, 1]) == 0
    assert clock.pair_uncertainty_ns([1, 2, 3]) == 900 and clock.pair_uncertainty_ns() == 940
    lost = Clock(method="samples", num_hosts=4, ranks={**known, 5: Alignment(clock=3)})
    assert lost.pair_uncertainty_ns() is None and lost.pair_uncertainty_ns([0, 3]) == 900
    # the last to enter is 1000 ns behind the first to leave: more than the two clocks of these ranks explain
    table = pl.DataFrame({"collective": [0, 0], "rank": [2, 3], "start_ns": [0, 1000], "end_ns": [0, 2000]})
    pair = Clock(method="samples", num_hosts=1, ranks={rank: known[rank] for rank in (2, 3)})
    assert check_clock(table, pair).contradicts
