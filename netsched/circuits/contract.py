"""The checker that every circuit scheduler must pass, ours and yours: `check_circuits(circuits)`.

The same object plans for the simulator and for a controller of real switches; they agree only if it is what
it says it is: pure, and a maker of matchings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from netsched.circuits import decide
from netsched.errors import PolicyError
from netsched.model import Circuits, CircuitView, Floats, Ints, JobView, Pairs


def check_circuits(circuits: Circuits, *, seed: int = 0) -> None:
    """Hold a circuit scheduler to the contract of `model.Circuits` on random views.

    Every step of a plan is a matching of ports that exist; the same view gives the same plan, whatever was
    asked before; the view is left as it was; what the plan ends with is a view to plan from again.
    Raises PolicyError, which names what is broken.
    """
    parameters = getattr(circuits, "__dataclass_params__", None)
    if not (is_dataclass(circuits) and parameters is not None and parameters.frozen):
        raise PolicyError(f"circuits {circuits.name}: must be a frozen dataclass, its fields its parameters")
    if circuits.without_circuit not in ("eps", "wait", "relay") or circuits.hops < 1:
        raise PolicyError(f"circuits {circuits.name}: without_circuit is eps, wait or relay, hops 1 or more")
    rng = np.random.default_rng(seed)
    views, plans = [], []
    for _ in range(24):
        view = sample_circuit_view(rng)
        for _ in range(2):
            before = [array.tobytes() for array in _circuit_arrays(view)]
            plan = decide(circuits, view)
            if [array.tobytes() for array in _circuit_arrays(view)] != before:
                raise PolicyError(f"circuits {circuits.name}: it changed the view; copy before writing")
            views.append(view)
            plans.append(plan)
            if len(plan.hold):
                span = float(min(plan.hold[:-1].sum() + min(plan.hold[-1], 1.0), 10.0))
                view = replace(view, out=plan.out[-1], now=view.now + span, dark=_still_dark(rng, view))
    for i in rng.permutation(len(views)).tolist():
        again, first = decide(circuits, views[i]), plans[i]
        same = np.array_equal(again.out, first.out) and np.array_equal(again.hold, first.hold)
        same = same and np.array_equal(_whose(again.owner), _whose(first.owner))
        same = same and np.array_equal(_whose(again.first), _whose(first.first))
        if not same or again.review_in != first.review_in:
            raise PolicyError(
                f"circuits {circuits.name}: the view of {views[i].now:.6g} s gave two plans; "
                "a plan may depend on nothing but the view and the scheduler's parameters"
            )


def _whose(column: Ints | None) -> Ints:
    return column if column is not None else np.zeros(0, np.int64)


def sample_circuit_view(rng: np.random.Generator) -> CircuitView:
    """Two to nine ends on one to four switches, not all on all; demand of rings and of random pairs."""
    ends, switches = int(rng.integers(2, 10)), int(rng.integers(1, 5))
    rate = np.full((switches, ends), 1e9 / 8)
    if ends > 3 and rng.random() < 0.3:
        rate[0, rng.integers(ends)] = 0.0
    n_jobs = int(rng.integers(0, 4))
    work = [_some_pairs(rng, job, ends) for job in range(n_jobs)]
    announced = _pairs([(10 + row[0], *row[1:]) for rows in work for row in rows])
    waiting = np.flatnonzero(rng.integers(0, 2, len(announced.bytes)))
    return CircuitView(
        now=float(rng.choice([0.0, rng.uniform(0.0, 5.0)])),
        waiting=Pairs(*(getattr(announced, each.name)[waiting] for each in fields(Pairs))),
        announced=announced,
        work=_pairs([row for rows in work for row in rows]),
        jobs=JobView(
            id=np.arange(n_jobs),
            arrival=np.zeros(n_jobs),
            weight=np.ones(n_jobs),
            iterations=np.full(n_jobs, 10),
            iterations_done=rng.integers(0, 10, n_jobs),
        ),
        out=np.full((switches, ends), -1, np.int64),
        dark=np.zeros((switches, ends)),
        rate=rate,
        packet_rate=np.full(ends, 1e8 / 8),
        delay=np.full(switches, float(rng.choice([0.0, 2e-5, 0.01]))),
    )


def _still_dark(rng: np.random.Generator, view: CircuitView) -> Floats:
    share: Floats = rng.random(view.out.shape) * rng.integers(0, 2, view.out.shape)
    return share * view.delay[:, None]


def _some_pairs(rng: np.random.Generator, job: int, ends: int) -> list[tuple[int, int, int, float]]:
    """A ring over some ends, or random pairs, as (owner, src, dst, bytes)."""
    chosen = rng.permutation(ends)[: int(rng.integers(2, ends + 1))].tolist()
    amount = float(rng.lognormal(15.0, 2.0))
    if rng.random() < 0.5:
        return [(job, a, b, amount) for a, b in zip(chosen, [*chosen[1:], chosen[0]], strict=True)]
    return [
        (job, a, b, amount * float(rng.uniform(0.1, 1.0)))
        for a in chosen
        for b in chosen
        if a != b and rng.random() < 0.7
    ]


def _pairs(rows: list[tuple[int, int, int, float]]) -> Pairs:
    rows = sorted(rows)
    owner, src, dst = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return Pairs(owner, src, dst, np.array([row[3] for row in rows], np.float64))


def _circuit_arrays(view: CircuitView) -> Iterator[np.ndarray[Any, Any]]:
    for table in (view.waiting, view.announced, view.work, view.jobs):
        yield from (getattr(table, each.name) for each in fields(table))
    yield from (view.out, view.dark, view.rate, view.packet_rate, view.delay)
