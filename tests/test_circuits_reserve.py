"""Solstice, Eclipse and Sunflow against what their papers prove of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from circuit_cases import matrix_rows, view
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from netsched.circuits import decide, make
from netsched.circuits.eclipse import greedy
from netsched.circuits.solstice import days, fair_cut, quick_stuff
from netsched.circuits.sunflow import reserve
from netsched.model import Spec


def demands(rng, n, share=0.6):
    demand = rng.lognormal(0.0, 1.5, (n, n)) * (rng.random((n, n)) < share)
    np.fill_diagonal(demand, 0.0)
    return demand


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.floats(0.0, 0.05))
def test_solstice_fills_the_week_with_perfect_matchings(seed, n, night):
    demand = demands(np.random.default_rng(seed), n) * 0.3
    week, least = 1.0, 4 * night
    out, day = days(demand, week, night, least)
    for row in out:
        assert sorted(row.tolist()) == list(range(n))
    assert (day >= least * (1 - 1e-9)).all()
    if len(day):
        assert day.sum() + night * len(day) == pytest.approx(week)
    else:
        assert (fair_cut(demand, week - night) < max(least, 1e-12)).all() or night > 0


def test_solstice_cuts_fairly_and_stuffs_evenly():
    """Two entries of a row share its room, the small one whole: 1 + 3 of 1 + 9 in 4."""
    cut = fair_cut(np.array([[0.0, 1.0, 9.0], [0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]), 4.0)
    assert np.allclose(cut, [[0, 1, 3], [0, 0, 0], [2, 0, 0]])
    stuffed = quick_stuff(cut, cut)
    assert np.allclose(stuffed.sum(axis=0), 4) and np.allclose(stuffed.sum(axis=1), 4)
    assert (stuffed >= cut - 1e-12).all()


def test_solstice_serves_a_permutation_with_one_night():
    """Demand that is one matching needs one day; the plan's one step is the week."""
    demand = np.roll(np.eye(4), 1, axis=1) * 0.9
    plan = decide(make(Spec("solstice", {"week": "1s"})), view(4, matrix_rows(demand), delay=0.02))
    assert plan.out[:, 0].tolist() == [[1, 2, 3, 0]]
    assert plan.hold.tolist() == pytest.approx([1.0]) and plan.review_in == 1.0


def carried(demand, out, day):
    left = demand.copy()
    for row, seconds in zip(out, day, strict=True):
        for i, j in enumerate(row.tolist()):
            if j >= 0:
                left[i, j] = max(0.0, left[i, j] - seconds)
    return float(demand.sum() - left.sum())


def best_of_all(demand, window, delay):
    """Most that any sequence of matchings carries: a linear program of durations per set of permutations."""
    n = len(demand)
    cells = [(i, j) for i in range(n) for j in range(n) if demand[i, j] > 0]
    perms = list(itertools.permutations(range(n)))
    best = 0.0
    for count in range(1, len(perms) + 1):
        room = window - count * delay
        if room <= 0:
            break
        for chosen in itertools.combinations(perms, count):
            cost = np.concatenate([-np.ones(len(cells)), np.zeros(count)])
            rows = [np.concatenate([np.zeros(len(cells)), np.ones(count)])]
            for c, (i, j) in enumerate(cells):
                row = np.zeros(len(cells) + count)
                row[c] = 1.0
                row[len(cells) :] = [-float(p[i] == j) for p in chosen]
                rows.append(row)
            limit = [(0.0, demand[cell]) for cell in cells] + [(0.0, None)] * count
            done = linprog(cost, np.array(rows), np.array([room] + [0.0] * len(cells)), bounds=limit)
            best = max(best, -done.fun)
    return best


def test_eclipse_carries_half_of_the_best_and_fits_the_window():
    rng = np.random.default_rng(5)
    for delay in (0.05, 0.2):
        for _ in range(4):
            demand = demands(rng, 3, 0.8) * 0.4
            if not demand.any():
                continue
            out, day = greedy(demand, 1.0, delay, 64)
            assert day.sum() + delay * len(day) <= 1.0 + 1e-9
            assert carried(demand, out, day) >= 0.5 * best_of_all(demand, 1.0, delay) - 1e-9


def rows_of(demand, owner=0):
    i, j = np.nonzero(demand)
    return np.full(len(i), owner), i, j, demand[i, j]


def check_ports(made):
    """No port has two circuits at a time."""
    for side in ("src", "dst"):
        for port in {getattr(each, side) for each in made}:
            mine = sorted((e.begin, e.end) for e in made if getattr(e, side) == port)
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(mine))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.floats(0.0, 1.0))
def test_sunflow_ends_one_coflow_within_twice_its_bound(seed, n, delay):
    """CoNEXT 2016: the bound is the most loaded port, with one set-up per circuit of it."""
    demand = demands(np.random.default_rng(seed), n)
    if not demand.any():
        return
    made, _ = reserve(*rows_of(demand), delay, float("inf"), {})
    check_ports(made)
    loaded = demand + delay * (demand > 0)
    bound = max(loaded.sum(axis=0).max(), loaded.sum(axis=1).max())
    assert max(each.end for each in made) <= 2 * bound * (1 + 1e-6)
    assert len(made) == np.count_nonzero(demand)  # no circuit is set up twice
    for each in made:
        assert each.end - each.begin == pytest.approx(delay + demand[each.src, each.dst], rel=1e-6)


def test_sunflow_cuts_a_later_coflow_at_an_earlier_ones_reservations():
    """The short coflow has 0->1 in [0, 2) and 0->2 in [2, 5), set-up 1. The long one may have 3->2 before."""
    owner = np.array([7, 7, 9])
    src, dst = np.array([0, 0, 3]), np.array([1, 2, 2])
    made, _ = reserve(owner, src, dst, np.array([1.0, 2.0, 10.0]), 1.0, 100.0, {})
    check_ports(made)
    own = [(e.begin, e.end) for e in made if e.src == 0]
    assert np.allclose(own, [(0, 2), (2, 5)], atol=1e-6)
    late = [(e.begin, e.end) for e in made if e.src == 3]
    # One byte in [0, 2), the other nine after the reservation, with a set-up of its own.
    assert np.allclose(late, [(0, 2), (5, 15)], atol=1e-6)


def test_sunflow_keeps_a_circuit_that_is_up():
    owner, src, dst, seconds = np.array([1, 1]), np.array([0, 0]), np.array([1, 2]), np.array([3.0, 4.0])
    made, _ = reserve(owner, src, dst, seconds, 1.0, 100.0, {(0, 2): 0.0})
    assert [(e.begin, e.dst) for e in sorted(made)] == [(0.0, 2), (pytest.approx(4.0), 1)]


def test_sunflow_puts_the_shortest_coflow_first():
    rows = [(4, 0, 1, 5.0), (6, 0, 2, 1.0)]
    plan = decide(make(Spec("sunflow")), view(3, rows, delay=0.1))
    assert plan.out[0, 0].tolist() == [2, -1, -1]


def test_sunflow_plans_no_time_that_the_clock_cannot_pass():
    """Bytes that need 1e-18 s of a circuit at 10 s: the clock there moves in steps of 2e-15 s."""
    plan = decide(make(Spec("sunflow")), view(3, [(1, 0, 1, 1e-18)], now=10.0))
    assert plan.review_in >= 1e-6
    assert (plan.hold >= 1e-6).all()


def test_sunflow_lets_a_circuit_that_is_being_set_up_come_up():
    """Half of its set-up is left: it is not replaced when its bytes would else have been through."""
    ends, seconds = (np.array([0, 0]), np.array([1, 2])), np.array([0.1, 0.1])
    made, _ = reserve(np.array([1, 1]), *ends, seconds, 1.0, 9.0, {(0, 2): 0.5})
    assert [(e.begin, e.end, e.dst) for e in sorted(made)] == [
        (0.0, pytest.approx(0.6), 2),
        (pytest.approx(0.6), pytest.approx(1.7), 1),
    ]


def test_sunflow_reserves_nothing_for_less_time_than_the_clock_can_tell_apart():
    """Cut at two reservations a coflow keeps 3e-17 s of bytes, at 1 s, where the clock moves by 2e-16 s."""
    first = [(0, 0, 1, 1e-6), (0, 2, 1, 1.0), (0, 5, 6, 1.0 + 1e-6 + 1e-8), (0, 5, 3, 0.2)]
    at = {(e.src, e.dst): e for e in reserve(*map(np.array, zip(*first, strict=True)), 0.0, 10.0, {})[0]}
    gaps = at[2, 1].begin, at[5, 3].begin - at[2, 1].end
    assert gaps == (pytest.approx(1e-6, rel=1e-2), pytest.approx(1e-8, rel=1e-2))
    second = [(1, 2, 3, sum(gaps) + 3e-17), (1, 8, 9, 5.0)]
    made, _ = reserve(*map(np.array, zip(*first, *second, strict=True)), 0.0, 10.0, {})
    cut = [e.end - e.begin for e in made if (e.src, e.dst) == (2, 3)]
    assert cut == [pytest.approx(each) for each in gaps]
