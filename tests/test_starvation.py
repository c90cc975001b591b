"""Streams that never end: each finds the policy that prefers what keeps coming, and no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from result_cases import star

from netsched.errors import PolicyError
from netsched.model import Event, Plan, Policy, View
from netsched.policies import POLICIES
from netsched.policies.base import plan_of
from netsched.policies.p3 import P3
from netsched.starvation import STREAMS, starved
from netsched.testing import check_policy, declared

FABRIC = star(4, 1e8)
UNSEEN = ("crux",)
"""Starve whom no stream shows: Crux goes by what jobs compute for their bytes, and these compute nothing."""


@dataclass(frozen=True)
class By:
    """Coflows in the order of one column, ascending (descending with a minus), ties by arrival."""

    key: str

    name: ClassVar[str] = "by"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.COFLOW_FINISHED

    def __call__(self, view: View) -> Plan:
        coflows, jobs = view.coflows, view.jobs
        need = np.zeros(len(coflows))
        need[view.flows.coflow] = view.flows.need
        columns = {
            "size": coflows.size,
            "flows": coflows.n_flows,
            "need": need,
            "done": jobs.iterations_done[coflows.job],
            "job": jobs.arrival[coflows.job],
            "deadline": coflows.deadline,
            "weight": coflows.weight,
            "arrival": coflows.arrival,
        }
        column = columns[self.key.removeprefix("-")]
        order = np.argsort(-column if self.key.startswith("-") else column, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return plan_of(view, place[view.flows.coflow])


@pytest.mark.parametrize(
    ("key", "whom"),
    [
        ("arrival", []),
        ("size", ["smaller coflows", "coflows of fewer flows"]),
        ("-size", ["larger and wider coflows"]),
        ("flows", ["coflows of fewer flows"]),
        ("-flows", ["larger and wider coflows"]),
        ("need", ["tensors that are needed sooner"]),
        ("done", ["new jobs, beside one in its second iteration"]),
        ("job", ["coflows of an older job"]),
        ("deadline", ["coflows with deadlines"]),
        ("-weight", ["coflows of more weight"]),
        # All but the large ones: between two of them it has time to end.
        ("-arrival", [stream.what for stream in STREAMS if stream.what != "larger and wider coflows"]),
    ],
)
def test_each_preference_starves_whom_it_ranks_last(key, whom):
    assert [stream.what for stream in starved(By(key), FABRIC, None)] == whom


def test_the_check_names_what_a_coflow_waited_for():
    said = "with as many classes as ranks a coflow does not end as long as coflows of more weight keep coming"
    with pytest.raises(PolicyError, match=said):
        check_policy(By("-weight"), FABRIC)


@pytest.mark.parametrize("policy", [*(kind() for kind in POLICIES.values()), P3(blocking=True)], ids=repr)
def test_policies_say_whom_they_starve_if_they_do_and_only_then(policy: Policy):
    # Where the first streams show it, the others need not be seen.
    found = starved(policy, FABRIC, None) or starved(policy, FABRIC, 8)
    assert bool(declared(policy, "starves")) == bool(found or policy.name in UNSEEN), found
