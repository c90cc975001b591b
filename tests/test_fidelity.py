"""What makes an emulated run INVALID, in which words, and which scale is said to fit. No root."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from netsched.emulation import fidelity
from netsched.emulation.fidelity import Measured, reason_lines, verdict
from netsched.emulation.queues import Readings

SCALE = 0.01
STAGE_S = 0.5
PAYLOAD, FRAME = 1448, 1514


def readings(payload: list[float], direct: int = 0, drops: int = 0) -> Readings:
    """Ports (one per value) that carried this much payload in full frames, in class 3 of 8."""
    counts = np.zeros((len(payload), 8), np.int64)
    frames = counts.copy()
    frames[:, 3] = np.round(np.array(payload) * FRAME / PAYLOAD)
    lost, around = counts.copy(), np.zeros(len(payload), np.int64)
    lost[0, 7], around[0] = drops, direct
    return Readings(frames, counts, lost, around)


GOOD = Measured(
    preflight=np.array([1.0, 0.99, 1.01]),
    cpu=0.5,
    timer_late=np.full(200, 0.001),
    report_late=np.full(200, 0.002),
    pause=0.003,
    due=np.array([1e6, 2e6]),
    ports=readings([1.02e6, 2.04e6]),
    connections=12,
    dark_late=np.array([1e-4, 5e-3, -2e-4]),
)


def test_dark_times_that_are_off_are_a_reason():
    assert judged()["valid"]
    assert judged(dark_late=np.zeros(0))["valid"]
    (reason,) = judged(dark_late=np.array([1.4e-3, 1.2e-3, 0.0]))["reasons"]
    assert reason == "dark times of optical switches were +1.2 ms off (median), 1 ms is allowed"


def judged(**changes: object) -> dict:
    return verdict(replace(GOOD, **changes), SCALE, STAGE_S)


def test_a_good_run_is_valid_and_says_what_it_measured():
    found = verdict(GOOD, SCALE, STAGE_S)
    assert found == {
        "valid": True,
        "reasons": [],
        "preflight_rate_share_min": 0.99,
        "cpu_share": 0.5,
        "timer_late_p99_s": 0.001,
        "timer_late_max_s": 0.001,
        "report_late_p99_s": 0.002,
        "longest_pause_s": 0.003,
        "port_bytes_share_min": 1.02,
        "dropped_packets": 0,
        "direct_packets": 0,
        "connections": 12,
    }
    assert reason_lines(found) == []


@pytest.mark.parametrize(
    ("changes", "reason", "fitting"),
    [
        (
            {"preflight": np.array([1.0, 0.8])},
            "a port reached 80% of its rate before the run, 93% is needed",
            # What it reached, and a fifth of room: 0.01 * 0.8 * 0.8
            0.0064,
        ),
        (
            {"cpu": 0.98},
            "the run used 98% of the processors, at most 90% leaves room",
            # 70 % busy: 0.01 * 0.7 / 0.98 = 0.00714...
            0.0071,
        ),
        (
            {"timer_late": np.full(200, 0.0301)},
            "timers and reports were up to 30.1 ms late (99th percentile), more than 5% of a stage of 500 ms",
            0.005,
        ),
        (
            {"report_late": np.full(200, 0.04)},
            "timers and reports were up to 40.0 ms late (99th percentile), more than 5% of a stage of 500 ms",
            0.005,
        ),
        (
            # Nothing that a smaller scale would mend: a processor was taken away.
            {"pause": 34.2},
            "a process of the run stood still for 34200 ms, more than 10% of a stage of 500 ms",
            SCALE,
        ),
        (
            # Wrong routes or lost counters: no scale mends that.
            {"ports": readings([1.02e6, 1.8e6])},
            "a port saw 90% of the bytes of its flows, 99% is needed",
            SCALE,
        ),
        (
            {"ports": readings([1.02e6, 2.04e6], direct=17)},
            "17 packets went around the queues of a port",
            SCALE,
        ),
    ],
    ids=["preflight", "cpu", "timers", "reports", "pause", "bytes", "direct"],
)
def test_each_reason_has_its_text_and_its_fitting_scale(changes, reason, fitting):
    found = judged(**changes)
    assert found["valid"] is False
    assert found["reasons"] == [reason]
    assert found["fitting_scale"] == fitting
    assert reason_lines(found) == [f"{reason}; emulation.scale: {fitting:g} would fit"]


def test_several_reasons_are_all_said_and_the_smallest_scale_wins():
    found = judged(preflight=np.array([0.5]), cpu=1.0, timer_late=np.full(200, 0.1))
    assert len(found["reasons"]) == 3
    # The preflight asks for 0.8 * 0.5, the processors for 0.7, the timers for a half.
    assert found["fitting_scale"] == 0.004


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({"preflight": np.array([fidelity.LEAST_RATE])}, True),
        ({"preflight": np.array([fidelity.LEAST_RATE - 1e-6])}, False),
        ({"cpu": fidelity.MOST_CPU}, True),
        ({"cpu": fidelity.MOST_CPU + 1e-6}, False),
        ({"timer_late": np.full(200, fidelity.MOST_LATE * STAGE_S)}, True),
        ({"timer_late": np.full(200, fidelity.MOST_LATE * STAGE_S * 1.001)}, False),
    ],
)
def test_the_thresholds_are_where_they_are_said_to_be(changes, valid):
    assert judged(**changes)["valid"] is valid


def test_a_rare_late_timer_is_measured_and_does_not_spoil_a_run():
    late = np.full(1000, 0.001)
    late[:5] = 0.2
    found = judged(timer_late=late)
    assert found["valid"] is True
    assert found["timer_late_max_s"] == 0.2
    assert found["timer_late_p99_s"] == 0.001


def test_drops_are_measured_and_no_reason_since_tcp_lives_with_them():
    found = judged(ports=readings([1.02e6, 2.04e6], drops=5))
    assert (found["valid"], found["dropped_packets"]) == (True, 5)


def test_a_link_that_hardly_carried_anything_is_not_judged_by_its_bytes():
    # 10 kB of 2 MB are less than a hundredth: a few acknowledgements more or less decide there.
    found = judged(due=np.array([1e4, 2e6]), ports=readings([5e3, 2.04e6]))
    assert found["valid"] is True


def test_a_run_without_timers_flows_or_hosts_is_no_error():
    empty = Measured(
        np.zeros(0), 0.1, np.zeros(0), np.zeros(0), 0.0, np.zeros(2), readings([0.0, 0.0]), 0, np.zeros(0)
    )
    found = verdict(empty, SCALE, 0.0)
    assert (found["valid"], found["preflight_rate_share_min"], found["port_bytes_share_min"]) == (True, 1, 1)
