"""Prophet: bursts, blocks and the monitored bandwidth of tiny jobs, against times worked by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from sender_cases import ends, model, ran, tiny_job
from sim_cases import NO_COST, PER_FLOW, PER_PAIR
from workload_fabric import big_switch

from netsched.errors import PolicyError
from netsched.model import Control, Event, Fault, Outcome, Plan, View, Workload
from netsched.policies.fair import Fair
from netsched.policies.monitor import Memory
from netsched.policies.prophet import Prophet, bursts, lulls
from netsched.simulate import simulate
from netsched.testing import only

ALONE = {"workers": ["h1"], "servers": ["h3"]}


def test_bursts_end_before_intervals_of_more_than_twice_the_mean():
    # Gradients of tensors 5 to 0 at 1, 2, 10, 11, 12, 25 s: intervals 1, 8, 1, 1, 13; their mean is 4.8.
    ready = np.array([25.0, 12.0, 11.0, 10.0, 2.0, 1.0])
    assert bursts(ready, 2.0).tolist() == [1, 0]
    assert bursts(ready, 1.5).tolist() == [4, 1, 0]
    assert bursts(np.array([3.0, 2.0, 1.0]), 2.0).tolist() == [0]
    assert bursts(np.array([3.0]), 2.0).tolist() == [0]


def test_a_gap_lasts_until_the_next_burst_is_complete_or_begins():
    # With factor 1.5 the bursts are tensors 5 and 4, complete at 2 s; 3 to 1, from 10 to 12 s; 0, at 25 s.
    ready = np.array([25.0, 12.0, 11.0, 10.0, 2.0, 1.0])
    for gap, first in (("complete", 10.0), ("interval", 8.0)):
        burst, lull = lulls(ready, 1.5, gap)
        assert burst.tolist() == [0, 1, 1, 1, 4, 4]
        assert lull.tolist() == [np.inf, 13.0, 13.0, 13.0, first, first]
    assert [column.tolist() for column in lulls(np.array([3.0]), 2.0, "complete")] == [[0], [np.inf]]


def tiny(patch: pytest.MonkeyPatch) -> None:
    """Tensors of 2, 2, 4, 8 B. Forward until 5.75 s; gradients 3 to 0 after 0.5, 1, 11 and 11.5 s more.

    So there are two bursts: tensors 3 and 2, and 10.5 s later (10 s until it begins) 1 and 0.
    """
    model(patch, [2, 2, 4, 8], [0.25, 5.0, 0.25, 0.25])


def test_what_a_gap_cannot_carry_does_not_delay_the_next_burst(monkeypatch):
    tiny(monkeypatch)
    # The block of 10 B from 6.75 s to 16.75 s. The rest from 17.25 s: tensor 0, then tensor 1, and only then
    # the 2 B that were left, of tensor 3.
    w, outcome = ran(Prophet(partition=2.0, credit=1e-9), 1.0, **ALONE)
    assert ends(w, outcome, "push") == pytest.approx([23.25, 10.75, 21.25, 19.25])
    # In the order of readiness all 12 B are in the network before tensor 1, which waits until 18.25 s.
    assert ends(*ran(Fair(), 1.0, transport=PER_PAIR, **ALONE), "push") == pytest.approx(
        [14.25, 18.25, 20.25, 22.25]
    )


@pytest.mark.parametrize(
    ("change", "before_the_next_burst"),
    [
        # 10.5 B: both pieces of tensor 2, and of the four of tensor 3 the last three.
        ({}, [0, 1, 1, 1, 1, 1]),
        # 10 B: the third would take all of the 2 B left, and is to be smaller.
        ({"gap": "interval"}, [0, 0, 1, 1, 1, 1]),
        ({"bandwidth": 0.1}, [0, 0, 0, 0, 0, 0]),
        ({"bandwidth": 100.0}, [1, 1, 1, 1, 1, 1]),
    ],
)
def test_a_block_is_what_the_gap_carries_the_latest_piece_on_top(monkeypatch, change, before_the_next_burst):
    tiny(monkeypatch)
    w, outcome = ran(Prophet(partition=2.0, credit=1e-9, **change), 1.0, **ALONE)
    first = [outcome.flow_finish[w.flows.coflow == row] for row in range(3) if "push" in w.coflows.label[row]]
    left = np.concatenate(first)  # tensor 3's four pieces, then tensor 2's two
    assert [int(end - 2 < 17.25 - 1e-9) for end in left.tolist()] == before_the_next_burst


# ------------------------------------------------------------------ the monitored bandwidth


@dataclass(frozen=True)
class Watched:
    """A Prophet whose views and memories can be looked at."""

    policy: Prophet
    seen: list[View] = field(default_factory=list)

    name: ClassVar[str] = "prophet"
    clairvoyant: ClassVar[bool] = True
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Prophet.events

    def __call__(self, view: View) -> Plan:
        self.seen.append(view)
        return self.policy(view)

    def rates(self) -> list[list[float]]:
        """The bandwidth that each sender has measured, at each look, those that repeat left out."""
        told = [Memory(*view.memory).rate.tolist() for view in self.seen if view.memory]
        return [
            rate
            for rate, before in zip(told, [None, *told], strict=False)
            if rate != before and not np.isnan(rate).any()
        ]


def watched(
    policy: Prophet, workload: Workload, faults: Sequence[Fault] = (), control: Control = NO_COST
) -> tuple[Watched, Outcome]:
    watch = Watched(policy)
    outcome = simulate(
        workload,
        big_switch(4, 1.0),
        watch,
        queues=None,
        transport=PER_FLOW,
        control=control,
        faults=faults,
    )
    return watch, outcome


def halved(at: float) -> Fault:
    """The worker's cable carries half from then on."""
    return Fault(at, ("h1", "s1"), None, 0.5)


def test_blocks_shrink_from_the_period_after_a_link_has_slowed_down(monkeypatch):
    tiny(monkeypatch)
    policy = Prophet(partition=2.0, credit=1e-9, monitor=5.0)
    job = tiny_job(policy, 1.0, iterations=3, **ALONE)
    fixed = replace(policy, bandwidth=1.0)
    # Iteration 0 ends when tensor 3's last piece is pulled, at 25.25 s. The next forward pass has begun with
    # tensor 0, pulled at 21.25 s; tensor 1 is there at 23.25 s and takes 5 s, so the pass ends at 28.75 s and
    # its bursts are complete at 29.75 s and 40.25 s. At 29 s the link slows down to 0.5 B/s.
    watch, outcome = watched(policy, job, [halved(29.0)])
    assert ends(job, outcome, "push", 0) == pytest.approx([23.25, 10.75, 21.25, 19.25])
    # The estimate is still 1 B/s: a block of 10 B that takes 20 s, until 49.75 s. Tensors 0 and 1 wait for
    # it, then take 4 s each, and the last piece of tensor 3 comes after them.
    assert ends(job, outcome, "push", 1) == pytest.approx([61.75, 37.75, 57.75, 53.75])
    # Then 0.5 B/s: 5.25 B, which are two pieces, tensor 2's. Nothing delays tensor 0 (begun at `begin`).
    label = "backward t0"
    done = {
        (int(job.tasks.iteration[t]), job.tasks.label[t]): float(outcome.task_finish[t])
        for t in range(job.n_tasks)
    }
    begin = done[2, label]
    tensor3, tensor2, tensor1, tensor0 = ends(job, outcome, "push", 2)
    assert tensor2 == pytest.approx(begin - 10.5 + 8.0)
    assert (tensor0, tensor1, tensor3) == pytest.approx((begin + 4, begin + 8, begin + 8 + 4 * 4))
    # The period from 26.75 s on, in which it slowed down, began to send after that.
    assert watch.rates() == [[pytest.approx(1.0)], [pytest.approx(0.5)]]
    # With the bandwidth of before, the third iteration's block delays tensor 0 as the second one's did.
    _, stale = watched(fixed, job, [halved(29.0)])
    done = dict(zip(job.tasks.label, stale.task_finish.tolist(), strict=True))  # the last of each label
    assert ends(job, stale, "push", 2)[3] == pytest.approx(done[label] - 10.5 + 20.0 + 4.0)


def test_a_period_that_has_not_passed_changes_nothing(monkeypatch):
    tiny(monkeypatch)
    policy = Prophet(partition=2.0, credit=1e-9, monitor=1e3)
    job = tiny_job(policy, 1.0, iterations=3, **ALONE)
    mine, given = (
        watched(each, job, [halved(29.0)])[1].flow_finish.tolist()
        for each in (policy, replace(policy, bandwidth=1.0))
    )
    # Until the first period has passed the bandwidth is that of the slowest link, which the fault made 0.5.
    assert mine != given
    slow = watched(policy, job, [halved(6.0)])[1]
    assert ends(job, slow, "push", 0)[1] == pytest.approx(6.75 + 8.0)


def test_the_bandwidth_is_what_a_sender_gets_and_not_what_its_port_has(monkeypatch):
    # Two workers share the server's port: each gets half of its own. The first block goes by the ports, of
    # 1 B/s; the next one has room for 5.25 B.
    tiny(monkeypatch)
    policy = Prophet(partition=2.0, credit=1e-9, monitor=5.0)
    job = tiny_job(policy, 1.0, iterations=2, workers=["h1", "h2"], servers=["h3"])
    watch, outcome = watched(policy, job)
    assert watch.rates()[0] == pytest.approx([0.5, 0.5])
    begin = float(outcome.task_finish[[label == "backward t0" for label in job.tasks.label]].max())
    assert ends(job, outcome, "push", 1)[2:] == pytest.approx([begin + 8, begin + 4])
    # A block of 10 B each, as by the ports, would be in tensor 0's way for 9.5 s.
    stale = watched(replace(policy, bandwidth=1.0), job)[1]
    begin = float(stale.task_finish[[label == "backward t0" for label in job.tasks.label]].max())
    assert ends(job, stale, "push", 1)[3] > begin + 4 + 5


@pytest.mark.parametrize(
    "control", [Control(report_period=0.5), Control(report_period=1.0, report_delay=0.5)]
)
def test_reports_tell_of_the_bandwidth_too(monkeypatch, control):
    # A flow's last bytes are known at its end, what it has sent before that from reports.
    tiny(monkeypatch)
    policy = Prophet(partition=2.0, credit=1e-9, monitor=10.0)
    job = tiny_job(policy, 1.0, iterations=2, **ALONE)
    watch, _ = watched(policy, job, control=control)
    rates = [rate for (rate,) in watch.rates()]
    assert rates == pytest.approx([1.0] * len(rates), rel=0.2) and rates


@pytest.mark.parametrize(("start", "known"), [("100s", [0, 1]), ("10000s", [1])])
def test_a_sender_is_forgotten_that_had_nothing_to_send_for_a_thousand_periods(monkeypatch, start, known):
    # 5 s each. Else a coordinator would remember every job that it ever served.
    tiny(monkeypatch)
    policy = Prophet(partition=2.0, credit=1e-9, monitor=5.0)
    one = tiny_job(policy, 1.0, **ALONE)
    two = tiny_job(policy, 1.0, also={"name": "late", "start": start}, **ALONE)
    watch, outcome = watched(policy, two)
    assert Memory(*watch.seen[-1].memory).job.tolist() == known
    alone = watched(policy, one)[1].flow_finish
    assert outcome.flow_finish.tolist() == pytest.approx([*alone, *(alone + float(start.removesuffix("s")))])


def test_a_cable_that_is_down_for_good_ends_the_run(monkeypatch):
    tiny(monkeypatch)
    policy = Prophet(partition=2.0, monitor=0.5)
    with pytest.raises(PolicyError, match="unfinished flows"):
        watched(policy, tiny_job(policy, 1.0, **ALONE), [Fault(8.0, ("h1", "s1"), None, 0.0)])


def test_a_plan_follows_from_the_view_and_what_the_last_plan_kept(monkeypatch):
    tiny(monkeypatch)
    policy = Prophet(partition=2.0, credit=4.0, monitor=3.0)
    job = tiny_job(policy, 1.0, iterations=2, workers=["h1", "h2"], servers=["h3", "h4"])
    views = watched(policy, job)[0].seen
    plans = [policy(view) for view in views]
    for i in np.random.default_rng(1).permutation(len(views)).tolist():
        again = replace(policy)(views[i])
        assert again.rank.tolist() == plans[i].rank.tolist() and again.review_in == plans[i].review_in
        assert [each.tobytes() for each in again.memory] == [each.tobytes() for each in plans[i].memory]
        for rows in (np.zeros(0, np.int64), np.arange(0, len(views[i].flows), 2)):
            assert len(policy(only(views[i], rows)).rank) == len(rows)
