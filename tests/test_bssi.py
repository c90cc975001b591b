"""The order of Sincronia: against the paper's pseudo-code with a dense table, and its corner cases."""

from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsched.bssi import bssi


def by_the_book(table: list[list[int]], weight: list[int]) -> list[int]:
    """Bottleneck, select, scale, iterate, in exact fractions. `table[c][b]` is what coflow c needs of port b.

    Of equals the later coflow is last, and the first port is the bottleneck; the order, first coflow first.
    """
    left = {c: Fraction(w) for c, w in enumerate(weight)}
    order: list[int] = []
    while left:
        loads = [sum(table[c][b] for c in left) for b in range(len(table[0]))]
        b = loads.index(max(loads))
        if not loads[b]:
            return sorted(left) + order
        users = [c for c in left if table[c][b]]
        last = min(users, key=lambda c: (left[c] / table[c][b], -c))
        theta = left[last] / table[last][b]
        for c in users:
            left[c] -= theta * table[c][b]
        del left[last]
        order.insert(0, last)
    return order


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_order_is_the_papers(seed):
    rng = np.random.default_rng(seed)
    coflows, ports = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    table = (rng.integers(1, 10**6, (coflows, ports)) * (rng.random((coflows, ports)) < 0.6)).tolist()
    weight = rng.integers(1, 10, coflows).tolist()
    used = [(c, b) for c in range(coflows) for b in range(ports) if table[c][b]]
    place = bssi(
        np.array([c for c, _ in used], np.int64),
        np.array(weight, np.float64),
        np.array([table[c][b] for c, b in used], np.float64),
        np.arange(len(used) + 1),
        np.array([b for _, b in used], np.int64),
        np.ones(ports),
    )
    assert np.argsort(place).tolist() == by_the_book(table, weight)


def test_a_slower_link_counts_for_more():
    # 4 B on a link of 4 B/s are 1 s, 2 B on one of 1 B/s are 2 s: so the second link is the bottleneck. On it
    # coflow 0 (2 s) is last, although on the first link coflow 1 has more bytes.
    flows = np.array([0, 1, 1, 2]), np.array([2.0, 4.0, 0.5, 0.25]), np.array([1, 0, 1, 1])
    coflow, amount, link = flows
    place = bssi(coflow, np.ones(3), amount, np.arange(5), link, np.array([4.0, 1.0]))
    assert place.tolist() == [2, 1, 0]


def test_equals_keep_the_order_of_arrival_and_empty_coflows_go_first():
    place = bssi(
        np.array([0, 1, 2, 3]),
        np.ones(5),
        np.array([3.0, 0.0, 3.0, 3.0]),
        np.arange(5),
        np.zeros(4, np.int64),
        np.ones(1),
    )
    assert place.tolist() == [2, 0, 3, 4, 1]
    none = np.zeros(0, np.int64)
    assert bssi(none, np.zeros(0), np.zeros(0), np.zeros(1, np.int64), none, np.ones(2)).tolist() == []


def test_a_byte_beside_a_terabyte():
    coflow, amount = np.array([0, 1, 2]), np.array([1e12, 1.0, 1e12])
    place = bssi(coflow, np.ones(3), amount, np.arange(4), np.zeros(3, np.int64), np.array([1.25e8]))
    assert place.tolist() == [1, 0, 2]


def test_hundreds_of_coflows_of_a_hundred_thousand_flows_are_ordered_at_once():
    rng = np.random.default_rng(0)
    n, flows = 400, 100_000
    coflow = np.sort(rng.integers(0, n, flows))
    links = np.stack((2 * rng.integers(0, 150, flows), 2 * rng.integers(0, 150, flows) + 1), 1).ravel()
    amount, weight, capacity = rng.lognormal(0.0, 2.0, flows), np.ones(n), np.full(300, 1.25e8)

    def once() -> np.ndarray:
        return bssi(coflow, weight, amount, 2 * np.arange(flows + 1), links, capacity)

    assert sorted(once().tolist()) == list(range(n))
    begin = time.process_time()
    for _ in range(10):
        once()
    # Measured: 5 ms each, so that a thousand decisions cost 5 s.
    assert (time.process_time() - begin) / 10 < 0.05


@pytest.mark.parametrize("weight", [1e-300, 1.0, 1e300])
def test_a_common_factor_of_the_weights_changes_nothing(weight):
    coflow, amount = np.array([0, 1, 2]), np.array([3.0, 1.0, 2.0])
    place = bssi(coflow, np.full(3, weight), amount, np.arange(4), np.zeros(3, np.int64), np.ones(1))
    assert place.tolist() == [2, 0, 1]
