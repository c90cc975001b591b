"""Whose word counts for a flow's class, how a job waits for it, and the configuration of both."""

from __future__ import annotations

import json

import pytest
from agent_flows import configured, desk, followed

from hostagent.config import ConfigError, parse
from hostagent.flow import Flow, Guidance
from hostagent.guide import Guide
from netsched.control import interim_class
from netsched.coordinator.wire import PlanPart, Share


def test_without_a_coordinator_the_first_rule_that_fits_decides():
    guide, where = Guide(configured()), desk()
    for job, coflow, cls, source in (
        ("resnet50", "grad 1", 1, "rule"),
        ("resnet50", "weights", 4, "rule"),
        ("bert", "grad 1", 7, "default"),
    ):
        flow = where.flow(
            hash(job), 0, job, {"flow": coflow, "coflow": coflow, "size": 1, "peer": "h2"}, "", 0.0
        )
        found = guide.guidance(flow, 0.0)
        assert (found.cls, found.source) == (cls, source)


def test_the_plan_counts_then_the_last_plan_and_after_the_stated_time_the_rules():
    guide, where = Guide(followed()), desk()
    flow = where.flow(1, 0, "resnet50", {"flow": "f", "coflow": "grad", "size": 1, "peer": "h2"}, "", 0.0)
    assert guide.standing(0.0) == "local" and guide.guidance(flow, 0.0).source == "rule"
    guide.begin(1.0)
    # As long as nothing is decided a coflow is in the first class, by the engines' own rule.
    assert (guide.guidance(flow, 1.0).cls, guide.guidance(flow, 1.0).source) == (0, "interim")
    share = Share(3, 0.5, 2e6, True)
    guide.take(PlanPart(4, {flow.id: share}, {}), {flow.id: flow.key}, 2.0)
    found = guide.guidance(flow, 2.1)
    assert (found.cls, found.source, found.cap) == (3, "plan", 2e6) and found.hold == pytest.approx(0.4)
    assert guide.guidance(flow, 3.0).hold == 0
    sister = where.flow(1, 0, "resnet50", {"flow": "g", "coflow": "grad", "size": 1, "peer": "h2"}, "", 3.0)
    assert guide.guidance(sister, 3.0) == guide.guidance(sister, 3.0)
    assert guide.guidance(sister, 3.0).cls == int(interim_class(__import__("numpy").array([3]))[0]) == 3
    guide.end()
    # Heard last at 2 s, kept for 30 s.
    assert (guide.guidance(flow, 31.9).cls, guide.guidance(flow, 31.9).source) == (3, "kept")
    assert guide.guidance(sister, 31.9).source == "kept"
    assert (guide.guidance(flow, 32.0).cls, guide.guidance(flow, 32.0).source) == (1, "rule")
    guide.begin(40.0)
    assert guide.guidance(flow, 40.0).source == "interim", (
        "a plan that has lapsed does not come back by itself"
    )


def test_a_flow_that_the_coordinator_cannot_plan_for_goes_by_the_rules():
    guide, where = Guide(followed()), desk()
    flow = where.flow(1, 0, "resnet50", {"flow": "f", "coflow": "grad", "size": 1, "peer": "h9"}, "", 0.0)
    guide.begin(0.0)
    guide.take(PlanPart(1, {}, {flow.id: "peer 'h9' is no host"}), {flow.id: flow.key}, 0.0)
    found = guide.guidance(flow, 0.0)
    assert (found.cls, found.source, found.refused) == (1, "rule", "peer 'h9' is no host")


@pytest.mark.parametrize(("planned", "got"), [(0, 2), (2, 2), (3, 5), (5, 5), (7, 5)])
def test_no_plan_gives_a_user_a_class_that_the_user_may_not_use(planned, got):
    uid = 54321
    guide = Guide(followed(api={"allow": [{"uid": uid, "classes": [2, 5]}]}))
    flow = desk().flow(1, uid, "j", {"flow": "f", "coflow": "c", "size": 1, "peer": "h2"}, "", 0.0)
    guide.begin(0.0)
    guide.take(PlanPart(1, {flow.id: Share(planned, None, None, True)}, {}), {flow.id: flow.key}, 0.0)
    assert guide.guidance(flow, 0.0).cls == got


def waiting(*words: Guidance) -> tuple[Flow, list[list]]:
    """A flow to which the agent says these words, the last one again and again; and the sockets it got."""
    passed: list[list] = []

    def tell(_, sockets) -> Guidance:
        passed.append(list(sockets))
        return words[min(len(passed), len(words)) - 1]

    flow = Flow(tell, {"sent": 0, "size": 10})
    flow.release()
    return flow, passed


def test_a_job_waits_until_its_gate_opens_and_is_marked_for_what_was_said_last():
    flow, passed = waiting(
        Guidance(1, "plan", hold=0.05), Guidance(1, "plan", hold=0.03), Guidance(2, "plan")
    )
    assert 0.08 <= flow.wait(sockets=["socket"]) < 1.0, "a later plan put the start off again"
    assert flow.guidance.cls == 2 and passed == [[], ["socket"], ["socket"]]


def test_no_gate_holds_a_job_longer_than_it_will_wait():
    flow, _ = waiting(Guidance(1, "plan", hold=1e6))
    assert 0.05 <= flow.wait(0.05) < 1.0


def test_a_job_waits_for_the_plan_as_long_as_it_likes():
    interim, plan = Guidance(0, "interim"), Guidance(3, "plan")
    flow, _ = waiting(interim, interim, interim, plan)
    assert flow.wait() == pytest.approx(0, abs=0.01) and flow.guidance.source == "interim"
    assert flow.wait(for_plan=5.0) < 1.0 and flow.guidance.source == "plan"
    flow, _ = waiting(interim)
    assert 0.05 <= flow.wait(for_plan=0.05) < 1.0


def test_progress_alone_is_told_every_20_ms_and_a_socket_at_once():
    flow, passed = waiting(Guidance(1, "plan"))
    for _ in range(100):
        flow.sent(1)
    assert len(passed) <= 10 and flow._fields["sent"] == 10, "no more than its size"
    flow.sent(0, sockets=["socket"])
    assert passed[-1] == ["socket"]


TLS = {"ca": "/a/ca.pem", "cert": "/a/c.pem", "key": "/a/k.pem"}


@pytest.mark.parametrize("address", ["127.0.0.1:9471", "[::1]:1"])
def test_without_certificates_loopback_is_taken(address):
    found = parse(json.dumps({"version": 1, "coordinator": {"address": address}}), "x").coordinator
    assert found is not None and not found.secure and found.keep == 30.0


def test_with_certificates_any_host_is_taken():
    section = {"address": "coordinator.example:9471", "keep": "5s", "host": "node-1"} | TLS
    found = parse(json.dumps({"version": 1, "coordinator": section}), "x").coordinator
    assert found is not None and found.secure and (found.keep, found.host) == (5.0, "node-1")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (
            {"address": "10.0.0.9:9471"},
            r"coordinator: address = '10\.0\.0\.9:9471' is not on loopback: without ca",
        ),
        ({"address": "localhost:9471"}, "is not on loopback"),
        ({"address": "127.0.0.1"}, "a host and a port are expected"),
        ({"address": "127.0.0.1:70000"}, "a host and a port are expected"),
        ({"address": "10.0.0.9:9471", "ca": "/a"}, "cert, key missing: mutual TLS needs ca, cert and key"),
        (
            {"address": "10.0.0.9:9471"} | TLS | {"key": "k.pem"},
            "key = 'k.pem': an absolute path is expected",
        ),
        ({"address": "127.0.0.1:1", "keep": "5"}, "coordinator.keep"),
        ({}, "coordinator.address: missing"),
        ({"address": "127.0.0.1:1", "cafile": "x"}, "coordinator.cafile: unknown key"),
    ],
)
def test_a_wrong_coordinator_is_refused_in_one_line(section, says):
    with pytest.raises(ConfigError, match=says) as error:
        parse(json.dumps({"version": 1, "coordinator": section}), "agent.yaml")
    assert "\n" not in str(error.value)


def test_a_rule_for_a_class_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"rules\[0\]\.class = 'fast'"):
        parse(json.dumps({"version": 1, "rules": [{"class": "fast"}]}), "agent.yaml")
