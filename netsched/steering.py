"""Paths that a plan chooses: flows that are under way leave their old path, others begin on the new one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from netsched.bundles import IN_FLIGHT, Bundles
from netsched.control import steers
from netsched.errors import PolicyError
from netsched.fabric import Fabric
from netsched.ledger import Ledger
from netsched.model import Bools, Floats, Ints, Plan, Policy, Workload
from netsched.pathtable import PathTable
from netsched.reroute import Moves, move, place
from netsched.routes import Routes
from netsched.uses import Uses


@dataclass
class Steering:
    """State of one run. `index`: the path index of each flow; `row_of`: the row and seconds of one of a pair.

    lane     flows of equal lane take one path, because they share a connection; None where none do
    held, seen, buffer   room for `reroute.move`, which holds nobody back here
    """

    policy: Policy
    fabric: Fabric
    workload: Workload
    index: Ints
    lane: Ints | None
    table: PathTable
    held: Bools
    seen: npt.NDArray[np.int8]
    buffer: Ints
    row_of: dict[tuple[int, int, int], tuple[int, float]] = field(default_factory=dict)

    def steer(self, bun: Bundles, net: Uses, ledger: Ledger, flows: Ints, plan: Plan) -> Bundles:
        """Put the flows on the paths of their plan, with those that share connections with them.

        `bun.left` must be settled for them. PolicyError if flows of one connection are to take several paths.
        """
        wanted = np.flatnonzero((plan.path >= 0) & (plan.path != self.index[flows]))
        if not len(wanted):
            return bun
        flows, index = self._with_lanes(flows, plan.path, wanted)
        self.index[flows] = index
        bun, rows, latency = self._rows(bun, flows, index)
        moves = Moves(flows, rows, latency, np.zeros(len(flows), bool), bun.rank[flows])
        sending = bun.bundle_of[flows] >= 0
        place(bun, moves.only(~sending & (bun.bundle_of[flows] != IN_FLIGHT)), self.held, bun.not_before)
        move(bun, net, ledger, moves.only(sending), self.held, bun.not_before, self.seen, self.buffer)
        return bun

    def _with_lanes(self, flows: Ints, path: Ints, wanted: Ints) -> tuple[Ints, Ints]:
        """The flows (`wanted` of those given) and, where connections are shared, all of their lanes."""
        if self.lane is None:
            return flows[wanted], path[wanted]
        chosen = np.full(int(self.lane.max()) + 1, -1, np.int64)
        chosen[self.lane[flows[wanted]]] = path[wanted]
        said = np.flatnonzero(path >= 0)
        other = said[chosen[self.lane[flows[said]]] != path[said]]
        other = other[chosen[self.lane[flows[other]]] >= 0]
        if len(other):
            raise PolicyError(
                f"policy {self.policy.name}: plan.path gives flow {flows[other[0]]} another path than flows "
                "of the same job and hosts, which share its connection: give them one path"
            )
        members = np.flatnonzero(chosen[self.lane] >= 0)
        return members, chosen[self.lane[members]]

    def _rows(self, bun: Bundles, flows: Ints, index: Ints) -> tuple[Bundles, Ints, Floats]:
        src, dst = self.workload.flows.src[flows], self.workload.flows.dst[flows]
        keys = list(zip(src.tolist(), dst.tolist(), index.tolist(), strict=True))
        fresh = sorted({key for key in keys if key not in self.row_of})
        if fresh:
            ends = np.array(fresh, np.int64)
            src, dst, path = ends.T
            indptr, links = self.fabric.paths(src, dst, path, self.workload.hairpin)
            bun, rows, seconds = self.table.of_links(bun, np.split(links, indptr[1:-1]))
            self.row_of |= dict(zip(fresh, zip(rows.tolist(), seconds.tolist(), strict=True), strict=True))
        found = [self.row_of[key] for key in keys]
        return bun, np.array([row for row, _ in found]), np.array([seconds for _, seconds in found])


def steering_for(
    policy: Policy, workload: Workload, fabric: Fabric, routes: Routes, queued: bool
) -> Steering | None:
    """For a policy that says that it `steers`: everything at the begin of a run. None for all others."""
    if not steers(policy):
        return None
    n_rows = len(routes.indptr) - 1
    return Steering(
        policy=policy,
        fabric=fabric,
        workload=workload,
        index=routes.index.copy(),
        lane=routes.lane if queued else None,
        table=PathTable(fabric, None, n_rows, n_rows),
        held=np.zeros(workload.n_flows, bool),
        seen=np.zeros(workload.n_flows, np.int8),
        buffer=np.zeros(workload.n_flows, np.int64),
    )
