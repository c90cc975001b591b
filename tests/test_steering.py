"""Paths that a plan chooses: by closed form, before and under way, and what is refused.

Two leaves with two hosts each and two spines, 1 B/s everywhere: what crosses the spines has two paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from sim_cases import NO_COST, PER_FLOW, PER_PAIR, Case, GlobalTable, run

from netsched.control import decide
from netsched.errors import PolicyError
from netsched.fabrics import build
from netsched.model import Control, Plan, Spec, View
from netsched.policies.crux import Crux
from netsched.testing import check_policy

FABRIC = build(
    Spec(
        "leaf_spine",
        {"leaves": 2, "spines": 2, "hosts_per_leaf": 2, "host_rate": "8bit/s", "uplink_rate": "8bit/s"},
    )
)[1]
BOTH = pytest.mark.parametrize("transport", [PER_FLOW, PER_PAIR], ids=["per-flow", "per-pair"])


@dataclass(frozen=True)
class Steered(GlobalTable):
    """`path` by flow id until `turn` (s), `later` from then on."""

    path: dict[int, int] = field(default_factory=dict)
    later: dict[int, int] = field(default_factory=dict)
    turn: float = float("inf")

    name: ClassVar[str] = "steered"
    steers: ClassVar[bool] = True

    def __call__(self, view: View) -> Plan:
        table = self.later if view.now >= self.turn else self.path
        column = np.array([table.get(f, -1) for f in view.flows.id.tolist()], np.int64)
        ahead = self.turn - view.now
        return replace(super().__call__(view), path=column, review_in=ahead if ahead > 0 else float("inf"))


def over_spine(bytes_of_link: np.ndarray) -> list[float]:
    """Bytes up to each spine."""
    up = [FABRIC.nodes.index(f"spine{s}") for s in (1, 2)]
    return [float(bytes_of_link[FABRIC.link_dst == spine].sum()) for spine in up]


def two(size: float = 2.0) -> Case:
    case = Case(4)
    case.coflow((0, 2, size))
    case.coflow((1, 3, size))
    return case


@BOTH
@pytest.mark.parametrize(("path", "seconds"), [((0, 0), 4.0), ((1, 1), 4.0), ((0, 1), 2.0), ((1, 0), 2.0)])
def test_flows_share_a_spine_or_have_one_each(transport, path, seconds):
    outcome = run(two().build(), FABRIC, Steered(path=dict(enumerate(path))), transport=transport)
    assert outcome.flow_finish.tolist() == pytest.approx([seconds] * 2, rel=1e-12)
    assert over_spine(outcome.link_bytes) == pytest.approx([2.0 * path.count(s) for s in (0, 1)])


@BOTH
def test_a_flow_under_way_goes_on_elsewhere(transport):
    # 1 s together, 0.5 B each; then 1.5 B at 1 B/s.
    policy = Steered(path={0: 0, 1: 0}, later={0: 0, 1: 1}, turn=1.0)
    outcome = run(two().build(), FABRIC, policy, transport=transport)
    assert outcome.flow_finish.tolist() == pytest.approx([2.5, 2.5], rel=1e-12)
    assert over_spine(outcome.link_bytes) == pytest.approx([2.5, 1.5])


@BOTH
def test_it_takes_the_coordinators_delay(transport):
    # Decided at 1 s, in effect at 1.4 s: 0.7 B each by then, 1.3 s more.
    policy = Steered(path={0: 0, 1: 0}, later={0: 0, 1: 1}, turn=1.0)
    control = Control(delay=0.4)
    first = run(two().build(), FABRIC, Steered(path={0: 0, 1: 0}), transport=transport, control=control)
    outcome = run(two().build(), FABRIC, policy, transport=transport, control=control)
    assert first.flow_finish[0] > outcome.flow_finish[0]
    hashed = run(two().build(), FABRIC, GlobalTable(), transport=transport, horizon=0.4)
    apart = min(over_spine(hashed.link_bytes)) > 0
    sent = 0.4 + 0.5 if apart else 0.7
    assert outcome.flow_finish.tolist() == pytest.approx([1.4 + 2.0 - sent] * 2, rel=1e-12)


def test_what_shares_a_connection_moves_with_it():
    # Two flows of a job from host 0 to host 2, one after the other; only the first is in the table.
    case = Case(4)
    job = case.job()
    (first,) = case.coflow((0, 2, 1.0), job=job)
    (second,) = case.coflow((0, 2, 1.0), job=job)
    case.builder.depend(second, first)
    workload = case.build()
    for path in (0, 1):
        outcome = run(workload, FABRIC, Steered(path={0: path}), transport=PER_PAIR)
        assert over_spine(outcome.link_bytes) == pytest.approx([2.0 - 2.0 * path, 2.0 * path])


def test_one_connection_has_one_path():
    case = Case(4)
    job = case.job()
    case.coflow((0, 2, 1.0), (0, 2, 1.0), job=job)
    policy = Steered(path={0: 0, 1: 1})
    outcome = run(case.build(), FABRIC, policy, transport=PER_FLOW)
    assert over_spine(outcome.link_bytes) == pytest.approx([1.0, 1.0])
    with pytest.raises(PolicyError, match=r"steered: plan\.path gives flow \d another path than"):
        run(case.build(), FABRIC, policy, transport=PER_PAIR)


@dataclass(frozen=True)
class Silent(Steered):
    """Chooses paths without having said so."""

    name: ClassVar[str] = "silent"
    steers: ClassVar[bool] = False


def test_what_is_refused():
    with pytest.raises(PolicyError, match=r"silent: plan\.path chooses paths: that takes a policy with"):
        run(two().build(), FABRIC, Silent(path={0: 0}))
    with pytest.raises(PolicyError, match=r"steered: plan\.path has 2, but there are the paths 0 to 1"):
        run(two().build(), FABRIC, Steered(path={0: 2}))


# ------------------------------------------------------------------ Crux


@BOTH
@pytest.mark.parametrize("jobs", range(4))
def test_crux_keeps_jobs_apart_that_hashing_may_bring_together(transport, jobs):
    # Jobs before them only change the numbers that are hashed: whatever these say, each has a spine.
    case = Case(4)
    for _ in range(jobs):
        case.coflow((0, 1, 0.0))
    case.coflow((0, 2, 2.0))
    case.coflow((1, 3, 2.0))
    outcome = run(case.build(), FABRIC, Crux(), transport=transport)
    assert outcome.flow_finish[jobs:].tolist() == pytest.approx([2.0, 2.0], rel=1e-12)


@BOTH
def test_crux_sends_a_newcomer_where_nobody_is_under_way(transport):
    # The first job chooses first, but comes when the second one is under way on a spine that it keeps.
    case = Case(4)
    case.coflow((1, 3, 2.0), at=1.0)
    case.coflow((0, 2, 4.0))
    outcome = run(case.build(), FABRIC, Crux(), transport=transport)
    assert outcome.flow_finish.tolist() == pytest.approx([3.0, 4.0], rel=1e-12)


def test_crux_leaves_paths_alone_where_the_engine_cannot_choose_them():
    seen: list[View] = []

    class Kept(Crux):
        def __call__(self, view: View) -> Plan:
            seen.append(view)
            return super().__call__(view)

    run(two().build(), FABRIC, Kept(), transport=PER_PAIR, control=NO_COST)
    plan = decide(Crux(), replace(seen[0], ways=None), 8)
    assert (plan.path == -1).all()


def test_crux_keeps_its_contract_where_paths_are_many():
    check_policy(Crux(), FABRIC)
