"""Every policy of the registry through the checker, on every kind of fabric; what fair, FIFO and SEBF say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from result_cases import star
from sim_cases import Case, run

from netsched import circuits
from netsched.control import decide
from netsched.errors import ScenarioError
from netsched.fabric import Fabric
from netsched.fabrics import FABRICS, OpticalParams, build
from netsched.model import BEST_EFFORT, Circuits, Control, Event, Plan, Policy, Spec, View
from netsched.policies import POLICIES, make
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.sebf import Sebf
from netsched.policies.tensorexpress import TensorExpress
from netsched.testing import check_policy, check_under_circuits

SAMPLES = {
    "single_switch": {"hosts": 6, "rate": "1Gbit/s"},
    "leaf_spine": {
        "leaves": 3,
        "spines": 2,
        "hosts_per_leaf": 2,
        "host_rate": "1Gbit/s",
        "oversubscription": 2,
        "delay": "5ms",
    },
    "fat_tree": {"k": 4, "rate": "1Gbit/s"},
    "rail_optimized": {
        "servers": 2,
        "gpus_per_server": 2,
        "nic_rate": "1Gbit/s",
        "server_rate": "4Gbit/s",
    },
}
INSTANCES: tuple[Policy, ...] = (*(kind() for kind in POLICIES.values()), TensorExpress(levels=20))


OPTICAL = {
    "hybrid": {
        "racks": 3,
        "hosts_per_rack": 2,
        "host_rate": "1Gbit/s",
        "oversubscription": 4,
        "reconfiguration": "10ms",
    },
    "ocs_direct": {
        "hosts": 6,
        "circuit_rate": "1Gbit/s",
        "packet_rate": "100Mbit/s",
        "reconfiguration": "10ms",
    },
    "rotor": {"racks": 4, "hosts_per_rack": 1, "rotors": 2, "host_rate": "1Gbit/s"},
    "rail_ocs": {
        "pods": 2,
        "servers": 2,
        "gpus_per_server": 2,
        "nic_rate": "1Gbit/s",
        "server_rate": "4Gbit/s",
        "reconfiguration": "10ms",
    },
}
CIRCUITS = {
    "hybrid": Spec("helios", {"slot": "200ms"}),
    "ocs_direct": Spec("sunflow"),
    "rotor": Spec("rotor", {"slot": "200ms"}),
    "rail_ocs": Spec("helios", {"slot": "200ms"}),
}
"""Of the samples' optical switches: flows that change between packets and circuits, wait, and are relayed."""
PACKETS = sorted(name for name, kind in FABRICS.items() if not issubclass(kind.params, OpticalParams))


@pytest.fixture(scope="module", params=PACKETS)
def fabric(request: pytest.FixtureRequest) -> Fabric:
    # A new kind of fabric fails here until it has a sample: the registry as a whole is what is checked.
    return build(Spec(request.param, SAMPLES[request.param]))[1]


@pytest.mark.parametrize("policy", INSTANCES, ids=repr)
def test_every_policy_keeps_the_contract_on_every_fabric(policy, fabric):
    check_policy(policy, fabric)


@pytest.fixture(scope="module", params=sorted(FABRICS.keys() - set(PACKETS)))
def optical(request: pytest.FixtureRequest) -> tuple[Fabric, Circuits]:
    built = build(Spec(request.param, OPTICAL[request.param]))[1]
    return built, circuits.make(CIRCUITS[request.param])


@pytest.mark.parametrize("policy", INSTANCES, ids=repr)
def test_every_policy_keeps_the_contract_where_circuits_come_and_go(policy, optical):
    check_under_circuits(policy, *optical)


@dataclass(frozen=True)
class Watched:
    """A policy, and what it was shown and said: (view, class of each flow)."""

    policy: Policy
    said: list[tuple[View, np.ndarray]] = field(default_factory=list)

    name: ClassVar[str] = "watched"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_RELEASED | Event.COFLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        plan = decide(self.policy, view, view.queues)
        self.said.append((view, plan.rank))
        return plan


def watched(policy: Policy, seed: int, queues: int | None, control: Control) -> list[tuple[View, np.ndarray]]:
    """What a policy says of 40 coflows of 1 to 5 flows, each released at once, on a switch of 1 B/s."""
    rng = np.random.default_rng(seed)
    case, spy = Case(5), Watched(policy)
    for at in np.cumsum(rng.exponential(1.0, 40)).tolist():
        ends = rng.integers(0, 5, (int(rng.integers(1, 6)), 2)).tolist()
        case.coflow(*((a, b, float(rng.lognormal(0.0, 1.5))) for a, b in ends), at=at)
    run(case.build(hairpin=True), star(5, 1.0), spy, queues=queues, control=control)
    assert len(spy.said) > 40
    return spy.said


CONTROLS = (Control(), Control(delay=0.3, period=0.2))


@pytest.mark.parametrize("control", CONTROLS, ids=["ideal", "slow"])
@pytest.mark.parametrize("queues", [None, 8, 3])
@pytest.mark.parametrize("seed", range(4))
def test_fifo_never_puts_a_coflow_before_an_earlier_one(seed, queues, control):
    given_class: dict[int, set[int]] = {}
    for view, cls in watched(Fifo(), seed, queues, control):
        # The coflows of a view are in order of arrival.
        by_arrival = cls[np.argsort(view.flows.coflow, kind="stable")]
        rows = np.sort(view.flows.coflow)
        later = np.diff(rows) > 0
        steps = np.diff(by_arrival)
        assert (steps[~later] == 0).all()
        assert (steps[later] > 0).all() if queues is None else (steps >= 0).all()
        for coflow, c in zip(view.coflows.id[view.flows.coflow].tolist(), cls.tolist(), strict=True):
            given_class.setdefault(coflow, set()).add(c)
    # Where classes are few a coflow keeps its own; a decision not yet in effect may be made once more.
    if queues is not None and control == CONTROLS[0]:
        assert all(len(each) == 1 for each in given_class.values())


@pytest.mark.parametrize("control", CONTROLS, ids=["ideal", "slow"])
@pytest.mark.parametrize("seed", range(4))
def test_sebf_never_puts_a_coflow_before_one_of_a_smaller_bottleneck(seed, control):
    """The bottleneck of the bytes still to be sent."""
    for view, cls in watched(Sebf(), seed, None, control):
        gamma, of_coflow = per_coflow(view, cls)
        order = np.argsort(gamma, kind="stable")
        # Two bottlenecks that differ by rounding only have no order.
        clear = np.diff(gamma[order]) > 1e-9 * gamma[order][1:]
        assert (np.diff(of_coflow[order])[clear] > 0).all()


@pytest.mark.parametrize("queues", [8, 3])
@pytest.mark.parametrize("seed", range(4))
def test_sebf_with_few_classes_gives_a_newcomer_the_class_that_costs_least(seed, queues):
    used, alone = set(), 0
    for view, cls in watched(Sebf(), seed, queues, Control()):
        gamma, of_coflow = per_coflow(view, cls)
        held = view.coflows.cls
        assert (of_coflow == held)[held >= 0].all()
        used |= set(of_coflow.tolist())
        newcomers = np.flatnonzero(held < 0)
        if len(newcomers) == 1:
            (new,) = newcomers.tolist()
            costs = [cost(c, new, gamma.tolist(), held.tolist()) for c in range(queues)]
            assert costs[of_coflow[new]] == pytest.approx(min(costs), rel=1e-6, abs=1e-9)
            alone += 1
    assert len(used) >= 3
    assert alone > 20


def cost(cls: int, new: int, seconds: list[float], held: list[int]) -> float:
    """Seconds by which the newcomer and each other one would be late if both had one link to themselves."""
    total = 0.0
    for other, at in enumerate(held):
        if other == new:
            continue
        short, long = sorted((seconds[other], seconds[new]))
        right_way = seconds[other] < seconds[new]
        if at == cls:
            total += short  # both end at short + short and short + long, instead of short and short + long
        elif (at < cls) != right_way:
            total += long - short  # long, then long + short, instead of short, then short + long
    return total


def per_coflow(view: View, cls: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bottleneck in seconds, of the bytes left, and class of each coflow."""
    rows = range(len(view.coflows))
    gamma = np.array([slowest(view, view.flows.remaining, row) for row in rows])
    return gamma, np.array([cls[view.flows.coflow == row][0] for row in rows])


def slowest(view: View, amount: np.ndarray, row: int) -> float:
    """Seconds that the bytes of a coflow need on the slowest link of a switch of 1 B/s, by adding up."""
    load: dict[int, float] = {}
    for f in np.flatnonzero(view.flows.coflow == row).tolist():
        for link in view.flows.links[view.flows.indptr[f] : view.flows.indptr[f + 1]].tolist():
            load[link] = load.get(link, 0.0) + float(amount[f])
    return max(load.values())


# ------------------------------------------------------------------ what each policy says


def test_the_registry_makes_policies_by_name_and_refuses_what_it_does_not_know():
    assert make(Spec("tensorexpress", {"levels": 4})) == TensorExpress(levels=4)
    with pytest.raises(ScenarioError, match="no policy is called 'sbf': did you mean 'sebf'"):
        make(Spec("sbf"))
    with pytest.raises(ScenarioError, match=r"policies\.fair: unknown parameter 'levels'"):
        make(Spec("fair", {"levels": 1}))
    with pytest.raises(
        ScenarioError, match=r"policies\.fair: unknown parameter 'name': it is not taken here"
    ):
        make(Spec("fair", {"name": "x"}))
    with pytest.raises(ScenarioError, match=r"policies\.tensorexpress"):
        make(Spec("tensorexpress", {"levels": -1}))


@dataclass(frozen=True)
class Shown:
    """Keeps what it was shown."""

    seen: list[View] = field(default_factory=list)

    name: ClassVar[str] = "shown"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        self.seen.append(view)
        return Fair()(view)


def view_of(*coflows: list[tuple[int, int, float]], hosts: int = 6) -> View:
    """The view at 0 s of coflows (source, destination, bytes) on a switch of 1 B/s."""
    case, spy = Case(hosts), Shown()
    for flows in coflows:
        case.coflow(*flows)
    run(case.build(), star(hosts, 1.0), spy)
    return spy.seen[0]


def test_fair_marks_nothing():
    plan = Fair()(view_of([(0, 1, 1.0)], [(0, 2, 5.0)]))
    assert plan.rank.tolist() == [BEST_EFFORT, BEST_EFFORT]
    assert np.isinf(plan.rate).all()


def test_fifo_ranks_coflows_by_arrival():
    assert Fifo()(view_of([(0, 1, 9.0), (2, 1, 1.0)], [(0, 2, 5.0)])).rank.tolist() == [0, 0, 1]


def test_sebf_orders_by_the_bottleneck_and_not_by_bytes_or_width():
    # Gamma: 3 s (host 1 receives 3 B), 4 s (one flow), 2 s (8 B spread over four ports).
    wide = [(2, 3, 2.0), (3, 2, 2.0), (4, 5, 2.0), (5, 4, 2.0)]
    plan = decide(Sebf(), view_of([(0, 1, 1.0), (2, 1, 2.0)], [(0, 3, 4.0)], wide), None)
    assert plan.rank.tolist() == [1, 1, 2, 0, 0, 0, 0]


def test_madd_reserves_the_least_rates_that_end_a_coflow_together():
    # A: 4 B over 0 -> 1 (Gamma 4), so 2 B over 2 -> 3 go at 1/2. B's 1 B over 5 -> 1 finds port 1 used up and
    # waits; its 5 B over 2 -> 4 go on with the other half of port 2. Nothing is left over.
    plan = decide(Sebf(), view_of([(0, 1, 4.0), (2, 3, 2.0)], [(2, 4, 5.0), (5, 1, 1.0)]), None)
    assert plan.rank.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(plan.reserve, [1.0, 0.5, 0.5, 0.0])
    assert np.isinf(plan.rate).all()
    # Without its flow into the used-up port, B has its own 1/2 B/s, and nothing is left over.
    plan = Sebf()(view_of([(0, 1, 4.0), (2, 3, 2.0)], [(2, 4, 5.0)]))
    np.testing.assert_allclose(plan.reserve, [1.0, 0.5, 0.5])


def test_what_a_blocked_coflow_can_send_goes_before_later_coflows():
    # A: 1 B over 0 -> 1. B: 1 B over 0 -> 3 finds port 0 used up, but its 1 B over 2 -> 3 (Gamma 2 for both)
    # goes on at all of port 2, and C: 3 B over 2 -> 5 waits.
    plan = decide(Sebf(), view_of([(0, 1, 1.0)], [(0, 3, 1.0), (2, 3, 1.0)], [(2, 5, 3.0)]), None)
    assert plan.rank.tolist() == [0, 1, 1, 2]
    np.testing.assert_allclose(plan.reserve, [1.0, 0.0, 1.0, 0.0])


def test_sebf_with_few_classes_gives_each_newcomer_one_between_its_neighbours():
    # On ports of 1 B/s the bytes are the bottleneck in seconds.
    def ranks(queues: int, *coflows: tuple[float, int]) -> list[int]:
        view = view_of(*([(0, i + 1, size)] for i, (size, _) in enumerate(coflows)), hosts=9)
        held = np.array([cls for _, cls in coflows], np.int64)
        view = replace(view, queues=queues, coflows=replace(view.coflows, cls=held))
        plan = Sebf()(view)
        assert np.isinf(plan.rate).all()
        assert not plan.reserve.any()
        return plan.rank.tolist()

    # Alone: the middle class. Seven at once: the median takes the middle one, then the halves, 0 to 6.
    assert ranks(8, (5.0, -1)) == [3]
    assert ranks(8, *((float(size), -1) for size in (3, 1, 2, 7, 5, 6, 4))) == [2, 0, 1, 6, 4, 5, 3]
    # Before 2 s of class 3: the middle of 0 to 2. Behind it: of 4 to 7. Between 3 and 5: 4.
    assert ranks(8, (2.0, 3), (1.0, -1)) == [3, 1]
    assert ranks(8, (2.0, 3), (4.0, -1)) == [3, 5]
    assert ranks(8, (2.0, 3), (4.0, 5), (3.0, -1)) == [3, 5, 4]
    # Nothing is free between 3 and 4. To share costs 2 + 2.5 or 3 s, to go before the two 1 + 0.5 s, to go
    # behind 4 s no more than 1 s: of 5 to 7 the middle.
    assert ranks(8, (2.0, 3), (2.5, 3), (4.0, 4), (3.0, -1)) == [3, 3, 4, 6]
    # What has fallen to 1 s keeps class 5; 2 s are ahead of 3 s: before 1 s or behind 3 s costs 1 s.
    assert ranks(8, (1.0, 5), (3.0, 2), (2.0, -1)) == [5, 2, 1]


def test_sebf_takes_the_flows_that_it_sees_for_the_whole_coflow():
    # A coflow of 2 B into host 1 and, once they are there, 4 B into host 2: 2 s * 6 B / 2 B = 6 s when it
    # comes. Another of 4 s goes first although only 2 s of the first are to be seen.
    case, spy = Case(6), Shown()
    first, second = case.coflow((0, 1, 2.0), (0, 2, 4.0))
    case.builder.depend(second, first)
    case.coflow((0, 3, 4.0))
    run(case.build(), star(6, 1.0), spy)
    before, behind = Sebf()(replace(spy.seen[0], queues=8)).rank.tolist()
    assert before > behind


def test_fifo_with_few_classes_puts_newcomers_behind_the_last_class_in_use():
    view = replace(view_of(*[[(0, 1, 1.0)]] * 5), queues=4)

    def ranks(*held: int) -> list[int]:
        return Fifo()(replace(view, coflows=replace(view.coflows, cls=np.array(held)))).rank.tolist()

    assert ranks(-1, -1, -1, -1, -1) == [0, 1, 2, 3, 3]
    # Class 0 has become free and stays so: nobody moves, the newcomers go behind class 1.
    assert ranks(1, 1, -1, -1, -1) == [1, 1, 2, 3, 3]
    assert ranks(0, 3, 3, -1, -1) == [0, 3, 3, 3, 3]


def test_tensorexpress_splits_the_consumption_order_over_the_queues():
    view = view_of([(0, 1, 1.0)] * 10)
    flows = replace(view.flows, need=np.arange(10), need_span=np.full(10, 10))
    for queues, levels, right in (
        (8, 0, [0, 0, 1, 2, 3, 4, 4, 5, 6, 7]),
        (8, 2, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
        (None, 0, list(range(10))),
    ):
        plan = TensorExpress(levels)(replace(view, flows=flows, queues=queues))
        assert plan.rank.tolist() == right
