"""The two halves of an endpoint over loopback TCP, without root: order, classes, caps, and what is counted.

What was sent is read back by `chunk_stream`, which knows the format and none of the code under test.
"""

from __future__ import annotations

import math

import pytest
from chunk_stream import HEADER, HELLO, bytes_per_flow, chunks_of
from endpoint_loop import CHUNK, HERE, THERE, Loop, any_loop, flow, loop
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netsched.emulation import sender as sender_module
from netsched.emulation import wire
from netsched.emulation.sender import Key

__all__ = ["any_loop", "loop"]

# ------------------------------------------------------------------ sizes


SIZES = [HEADER, HEADER + 1, CHUNK - 1, CHUNK, *(CHUNK + extra for extra in range(1, 18)), 3 * CHUNK + 5]


@pytest.mark.parametrize("size", SIZES)
def test_a_flow_of_any_size_is_sent_to_its_last_byte_and_not_beyond(any_loop, size):
    any_loop.sender.start(flow(7, size))
    any_loop.drain()
    (data,) = any_loop.got(THERE, 0)
    assert bytes_per_flow(data) == {7: size}
    sent = [chunk for chunk in chunks_of(data) if chunk.flow == 7]
    assert sent[-1].end == len(data)
    assert {chunk.total for chunk in sent} == {size}
    # A rest too small for a header of its own goes with the chunk before it.
    assert max(chunk.end - chunk.start for chunk in sent) <= CHUNK + HEADER
    assert any_loop.sender.sent == size


@settings(deadline=None)
@given(st.lists(st.integers(HEADER, 4 * CHUNK), min_size=1, max_size=12))
@example([16, 16, 16, 16, 16, 905, 2016, 4000, 4000, 3985, 16, 2000])
def test_flows_of_any_sizes_share_a_queue_without_losing_a_byte(sizes):
    loop = Loop(True)
    try:
        for number, size in enumerate(sizes):
            loop.sender.start(flow(number, size))
        loop.drain()
        (data,) = loop.got(THERE, 0)
        assert bytes_per_flow(data) == dict(enumerate(sizes))
        assert loop.flows(THERE, 0) == [list(range(len(sizes)))]
        assert chunks_of(data)[-1].end == len(data)
    finally:
        loop.close()


def test_a_scaled_flow_is_never_smaller_than_the_header_that_announces_it():
    assert wire.wire_size(0.0, 0.01) == HEADER
    assert wire.wire_size(1.0, 0.01) == HEADER
    assert wire.wire_size(1e6, 0.01) == 10_000
    assert wire.CHUNK.size == HEADER


# ------------------------------------------------------------------ connections and their queues


def test_every_connection_begins_with_a_full_segment_of_nobody(any_loop):
    any_loop.sender.start(flow(1, 100))
    any_loop.drain()
    (data,) = any_loop.got(THERE, 0)
    hello, first = chunks_of(data)
    # 1500 - 20 (IPv4) - 20 (TCP) - 12 (timestamps)
    assert (hello.flow, hello.end - hello.start) == (HELLO, 1448)
    assert first.flow == 1


def test_a_queue_goes_in_order_of_release_whatever_order_it_was_told_in(loop):
    for number, order in ((1, 30), (2, 10), (3, 20)):
        loop.sender.start(flow(number, 5 * CHUNK, order=order))
    loop.drain()
    assert loop.flows(THERE, 0) == [[2, 3, 1]]
    assert loop.sender.opened == 1


def test_small_flows_share_a_segment(loop):
    for number in range(20):
        loop.sender.start(flow(number, 40))
    loop.pump_once()
    # 20 x 40 = 800 bytes are less than a chunk: one call of the kernel takes them all.
    assert loop.sender.sent == 800
    assert not loop.watched


@pytest.mark.parametrize(
    ("one", "two"),
    [({"lane": 1}, {"lane": 2}), ({"dst": HERE}, {"dst": THERE}), ({"cls": 1}, {"cls": 2})],
)
def test_lanes_destinations_and_classes_have_a_connection_each(loop, one, two):
    loop.sender.start(flow(1, 300, **one))
    loop.sender.start(flow(2, 300, **two))
    loop.sender.start(flow(3, 300, **one))
    loop.drain()
    assert loop.sender.opened == 2
    first, second = (bytes(data) for _, _, data in loop.ends)
    assert (bytes_per_flow(first), bytes_per_flow(second)) == ({1: 300, 3: 300}, {2: 300})


@pytest.mark.parametrize("loop", [{"queued": False}], indirect=True)
def test_without_queues_flows_at_one_time_have_a_connection_each_and_later_ones_take_a_free_one(loop):
    for number in range(3):
        loop.sender.start(flow(number, 5 * CHUNK))
    assert loop.sender.opened == 3
    loop.drain()
    for number in range(3, 6):
        loop.sender.start(flow(number, 5 * CHUNK))
    loop.sender.start(flow(6, 5 * CHUNK, cls=1))
    loop.drain()
    assert loop.sender.opened == 4
    carried = sorted(sorted(bytes_per_flow(data)) for data in loop.got(THERE, 0))
    assert [len(numbers) for numbers in carried] == [2, 2, 2]
    assert sorted(number for numbers in carried for number in numbers) == list(range(6))
    assert bytes_per_flow(loop.got(THERE, 1)[0]) == {6: 5 * CHUNK}


@pytest.mark.parametrize("queued", [True, False])
def test_what_was_opened_before_the_run_is_used_and_nothing_else_is_opened(queued):
    loop = Loop(queued)
    key: Key = (4 if queued else -1, THERE, 2)
    loop.sender.open(key)
    loop.sender.start(flow(1, 100, lane=4, cls=2))
    loop.drain()
    assert loop.sender.opened == 1
    assert bytes_per_flow(loop.got(THERE, 2)[0]) == {1: 100}
    loop.close()


# ------------------------------------------------------------------ changing class


@pytest.mark.parametrize(
    "loop", [{"queued": True, "small": True}, {"queued": False, "small": True}], indirect=True
)
def test_a_flow_changes_class_at_a_chunk_and_loses_nothing(loop):
    size = 200 * CHUNK + 3
    loop.sender.start(flow(1, size, cls=5))
    loop.pump_once()
    before = loop.sender.sent
    assert 0 < before < size / 2, "the buffers of this kernel are too large for this test"
    loop.sender.change(1, 2, math.inf)
    loop.drain()
    (old,), (new,) = loop.got(THERE, 5), loop.got(THERE, 2)
    # The old connection ends with the chunk that was under way.
    assert before <= bytes_per_flow(old)[1] <= before + CHUNK + HEADER
    assert chunks_of(old)[-1].end == len(old)
    assert bytes_per_flow(old)[1] + bytes_per_flow(new)[1] == size
    # Only what was already in the kernel's hands still went by the old class.
    assert bytes_per_flow(new)[1] > size / 2


def test_a_flow_that_changes_class_takes_its_place_by_order_of_release(loop):
    loop.sender.start(flow(1, 5 * CHUNK, order=1, cls=0))
    loop.sender.start(flow(3, 5 * CHUNK, order=3, cls=0))
    loop.sender.start(flow(2, 5 * CHUNK, order=2, cls=1))
    loop.sender.change(2, 0, math.inf)
    loop.drain()
    assert loop.flows(THERE, 0) == [[1, 2, 3]]


def test_a_change_of_a_flow_that_has_ended_or_never_was_does_nothing(any_loop):
    any_loop.sender.start(flow(1, 300))
    any_loop.drain()
    any_loop.sender.change(1, 3, 5.0)
    any_loop.sender.change(99, 3, 5.0)
    any_loop.drain()
    assert any_loop.sender.opened == 1
    assert any_loop.sender.sent == 300


# ------------------------------------------------------------------ caps


class Clock:
    """The sender's `time`, which only goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sender_module, "time", made)
    return made


def speed(loop: Loop, clock: Clock, seconds: float = 0.1) -> float:
    """Bytes/s that leave in the next `seconds`, looked at every millisecond as an endpoint does."""
    before = loop.sender.sent
    for _ in range(round(seconds / 1e-3)):
        clock.now += 1e-3
        loop.pump_once()
        loop.read_all()
    return (loop.sender.sent - before) / seconds


def settle(loop: Loop, clock: Clock) -> None:
    """Let it spend what it saved up."""
    speed(loop, clock, 0.02)


def nearly(rate: float) -> object:
    """A segment and a chunk more or less in 0.1 s."""
    return pytest.approx(rate, abs=(1448 + CHUNK) / 0.1)


@pytest.mark.parametrize("loop", [{"queued": True, "scale": 0.5}], indirect=True)
def test_a_queue_goes_as_fast_as_its_flows_together_times_the_scale(loop, clock):
    for caps, wanted in (((1e6,), 0.5e6), ((1e6, 3e6), 2e6), ((2e6, 3e6), 2.5e6)):
        for number, cap in enumerate(caps):
            if number in loop.sender._flows:
                loop.sender.change(number, 0, cap)
            else:
                loop.sender.start(flow(number, 10_000_000, cap=cap))
        settle(loop, clock)
        assert speed(loop, clock) == nearly(wanted)
    assert loop.sender.throttled


def test_a_flow_that_leaves_a_queue_takes_its_cap_along(loop, clock):
    loop.sender.start(flow(1, 10_000_000, cap=1e6))
    loop.sender.start(flow(2, 10_000_000, cap=3e6))
    loop.sender.change(2, 1, 3e6)
    settle(loop, clock)
    before = [len(data) for _, _, data in loop.ends]
    speed(loop, clock)
    first, second = ((len(data) - b) / 0.1 for (_, _, data), b in zip(loop.ends, before, strict=True))
    assert (first, second) == (nearly(1e6), nearly(3e6))


def test_a_capped_connection_makes_up_for_no_more_than_a_moment(loop, clock):
    """It could not be called for a second: of the 1 MB that it was due it gets a chunk and 5 ms' worth."""
    loop.sender.start(flow(1, 10_000_000, cap=1e6))
    settle(loop, clock)
    before = loop.sender.sent
    clock.now += 1.0
    loop.pump_once()
    assert loop.sender.sent - before <= CHUNK + 5000 + HEADER


def test_a_very_slow_flow_does_not_hold_up_what_it_may_do_next(loop, clock):
    """With the kernel's pacing, a segment sent at 100 bytes/s would block the connection for 14 s."""
    loop.sender.start(flow(1, 1_000_000, cap=100.0))
    speed(loop, clock, 0.1)
    loop.sender.change(1, 0, 1e6)
    settle(loop, clock)
    assert speed(loop, clock) == nearly(1e6)
    loop.sender.change(1, 0, math.inf)
    loop.drain()
    assert not loop.sender.throttled
    assert bytes_per_flow(loop.got(THERE, 0)[0]) == {1: 1_000_000}


@pytest.mark.parametrize("loop", [{"queued": False}], indirect=True)
def test_a_connection_that_is_used_again_has_the_cap_of_its_new_flow(loop, clock):
    loop.sender.start(flow(1, 300, cap=1e3))
    loop.drain()
    loop.sender.start(flow(2, 10_000_000, cap=2e6))
    settle(loop, clock)
    assert (loop.sender.opened, speed(loop, clock)) == (1, nearly(2e6))


def test_small_flows_under_a_cap_are_sent_one_by_one_and_completely(loop, clock):
    for number in range(20):
        loop.sender.start(flow(number, 200, cap=100.0))
    # 2 kB/s at first, and less with every flow that ends: 2 s * (1 + 1/2 + ... + 1/20) = 7.2 s for all.
    speed(loop, clock, 0.5)
    assert 0 < loop.sender.sent <= CHUNK + 0.5 * 2000
    speed(loop, clock, 7.5)
    assert bytes_per_flow(loop.got(THERE, 0)[0]) == dict.fromkeys(range(20), 200)


@pytest.mark.parametrize("queued", [True, False])
def test_a_flow_with_a_cap_of_zero_waits_until_it_gets_one(queued):
    loop = Loop(queued)
    loop.sender.start(flow(1, 5 * CHUNK, cap=0.0))
    assert not loop.watched
    loop.drain()
    assert loop.sender.sent == 0
    loop.sender.change(1, 0, 1e9)
    loop.drain()
    assert loop.sender.sent == 5 * CHUNK
    loop.close()


@pytest.mark.parametrize("loop", [{"queued": True, "small": True}], indirect=True)
def test_a_flow_paused_in_mid_send_ends_its_chunk_and_stops(loop):
    loop.sender.start(flow(1, 200 * CHUNK))
    loop.pump_once()
    loop.sender.change(1, 0, 0.0)
    loop.drain()
    (data,) = loop.got(THERE, 0)
    sent = bytes_per_flow(data)[1]
    assert sent < 200 * CHUNK
    assert chunks_of(data)[-1].end == len(data)
    loop.sender.change(1, 0, math.inf)
    loop.drain()
    assert bytes_per_flow(loop.got(THERE, 0)[0]) == {1: 200 * CHUNK}


def test_the_first_of_a_queue_goes_at_what_those_behind_it_may_send(loop):
    """As in the simulator, where a queue has one rate: the sum of its flows' caps, spent in order."""
    loop.sender.start(flow(1, 5 * CHUNK, cap=0.0))
    loop.sender.start(flow(2, 5 * CHUNK, cap=1e9))
    loop.drain()
    # Once flow 1 has gone, only flow 2's own cap is left, which is the same one.
    assert loop.flows(THERE, 0) == [[1, 2]]
    assert loop.sender.sent == 10 * CHUNK
