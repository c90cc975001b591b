"""Coflows under policies that go by what was sent: small parameters, a spy, and views made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from result_cases import star
from sim_cases import Case, random_workload, run

from netsched.control import decide
from netsched.metrics import coflows as coflow_table
from netsched.model import Control, Event, Plan, Policy, View, Workload
from netsched.policies.aalo import Aalo
from netsched.policies.fifo import Fifo
from netsched.policies.fifo_lm import FifoLm
from netsched.policies.philae import Philae
from netsched.policies.srpt import Srpt

SMALL: tuple[Policy, ...] = (
    Srpt(first=0.5, factor=2.0),
    FifoLm(heavy=1.5, sync=0.2),
    Aalo(queues=4, first=0.5, factor=2.0, sync=0.2),
    Philae(thin=1, pilots=0.3, first=1.0, factor=3.0),
)
"""Parameters that matter for flows of about 1 B on links of 1 B/s."""
BLIND = SMALL[1:]


@dataclass(frozen=True)
class Watched:
    """Asks a policy and keeps what it was shown and what it said."""

    policy: Policy
    seen: list[tuple[View, Plan]] = field(default_factory=list)

    name: ClassVar[str] = "watched"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False

    @property
    def events(self) -> Event:  # type: ignore[override]
        return self.policy.events

    def __call__(self, view: View) -> Plan:
        plan = decide(self.policy, view, view.queues)
        self.seen.append((view, plan))
        return plan


def finishes(case: Case, policy: Policy, hosts: int = 4, queues: int | None = None) -> list[float]:
    """Seconds at which each flow ends on a switch with ports of 1 B/s."""
    return run(case.build(), star(hosts, 1.0), policy, queues=queues).flow_finish.tolist()


def first_view(*coflows: list[tuple[int, int, float]], queues: int | None = None) -> View:
    """The view at 0 s of coflows (source, destination, bytes) on a switch with 8 ports of 1 B/s."""
    case, spy = Case(8), Watched(Fifo())
    for flows in coflows:
        case.coflow(*flows)
    run(case.build(), star(8, 1.0), spy, queues=queues)
    return spy.seen[0][0]


def sent(view: View, *amounts: float) -> View:
    """The view with these bytes sent per coflow."""
    return replace(view, coflows=replace(view.coflows, sent=np.array(amounts)))


def watched(policy: Policy, seed: int, queues: int | None, control: Control | None = None) -> Watched:
    """The policy on a random DAG of flows of about 1 B on a switch with ports of 1 B/s."""
    rng, spy = np.random.default_rng(seed), Watched(policy)
    run(random_workload(rng, 4), star(4, 1.0), spy, queues=queues, control=control or Control())
    return spy


def mean_cct(workload: Workload, policy: Policy) -> float:
    """Mean coflow completion time (s) on a switch with 2 ports of 1 B/s."""
    return float(coflow_table(workload, run(workload, star(2, 1.0), policy))["cct"].mean())
