"""Clocks that nobody can see: whatever they do, what is said of them holds."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distprof.contract.rank_json import ClockPair, ClockSample
from distprof.merge.clock.by_collectives import check_clock
from distprof.merge.clock.by_samples import SampledRank, clock_by_samples
from distprof.merge.clock.choose import stepped_by_ns
from distprof.merge.clock.fit import fit_line
from distprof.merge.clock.model import Alignment, Clock, RankClock
from distprof.recording.clock.exchange import compared
from support.true_clock import NOW, SECOND, TrueClock, clocks, error, lines, offsets, times

# --- lines ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
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


def test_times_that_devices_took_are_as_sure_as_devices_were_compared_with_their_hosts():
    """Ranks of one host read one clock, but a device has its own."""
    clock = Clock(method="shared", num_hosts=1, ranks={
        rank: Alignment(uncertainty_ns=0, device_ns=ns) for rank, ns in enumerate((5_000, 7_000, 0))})
    assert [clock.pair_uncertainty_ns(pair) for pair in ((0, 1), (0, 2), (1,), None)] == [12_000, 5_000, 0, 12_000]
    assert Clock.of_summary(clock.to_json()).pair_uncertainty_ns() == 12_000
    assert clock.unchecked.allowed_violation_ns == 12_000
