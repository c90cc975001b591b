"""A job that begins later so that another sends first: `shifts`, as CASSINI wants them (NSDI 2024)."""

from __future__ import annotations

import contextlib
import math
import socket
import time

import pytest
from agent_flows import configured, desk, followed, said
from running_agent import BASE, agent

from hostagent import client
from hostagent.config import ConfigError
from hostagent.follower import Follower
from hostagent.guide import Guide
from hostagent.protocol import BadRequest
from hostagent.server import Connection, Peer
from netsched.coordinator.wire import PlanPart, Share

SHIFTS = [{"job": "late", "by": "400ms"}, {"job": "*late", "by": "2s"}]


@pytest.mark.parametrize(
    ("job", "begun", "hold"),
    [
        ("late", 0.0, 0.4),
        ("late", 0.3, 0.1),
        ("late", 0.5, 0.0),
        ("late", math.inf, 0.0),
        ("too late", 0.0, 2.0),
        ("early", 0.0, 0.0),
    ],
)
def test_until_the_shift_has_passed_since_its_job_began_a_flow_is_held(job, begun, hold):
    """The first pattern that fits counts; a job that does not say when it began is not held."""
    where = desk()
    flow = where.flow(1, 1000, job, {"flow": "f", "coflow": "c", "size": 1, "peer": "h2"}, "", 0.0)
    assert Guide(configured(shifts=SHIFTS)).guidance(flow, 0.0, begun).hold == pytest.approx(hold)


def test_the_later_of_plan_and_shift_counts():
    guide, where = Guide(followed(shifts=[{"job": "job", "by": "400ms"}])), desk()
    guide.begin(0.0)
    flow = said(where, uid=0)
    for planned, hold in ((0.1, 0.4), (0.9, 0.9)):
        guide.take(PlanPart(1, {flow.id: Share(2, planned, None, True)}, {}), {flow.id: flow.key}, 0.0)
        found = guide.guidance(flow, 0.0, 0.0)
        assert (found.cls, found.hold) == (2, pytest.approx(hold))


@pytest.mark.parametrize("odd", [-1, math.nan, True, "1", [], None])
def test_a_time_that_is_none_is_refused_by_name(odd):
    follower = Follower(configured(shifts=SHIFTS), lambda *_: {})
    word = {"flow": "f", "coflow": "c", "size": 1, "peer": "h2"}
    with socket.socket(socket.AF_UNIX) as sock:
        job = Connection(sock, Peer(1, 1000, 1000), 1, "late")
        with pytest.raises(BadRequest, match="begun_s: a number of seconds"):
            follower.flow(job, word | {"begun_s": odd}, ())
        assert follower.flow(job, word | {"begun_s": 10**400}, ())["hold_s"] == 0.0


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        ({"job": "a"}, r"shifts\[0\]\.by"),
        ({"job": "a", "by": 3}, r"shifts\[0\]\.by"),
        ({"job": "a", "by": "0s"}, r"shifts\[0\]\.by"),
        ({"job": "a", "by": "2h"}, r"shifts\[0\]\.by"),
        ({"by": "3ms"}, r"shifts\[0\]\.job"),
        ({"job": "a", "by": "3ms", "from": "b"}, r"shifts\[0\]\.from"),
    ],
)
def test_a_shift_that_cannot_be_is_refused_by_its_key(shift, message):
    with pytest.raises(ConfigError, match=message):
        configured(shifts=[shift])


def test_a_job_keeps_to_its_shift_once_whatever_becomes_of_the_agent(tmp_path):
    """Of two jobs one sends at once and one 0.4 s later; its second flow waits for nothing."""
    config = BASE | {"shifts": SHIFTS}
    with contextlib.ExitStack() as jobs:
        with agent(tmp_path, config) as (path, _):
            early, late = (jobs.enter_context(client.connect(path, job=job)) for job in ("early", "late"))
            assert early.flow("f", coflow="c", size=10, peer="h2").wait() < 0.1
            announced = late.flow("f", coflow="c", size=10, peer="h2", released=False)
            assert (announced.guidance.source, announced.guidance.hold) == ("default", 0.0), "not begun"
            time.sleep(0.1)
            assert 0.3 < announced.release().hold <= 0.4
            assert 0.2 < announced.wait() < 1.5
            announced.done()
            assert late.flow("g", coflow="c", size=10, peer="h2").wait() < 0.1
        with agent(tmp_path, config):
            time.sleep(1.1)
            again = late.flow("h", coflow="c", size=10, peer="h2").guidance
            assert (again.source, again.hold) == ("default", 0.0)
