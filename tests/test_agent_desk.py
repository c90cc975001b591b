"""What jobs tell the agent of their flows, and what of it is reported."""

from __future__ import annotations

import itertools

import pytest
from agent_flows import desk, said

from hostagent.desk import MAX_FLOWS, MAX_USER_FLOWS
from hostagent.protocol import BadRequest
from netsched.coordinator.wire import Report


def test_what_a_job_says_is_reported_once_and_then_only_what_changed():
    where = desk()
    first = said(where, now=1.0, need=3, need_span=8)
    (report,) = where.reports(1.5)
    (flow,) = report.flows
    assert (flow.id, flow.age, flow.need, flow.need_span, flow.active) == (first.id, 0.5, 3, 8, True)
    assert not where.pending
    said(where, sent=400, now=2.0)
    assert where.pending and not where.urgent, "progress alone changes no plan at once"
    assert list(where.reports(2.0)) == [Report(sent=((first.id, 400.0),))]
    said(where, state="done")
    assert where.urgent
    assert list(where.reports(2.0)) == [Report(done=(first.id,))]
    assert said(where).id != first.id, "a name is free again when its flow has ended"


def test_a_flow_that_waits_is_announced_and_then_released():
    where = desk()
    said(where, state="waiting", now=1.0)
    (report,) = where.reports(2.0)
    assert not report.flows[0].active and report.flows[0].age == 0
    said(where, now=3.0)
    (report,) = where.reports(3.5)
    assert report.flows[0].active and report.flows[0].age == 0.5


def test_a_connection_s_flows_and_declarations_go_with_it_and_no_other_s():
    where = desk()
    one, two = said(where, owner=1), said(where, owner=2)
    for owner in (1, 2):
        where.coflow(owner, 1000, "job", {"coflow": "c", "size": 5000})
    list(where.reports(0.0))
    where.leave(1)
    assert list(where.reports(0.0)) == [Report(gone=(one.id,))], "the other connection declares it still"
    where.leave(2)
    assert list(where.reports(0.0)) == [Report(gone=(two.id,), closed=((1000, "job", "c"),))]
    assert len(where) == 0


def test_a_coordinator_that_comes_back_is_told_everything_and_nothing_of_the_past():
    where = desk()
    old, kept = said(where, "old"), said(where, "kept", sent=10)
    where.coflow(1, 1000, "job", {"coflow": "c", "weight": 2})
    list(where.reports(0.0))
    where.hang_up()
    said(where, "old", state="done")
    new = said(where, "new")
    assert not where.pending and list(where.reports(0.0)) == []
    where.start_over()
    (report,) = where.reports(0.0)
    assert [f.id for f in report.flows] == [kept.id, new.id] and report.flows[0].sent == 10
    assert [c.weight for c in report.coflows] == [2.0] and not report.done and old.id < new.id


def test_many_flows_are_reported_in_messages_that_are_not_too_long():
    from netsched.coordinator.wire import MAX_MESSAGE, read_report, report_bytes  # noqa: PLC0415

    where = desk()
    name = "\U0001f600" * 128  # 12 bytes each in JSON
    for n in range(1000):
        request = {"flow": f"f{n}", "coflow": name[: 120 + n % 8], "size": 1, "peer": name}
        where.flow(1, 1000, name, request, "", 0.0)
        where.coflow(1, 1000, name, {"coflow": name[: 64 + n % 64]})
    packets = [report_bytes(report) for report in where.reports(0.0)]
    assert sum(len(read_report(packet).flows) for packet in packets) == 1000
    assert max(map(len, packets)) <= MAX_MESSAGE


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"size": 0}, "flow.size"),
        ({"size": None}, "flow.size = None"),
        ({"size": float("nan")}, "flow.size = nan"),
        ({"sent": 1001}, "flow.sent = 1001"),
        ({"sent": -1}, "flow.sent = -1"),
        ({"need": 8, "need_span": 8}, "flow.need = 8"),
        ({"need": 2.5}, r"flow.need = 2\.5"),
        ({"peer": ""}, "peer: the name or address"),
        ({"peer": 7}, "flow.peer"),
        ({"coflow": "x" * 129}, "flow.coflow"),
        ({"flow": ""}, "flow: a printable text"),
        ({"flow": ["f"]}, "flow: a printable text"),
        ({"state": "ended"}, "state: one of waiting, active, done"),
        ({"state": []}, "state: one of"),
    ],
)
def test_a_flow_that_cannot_be_is_refused(fields, says):
    where = desk()
    with pytest.raises(BadRequest, match=says):
        said(where, **fields)
    assert len(where) == 0 and not where.pending


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sent": 100}, "sent = 100 B, it was 500 B"),
        ({"coflow": "d"}, "keeps its coflow and peer"),
        ({"peer": "h3"}, "keeps its coflow and peer"),
        ({"state": "waiting"}, "does not wait again"),
    ],
)
def test_a_flow_does_not_change_what_it_is(fields, says):
    where = desk()
    said(where, sent=500)
    with pytest.raises(BadRequest, match=says):
        said(where, **fields)


@pytest.mark.parametrize(
    ("peer", "plain"),
    [
        ("10.0.0.2", "10.0.0.2"),
        ("::ffff:10.0.0.2", "10.0.0.2"),
        ("FD00:0::2", "fd00::2"),
        ("node-2", "node-2"),
    ],
)
def test_an_address_is_known_in_one_form(peer, plain):
    assert said(desk(), peer=peer).peer == plain


def test_a_job_and_a_user_have_so_many_flows_and_no_more():
    where = desk()
    for owner in range(MAX_USER_FLOWS // MAX_FLOWS):
        for n in range(MAX_FLOWS):
            said(where, f"f{n}", owner)
    with pytest.raises(BadRequest, match=f"a connection has at most {MAX_FLOWS} flows"):
        said(where, "more", 0)
    with pytest.raises(BadRequest, match=f"user 1000 has {MAX_USER_FLOWS} flows"):
        said(where, "more", 99)
    said(where, "more", 98, uid=1001)
    said(where, "f0", 0, state="done")
    said(where, "more", 0)


def test_numbers_of_flows_are_never_used_twice():
    where = desk()
    seen = {said(where, f"f{n % 3}", state="done").id for n in range(9)}
    assert len(seen) == 9 and all(a < b for a, b in itertools.pairwise(sorted(seen)))
