"""Lower bounds of a mean, or of a weighted sum, that no single row has: who shares a link must take turns.

The isolation bound gives every coflow the whole network. On a busy one the mean is far above it for any
policy, and how much of that is the policy's fault only a bound that knows of the others can say.

A group here is a coflow, a stage or a job. It may be *dated*: its start (the time from which its completion
time counts) does not depend on the schedule. A job starts when it arrives, a coflow or stage with a flow that
waits for nothing at its job's arrival. A start that others decide (a training step's) is policy dependent;
for such a group nothing more is claimed here than its own bound says, nor for one of whose flows the end of
something in another job might release before its own job arrives.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from netsched.bssi import Loads, by_link, loads_of
from netsched.jit import compiled
from netsched.model import Bools, Floats, Ints

SHORTEST_FIRST: Final = "shortest-first"

_REACH: Final = (1.0 + 1e-9, 1.5, 3.0, np.inf)
"""A link's turn-takers are those whose own bound is at most so many times what this link alone asks."""


class Turns(NamedTuple):
    """What a link has to do, link by link: entries `first[l]:first[l+1]`, one per group with bytes for l.

    group    that has them
    seconds  that the link needs for them
    head     seconds of the run before which none of them can be there
    tail     seconds that the group needs at least after the last of them
    """

    first: Ints
    group: Ints
    seconds: Floats
    head: Floats
    tail: Floats


@dataclass(frozen=True)
class Shared:
    """The groups of one kind. `dated`, one value per group; `free`: no flow waits for anything."""

    turns: Turns
    dated: Bools
    free: bool


def shared(
    group: Ints,
    n_groups: int,
    dated: Bools,
    free: bool,
    size: Floats,
    indptr: Ints,
    links: Ints,
    capacity: Floats,
    head: Floats,
    tail: Floats,
) -> Shared:
    """The turns of groups of flows, with `head` (seconds of the run) and `tail` per flow: see `Turns`."""
    member = np.argsort(group, kind="stable")
    start = np.searchsorted(group[member], np.arange(n_groups + 1))
    loads = loads_of(start, member, size, indptr, links, capacity)
    least_head, least_tail = _ends(start, member, size, indptr, links, loads, len(capacity), head, tail)
    first, entry, owner = by_link(loads, len(capacity))
    turns = Turns(first, owner[entry], loads.seconds[entry], least_head[entry], least_tail[entry])
    return Shared(turns, dated, free)


def shortest_first(
    groups: Shared, rows: Ints, start: Floats, own: Floats, weight: Floats | None = None
) -> float:
    """A lower bound of the sum over `rows` of weight x (finish - start), in seconds. NaN without a dated row.

    start   seconds of the run at which the group started, per group (its arrival, as it was in the run)
    own     a lower bound of the group's own completion time, such as isolation
    weight  per group, 1 each by default

    **One link, its bytes in turn.** Take any schedule, one link l, and a set T of groups with bytes for l.
    Group g's bytes need p seconds of the link, are not there before r = max(start, head), and g does not end
    before C + tail, C being the time at which the last of them has passed. Looking at l alone the schedule is
    one of a single machine with release times r and processing times p, where work may be interrupted (and
    mixed, the limit of ever shorter turns). There the least sum of C is that of shortest remaining processing
    time first (Schrage 1968); groups outside T could only add work. So the completion times over T sum to at
    least SRPT(T) + sum of (tail - start).

    **With weights** the least sum is NP-hard to find; but the mean busy time M (the mean over a group's bytes
    of the time at which they pass) satisfies C >= M + p / 2, as the link passes them no faster than in p
    seconds, and the sum of weight x M is least if at each moment the group with the highest weight / p among
    those there has the link (Goemans, Queyranne, Schulz, Skutella, Wang 2002): by exchange of bytes.

    **Many links, each group once.** For disjoint sets T1, T2, ... each with a link of its own choice, the
    bounds add up, and a group in none of them adds its `own`. Any choice is sound. Here links are taken one
    after the other, the one that gains most over `own` first, for the groups not yet taken, as long as one
    gains. So the result is at least the sum of `own`, and at least what any one link gives with the others'
    `own` added.
    """
    chosen = np.zeros(len(groups.dated), np.bool_)
    chosen[rows] = groups.dated[rows]
    if not chosen.any():
        return float("nan")
    each = np.ones(len(own)) if weight is None else weight
    equal = bool((each[chosen] == each[chosen][0]).all())
    gained = float(_partition(groups.turns, chosen, start, own, each, equal, np.array(_REACH)))
    return float((each[rows] * own[rows]).sum()) + gained


# ------------------------------------------------------------------ kernels: loops over columns, nothing else


@compiled
def _ends(
    start: Ints,
    member: Ints,
    size: Floats,
    indptr: Ints,
    links: Ints,
    loads: Loads,
    n_links: int,
    head: Floats,
    tail: Floats,
) -> tuple[Floats, Floats]:
    """Per entry of `loads`, the least head and the least tail of the flows with bytes for it."""
    least_head = np.full(len(loads.link), np.inf)
    least_tail = np.full(len(loads.link), np.inf)
    place = np.zeros(n_links, np.int64)
    for g in range(len(start) - 1):
        for e in range(loads.start[g], loads.start[g + 1]):
            place[loads.link[e]] = e
        for m in range(start[g], start[g + 1]):
            f = member[m]
            if size[f] > 0.0:
                for k in range(indptr[f], indptr[f + 1]):
                    e = place[links[k]]
                    least_head[e] = min(least_head[e], head[f])
                    least_tail[e] = min(least_tail[e], tail[f])
    return least_head, least_tail


@compiled
def _partition(
    turns: Turns,
    free: Bools,
    start: Floats,
    own: Floats,
    weight: Floats,
    equal: bool,
    reach: Floats,
) -> float:
    """What the greedy choice of links gains over the sum of weight x own. Takes groups out of `free`."""
    n_links = len(turns.first) - 1
    promised = np.empty(n_links)
    for link in range(n_links):
        promised[link] = _gain(turns, link, free, start, own, weight, equal, reach)[0]
    gained = 0.0
    while n_links > 0:
        link = int(np.argmax(promised))
        if promised[link] <= 0.0:
            break
        gain, of = _gain(turns, link, free, start, own, weight, equal, reach)
        if gain >= promised[link]:
            gained += gain
            for e in range(turns.first[link], turns.first[link + 1]):
                if _takes_turns(turns, e, free, start, own, of):
                    free[turns.group[e]] = False
            gain = _gain(turns, link, free, start, own, weight, equal, reach)[0]
        promised[link] = gain
    return gained


@compiled
def _takes_turns(turns: Turns, e: int, free: Bools, start: Floats, own: Floats, reach: float) -> bool:
    g = turns.group[e]
    here = max(0.0, turns.head[e] - start[g]) + turns.seconds[e] + turns.tail[e]
    return bool(free[g]) and own[g] <= reach * here


@compiled
def _gain(
    turns: Turns,
    link: int,
    free: Bools,
    start: Floats,
    own: Floats,
    weight: Floats,
    equal: bool,
    reach: Floats,
) -> tuple[float, float]:
    """The most that taking turns on this link gains over the groups' own bounds, and by which reach."""
    best = -np.inf
    best_reach = 0.0
    size = turns.first[link + 1] - turns.first[link]
    release, seconds, heavy = np.empty(size), np.empty(size), np.empty(size)
    for wide in reach:
        n = 0
        gain = 0.0
        for e in range(turns.first[link], turns.first[link + 1]):
            if _takes_turns(turns, e, free, start, own, wide):
                g = turns.group[e]
                release[n] = max(start[g], turns.head[e])
                seconds[n] = turns.seconds[e]
                heavy[n] = weight[g]
                gain += weight[g] * (turns.tail[e] - start[g] - own[g])
                n += 1
        if n == 0:
            continue
        if equal:
            gain += heavy[0] * _shortest_remaining(release[:n], seconds[:n])
        else:
            gain += _mean_busy(release[:n], seconds[:n], heavy[:n])
        if gain > best:
            best = gain
            best_reach = wide
    return best, best_reach


@compiled
def _shortest_remaining(release: Floats, seconds: Floats) -> float:
    """The least sum of completion times on one machine with interruptions."""
    order = np.argsort(release)
    waiting = [(0.0, 0) for _ in range(0)]
    now = 0.0
    total = 0.0
    n = len(order)
    i = 0
    while i < n or len(waiting) > 0:
        if len(waiting) == 0:
            now = max(now, release[order[i]])
        while i < n and release[order[i]] <= now:
            heapq.heappush(waiting, (seconds[order[i]], order[i]))
            i += 1
        left, job = heapq.heappop(waiting)
        until = release[order[i]] if i < n else np.inf
        if now + left <= until:
            now += left
            total += now
        else:
            heapq.heappush(waiting, (left - (until - now), job))
            now = until
    return total


@compiled
def _mean_busy(release: Floats, seconds: Floats, weight: Floats) -> float:
    """The least sum of weight x mean busy time on one machine, plus weight x seconds / 2."""
    order = np.argsort(release)
    waiting = [(0.0, 0.0, 0) for _ in range(0)]
    now = 0.0
    total = 0.0
    n = len(order)
    i = 0
    while i < n or len(waiting) > 0:
        if len(waiting) == 0:
            now = max(now, release[order[i]])
        while i < n and release[order[i]] <= now:
            job = order[i]
            heapq.heappush(waiting, (-weight[job] / seconds[job], seconds[job], job))
            i += 1
        key, left, job = heapq.heappop(waiting)
        until = release[order[i]] if i < n else np.inf
        spent = min(left, until - now)
        total -= key * spent * (now + spent / 2.0)
        now += spent
        if left > spent:
            heapq.heappush(waiting, (key, left - spent, job))
        else:
            total += weight[job] * seconds[job] / 2.0
    return total
