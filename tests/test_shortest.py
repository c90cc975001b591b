"""Ways over several circuits in a row: as few as scipy finds, and the same from wherever one comes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path

from netsched.shortest import Chains


@pytest.mark.parametrize("seed", range(20))
def test_ways_are_the_shortest_and_go_on_as_if_they_had_begun_where_they_are(seed):
    rng = np.random.default_rng(seed)
    switches, ends, hops = int(rng.integers(1, 4)), int(rng.integers(2, 9)), int(rng.integers(1, 5))
    lit = np.array([rng.permutation(ends) for _ in range(switches)])
    lit[(lit == np.arange(ends)) | (rng.random(lit.shape) < 0.3)] = -1
    joined = np.zeros((ends, ends))
    for row in lit:
        joined[np.flatnonzero(row >= 0), row[row >= 0]] = 1
    steps = shortest_path(joined, unweighted=True)
    chains = Chains(lit, hops)
    for src, dst, choice in np.ndindex(ends, ends, 3):
        way = chains.way(src, dst, choice)
        assert len(way) == (steps[src, dst] if steps[src, dst] <= hops else 0)
        for position, (s, i, j) in enumerate(way):
            assert lit[s, i] == j
            assert way[position:] == chains.way(i, dst, choice)
        assert not way or (way[0][1], way[-1][2]) == (src, dst)


def test_a_choice_picks_one_of_several_circuits_at_every_end():
    chains = Chains(np.array([[1, 2, -1], [1, -1, -1], [-1, 2, -1]]), 2)
    assert [[s for s, *_ in chains.way(0, 2, choice)] for choice in range(3)] == [[0, 0], [1, 2], [0, 0]]
