"""What policies share: making a plan of columns, and the bottleneck of a coflow."""

from __future__ import annotations

import numpy as np

from netsched.model import Floats, Ints, Plan, View


def plan_of(
    view: View,
    rank: Ints,
    rate: Floats | None = None,
    weight: Floats | None = None,
    review_in: float = float("inf"),
) -> Plan:
    """A plan with the given columns (one value per flow of the view) and nothing else asked for."""
    n = len(view.flows)
    return Plan(
        rank=np.asarray(rank, np.int64),
        rate=np.full(n, np.inf) if rate is None else rate,
        weight=np.ones(n) if weight is None else weight,
        not_before=np.full(n, -np.inf),
        path=np.full(n, -1, np.int64),
        review_in=review_in,
    )


def bottlenecks(view: View, amount: Floats) -> Floats:
    """Effective bottleneck of each coflow in seconds: most `amount` (bytes per flow) on a link over its rate.

    Varys (SIGCOMM 2014), section 4.1: Gamma = max over ports of the coflow's bytes there over the port's
    bandwidth; here over every link of the flows' paths. Shape: one value per row of `view.coflows`.
    """
    from netsched.madd import most_loaded  # noqa: PLC0415 (numba, which a host agent never loads)

    flows = view.flows
    return most_loaded(flows.coflow, len(view.coflows), amount, flows.indptr, flows.links, view.capacity)
