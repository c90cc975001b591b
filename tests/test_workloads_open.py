"""Incast, shuffle, Poisson arrivals, size distributions, and the registry that unrolls them."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from workload_fabric import GBIT, big_switch, unrolled

from netsched.errors import ScenarioError
from netsched.model import Spec
from netsched.workloads import WORKLOADS, build
from netsched.workloads.sizes import SizeDistribution

POISSON = {"size": {"kind": "exponential", "mean": "100kB"}, "flows": 1000, "load": 0.5}


def test_an_incast_is_one_coflow_to_one_host():
    w = unrolled("incast", senders=["h2", "h4"], receiver="h3", size="1MiB", at="5ms")
    assert w.flows.src.tolist() == [1, 3]
    assert w.flows.dst.tolist() == [2, 2]
    assert w.flows.size.tolist() == [2**20, 2**20]
    assert w.jobs.arrival.tolist() == [0.005]
    assert len(w.coflows.label) == 1
    everyone = unrolled("incast", hosts=4, senders="all", receiver="h2", size="1B")
    assert everyone.flows.src.tolist() == [0, 2, 3]


def test_a_shuffle_has_every_ordered_pair_of_different_hosts():
    w = build((Spec("shuffle", {"hosts": ["h1", "h3", "h4"], "size": "1kB"}),), big_switch(8), 1)
    pairs = list(zip(w.flows.src.tolist(), w.flows.dst.tolist(), strict=True))
    assert pairs == [(0, 2), (0, 3), (2, 0), (2, 3), (3, 0), (3, 2)]
    assert w.flows.coflow.tolist() == [0] * 6
    assert build((Spec("shuffle", {"size": "1kB"}),), big_switch(8), 1).n_flows == 56


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("incast", {"senders": ["h1"], "receiver": "h1", "size": "1B"}, "senders: 'h1' is the receiver"),
        ("incast", {"senders": ["h1"], "receiver": "h77", "size": "1B"}, "receiver: .*'h77'"),
        (
            "incast",
            {"senders": ["h1", "h1"], "receiver": "h2", "size": "1B"},
            "senders: host 'h1' is listed twice",
        ),
        ("shuffle", {"hosts": ["h1"], "size": "1B"}, "name 2 or more"),
        ("poisson", {**POISSON, "hosts": ["h1"]}, "name 2 or more"),
        (
            "poisson",
            {**POISSON, "size": {"kind": "pareto", "min": "1kB", "shape": 1}},
            "load: .*no finite mean",
        ),
        ("shuffel", {}, "no workload is called 'shuffel': did you mean 'shuffle'"),
    ],
)
def test_what_does_not_fit_the_fabric_is_refused(kind, params, message):
    with pytest.raises(ScenarioError, match=message):
        build((Spec(kind, params),), big_switch(8), 1)


def test_a_shuffle_of_a_whole_data_centre_is_refused_before_it_fills_the_memory():
    with pytest.raises(ScenarioError, match="unrolls to 35,994,000 flows and tasks"):
        build((Spec("shuffle", {"size": "1kB"}),), big_switch(6000), 1)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rate": "5/s"}, "give either load .* or rate"),
        ({"load": None}, "give either load .* or rate"),
        ({"load": None, "rate": 5}, "write a number and a unit, such as 200/s"),
        ({"load": -0.1}, "greater than 0"),
        ({"load": float("nan")}, "finite"),
        ({"width": 3}, "flows: 1000 is not a multiple of width 3"),
        ({"flows": 0}, "greater than or equal to 1"),
        ({"size": {"kind": "uniform"}}, "does not match any of the expected tags"),
        ({"size": {"kind": "fixed", "value": "0B"}}, "must be more than 0 bytes"),
        ({"size": {"kind": "fixed", "value": 5}}, "is not a size"),
        ({"hosts": "h1"}, "neither all nor a list of host names"),
    ],
)
def test_bad_poisson_parameters_are_refused(params, message):
    with pytest.raises(ValidationError, match=message):
        build((Spec("poisson", {**POISSON, **params}),), big_switch(8), 1)


def test_poisson_offers_the_load_it_was_asked_for():
    """20,000 arrivals of 100 kB at load 0.5 of 8 up ports: 4 ports' worth of bytes per second, within 3 %."""
    w = unrolled("poisson", hosts=8, **{**POISSON, "flows": 20_000})
    assert w.flows.size.sum() / w.jobs.arrival.max() == pytest.approx(0.5 * 8 * GBIT, rel=0.03)
    assert (w.flows.src != w.flows.dst).all()
    # Each of the 56 pairs gets 1/56: binomial, five deviations are 0.0066.
    pairs = np.bincount(w.flows.src * 8 + w.flows.dst, minlength=64).reshape(8, 8) / 20_000
    assert pairs[~np.eye(8, dtype=bool)] == pytest.approx(np.full(56, 1 / 56), abs=0.0066)
    gaps = np.diff(w.jobs.arrival)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # exponential: both are equal


def test_width_is_the_number_of_flows_of_a_coflow():
    w = unrolled("poisson", **{**POISSON, "width": 4, "load": None, "rate": "100/s"})
    assert np.bincount(w.flows.coflow).tolist() == [4] * 250
    assert w.jobs.arrival.max() == pytest.approx(2.5, rel=0.3)


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "fixed", "value": "20kB"},
        {"kind": "exponential", "mean": "20kB"},
        {"kind": "exponential", "mean": "20kB", "max": "30kB"},
        {"kind": "pareto", "min": "10kB", "shape": 3.5},
        {"kind": "pareto", "min": "10kB", "shape": 1.0, "max": "1MB"},
        {"kind": "pareto", "min": "10kB", "shape": 0.8, "max": "1MB"},
        {"kind": "lognormal", "median": "10kB", "sigma": 1},
        {"kind": "lognormal", "median": "10kB", "sigma": 1, "max": "15kB"},
    ],
    ids=str,
)
def test_the_stated_mean_is_that_of_the_draws(spec):
    """400,000 draws: the mean is within six of its standard errors."""
    sizes = TypeAdapter(SizeDistribution).validate_python(spec)
    draws = sizes.draw(np.random.default_rng(7), 400_000)
    error = draws.std() / np.sqrt(len(draws))
    assert abs(draws.mean() - sizes.mean_bytes()) <= 6 * error + 1e-6
    if "max" in spec:
        assert draws.max() == sizes.max


def test_pareto_without_a_mean_says_so():
    sizes = TypeAdapter(SizeDistribution).validate_python({"kind": "pareto", "min": "1kB", "shape": 1})
    assert sizes.mean_bytes() == np.inf


def test_the_seed_decides_and_a_workload_more_changes_nothing():
    first = Spec("poisson", POISSON)
    second = Spec("poisson", {**POISSON, "name": "other"})
    fabric = big_switch(8)
    alone, again, other_seed = (build((first,), fabric, seed) for seed in (1, 1, 2))
    both = build((first, second), fabric, 1)
    n = alone.n_flows
    assert np.array_equal(alone.flows.size, again.flows.size)
    assert np.array_equal(alone.jobs.arrival, again.jobs.arrival)
    assert not np.array_equal(alone.flows.size, other_seed.flows.size)
    assert np.array_equal(both.flows.size[:n], alone.flows.size)
    assert np.array_equal(both.jobs.arrival[: len(alone.jobs.name)], alone.jobs.arrival)
    assert not np.array_equal(both.flows.size[n:], alone.flows.size)


def test_no_workload_at_all_is_refused():
    with pytest.raises(ScenarioError, match="the workload is empty"):
        build((), big_switch(2), 1)


def test_every_kind_is_registered_with_a_summary_and_strict_parameters():
    assert set(WORKLOADS) == {
        *("training", "parallel", "search"),
        *("coflow-benchmark", "incast", "shuffle", "poisson"),
    }
    for kind in WORKLOADS.values():
        assert kind.summary
        with pytest.raises(ValidationError, match="no_such_key"):
            kind.params.model_validate({"no_such_key": 1})
