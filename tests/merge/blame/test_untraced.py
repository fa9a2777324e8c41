"""Work in steps without a timeline, divided as the steps with one show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from distprof.merge.blame.excess import divided

POSITION = np.array([0, 0, 0, 1, 1])
UNKNOWN = np.array([False, False, True, False, True])
"""Two activities and unknown work at the first place, one activity and unknown work at the second."""
TRACED = np.array([True, True, False, False])


def work(*ranks: tuple[float, float, float, float, float]):
    """Of ranks: traced steps have the cells that are known, the other steps those that are not."""
    traced = np.array([(one, two, 0, three, 0) for one, two, _, three, _ in ranks], float)
    others = np.array([(0, 0, first, 0, second) for _, _, first, _, second in ranks], float)
    return np.stack((traced, traced, others, others), axis=1)


def test_what_peers_do_too_is_divided_as_they_divide_it():
    found = divided(work(*[(30, 10, 20, 7, 5)] * 3), TRACED, UNKNOWN, POSITION)
    assert found[:, 2:] == pytest.approx(np.array([[[15, 5, 0, 5, 0]] * 2] * 3))


def test_what_a_rank_does_beyond_them_is_what_it_exceeds_them_by():
    found = divided(work((30, 10, 20, 7, 5), (30, 10, 20, 7, 5), (30, 60, 70, 7, 5)), TRACED, UNKNOWN, POSITION)
    assert found[2, 2] == pytest.approx([15, 55, 0, 5, 0]), "all of the 50 ms more"


def test_what_no_timeline_shows_stays_unknown():
    found = divided(work((30, 10, 20, 7, 5), (30, 10, 20, 7, 5), (30, 10, 20, 7, 45)), TRACED, UNKNOWN, POSITION)
    assert found[2, 2] == pytest.approx([15, 5, 0, 5, 40])


def noisy(beyond: Sequence[Sequence[float]], unknown: float):
    """Two ranks and one place: what rank 1 does beyond rank 0 in two activities, in traced steps; then in others."""
    traced = np.array([[(30, 10, 0)] * len(beyond), [(30 + one, 10 + two, 0) for one, two in beyond]], float)
    others = np.array([[(0, 0, 40)] * 3, [(0, 0, 40 + unknown)] * 3], float)
    is_traced = np.array([True] * len(beyond) + [False] * 3)
    return divided(np.concatenate((traced, others), axis=1), is_traced, np.array([False, False, True]),
                   np.zeros(3, int))[1, -1] - [30, 10, 0]


@pytest.mark.parametrize(("beyond", "shares"), [
    ([(20, 9), (20, -5), (21, 12), (19, -8), (20, 4)], [20, 0, 0]),  # one scatters, the other does not
    ([(20, 0), (20, 0), (200, 0), (20, 0), (20, 0)], [20, 0, 0]),  # a single step was very long
    ([(0, 60), (0, 0), (0, 0), (0, 60), (0, 0)], [0, 20, 0]),  # now and then
    ([(9, 9), (-5, -5), (12, 12), (-8, -8), (4, 4)], [0, 0, 20])])  # both scatter alike: nothing shows
def test_what_scatters_takes_no_share_of_what_is_always_there(beyond, shares):
    assert noisy(beyond, 20) == pytest.approx(shares)


def test_nothing_is_lost_and_traced_steps_stay():
    random = np.random.default_rng(0)
    before = random.exponential(10, (5, 4, 5)) * np.where(TRACED[:, None], ~UNKNOWN, UNKNOWN)
    found = divided(before, TRACED, UNKNOWN, POSITION)
    assert (found[:, TRACED] == before[:, TRACED]).all()
    for place in (0, 1):
        mine = place == POSITION
        assert found[:, :, mine].sum(axis=2) == pytest.approx(before[:, :, mine].sum(axis=2))
