"""Circuits in the simulator, by closed forms: what one carries, what is dark, who waits for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from circuit_cases import Script
from result_cases import star
from sim_cases import PER_FLOW, PER_PAIR, Case, Table, run

from netsched.circuits import make
from netsched.errors import PolicyError
from netsched.fabrics import build
from netsched.model import CircuitPlan, Control, Event, Spec
from netsched.policies.fair import Fair
from netsched.policies.sebf import Sebf


def hybrid(**options):
    """Two hosts per rack; 8 Mbit/s host ports (1 MB/s), circuits 1 MB/s, packets 0.5 MB/s per rack."""
    params = {
        "racks": 3,
        "hosts_per_rack": 2,
        "host_rate": "8Mbit/s",
        "uplink_rate": "4Mbit/s",
        "circuit_rate": "8Mbit/s",
        "reconfiguration": "100ms",
    }
    return build(Spec("hybrid", params | options))[1]


MB = 1e6


def one_flow(size=2 * MB, src=0, dst=2):
    case = Case(6)
    case.coflow((src, dst, size))
    return case.build()


@pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR])
def test_a_flow_goes_by_packets_in_the_dark_and_by_circuit_in_the_light(transport):
    """2 MB: 0.1 s dark at 0.5 MB/s, the other 1.95 MB at 1 MB/s."""
    out = run(one_flow(), hybrid(), Fair(), transport=transport, circuits=Script(((0.0, (1, -1, -1)),)))
    assert out.flow_finish[0] == pytest.approx(0.1 + 1.95)
    assert out.mechanisms["circuit_bytes"] == pytest.approx(1.95 * MB)
    assert out.mechanisms["circuit_dark_s"] == pytest.approx(0.1)
    assert out.mechanisms["circuit_duty_cycle"] == pytest.approx(1.95 / 2.05)


def test_a_flow_that_waits_sends_only_while_its_circuit_is_up():
    """Up in [0.1, 0.7) and from 1.1 on: 0.6 MB and then 1.4 MB."""
    steps = ((0.0, (1, -1, -1)), (0.7, (2, -1, -1)), (1.0, (1, -1, -1)))
    out = run(one_flow(), hybrid(), Fair(), circuits=Script(steps, "wait"))
    assert out.flow_finish[0] == pytest.approx(1.1 + 1.4)
    fabric = hybrid()
    spine = fabric.nodes.index("spine1")
    assert out.link_bytes[(fabric.link_src == spine) | (fabric.link_dst == spine)].sum() == 0
    ocs = fabric.nodes.index("ocs1")
    assert out.link_bytes[fabric.link_dst == ocs].sum() == pytest.approx(2 * MB)
    assert out.link_bytes[fabric.link_src == ocs].sum() == pytest.approx(2 * MB)


def test_the_same_flow_goes_back_to_packets_where_it_may():
    """Packets in [0, 0.1) and [0.7, 1.1): 0.25 MB; circuit in [0.1, 0.7): 0.6; the other 1.15 from 1.1 on."""
    steps = ((0.0, (1, -1, -1)), (0.7, (2, -1, -1)), (1.0, (1, -1, -1)))
    out = run(one_flow(), hybrid(), Fair(), circuits=Script(steps))
    assert out.flow_finish[0] == pytest.approx(1.1 + 1.15)


@pytest.mark.parametrize(("model", "end"), [("not-all-stop", 2.1), ("all-stop", 2.2)])
def test_an_unchanged_circuit_goes_dark_only_if_all_stop(model, end):
    """Circuit 0 -> 1 for 2 MB from 0.1 s on; at 1 s another end of the same switch changes."""
    steps = ((0.0, (1, 2, -1)), (1.0, (1, 0, -1)))
    out = run(one_flow(), hybrid(model=model), Fair(), circuits=Script(steps, "wait"))
    assert out.flow_finish[0] == pytest.approx(end)


def test_flows_of_one_pair_share_their_circuit_and_keep_their_classes():
    """Two hosts of rack 1 to two of rack 2 over one circuit of 1 MB/s: the one of rank 0 first."""
    case = Case(6)
    first, second = case.coflow((0, 2, 1 * MB), (1, 3, 1 * MB))
    script = Script(((0.0, (1, -1, -1)),), "wait")
    fair = run(case.build(), hybrid(), Fair(), circuits=script)
    assert fair.flow_finish == pytest.approx([2.1, 2.1])
    strict = run(case.build(), hybrid(), Table(rank={0: 1, 1: 0}, other=1), circuits=script)
    assert strict.flow_finish == pytest.approx([2.1, 1.1])
    assert (first, second) == (0, 1)


def test_a_flow_released_while_its_pair_is_dark_waits_though_others_send():
    """2 MB and 0.2 MB share a circuit from 0.1 s on; the latter's end at 0.5 s releases 0.5 MB of other ends.

    That has its circuit from 1.6 s on. `fair` decides nothing then: all was said before the run.
    """
    case = Case(6)
    case.coflow((0, 2, 2 * MB))
    (small,) = case.coflow((1, 3, 0.2 * MB))
    (late,) = case.coflow((2, 4, 0.5 * MB))
    case.builder.depend(late, small)
    script = Script(((0.0, (1, -1, -1)), (1.5, (1, 2, -1))), "wait")
    out = run(case.build(), hybrid(), Fair(), circuits=script)
    assert out.flow_finish == pytest.approx([2.3, 0.5, 2.1])
    assert out.mechanisms["circuit_bytes"] == pytest.approx(2.7 * MB)


def test_two_switches_that_join_one_pair_share_its_flows():
    """Static rings of jump 1 and 2 over 3 racks; with jump 1 on both, each flow is on one of them."""
    case = Case(6)
    case.coflow(*((h % 2, 2 + h % 2, 1 * MB) for h in range(40)))

    @dataclass(frozen=True)
    class Both:
        name: ClassVar[str] = "both"
        events: ClassVar[Event] = Event.NONE
        without_circuit: ClassVar[str] = "wait"
        hops: ClassVar[int] = 1

        def __call__(self, view):
            return CircuitPlan(np.array([[[1, -1, -1], [1, -1, -1]]]), np.array([np.inf]))

    fabric = hybrid(optical_switches=2, reconfiguration=0, host_rate="800Mbit/s")
    out = run(case.build(), fabric, Fair(), circuits=Both())
    carried = [out.link_bytes[fabric.link_dst == fabric.nodes.index(f"ocs{s}")].sum() for s in (1, 2)]
    assert sum(carried) == pytest.approx(40 * MB)
    assert min(carried) > 10 * MB
    assert out.flow_finish.max() == pytest.approx(max(carried) / MB)


def test_a_flow_takes_several_circuits_in_a_row_where_it_may():
    """Ring 0 -> 1 -> 2 -> 0: from rack 1 to rack 3 over rack 2, the same 1 MB/s; direct it has none."""
    ring = Script(((0.0, (1, 2, 0)),), "wait", hops=2)
    out = run(one_flow(dst=4), hybrid(), Fair(), circuits=ring)
    assert out.flow_finish[0] == pytest.approx(0.1 + 2.0)
    fabric = hybrid()
    assert out.link_bytes[fabric.link_dst == fabric.nodes.index("ocs1")].sum() == pytest.approx(4 * MB)


def test_hosts_on_optical_switches_have_circuits_of_their_own():
    params = {"hosts": 4, "circuit_rate": "8Mbit/s", "packet_rate": "800kbit/s", "reconfiguration": 0}
    fabric = build(Spec("ocs_direct", params))[1]
    case = Case(4)
    case.coflow((0, 1, 1 * MB), (2, 3, 1 * MB))
    script = Script(((0.0, (1, -1, 3, -1)),), "wait")
    assert run(case.build(), fabric, Fair(), circuits=script).flow_finish == pytest.approx([1.0, 1.0])
    assert run(case.build(), fabric, Fair(), circuits=make(Spec("none"))).flow_finish == pytest.approx(
        [10.0] * 2
    )


@pytest.mark.parametrize("seed", range(4))
def test_sunflow_without_a_delay_is_sebf_for_coflows_of_one_flow(seed):
    """CoNEXT 2016: about what a packet switch with coflow scheduling takes. With one flow each it is shortest
    first in both, and nothing is lost to circuits that wait for each other's ports."""
    params = {"hosts": 6, "circuit_rate": "8Mbit/s", "packet_rate": "8kbit/s", "reconfiguration": 0}
    rng, case = np.random.default_rng(seed), Case(6)
    for at in np.cumsum(rng.exponential(0.3, 30)):
        src, dst = rng.permutation(6)[:2].tolist()
        case.coflow((src, dst, float(rng.lognormal(-0.5, 1.0)) * MB), at=float(at))
    workload = case.build()
    circuits = run(workload, build(Spec("ocs_direct", params))[1], Sebf(), circuits=make(Spec("sunflow")))
    packets = run(workload, star(6, MB), Sebf())
    assert circuits.flow_finish.tolist() == pytest.approx(packets.flow_finish.tolist(), rel=1e-6)
    assert circuits.mechanisms["circuit_bytes"] == pytest.approx(workload.flows.size.sum())


def test_flows_released_into_the_light_and_into_the_dark():
    """One at 0.5 s, when the circuit is up since 0.1; one at 0.75, when it has gone for good."""
    case = Case(6)
    case.coflow((0, 2, 0.1 * MB), at=0.5)
    case.coflow((0, 2, 0.1 * MB), at=0.75)
    script = Script(((0.0, (1, -1, -1)), (0.7, (-1, -1, -1))))
    case.coflow((4, 2, 0.01 * MB))  # so that the scheduler is asked at 0
    out = run(case.build(), hybrid(), Fair(), circuits=script)
    assert out.flow_finish[:2] == pytest.approx([0.6, 0.95])


def test_a_circuit_is_commanded_after_the_coordinators_delay():
    out = run(
        one_flow(), hybrid(), Fair(), circuits=Script(((0.0, (1, -1, -1)),)), control=Control(delay=0.3)
    )
    assert out.flow_finish[0] == pytest.approx(0.4 + 1.8)


def test_flows_that_nobody_will_give_a_circuit_are_an_error():
    with pytest.raises(
        PolicyError, match=r"circuits script: at .* leaves all of 1 unfinished flows without a c"
    ):
        run(one_flow(), hybrid(), Fair(), circuits=Script(((0.0, (2, -1, -1)),), "wait"))


def test_without_a_scheduler_optical_switches_stay_dark():
    assert run(one_flow(), hybrid(), Fair()).flow_finish[0] == pytest.approx(4.0)


@dataclass(frozen=True)
class Owned:
    """Joins rack 1 to rack 2 for the flows of one job, -1 for all."""

    owner: int
    without_circuit: str = "eps"
    name: ClassVar[str] = "owned"
    events: ClassVar[Event] = Event.NONE
    hops: ClassVar[int] = 1

    def __call__(self, view):
        return CircuitPlan(
            np.array([[[1, -1, -1]]]), np.array([np.inf]), owner=np.array([[self.owner, -1, -1]])
        )


@pytest.mark.parametrize(("owner", "ends"), [(-1, [2.05, 2.05]), (0, [1.075, 2.05]), (1, [2.05, 1.075])])
def test_an_owned_circuit_is_one_jobs_alone(owner, ends):
    """Two jobs send 1 MB each from rack 1 to rack 2, 25 kB of it by packets in the 0.1 s of dark time.

    Then both share 1 MB/s; or the owner has it, and the other 0.5 MB/s of the packet switches.
    """
    case = Case(6)
    case.coflow((0, 2, 1 * MB))
    case.coflow((1, 3, 1 * MB))
    out = run(case.build(), hybrid(), Fair(), circuits=Owned(owner))
    assert out.flow_finish == pytest.approx(ends)


def test_a_circuit_that_is_given_to_another_job_is_left_at_that_moment():
    """Job 0's until job 1 comes at 0.6 s; then it goes on by packets: 0.05 + 0.5 MB, 1.45 at 0.5 MB/s."""

    @dataclass(frozen=True)
    class Newest(Owned):
        events: ClassVar[Event] = Event.COFLOW_RELEASED

        def __call__(self, view):
            return Owned(int(view.waiting.owner.max()))(view)

    case = Case(6)
    case.coflow((0, 2, 2 * MB))
    case.coflow((1, 3, 1 * MB), at=0.6)
    out = run(case.build(), hybrid(), Fair(), circuits=Newest(0))
    assert out.flow_finish == pytest.approx([0.6 + 1.45 / 0.5, 1.6])
