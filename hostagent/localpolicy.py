"""A local policy on one host: the simulator's own object, asked through its own gate, one flow at a time.

A local policy's plan for a flow hangs on that flow's row alone (`netsched.testing.check_policy` holds it to
that), so a view of one flow gets the word that the simulator's view of all of them gets. numpy is imported
here, by agents whose configuration names a policy.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from hostagent.protocol import shown
from netsched import policies
from netsched.control import check_sockets, decide
from netsched.coordinator.wire import FlowState
from netsched.errors import ScenarioError
from netsched.hints import nearest
from netsched.model import CoflowView, Event, FlowView, JobView, Plan, Policy, Spec, View

_NOWHERE: Final = -1
"""Ordinal of a host: an agent has no fabric, and a local policy has no use for one."""


def policy_of(spec: Spec) -> Policy:
    """The local policy of that name with those parameters. ScenarioError, with what would be right."""
    names = [name for name, policy in policies.POLICIES.items() if policy.local]
    if spec.name not in policies.POLICIES:
        raise ScenarioError(f"{shown(spec.name)} is no policy: {nearest(spec.name, names)}")
    if spec.name not in names:
        raise ScenarioError(
            f"{spec.name} looks at more than one flow and needs a coordinator; a host alone can follow "
            f"{', '.join(names)}"
        )
    return policies.make(spec)


class LocalPolicy:
    """A policy in force on a host with `queues` classes. PolicyError if it breaks its contract."""

    def __init__(self, spec: Spec, queues: int) -> None:
        self.name = spec.label
        self._policy = policy_of(spec)
        self._queues = queues
        # What is wrong with a policy is to be known at the start and not by the first job.
        self.plan(FlowState(0, 0, "", "", "", 1.0, 0.0, 0, 1, 0.0, True), 0.0)

    def plan(self, flow: FlowState, now: float) -> Plan:
        """The plan for this one flow; times in seconds of the clock of `now`."""
        plan = decide(self._policy, _view(flow, self._queues, now), self._queues)
        check_sockets(self._policy, plan)
        return plan


def _view(flow: FlowState, queues: int, now: float) -> View:
    left = max(0.0, flow.size - flow.sent)
    release = now - flow.age
    flows = FlowView(
        id=_ints(flow.id),
        coflow=_ints(0),
        src=_ints(_NOWHERE),
        dst=_ints(_NOWHERE),
        size=_floats(flow.size),
        sent=_floats(flow.sent),
        remaining=_floats(left),
        need=_ints(flow.need),
        need_span=_ints(flow.need_span),
        release=_floats(release),
        indptr=_ints(0, 0),
        links=_ints(),
    )
    coflows = CoflowView(
        id=_ints(0),
        job=_ints(0),
        stage=_ints(0),
        arrival=_floats(release),
        size=_floats(flow.size),
        sent=_floats(flow.sent),
        n_flows=_ints(1),
        n_finished=_ints(0),
        weight=_floats(1.0),
        deadline=_floats(math.inf),
        cls=_ints(-1),
        burst=_ints(-1),
        lull=_floats(math.inf),
    )
    jobs = JobView(
        id=_ints(0),
        arrival=_floats(release),
        weight=_floats(1.0),
        iterations=_ints(1),
        iterations_done=_ints(0),
    )
    return View(now, flows, coflows, jobs, _floats(), queues, Event.FLOW_RELEASED)


def _ints(*values: int) -> Any:
    return _column(np.array(values, np.int64))


def _floats(*values: float) -> Any:
    return _column(np.array(values, np.float64))


def _column(array: Any) -> Any:
    array.setflags(write=False)
    return array
