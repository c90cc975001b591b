"""A local policy in the agent: the simulator's object, asked as in the simulator, without a coordinator."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from coordinator_cases import NETWORK, told
from coordinator_cases import flow as reported
from hypothesis import given, settings
from hypothesis import strategies as st
from running_agent import BASE, ROOT, agent, command, connection

from hostagent import client
from hostagent.config import ConfigError, parse
from hostagent.desk import Desk
from hostagent.guide import Guide
from hostagent.localpolicy import LocalPolicy
from netsched import policies
from netsched.coordinator.planner import Planner
from netsched.coordinator.wire import Hello, Report
from netsched.errors import PolicyError
from netsched.marking import dscp_of
from netsched.model import Control, Event, Plan, Spec, View
from netsched.policies import POLICIES, make
from netsched.policies.base import plan_of

LOCAL = [Spec(name) for name, policy in POLICIES.items() if policy.local]
LOCAL += [Spec("geryon", {"levels": 3, "split": "equal"}), Spec("tensorexpress", {"levels": 20})]


def configured(**more):
    return parse(json.dumps({"version": 1} | more), "agent.yaml")


def guided(guide: Guide, need: int, span: int, job: str = "j", uid: int = 0, state: str = "active"):
    where = Desk(lambda _: None)
    request = {"flow": "f", "coflow": "c", "size": 1e6, "peer": "h2"}
    request |= {"need": need, "need_span": span, "state": state}
    return guide.guidance(where.flow(1, uid, job, request, "", 0.0), 0.0)


@pytest.mark.parametrize("spec", LOCAL, ids=lambda spec: spec.label)
@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))), min_size=1),
    st.integers(1, 8),
)
def test_a_host_alone_gives_each_flow_the_class_that_a_view_of_all_of_them_gives(spec, rows, queues):
    # The view of all flows is the coordinator's, which the engines' own code makes.
    network = replace(NETWORK, queues=queues)
    together = Planner(make(spec), network, Control(), 10.0)
    host = together.join(Hello("h1", queues, {}), 0.0, proven=True)
    flows = [reported(n, "a", 1e6, need=need, need_span=span) for n, (need, span) in enumerate(rows)]
    together.hear(host, Report(flows=tuple(flows)), 0.0)
    together.turn(0.0)
    alone = LocalPolicy(spec, queues)
    assert {n: share.cls for n, share in told(together, host, 0.0).items()} == {
        one.id: int(alone.plan(one, 0.0).rank[0]) for one in flows
    }


def test_rules_come_first_then_the_policy_and_a_user_gets_no_class_that_is_not_allowed():
    rules = [{"job": "bert", "class": 6}]
    guide = Guide(configured(policy="tensorexpress", rules=rules))
    # 50 tensors over 8 classes: tensor 13 is of class floor(13 * 8 / 50) = 2 (TensorExpress, equal parts).
    found = guided(guide, 13, 50)
    assert (found.cls, found.source) == (2, "policy")
    assert (guided(Guide(configured(policy="tensorexpress", rules=rules)), 13, 50, "bert").cls) == 6
    api = {"allow": [{"uid": 54321, "classes": [1, 5]}]}
    bounded = Guide(configured(policy="tensorexpress", api=api))
    assert guided(bounded, 13, 50, uid=54321).cls == 5


def test_a_policy_is_asked_once_and_again_only_until_the_flow_is_released(monkeypatch):
    asked = []

    @dataclass(frozen=True)
    class Counting:
        name: ClassVar[str] = "counting"
        clairvoyant: ClassVar[bool] = False
        local: ClassVar[bool] = True
        events: ClassVar[Event] = Event.FLOW_RELEASED

        def __call__(self, view: View) -> Plan:
            asked.append(view)
            return plan_of(view, np.full(len(view.flows), len(asked)))

    monkeypatch.setitem(policies.POLICIES, "counting", Counting)
    guide, where = Guide(configured(policy="counting")), Desk(lambda _: None)
    assert len(asked) == 1, "a policy that breaks its contract is to be found when the agent starts"
    request = {"flow": "f", "coflow": "c", "size": 1e6, "peer": "h2"}
    for state, cls in (("waiting", 2), ("waiting", 3), ("active", 4), ("active", 4)):
        flow = where.flow(1, 0, "j", request | {"state": state}, "", 0.0)
        assert guide.guidance(flow, 0.0).cls == cls
    assert np.isnan(asked[-1].flows.size).all(), "the gate hides what a policy may not see"
    guide.forget(flow.id)
    assert guide.guidance(flow, 0.0).cls == 5


def test_a_policy_that_breaks_its_contract_keeps_the_agent_from_starting(monkeypatch):
    @dataclass(frozen=True)
    class Weighted:
        name: ClassVar[str] = "weighted"
        clairvoyant: ClassVar[bool] = False
        local: ClassVar[bool] = True
        events: ClassVar[Event] = Event.FLOW_RELEASED

        def __call__(self, view: View) -> Plan:
            return plan_of(view, np.zeros(1, np.int64), weight=np.full(1, 2.0))

    monkeypatch.setitem(policies.POLICIES, "weighted", Weighted)
    with pytest.raises(PolicyError, match="weighted: plans with weights"):
        Guide(configured(policy="weighted"))


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("sebf", "policy: sebf looks at more than one flow and needs a coordinator; a host alone"),
        ("tensorexpres", "policy: 'tensorexpres' is no policy: did you mean 'tensorexpress'"),
        ({"geryon": {"level": 2}}, "policy: geryon: unknown parameter 'level': did you mean 'levels'"),
        ({"geryon": {"levels": -1}}, "policy: geryon"),
        ({"geryon": 3}, "policy: "),
        (3, "policy: 3 is no policy: write a name"),
    ],
)
def test_a_policy_that_a_host_cannot_follow_is_refused_in_one_line(policy, says):
    with pytest.raises(ConfigError) as error:
        configured(policy=policy)
    assert f"agent.yaml: {says}" in str(error.value) and len(str(error.value).splitlines()) == 1


def test_a_job_s_sockets_are_marked_as_the_policy_says_and_status_names_it(tmp_path):
    config = BASE | {"policy": {"geryon": {"levels": 4, "split": "equal"}}}
    with (
        agent(tmp_path, config) as (path, _),
        connection() as (near, _),
        client.connect(path, job="resnet50", strict=True) as us,
    ):
        # Tensor 30 of 50 is in the third quarter.
        with us.flow("layer 30", coflow="step", size=1e6, need=30, need_span=50, sockets=[near]) as flow:
            assert (flow.guidance.cls, flow.guidance.source) == (2, "policy")
            assert flow.guidance.results[0].dscp == dscp_of(2)
        done = command(sys.executable, "-m", "hostagent", "status", "--socket", path)
        assert "flows that no rule fits go by geryon(levels=4, split=equal)" in done.stdout


def test_an_agent_with_a_policy_loads_numpy_and_one_without_does_not():
    code = (
        "import json, sys\n"
        "from hostagent.agent import Agent\n"
        "from hostagent.config import parse\n"
        "Agent(parse(sys.argv[1], 'agent.yaml'))\n"
        "print([m for m in ('numpy', 'numba', 'scipy', 'networkx', 'pyarrow', 'grpc') if m in sys.modules])\n"
    )

    def loaded(**more) -> str:
        argv = [sys.executable, "-c", code, json.dumps({"version": 1} | more)]
        return subprocess.check_output(argv, cwd=ROOT, text=True).strip()

    assert loaded() == "[]"
    assert loaded(policy={"geryon": {"levels": 2}}) == "['numpy']"
