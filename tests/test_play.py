"""The DAG in real time, with endpoints of the test's own: gates, control delay and period, refusals.

Real time passes, so a machine may be late but never early: what is checked exactly is what must not come
sooner, and the order of things.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
from result_cases import star
from sim_cases import PER_FLOW, Case, GlobalTable, Table

from netsched import ledger as books
from netsched import policies
from netsched.control import Cadence
from netsched.emulation import play as realtime
from netsched.emulation import wire
from netsched.emulation.stage import decided_by
from netsched.errors import EmulationError, PolicyError
from netsched.model import Control, Event, Plan, Policy, Spec, View, Workload
from netsched.observe import static
from netsched.reports import reports_for
from netsched.routes import route

QUEUES = 8


@dataclass
class Told:
    """One record that an endpoint was sent, and when it came."""

    kind: int
    flow: int
    cls: int
    cap: float
    at: float


@dataclass
class Stand:
    """Endpoints that "carry" each flow in `seconds[flow]` (else 0.02 s) and keep what they are told.

    Receivers say at once that they have counted `counted[flow]` bytes.
    """

    hosts: int
    seconds: dict[int, float] = field(default_factory=dict)
    counted: dict[int, int] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    ours: list[socket.socket] = field(default_factory=list)
    theirs: list[socket.socket] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.hosts):
            one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.ours.append(one)
            self.theirs.append(two)
            self.threads.append(threading.Thread(target=self._serve, args=(two,)))
            self.threads[-1].start()

    def _serve(self, end: socket.socket) -> None:
        ends: list[tuple[float, int]] = []
        while True:
            ends.sort()
            now = time.monotonic()
            while ends and ends[0][0] <= now:
                at, flow = ends.pop(0)
                wire.send_records(end, wire.DONE, np.array([(flow, at)], wire.DONE_RECORD))
            end.settimeout(max(1e-4, ends[0][0] - now) if ends else None)
            try:
                packet = end.recv(wire.LARGEST)
            except TimeoutError:
                continue
            if not packet:
                return
            now = time.monotonic()
            record = wire.START_RECORD if packet[0] == wire.START else wire.CHANGE_RECORD
            for row in np.frombuffer(packet[1:], record):
                flow = int(row["flow"])
                self.told.append(Told(packet[0], flow, int(row["cls"]), float(row["cap"]), now))
                if flow in self.counted:
                    progress = np.array([(flow, self.counted[flow])], wire.PROGRESS_RECORD)
                    wire.send_records(end, wire.PROGRESS, progress)
                if packet[0] == wire.START:
                    ends.append((now + self.seconds.get(flow, 0.02), flow))

    def close(self) -> None:
        for end in self.ours:
            end.close()
        for thread in self.threads:
            thread.join(5)
        for end in self.theirs:
            end.close()

    def of(self, flow: int, kind: int = wire.START) -> list[Told]:
        return [entry for entry in self.told if entry.flow == flow and entry.kind == kind]


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand(4)
    yield made
    made.close()


def perform(
    stand: Stand, workload: Workload, policy: Policy, control: Control | None = None, seed: int = 0
) -> realtime.Play:
    fabric = star(4)
    fixed = static(
        workload,
        route(workload, fabric, PER_FLOW),
        fabric.capacity,
        QUEUES,
        books.iteration_offsets(workload),
    )
    cadence = Cadence(policy.events, control or Control())
    address = np.arange(4)[:, None] + 100
    reports = reports_for(policy, cadence.control, workload, np.random.default_rng(seed))
    play = realtime.begin(
        policy, fixed, cadence, tuple(stand.ours), address, fixed.routes.index, 1.0, reports
    )
    realtime.perform(play, 20.0, lambda standing: None)
    return play


def two_flows(at: float = 0.0) -> Workload:
    """Flow 0 from h1 to h2 at once, flow 1 from h3 to h4 `at` seconds."""
    case = Case(4)
    case.coflow((0, 1, 1e6))
    case.coflow((2, 3, 1e6), at=at)
    return case.build()


# ------------------------------------------------------------------ the DAG


def test_flows_start_when_what_they_wait_for_has_ended(stand):
    case = Case(4)
    job = case.job()
    (first,) = case.coflow((0, 1, 1e6), job=job)
    task = case.task(0.1, job)
    (second,) = case.coflow((1, 2, 1e6), job=job)
    case.builder.depend(task, first)
    case.builder.depend(second, task)
    stand.seconds = {0: 0.05}
    play = perform(stand, case.build(), Table())
    start, finish = play.ledger.start, play.ledger.finish
    assert finish[0] - start[0] >= 0.05
    # The task, node 2, begins at the receiver's time of the flow's end and takes what it takes.
    assert start[2] == finish[0]
    assert finish[2] == pytest.approx(start[2] + 0.1, abs=1e-9)
    assert stand.of(1)[0].at - play.zero >= finish[2]
    assert play.ledger.count[books.NODES_LEFT] == 0


def test_a_start_says_who_where_to_and_how(stand):
    perform(stand, two_flows(), Table(rank={0: 3}, rate={0: 5e5}))
    (zero,), (one,) = stand.of(0), stand.of(1)
    # What the table does not rank is unmarked: the last of 8 classes.
    assert (zero.cls, zero.cap, one.cls, one.cap) == (3, 5e5, 7, math.inf)


# ------------------------------------------------------------------ gates


@pytest.mark.parametrize("kind", [Table, GlobalTable])
def test_a_flow_does_not_start_before_its_gate(stand, kind):
    play = perform(stand, two_flows(), kind(rank={0: 1}, not_before={0: 0.15}, other=2))
    (zero,), (one,) = stand.of(0), stand.of(1)
    assert zero.at - play.zero >= 0.15
    assert one.at < zero.at
    assert play.held == []


@dataclass(frozen=True)
class Postpone(GlobalTable):
    """Puts flow 0 off to 10 s when it sees it alone, and lets it go at 0.2 s when there is another."""

    def __call__(self, view: View) -> Plan:
        gate = np.where(view.flows.id == 0, 10.0 if len(view.flows) == 1 else 0.2, -np.inf)
        return replace(super().__call__(view), not_before=gate)


def test_a_newer_plan_moves_the_gate_of_a_flow_that_still_waits(stand):
    stand.seconds = {1: 0.5}
    play = perform(stand, two_flows(at=0.1), Postpone())
    (zero,) = stand.of(0)
    assert 0.2 <= zero.at - play.zero < 5


@dataclass(frozen=True)
class Stop(GlobalTable):
    """Wants to stop what has begun."""

    def __call__(self, view: View) -> Plan:
        gate = np.where(view.now - view.flows.release > 0.05, view.now + 1.0, -np.inf)
        return replace(super().__call__(view), not_before=gate)


def test_a_gate_for_a_flow_that_has_begun_is_refused(stand):
    stand.seconds = {0: 1.0}
    with pytest.raises(PolicyError, match=r"global-table: not_before for a flow that has begun"):
        perform(stand, two_flows(at=0.1), Stop())


# ------------------------------------------------------------------ the coordinator


def test_until_a_decision_takes_effect_a_flow_goes_in_the_most_urgent_class(stand):
    stand.seconds = {0: 0.4}
    play = perform(stand, two_flows(), GlobalTable(rank={0: 4, 1: 5}), Control(delay=0.1))
    (begun,), (changed,) = stand.of(0), stand.of(0, wire.CHANGE)
    assert (begun.cls, changed.cls) == (0, 4)
    # The delay counts from the event, which is the flow's release.
    assert changed.at - play.zero - play.ledger.start[0] >= 0.1
    # Flow 1 was over before the decision came to it.
    assert stand.of(1, wire.CHANGE) == []
    assert play.decisions >= 1


def test_without_delay_a_flow_starts_in_its_class(stand):
    perform(stand, two_flows(), GlobalTable(rank={0: 4, 1: 5}))
    assert [entry.cls for entry in (*stand.of(0), *stand.of(1))] == [4, 5]
    assert [entry for entry in stand.told if entry.kind == wire.CHANGE] == []


@dataclass(frozen=True)
class Diary(GlobalTable):
    """Notes when it is asked, and of what."""

    asked: list[tuple[float, Event]] = field(default_factory=list)
    review: float = math.inf

    name: ClassVar[str] = "diary"

    def __call__(self, view: View) -> Plan:
        self.asked.append((view.now, view.events))
        return replace(super().__call__(view), review_in=self.review)


def test_decisions_are_a_period_apart(stand):
    case = Case(4)
    for step in range(8):
        case.coflow((0, 1, 1e6), at=0.02 * step)
    diary = Diary()
    play = perform(stand, case.build(), diary, Control(period=0.1))
    times = [at for at, _ in diary.asked]
    assert len(times) >= 2
    assert min(np.diff(times)) >= 0.1 - 1e-9
    assert play.decisions == len(times)


def test_a_policy_that_wants_a_review_is_asked_again_and_told_why(stand):
    stand.seconds = {0: 0.5}
    case = Case(4)
    case.coflow((0, 1, 1e6))
    diary = Diary(review=0.1)
    perform(stand, case.build(), diary)
    reviews = [at for at, events in diary.asked if events & Event.REVIEW]
    assert len(reviews) >= 2
    assert min(np.diff([at for at, _ in diary.asked])) >= 0.1 - 1e-9


@dataclass(frozen=True)
class Accountant(GlobalTable):
    """Is asked every 20 ms and notes what flow 0 is known to have sent."""

    known: list[tuple[float, float]] = field(default_factory=list)

    name: ClassVar[str] = "accountant"

    def __call__(self, view: View) -> Plan:
        self.known.extend((view.now, sent) for sent in view.flows.sent[view.flows.id == 0].tolist())
        return replace(super().__call__(view), review_in=0.02)


def test_without_reports_a_policy_is_shown_what_receivers_have_counted(stand):
    stand.seconds, stand.counted = {0: 0.5}, {0: 250_000}
    accountant = Accountant()
    perform(stand, two_flows(), accountant)
    assert accountant.known[0][1] == 0.0
    assert {round(sent) for at, sent in accountant.known if at > 0.25} == {250_000}


def test_a_report_is_believed_only_when_it_has_come(stand):
    # A quarter is counted at once. The report of 0 s is made before the flow can start, that of 0.15 s comes
    # at 0.25 s and has the quarter, unless the machine is slow: then one of the next ones has.
    stand.seconds, stand.counted = {0: 1.0}, {0: 250_000}
    accountant = Accountant()
    perform(stand, two_flows(), accountant, Control(report_period=0.15, report_delay=0.1))
    assert {sent for at, sent in accountant.known if at < 0.25} == {0.0}
    assert {round(sent) for at, sent in accountant.known if at > 0.8} == {250_000}


def test_a_report_that_is_lost_is_never_believed(stand):
    # Nearly all are lost: with this seed the first 60 of them, of three hosts each.
    stand.seconds, stand.counted = {0: 0.3}, {0: 250_000}
    control = Control(report_period=0.01, report_loss=0.9999)
    assert (np.random.default_rng(1).random(200) < 0.9999).all()
    accountant = Accountant()
    perform(stand, two_flows(), accountant, control, seed=1)
    assert {sent for _, sent in accountant.known} == {0.0}


def test_a_watched_end_is_an_event(stand):
    stand.seconds = {0: 0.05, 1: 0.3}
    watch = Watch()
    play = perform(stand, two_flows(), watch)
    ended = [at for at, events in watch.asked if events & Event.WATCHED_FINISHED]
    assert len(ended) == 1
    assert ended[0] >= play.ledger.finish[0]


@dataclass(frozen=True)
class Watch(GlobalTable):
    """Watches flow 0."""

    asked: list[tuple[float, Event]] = field(default_factory=list)

    name: ClassVar[str] = "watch"
    events: ClassVar[Event] = Event.COFLOW_RELEASED | Event.WATCHED_FINISHED

    def __call__(self, view: View) -> Plan:
        self.asked.append((view.now, view.events))
        return replace(super().__call__(view), watch=view.flows.id == 0)


# ------------------------------------------------------------------ what is refused, and what breaks


@dataclass(frozen=True)
class Impatient(Table):
    """Local, and yet wants to be asked again."""

    def __call__(self, view: View) -> Plan:
        return replace(super().__call__(view), review_in=0.1)


def test_a_local_policy_cannot_ask_for_a_review_as_in_the_simulator(stand):
    with pytest.raises(PolicyError, match=r"a local policy is asked once per flow.*review in 0\.1 s"):
        perform(stand, two_flows(), Impatient())


def test_weights_cannot_be_emulated(stand):
    with pytest.raises(PolicyError, match="weights, reserves or paths cannot be carried out by TCP"):
        perform(stand, two_flows(), Table(weight={0: 2.0}))


def test_an_endpoint_that_ends_or_fails_is_named(stand):
    stand.theirs[2].shutdown(socket.SHUT_RDWR)
    with pytest.raises(EmulationError, match="endpoint of host 2 has ended"):
        perform(stand, two_flows(), Table())


def test_what_an_endpoint_complains_of_is_passed_on(stand):
    wire.send_json(stand.theirs[1], wire.FAILED, "OSError: no route to host")
    with pytest.raises(EmulationError, match="endpoint of host 1: OSError: no route to host"):
        perform(stand, two_flows(), Table())


def test_a_run_in_which_no_byte_moves_is_given_up(stand, monkeypatch):
    monkeypatch.setattr(realtime, "_STALL_S", 0.3)
    stand.seconds = {0: 10.0, 1: 10.0}
    with pytest.raises(EmulationError, match="no byte arrived for 0 s while 2 flows were active"):
        perform(stand, two_flows(), Table())


def test_the_result_says_whose_word_the_classes_were():
    assert decided_by(policies.make(Spec("geryon", {}))).startswith(
        "conductor, once for each flow when it is"
    )
    assert decided_by(policies.make(Spec("sebf", {}))) == "conductor, in the coordinator's stead"
