"""A circuit that Sunflow has reserved is one coflow's, whatever the policy says: by closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from circuit_cases import Script, view
from sim_cases import PER_FLOW, PER_PAIR, Case, Table, run

from netsched.circuits import decide, make
from netsched.errors import PolicyError
from netsched.fabrics import build
from netsched.model import Control, Spec
from netsched.policies.fair import Fair
from netsched.policies.sebf import Sebf
from netsched.precedence import ANYONE, BEHIND, FIRST, in_turn, precedence

MB = 1e6
SUNFLOW = make(Spec("sunflow"))
POLICIES = (Fair(), Sebf(), Table(rank={0: 1, 1: 0}, other=1))
"""All as one class; reserves and classes in SEBF's order; the other way round."""


def on_optics(hosts=6, delay="0s"):
    """Hosts whose circuits carry 1 MB/s, and hardly anything by packets."""
    params = {"circuit_rate": "8Mbit/s", "packet_rate": "8kbit/s", "reconfiguration": delay}
    return build(Spec("ocs_direct", {"hosts": hosts, **params}))[1]


def two_on_one_pair():
    case = Case(6)
    case.coflow((0, 1, 1 * MB))
    case.coflow((0, 1, 3 * MB))
    return case.build()


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])
@pytest.mark.parametrize("queues", [2, None])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_two_coflows_on_one_pair_of_ports_go_one_after_the_other(policy, queues, transport):
    """1 and 3 MB over one circuit of 1 MB/s, set up once in 0.1 s: 1.1 s and 4.1 s. Shared, 2.1 and 4.1."""
    out = run(
        two_on_one_pair(),
        on_optics(delay="100ms"),
        policy,
        queues=queues,
        transport=transport,
        circuits=SUNFLOW,
    )
    assert out.flow_finish == pytest.approx([1.1, 4.1])


def test_a_shorter_coflow_that_comes_later_takes_over_the_circuit():
    """3 MB from 0 on, 1 MB from 1 s on, no delay: the second in [1, 2), the first ends at 4."""
    case = Case(6)
    case.coflow((0, 1, 3 * MB))
    case.coflow((0, 1, 1 * MB), at=1.0)
    out = run(case.build(), on_optics(), Fair(), circuits=SUNFLOW)
    assert out.flow_finish == pytest.approx([4.0, 2.0])


def test_who_goes_first_is_told_as_late_as_the_circuit():
    """The coordinator's word takes 0.3 s: dark until then, and 0.1 s more."""
    out = run(
        two_on_one_pair(), on_optics(delay="100ms"), Fair(), circuits=SUNFLOW, control=Control(delay=0.3)
    )
    assert out.flow_finish == pytest.approx([1.4, 4.4])


def test_flows_of_the_coflow_that_goes_first_share_its_circuit():
    """Two flows of 1 MB of the first coflow and one of 1 MB of the other: 2, 2 and 3 s."""
    case = Case(6)
    case.coflow((0, 1, 1 * MB), (0, 1, 1 * MB))
    case.coflow((0, 1, 1 * MB))
    script = Script(((0.0, (1, -1, -1, -1, -1, -1)),), "wait", first=((-1, 0, -1, -1, -1, -1),) * 6)
    out = run(case.build(), on_optics(), Fair(), circuits=script)
    assert out.flow_finish == pytest.approx([2.0, 2.0, 3.0])


def test_a_result_has_the_classes_that_the_policy_gave():
    out = run(two_on_one_pair(), on_optics(), POLICIES[2], queues=8, circuits=SUNFLOW)
    assert out.flow_class.tolist() == [1, 0]


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_one_coflow_from_one_port_takes_its_bound(delay):
    """CoNEXT 2016: with one source no two circuits wait for each other. 1 + 2 + 3 s and three set-ups."""
    case = Case(6)
    case.coflow((0, 1, 1 * MB), (0, 2, 2 * MB), (0, 3, 3 * MB))
    out = run(case.build(), on_optics(delay=f"{delay}s"), Fair(), circuits=SUNFLOW)
    assert out.flow_finish.max() == pytest.approx(6.0 + 3 * delay)


@pytest.mark.parametrize("delay", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_one_coflow_takes_at_most_twice_its_bound(seed, delay):
    """CoNEXT 2016: the bound is the most loaded port's, with a set-up for each of its circuits."""
    rng = np.random.default_rng(seed)
    seconds = rng.lognormal(-0.5, 1.0, (6, 6)) * (rng.random((6, 6)) < 0.6)
    np.fill_diagonal(seconds, 0.0)
    case = Case(6)
    case.coflow(*((int(i), int(j), seconds[i, j] * MB) for i, j in zip(*np.nonzero(seconds), strict=True)))
    out = run(case.build(), on_optics(delay=f"{delay}s"), Fair(), circuits=SUNFLOW)
    loaded = seconds + delay * (seconds > 0)
    bound = max(loaded.sum(axis=0).max(), loaded.sum(axis=1).max())
    assert bound * (1 - 1e-6) <= out.flow_finish.max() <= 2 * bound * (1 + 1e-6)


def test_with_one_class_nobody_can_go_first():
    with pytest.raises(PolicyError, match="takes queues: 2 or more"):
        run(two_on_one_pair(), on_optics(), Fair(), queues=1, circuits=SUNFLOW)


def test_sunflow_says_of_every_pair_which_coflow_goes_first():
    """The shorter coflow, 7, where it has bytes; the other where only that has any, reserved yet or not."""
    rows = [(3, 0, 1, 5.0), (3, 0, 2, 9.0), (7, 0, 1, 1.0)]
    plan = decide(SUNFLOW, view(3, rows))
    assert plan.first is not None
    assert plan.first.tolist() == [[-1, 7, 3], [-1, -1, -1], [-1, -1, -1]]


def test_a_flow_keeps_its_turn_while_it_waits_and_loses_it_on_packets():
    state = precedence(np.array([4, 5, 6]))
    flows, key = np.arange(3), np.array([1, 1, -1])  # two flows from end 0 to end 1 of two, one inside an end
    lit, dark = np.array([True, True, False]), np.zeros(3, bool)
    assert state.turns(flows, key, lit, dark).tolist() == [ANYONE] * 3
    state.plan(np.array([[-1, 5], [-1, -1]]), 2.0)
    assert state.advance(1.0, np.array([[1, -1]])).tolist() == []
    assert state.advance(2.0, np.array([[1, -1]])).tolist() == [1]
    state.turn[:] = state.turns(flows, key, lit, dark)
    assert state.turn.tolist() == [BEHIND, FIRST, ANYONE]
    assert state.turns(flows, key, dark, np.array([True, False, False])).tolist() == [BEHIND, ANYONE, ANYONE]
    assert in_turn(np.array([0, 3, 2]), state.turn).tolist() == [1, 0, 2]
