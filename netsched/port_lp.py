"""A linear program over completion times, a lower bound of their weighted sum: all links at once.

Where a coflow waits for one link while another is busy for others, no link alone tells what that costs. Here
each coflow ends at one time, which has to suit all of its links.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from netsched.jit import compiled
from netsched.model import Floats, Ints
from netsched.shared_bounds import Shared, Turns

PORT_LP: Final = "port-lp"
LARGEST: Final = 1000
"""The program is solved for at most so many groups; with more, busy links can cost it minutes."""

_ROUNDS: Final = 40
_GAIN: Final = 1e-4
"""A round that raises the optimum by less than this share of it is the last."""
_SHORT: Final = 1e-7
"""A set of groups counts as too early if their mean is so much of the latest time too early."""
_SOLVER: Final = 1e-6
"""Error granted to the solver as a share of all ends; its own tolerances are 1e-7."""


class _Cuts(NamedTuple):
    """Rows of the program: over entries `first[r]:first[r+1]`, value x end sums to `least[r]` or more.

    The inequality of the set, divided by p(S): the values sum to 1.
    """

    first: Ints
    group: Ints
    value: Floats
    least: Floats


def port_lp(groups: Shared, rows: Ints, start: Floats, own: Floats, weight: Floats | None = None) -> float:
    """A lower bound of the sum over `rows` of weight x (finish - start), in seconds.

    NaN without a dated row, or where the program is too large. Parameters as in
    `shared_bounds.shortest_first`.

    Its variables are the ends C of the groups, each no sooner than start + own. For each link and each set S
    of groups with bytes for it: the link passes g's bytes (p seconds) no sooner than r = max(start, head),
    and no faster than in p seconds, and g ends no sooner than tail after the last of them. Let M be the mean
    time at which they pass: M <= C - tail - p / 2. The bytes of S need p(S) seconds of the link in all, none
    before the least r of S, so the mean of M over them is at least that r + p(S) / 2:

        sum over S of p (C - tail - p / 2)  >=  p(S) (min r + p(S) / 2)

    These are the parallel inequalities of Queyranne (1993), with release times as in Goemans, Queyranne,
    Schulz, Skutella and Wang (2002), on every port: the program of Ahmadi, Khuller, Purohit and Yang ("On
    scheduling coflows", IPCO 2017), whose dual Sincronia's order comes from. Every schedule meets all of
    them, so the least weighted sum under any number of them is a lower bound. There are too many sets to
    write down: rows are added where the optimum so far breaks them the most, until little is gained. For a
    link and a least r that set is among the prefixes of the groups in order of C - tail - p / 2.
    """
    turns = groups.turns
    chosen = np.zeros(len(groups.dated), np.bool_)
    chosen[rows] = groups.dated[rows]
    kept = chosen[turns.group]
    first = np.concatenate(([0], np.cumsum(kept)))[turns.first]
    if not 0 < chosen.sum() <= LARGEST:
        return float("nan")
    each = np.ones(len(own)) if weight is None else weight
    origin = float(start[chosen].min())
    ours = np.flatnonzero(chosen)
    place = np.full(len(chosen), -1)
    place[ours] = np.arange(len(ours))
    group = turns.group[kept]
    earliest = start[ours] - origin + own[ours]
    # The solver's tolerances are absolute: times and weights are brought to at most about 1.
    second, top = float(earliest.max()), float(each[ours].max())
    if not second > 0:
        return float((each[rows] * own[rows]).sum())
    release = np.maximum(start[group], turns.head[kept]) - origin
    seconds, tail = turns.seconds[kept] / second, turns.tail[kept] / second
    program = Turns(first, place[group], seconds, release / second, tail)
    ends = second * _least(program, earliest / second, each[ours] / top)
    gained = float((each[ours] * (ends - earliest)).sum()) - _SOLVER * top * float(ends.sum())
    return float((each[rows] * own[rows]).sum()) + max(0.0, gained)


def _least(turns: Turns, earliest: Floats, weight: Floats) -> Floats:
    """Ends of the least weighted sum under the inequalities, or most. `turns.head` is the release here."""
    from scipy import sparse  # noqa: PLC0415 (slow to import)
    from scipy.optimize import linprog  # noqa: PLC0415

    ends = earliest
    bounds = np.stack((earliest, np.full(len(earliest), np.inf)), 1)
    matrix = sparse.csr_array((0, len(earliest)))
    least = np.zeros(0)
    for _ in range(_ROUNDS):
        cuts = _broken(turns, ends, _SHORT * float(ends.max()))
        if not len(cuts.least):
            break
        new = sparse.csr_array((cuts.value, cuts.group, cuts.first), (len(cuts.least), len(earliest)))
        matrix, least = sparse.vstack((matrix, new), format="csr"), np.concatenate((least, cuts.least))
        result = linprog(weight, A_ub=-matrix, b_ub=-least, bounds=bounds, method="highs")
        if result.status != 0:
            break  # what has been found so far is a bound all the same
        raised = float(weight @ (result.x - ends))
        ends = result.x
        if raised < _GAIN * float(weight @ ends):
            break
        # A row that the optimum meets with room to spare does not hold it up.
        tight = result.ineqlin.residual <= 1e-6
        matrix, least = matrix[tight], least[tight]
    return ends


# ------------------------------------------------------------------ kernels: loops over columns, nothing else


@compiled
def _broken(turns: Turns, ends: Floats, short: float) -> _Cuts:
    """For each link, the inequality that these ends break the most, if by more than `short` seconds."""
    n_links = len(turns.first) - 1
    first = np.zeros(n_links + 1, np.int64)
    group = np.empty(len(turns.group), np.int64)
    value = np.empty(len(turns.group))
    least = np.empty(n_links)
    n = 0
    filled = 0
    for link in range(n_links):
        begin, end = turns.first[link], turns.first[link + 1]
        if end - begin < 2:
            continue
        middle = ends[turns.group[begin:end]] - turns.tail[begin:end] - turns.seconds[begin:end] / 2.0
        order = np.argsort(middle)
        release, upto = _worst(turns, begin, middle, order, short)
        if upto < 0:
            continue
        total, right = 0.0, 0.0
        for i in order[: upto + 1]:
            e = begin + i
            if turns.head[e] >= release:
                seconds = turns.seconds[e]
                group[filled], value[filled] = turns.group[e], seconds
                total += seconds
                right += seconds * (turns.tail[e] + seconds / 2.0)
                filled += 1
        value[first[n] : filled] /= total
        least[n] = right / total + release + total / 2.0
        n += 1
        first[n] = filled
    return _Cuts(first[: n + 1].copy(), group[:filled].copy(), value[:filled].copy(), least[:n].copy())


@compiled
def _worst(turns: Turns, begin: int, middle: Floats, order: Ints, short: float) -> tuple[float, int]:
    """The release and the last place in `order` of the set that is too early by most; place -1 if none is."""
    worst = 0.0
    release, upto = 0.0, -1
    for limit in np.unique(turns.head[begin : begin + len(order)]):
        total, passed, square = 0.0, 0.0, 0.0
        for at in range(len(order)):
            e = begin + order[at]
            if turns.head[e] < limit:
                continue
            total += turns.seconds[e]
            square += turns.seconds[e] ** 2
            passed += turns.seconds[e] * middle[order[at]]
            early = total * (limit + total / 2.0) - passed
            if early > short * total and early > worst * np.sqrt(square):
                worst = early / np.sqrt(square)
                release, upto = limit, at
    return release, upto
