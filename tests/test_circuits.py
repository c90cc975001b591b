"""Circuit schedulers: the contract of all, and what Helios, rotors, TopoOpt and OSDL are to give."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from circuit_cases import matrix_rows, ring, view

from netsched.circuits import CIRCUITS, decide, make
from netsched.circuits.contract import check_circuits
from netsched.circuits.topoopt import degrees, jumps, ring_of
from netsched.errors import PolicyError, ScenarioError
from netsched.model import CircuitPlan, Event, Spec


@pytest.mark.parametrize("name", CIRCUITS)
def test_every_scheduler_keeps_the_contract(name):
    check_circuits(make(Spec(name)), seed=1)
    if "hops" in {each.name for each in dataclasses.fields(CIRCUITS[name])}:
        check_circuits(make(Spec(name, {"hops": 3})), seed=2)
    if name == "rotor":
        check_circuits(make(Spec(name, {"without_circuit": "relay"})), seed=3)


@dataclass(frozen=True)
class Broken:
    """Gives the plan it is told to."""

    out: tuple[tuple[int, ...], ...]
    hold: float = 1.0
    without_circuit: str = "eps"
    hops: int = 1
    name: ClassVar[str] = "broken"
    events: ClassVar[Event] = Event.NONE

    def __call__(self, seen):
        return CircuitPlan(np.array([self.out], np.int64), np.array([self.hold]))


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (Broken(((1, 2, 1),)), "no matching"),
        (Broken(((0, -1, -1),)), "to itself"),
        (Broken(((3, -1, -1),)), "an end that is not"),
        (Broken(((-2, -1, -1),)), "an end that is not"),
        (Broken(((1, 2, 0),), hold=0.0), "more than 0 s"),
        (Broken(((1, 2),)), "must be int64"),
    ],
)
def test_what_is_no_matching_is_refused(plan, says):
    with pytest.raises(PolicyError, match=says):
        decide(plan, view(3))


def test_a_port_that_does_not_exist_is_refused():
    seen = view(3)
    seen.rate[0, 2] = 0.0
    with pytest.raises(PolicyError, match="no port"):
        decide(Broken(((1, 2, -1),)), seen)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (Spec("helos"), "did you mean 'helios'"),
        (Spec("helios", {"slots": "1ms"}), "unknown parameter 'slots'"),
        (Spec("helios", {"slot": "0s"}), "more than 0"),
        (Spec("sunflow", {"without_circuit": "drop"}), "sunflow.without_circuit"),
    ],
)
def test_a_bad_spec_is_refused(spec, says):
    with pytest.raises(ScenarioError, match=says):
        make(spec)


def test_helios_takes_the_heaviest_matching():
    """Against all permutations of five ends."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        demand = rng.lognormal(0.0, 1.5, (5, 5)) * (rng.random((5, 5)) < 0.6)
        np.fill_diagonal(demand, 0.0)
        if not demand.any():
            continue
        plan = decide(make(Spec("helios")), view(5, matrix_rows(demand)))
        got = sum(demand[i, j] for i, j in enumerate(plan.out[0, 0].tolist()) if j >= 0)
        best = max(sum(demand[i, p[i]] for i in range(5)) for p in itertools.permutations(range(5)))
        assert got == pytest.approx(best, rel=1e-12)


def test_helios_gives_the_second_switch_what_the_first_leaves():
    """Slot 1 s, 1 byte/s. Of 3 bytes the first takes one, and 2 are more than 1.5; of 2 it leaves less."""
    rows = [(0, 0, 1, 3.0), (0, 0, 2, 1.5)]
    plan = decide(make(Spec("helios", {"slot": "1s"})), view(3, rows, switches=2))
    assert plan.out[0, :, 0].tolist() == [1, 1]
    rows = [(0, 0, 1, 2.0), (0, 0, 2, 1.5)]
    plan = decide(make(Spec("helios", {"slot": "1s"})), view(3, rows, switches=2))
    assert plan.out[0, :, 0].tolist() == [1, 2]


@pytest.mark.parametrize(("ends", "switches"), [(5, 1), (8, 2), (9, 4), (4, 6)])
def test_a_rotor_joins_every_pair_for_the_same_time(ends, switches):
    """Over whole rounds of all switches each shift is up for an equal part of its switch's time."""
    seen = view(ends, switches=switches)
    slot = 0.5
    rounds = math.lcm(*(max(1, len(range(u, ends - 1, switches))) for u in range(switches)))
    up = np.zeros((ends, ends))
    now, span = 0.0, rounds * slot
    while now < span - 1e-9:
        plan = decide(make(Spec("rotor", {"slot": "500ms"})), dataclasses.replace(seen, now=now))
        begin = now
        for out, hold in zip(plan.out, plan.hold.tolist(), strict=True):
            inside = max(0.0, min(begin + hold, span) - begin)
            for s, e in zip(*np.nonzero(out >= 0), strict=True):
                up[e, out[s, e]] += inside
            begin += hold
        assert plan.review_in == pytest.approx(plan.hold.sum())
        now += plan.review_in
    shares = [len(range(u, ends - 1, switches)) for u in range(switches)]
    expected = {u + 1 + switches * k: span / shares[u] for u in range(switches) for k in range(shares[u])}
    for i, j in itertools.permutations(range(ends), 2):
        assert up[i, j] == pytest.approx(expected[(j - i) % ends])


def test_rotor_switches_turn_one_after_the_other():
    plan = decide(make(Spec("rotor", {"slot": "1s"})), view(9, switches=4))
    changed = (np.diff(plan.out, axis=0) != 0).any(axis=2)
    assert (changed.sum(axis=1) == 1).all()
    assert np.allclose(plan.hold, 0.25)


def test_topoopt_jumps_are_coprime_and_near_a_geometric_progression():
    for group, count in itertools.product(range(2, 40), range(1, 6)):
        chosen = jumps(group, count)
        assert (
            len(set(chosen))
            == len(chosen)
            == min(count, sum(math.gcd(p, group) == 1 for p in range(1, group)))
        )
        assert all(math.gcd(p, group) == 1 for p in chosen)
    # 1, 15^(1/3) = 2.5, 15^(2/3) = 6.1, 15 among the odd numbers to 16.
    assert jumps(16, 4) == [1, 3, 7, 15]


def test_topoopt_gives_each_switch_a_ring_of_the_job():
    seen = view(8, work=ring(0, range(8), 5.0), switches=3, iterations=[4])
    plan = decide(make(Spec("topoopt")), seen)
    for row in plan.out[0]:
        assert sorted(ring_of(np.arange(8), row)) == list(range(8))
    assert len({int(row[0]) for row in plan.out[0]}) == 3


def test_topoopt_divides_the_degree_by_bytes():
    assert degrees(np.array([3.0, 1.0]), 4).tolist() == [3, 1]
    assert degrees(np.array([1.0, 1.0, 1.0]), 4).tolist() == [2, 1, 1]
    # Pairs that are no ring get matchings: first the 9 bytes and nothing else fits; then half of 9 is less
    # than 4 + 1.
    seen = view(4, work=[(0, 0, 1, 9.0), (0, 0, 2, 4.0), (0, 3, 1, 1.0)], switches=2, iterations=[1])
    plan = decide(make(Spec("topoopt")), seen)
    assert plan.out[0].tolist() == [[1, -1, -1, -1], [2, -1, -1, 1]]


@pytest.mark.parametrize(
    ("src", "dst", "found"),
    [
        ([0, 1, 2], [1, 2, 0], (0, 1, 2)),
        ([0, 1, 2, 3], [1, 0, 3, 2], ()),
        ([0, 0, 1], [1, 2, 0], ()),
        ([0, 1], [1, 2], ()),
    ],
)
def test_a_ring_is_one_cycle(src, dst, found):
    assert ring_of(np.array(src), np.array(dst)) == found


def test_osdl_gives_a_ring_only_if_the_gain_exceeds_the_delay():
    """10 bytes per iteration and pair at 1 byte/s saves 90 s against 0.1 byte/s, per iteration left."""
    osdl = make(Spec("osdl"))
    work = ring(0, [0, 1, 2], 10.0)
    seen = view(4, work=work, iterations=[1], delay=89.0)
    assert decide(osdl, seen).out[0, 0].tolist() == [1, 2, 0, -1]
    assert len(decide(osdl, dataclasses.replace(seen, delay=np.array([91.0]))).hold) == 0
    assert len(decide(osdl, view(4, work=work, iterations=[2], delay=91.0)).hold) == 1
    assert len(decide(osdl, view(4, work=work, iterations=[2], done=[1], delay=91.0)).hold) == 0


def test_osdl_counts_a_checkpoint_for_a_job_that_runs():
    osdl = make(Spec("osdl", {"checkpoint": "5s"}))
    work = ring(0, [0, 1, 2], 10.0)
    assert len(decide(osdl, view(4, work=work, iterations=[1], delay=86.0)).hold) == 1
    assert len(decide(osdl, view(4, work=work, iterations=[2], done=[1], delay=86.0)).hold) == 0


def test_osdl_reuses_an_idle_ring_whatever_the_delay():
    """The ring of a job that has ended is up: the next one like it needs no switching, at any delay."""
    up = np.array([[1, 2, 0, -1]])
    work = ring(0, [1, 2, 0], 10.0)
    seen = view(4, work=work, iterations=[1], delay=1e9, out=up)
    assert len(decide(make(Spec("osdl")), seen).hold) == 0
    # A second job of other ends finds end 2 in use, though it would gain; alone it takes the port.
    other = ring(1, [2, 3], 10.0)
    both = view(4, work=work + other, iterations=[1, 1], delay=1.0, out=up)
    assert len(decide(make(Spec("osdl")), both).hold) == 0
    alone = view(4, work=ring(0, [2, 3], 10.0), iterations=[1], delay=1.0, out=up)
    assert decide(make(Spec("osdl")), alone).out[0, 0].tolist() == [1, -1, 3, 2]


def test_osdl_prefers_the_gain_per_port():
    """Both rings need end 0: 3 ports that save 3 x 90 s stand behind 2 ports that save 2 x 120 s."""
    work = ring(0, [0, 1, 2], 10.0) + ring(1, [0, 3], 13.0)
    plan = decide(make(Spec("osdl")), view(4, work=work, iterations=[1, 1], delay=1.0))
    assert plan.out[0, 0].tolist() == [3, -1, -1, 0]


def test_osdl_moves_a_running_job_only_if_what_it_has_left_gains_more_than_the_move_costs():
    """3 of 4 iterations left save 90 s each: to a slice that comes free for 269 s in all, not for 271 s."""
    work = ring(0, [0, 1, 2], 10.0)
    for checkpoint, moves in (("260s", True), ("262s", False)):
        osdl = make(Spec("osdl", {"checkpoint": checkpoint}))
        busy = np.array([[3, -1, -1, 0]])
        seen = view(4, work=work + ring(1, [0, 3], 50.0), iterations=[4, 9], done=[1, 0], delay=9.0, out=busy)
        assert len(decide(osdl, seen).hold) == 0
        released = view(4, work=work, iterations=[4], done=[1], delay=9.0, out=busy)
        assert (len(decide(osdl, released).hold) == 1) is moves


def test_osdl_dedicates_the_slices_that_are_in_use():
    osdl = make(Spec("osdl", {"dedicated": True}))
    seen = view(
        6, work=ring(0, [0, 1, 2], 10.0), iterations=[1], delay=1.0, out=np.array([[-1] * 4 + [5, 4]])
    )
    plan = decide(osdl, seen)
    assert plan.out[0, 0].tolist() == [1, 2, 0, -1, 5, 4]
    assert plan.owner is not None
    assert plan.owner[0].tolist() == [0, 0, 0, -1, -1, -1]
