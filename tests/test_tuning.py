"""ByteScheduler's tuner: it finds optima that are known, does the same twice, and tunes a simulated job."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from netsched.errors import ScenarioError
from netsched.scenario import load
from netsched.tuning import WITH_SERVERS, Ranges, expected_improvement, in_simulation, tune

RANGES = Ranges((1e6, 64e6), (4e6, 256e6))


def valley(partition: float, credit: float) -> float:
    """Least, 1 s, with pieces of 8 MB and a credit of 32 MB: the middle of both ranges."""
    return 1 + math.log2(partition / 8e6) ** 2 / 9 + math.log2(credit / 32e6) ** 2 / 9


def test_it_comes_closer_than_as_many_random_trials():
    found = [tune(valley, RANGES, np.random.default_rng(seed)).best.seconds for seed in range(20)]
    random = [
        tune(valley, RANGES, np.random.default_rng(seed), at_random=15).best.seconds for seed in range(20)
    ]
    assert np.mean(found) - 1 < 0.5 * (np.mean(random) - 1)
    assert np.mean(found) < 1.05


def test_equal_generators_make_equal_trials_within_the_ranges():
    one, other = (tune(valley, RANGES, np.random.default_rng(3)) for _ in range(2))
    assert one == other and len(one.trials) == 15
    assert one.best == min(one.trials, key=lambda trial: trial.seconds)
    for trial in one.trials:
        assert 1e6 <= trial.partition <= 64e6 and 4e6 <= trial.credit <= 256e6
        assert trial.seconds == valley(trial.partition, trial.credit)
    assert tune(valley, RANGES, np.random.default_rng(4)) != one


def test_expected_improvement_is_the_expectation():
    # Far from all points the process is a standard normal: E max(0, x - best - xi), by quadrature.
    points, values = np.array([[0.0, 0.0], [0.02, 0.0]]), np.array([1.0, -1.0])
    (mine,) = expected_improvement(points, values, np.array([[50.0, 50.0]]), 0.1)
    right, _ = quad(lambda x: (x - 1.1) * norm.pdf(x), 1.1, 12)
    assert mine == pytest.approx(right, rel=1e-6)
    # At a measured point nothing more is to be expected than what is known.
    (here,) = expected_improvement(points, values, points[:1], 0.1)
    assert here < 1e-6


SCENARIO = """
fabric: {kind: single_switch, hosts: 4, rate: 5Gbit/s}
workload: {kind: training, model: alexnet, workers: [h1, h2], servers: [h3, h4], iterations: 2, batch: 64,
  theta: 2ms, device: {flops: 10TFLOP/s, efficiency: 0.4}}
policies: [bytescheduler]
queues: unlimited
"""


def test_a_simulated_job_is_no_slower_than_with_its_worst_trial(tmp_path):
    (tmp_path / "a.yaml").write_text(SCENARIO)
    measure = in_simulation(load(tmp_path / "a.yaml"))
    tuned = tune(measure, WITH_SERVERS, np.random.default_rng(1), steps=6, at_random=4)
    assert tuned.best.seconds == measure(tuned.best.partition, tuned.best.credit)
    assert tuned.best.seconds < max(trial.seconds for trial in tuned.trials)
    # Each start-up is 2 ms: pieces of 1 MB are 116 of them for fc1 alone, one after the other per server.
    assert measure(1e6, 64e6) > tuned.best.seconds


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Ranges((0.0, 1.0), (1.0, 2.0)), "partition: 0.0 to 1.0 B is no range"),
        (lambda: Ranges((1.0, 2.0), (2.0, 2.0)), "credit: 2.0 to 2.0 B is no range"),
        (lambda: tune(valley, RANGES, np.random.default_rng(1), steps=3), "at_random: 10 of 3 steps"),
        (lambda: tune(lambda p, c: math.nan, RANGES, np.random.default_rng(1)), "measure: nan s"),
    ],
)
def test_what_cannot_be_tuned_is_refused(call, message):
    with pytest.raises(ScenarioError, match=message):
        call()
