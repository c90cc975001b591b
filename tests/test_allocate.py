"""The rates of one instant: read off the bytes on links, so that no inside of the simulator is assumed.

Every flow has a source host of its own, whose link tells its rate; what they share is a row of switches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Connection, share
from sim_cases import Case, Table, run

from netsched.fabric import Fabric
from netsched.model import BEST_EFFORT


@dataclass(frozen=True)
class Instant:
    """Flow i goes from switch `ends[i][0]` to `ends[i][1]` in a row of trunks, over ports of `ports[i]` B/s.

    `size` is more than any flow sends in the second that is looked at.
    """

    trunks: tuple[float, ...]
    ports: tuple[float, ...]
    ends: tuple[tuple[int, int], ...]
    table: Table
    size: float = 1024.0

    @property
    def n(self) -> int:
        return len(self.ends)

    def without(self, *gone: int) -> Instant:
        """The same network in which some flows may not send."""
        return Instant(
            self.trunks,
            self.ports,
            self.ends,
            replace(self.table, rate=self.table.rate | dict.fromkeys(gone, 0.0)),
        )


def fabric_of(instant: Instant) -> Fabric:
    """Host 2i is flow i's source, 2i + 1 its destination; links 2k, 2k + 1 are trunk k, then hosts'."""
    hosts, n_switches = 2 * instant.n, len(instant.trunks) + 1
    switches = hosts + np.arange(n_switches)
    at = np.array(instant.ends).ravel()
    first = np.concatenate([switches[:-1], np.arange(hosts)])
    second = np.concatenate([switches[1:], switches[at]])
    names = tuple(f"h{i + 1}" for i in range(hosts))
    capacity = np.concatenate([instant.trunks, np.repeat(instant.ports, 2)])
    return Fabric(
        name="row",
        nodes=(*names, *(f"s{i + 1}" for i in range(n_switches))),
        kinds=("host",) * hosts + ("eps",) * n_switches,
        hosts=names,
        link_src=np.stack((first, second), 1).ravel(),
        link_dst=np.stack((second, first), 1).ravel(),
        capacity=np.repeat(capacity, 2),
        delay=np.zeros(2 * len(first)),
    )


def rates(instant: Instant) -> tuple[np.ndarray, np.ndarray]:
    """Bytes/s of each flow and of each link, over the first second."""
    case = Case(2 * instant.n)
    case.coflow(*((2 * i, 2 * i + 1, instant.size) for i in range(instant.n)))
    outcome = run(case.build(), fabric_of(instant), instant.table, queues=8, horizon=1.0)
    up = 2 * len(instant.trunks) + 4 * np.arange(instant.n)
    return outcome.link_bytes[up], outcome.link_bytes


def links_of(instant: Instant, flow: int) -> tuple[int, ...]:
    """The links of a flow's path, from the numbering in `fabric_of`."""
    a, b = instant.ends[flow]
    trunks = tuple(2 * k for k in range(a, b)) or tuple(2 * k + 1 for k in range(b, a))
    port = 2 * len(instant.trunks) + 4 * flow
    return (port, *trunks, port + 3)


def claims(instant: Instant, flow: int) -> tuple[int, float, float]:
    """Class, weight and cap of a flow."""
    table = instant.table
    rank = min(table.rank.get(flow, BEST_EFFORT), 7)
    return rank, table.weight.get(flow, 1.0), table.rate.get(flow, math.inf)


positive = st.one_of(st.sampled_from([0.5, 1.0, 2.0]), st.floats(0.01, 100.0))


@st.composite
def instants(draw: st.DrawFn, weights: bool = True) -> Instant:
    """Up to 12 flows over up to 4 trunks; equal values are common, because ties are where allocators err."""
    n, hops = draw(st.integers(1, 12)), draw(st.integers(1, 4))

    def some(values: st.SearchStrategy[float]) -> dict[int, float]:
        chosen = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=n))
        return {i: draw(values) for i in chosen}

    switch = st.integers(0, hops)
    return Instant(
        trunks=tuple(draw(st.lists(positive, min_size=hops, max_size=hops))),
        ports=tuple(draw(st.lists(positive, min_size=n, max_size=n))),
        ends=tuple(draw(st.lists(st.tuples(switch, switch), min_size=n, max_size=n))),
        table=Table(
            rank={i: draw(st.integers(0, 3)) for i in range(n)},
            rate=some(st.one_of(st.just(0.0), positive)),
            weight=some(positive) if weights else {},
        ),
    )


quick = settings(max_examples=60, deadline=None, derandomize=True)


@quick
@given(instants())
def test_rates_are_those_of_progressive_filling(instant: Instant) -> None:
    connections = [Connection(*claims(instant, i), links_of(instant, i)) for i in range(instant.n)]
    right = share(connections, fabric_of(instant).capacity)
    np.testing.assert_allclose(rates(instant)[0], right, rtol=1e-9, atol=1e-8)


@quick
@given(instants())
def test_no_link_carries_more_than_its_capacity_and_no_flow_more_than_its_cap(instant: Instant) -> None:
    flow, link = rates(instant)
    assert (link <= fabric_of(instant).capacity * (1 + 1e-9)).all()
    assert all(flow[i] <= claims(instant, i)[2] * (1 + 1e-9) for i in range(instant.n))


@quick
@given(instants())
def test_every_flow_below_its_cap_has_a_full_link_on_which_no_equal_has_more(instant: Instant) -> None:
    """The certificate of max-min (Bertsekas and Gallager, Data Networks, 6.5.2), per unit of weight."""
    flow, link = rates(instant)
    capacity = fabric_of(instant).capacity
    for i in range(instant.n):
        cls, weight, cap = claims(instant, i)
        if flow[i] >= cap * (1 - 1e-9):
            continue
        bottlenecks = [k for k in links_of(instant, i) if link[k] >= capacity[k] * (1 - 1e-8)]
        largest = [
            max(
                (
                    flow[j] / claims(instant, j)[1]
                    for j in range(instant.n)
                    if k in links_of(instant, j) and claims(instant, j)[0] == cls
                ),
            )
            for k in bottlenecks
        ]
        assert any(flow[i] / weight >= level * (1 - 1e-6) - 1e-7 for level in largest), (i, bottlenecks)


@quick
@given(instants())
def test_a_lower_class_never_slows_a_higher_one(instant: Instant) -> None:
    flow, _ = rates(instant)
    for cls in range(4):
        lower = [i for i in range(instant.n) if claims(instant, i)[0] > cls]
        higher = [i for i in range(instant.n) if claims(instant, i)[0] <= cls]
        if lower:
            np.testing.assert_array_equal(rates(instant.without(*lower))[0][higher], flow[higher])


@quick
@given(instants(weights=False), st.integers(-8, 8))
def test_rates_scale_with_capacities_and_caps(instant: Instant, exponent: int) -> None:
    """A power of two scales every float exactly, so the rates must be equal to the last bit."""
    k = 2.0**exponent
    scaled = Instant(
        tuple(k * c for c in instant.trunks),
        tuple(k * c for c in instant.ports),
        instant.ends,
        replace(instant.table, rate={i: k * c for i, c in instant.table.rate.items()}),
        k * instant.size,
    )
    np.testing.assert_array_equal(rates(scaled)[0], k * rates(instant)[0])
