"""The checker of policies on broken ones, each of which breaks one thing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from result_cases import star
from sim_cases import GlobalTable, Odd, Table, run

from netsched.circuits.helios import Helios
from netsched.conservation import wasted
from netsched.errors import PolicyError
from netsched.fabrics import build
from netsched.model import Event, Plan, Spec, Transport, View
from netsched.policies.fair import Fair
from netsched.testing import check_policy, check_under_circuits, sample_workload


@dataclass(frozen=True)
class Broken(Fair):
    """Fair, and a base for policies that each break one rule."""

    name: ClassVar[str] = "broken"
    local: ClassVar[bool] = False


@dataclass(frozen=True)
class Moody(Broken):
    """Never says the same twice."""

    calls: list[int] = field(default_factory=list)

    def __call__(self, view: View) -> Plan:
        self.calls.append(1)
        return replace(super().__call__(view), rank=(view.flows.id + len(self.calls)) % 3)


@dataclass(frozen=True)
class Vandal(Broken):
    """Writes into the view, over all locks."""

    def __call__(self, view: View) -> Plan:
        view.flows.sent.setflags(write=True)
        view.flows.sent[:1] += 1.0
        return super().__call__(view)


@dataclass(frozen=True)
class Gossip(Broken):
    """Claims to be local and counts its neighbours."""

    local: ClassVar[bool] = True

    def __call__(self, view: View) -> Plan:
        return replace(super().__call__(view), rank=np.full(len(view.flows), min(len(view.flows), 3)))


@dataclass(frozen=True)
class Peeper(Broken):
    """Claims not to look at sizes."""

    def __call__(self, view: View) -> Plan:
        return replace(super().__call__(view), rank=(np.nan_to_num(view.flows.size) > 1e8).astype(np.int64))


@dataclass(frozen=True)
class Short(Broken):
    """Forgets a flow."""

    def __call__(self, view: View) -> Plan:
        return replace(super().__call__(view), rank=np.zeros(max(0, len(view.flows) - 1), np.int64))


@dataclass(frozen=True)
class Starver(Broken):
    """Keeps one flow waiting for ever, and asks again and again."""

    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        plan = super().__call__(view)
        return replace(plan, rate=np.where(view.flows.id == 3, 0.0, math.inf), review_in=1.0)


@dataclass(frozen=True)
class Lazy(Broken):
    """Halves what a flow could have."""

    def __call__(self, view: View) -> Plan:
        return replace(super().__call__(view), rate=np.full(len(view.flows), view.capacity.min() / 8))


@dataclass(frozen=True)
class Gambler(Broken):
    """Draws a number, and forgets it."""

    def __call__(self, view: View) -> Plan:
        np.random.random()
        return super().__call__(view)


@dataclass(frozen=True)
class Hoarder(Broken):
    """Keeps something for itself that an equal policy does not know."""

    asked: list[int] = field(default_factory=list, init=False, compare=False)

    def __call__(self, view: View) -> Plan:
        if view.now not in self.asked:
            self.asked.append(view.now)
        return replace(super().__call__(view), rank=np.full(len(view.flows), self.asked.index(view.now)))


@dataclass(frozen=True)
class Scribbler(Broken):
    """Keeps a number where arrays belong."""

    def __call__(self, view: View) -> Plan:
        return replace(super().__call__(view), memory=(len(view.memory),))


@dataclass(frozen=True)
class Elephant(Gossip):
    """Claims to be local and remembers."""

    def __call__(self, view: View) -> Plan:
        return replace(Fair()(view), memory=(np.zeros(1),))


@dataclass(frozen=True)
class Forger(Broken):
    """Writes into what it kept, over all locks."""

    def __call__(self, view: View) -> Plan:
        for kept in view.memory:
            kept.setflags(write=True)
            kept[:] += 1
        return replace(super().__call__(view), memory=(np.zeros(1),))


@dataclass(frozen=True)
class Mute(Broken):
    """Declares, without a reason."""

    idles: ClassVar[bool] = True


class Loose(Fair):
    """Not a frozen dataclass of its own parameters."""

    __dataclass_params__ = None


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Moody(), "gave two plans"),
        (Vandal(), "changed the view"),
        (Gossip(), r"it is local, but plan\.rank of flow \d+ is 1 alone and [23] among others"),
        (Peeper(), "depends on sizes; set clairvoyant = True"),
        (Short(), r"plan\.rank must be an array of \d+ values"),
        (Starver(), r"\d+ of \d+ flows had not ended after .* s, 100 times"),
        (Lazy(), r"flow \d+ could have more, because no link of its path is full"),
        (Gambler(), "it drew random numbers"),
        (Hoarder(), "gave two plans"),
        (Scribbler(), r"plan.memory must be a tuple of arrays, is \(0,\)"),
        (Elephant(), "a local policy is asked once per flow and keeps no memory"),
        (Forger(), "changed the view"),
        (Mute(), "idles is True, must be a text that gives the reason"),
        (Loose(), "must be a frozen dataclass"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_checker_refuses(policy, message):
    with pytest.raises(PolicyError, match=message):
        check_policy(policy, star(6, 1e8))


@dataclass(frozen=True)
class Paced(Lazy):
    """Says that it does."""

    idles: ClassVar[str] = "an eighth of the slowest link is all that it wants"


def test_a_policy_that_paces_on_purpose_can_be_checked_too():
    check_policy(Paced(), star(6, 1e8))
    check_policy(Odd(), star(6, 1e8))


@pytest.mark.parametrize("policy", [Table(), GlobalTable()])
def test_the_tables_of_our_own_tests_keep_the_contract(policy):
    check_policy(policy, star(5, 1e8))


HYBRID = build(
    Spec("hybrid", {"racks": 3, "hosts_per_rack": 2, "host_rate": "1Gbit/s", "reconfiguration": "10ms"})
)[1]


@dataclass(frozen=True)
class Hesitant(Broken):
    """Uses packet switches as it should, and circuits hardly."""

    def __call__(self, view: View) -> Plan:
        optical = np.array([link in CIRCUIT_LINKS for link in view.flows.links], bool)
        lit = np.add.reduceat(optical, view.flows.indptr[:-1]) > 0 if len(view.flows) else optical
        return replace(super().__call__(view), rate=np.where(lit, view.capacity.min() / 8, math.inf))


OCS = HYBRID.kinds.index("ocs")
CIRCUIT_LINKS = set(np.flatnonzero((HYBRID.link_src == OCS) | (HYBRID.link_dst == OCS)).tolist())


def test_the_checker_sees_who_wastes_a_circuit():
    check_policy(Hesitant(), star(6, 1e8))
    with pytest.raises(PolicyError, match=r"flow \d+ could have more, because no link of its path is full"):
        check_under_circuits(Hesitant(), HYBRID, Helios(slot=0.2))


@dataclass(frozen=True)
class Senior(Broken):
    """Older jobs first, without saying so."""

    events: ClassVar[Event] = Event.FLOW_RELEASED

    def __call__(self, view: View) -> Plan:
        return replace(super().__call__(view), rank=view.jobs.id[view.coflows.job[view.flows.coflow]])


def test_the_checker_sees_who_starves_over_a_circuit():
    with pytest.raises(PolicyError, match=r"a coflow does not end as long as .* keep coming"):
        check_under_circuits(Senior(), HYBRID, Helios(slot=0.2))


@pytest.mark.parametrize("circuits", [None, Helios(slot=0.2)], ids=["packets", "circuits"])
def test_nearly_every_moment_that_is_looked_at_is_one_in_which_nothing_happens(circuits):
    # Of 24: else the check would pass because it looks away.
    workload = sample_workload(np.random.default_rng(0), HYBRID)
    outcome = run(workload, HYBRID, Fair(), queues=8, circuits=circuits)
    assert wasted(Fair(), workload, HYBRID, 8, Transport(), outcome, circuits)[0] is None
    assert wasted(Fair(), workload, HYBRID, 8, Transport(), outcome, circuits)[1] >= 20
