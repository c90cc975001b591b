"""Bundles on their links: they enter and leave, and wait where nothing is left for them.

Under strict priority most bundles of most classes find a link used up by the classes before. Such a bundle is
*parked*: it is not among those of its class and of its links, which a repair looks at, but with the one use
that blocks it. It comes back when something is left for its class there, unless another use blocks it.
"""

from __future__ import annotations

import numpy as np

from netsched.allocate import weight_in
from netsched.bundles import Bundles
from netsched.jit import inner
from netsched.model import Ints
from netsched.uses import NOTHING, SHIFT, Uses, mark, use_of

_EXACT = 2.0**30
"""A whole weight up to this much: as many as there are of them add up without rounding."""


@inner
def hold(net: Uses, b: int, bottleneck: int) -> None:
    """Note what holds bundle b, which is not parked, at its level from now on."""
    if net.bottleneck[b] == bottleneck:
        return
    if net.bottleneck[b] >= 0:
        net.n_held[net.bottleneck[b]] -= 1
    if bottleneck >= 0:
        net.n_held[bottleneck] += 1
    net.bottleneck[b] = bottleneck


@inner
def _link_hop(net: Uses, first: Ints, x: int) -> None:
    """Put hop x into the chain from `first` of its use."""
    u = net.of_hop[x]
    other = first[u]
    net.before[x] = NOTHING
    net.after[x] = other
    if other >= 0:
        net.before[other] = x
    first[u] = x


@inner
def _unlink_hop(net: Uses, first: Ints, x: int) -> None:
    """Take hop x out of the chain from `first` of its use."""
    before, after = net.before[x], net.after[x]
    if before >= 0:
        net.after[before] = after
    else:
        first[net.of_hop[x]] = after
    if after >= 0:
        net.before[after] = before


@inner
def _join(net: Uses, b: int) -> None:
    """Have bundle b looked at with those of its class and of its links."""
    k = net.class_of[b]
    peer = net.newest[k]
    net.last_peer[b] = NOTHING
    net.next_peer[b] = peer
    if peer >= 0:
        net.last_peer[peer] = b
    net.newest[k] = b
    for x in range(b << net.tally[SHIFT], net.end_hop[b]):
        _link_hop(net, net.first_hop, x)
        net.weight_on[net.of_hop[x]] += net.plain[b]


@inner
def _leave(net: Uses, b: int) -> None:
    """Undo `_join`."""
    before, after = net.last_peer[b], net.next_peer[b]
    if before >= 0:
        net.next_peer[before] = after
    else:
        net.newest[net.class_of[b]] = after
    if after >= 0:
        net.last_peer[after] = before
    for x in range(b << net.tally[SHIFT], net.end_hop[b]):
        _unlink_hop(net, net.first_hop, x)
        net.weight_on[net.of_hop[x]] -= net.plain[b]


@inner
def _plain_weight(bun: Bundles, net: Uses, b: int) -> float:
    """What `Uses.plain` says of bundle b."""
    weight = weight_in(bun, b)
    whole = weight == np.floor(weight) and weight <= _EXACT
    return weight if whole and bun.uncapped[b] and net.end_hop[b] > b << net.tally[SHIFT] else 0.0


@inner
def weigh(bun: Bundles, net: Uses, b: int) -> None:
    """Take note of the present weight of bundle b, which is on its links."""
    before, weight = net.plain[b], _plain_weight(bun, net, b)
    if weight == before:
        return
    net.plain[b] = weight
    net.n_special[net.class_of[b]] += int(weight == 0.0) - int(before == 0.0)
    if not net.is_parked[b]:
        for x in range(b << net.tally[SHIFT], net.end_hop[b]):
            net.weight_on[net.of_hop[x]] += weight - before


@inner
def _wait_at(net: Uses, b: int, u: int) -> None:
    """Have parked bundle b, which waits nowhere, wait at use u of its path."""
    x = b << net.tally[SHIFT]
    while net.of_hop[x] != u:
        x += 1
    net.bottleneck[b] = u
    _link_hop(net, net.first_parked, x)


@inner
def _stop_waiting(net: Uses, b: int) -> None:
    x = b << net.tally[SHIFT]
    while net.of_hop[x] != net.bottleneck[b]:
        x += 1
    net.bottleneck[b] = NOTHING
    _unlink_hop(net, net.first_parked, x)


@inner
def blocked_by(net: Uses, b: int) -> int:
    """A use on the path of bundle b of which nothing is left for its class, NOTHING if there is none."""
    for x in range(b << net.tally[SHIFT], net.end_hop[b]):
        if net.entry[net.of_hop[x]] <= 0.0:
            return int(net.of_hop[x])
    return NOTHING


@inner
def parks(bun: Bundles, net: Uses, b: int) -> bool:
    """Park bundle b if it has nothing and is blocked; whether it did."""
    if bun.level[b] > 0.0:
        return False
    u = blocked_by(net, b)
    if u == NOTHING:
        return False
    hold(net, b, NOTHING)
    _leave(net, b)
    net.is_parked[b] = 1
    net.n_parked[net.class_of[b]] += 1
    _wait_at(net, b, u)
    return True


@inner
def unpark(net: Uses, b: int) -> None:
    """Have parked bundle b take part again."""
    _stop_waiting(net, b)
    net.is_parked[b] = 0
    net.n_parked[net.class_of[b]] -= 1
    _join(net, b)


@inner
def comes_back(net: Uses, b: int) -> bool:
    """Unpark bundle b if it is no longer blocked, else have it wait where it is; whether it is back."""
    u = blocked_by(net, b)
    if u == NOTHING:
        unpark(net, b)
        return True
    if u != net.bottleneck[b]:
        _stop_waiting(net, b)
        _wait_at(net, b, u)
    return False


@inner
def put_on_links(bun: Bundles, net: Uses, b: int, k: int) -> None:
    """Enter bundle b in class k and on the links of its path; its rate is left to the next repair."""
    net.class_of[b] = k
    net.bottleneck[b] = NOTHING
    net.is_parked[b] = 0
    net.size[k] += 1
    x = b << net.tally[SHIFT]
    for i in range(bun.path_ptr[bun.path[b]], bun.path_ptr[bun.path[b] + 1]):
        u = use_of(bun, net, bun.path_links[i], k)
        net.of_hop[x] = u
        net.n_on[u] += 1
        x += 1
    net.end_hop[b] = x
    net.plain[b] = _plain_weight(bun, net, b)
    net.n_special[k] += net.plain[b] == 0.0
    _join(net, b)


@inner
def take_off_links(net: Uses, b: int) -> None:
    """Undo `put_on_links`, and have all looked at that the bundle leaves behind."""
    k = net.class_of[b]
    if net.is_parked[b]:
        _stop_waiting(net, b)
        net.n_parked[k] -= 1
    else:
        hold(net, b, NOTHING)
        _leave(net, b)
    net.class_of[b] = NOTHING
    net.size[k] -= 1
    net.n_special[k] -= net.plain[b] == 0.0
    for x in range(b << net.tally[SHIFT], net.end_hop[b]):
        net.n_on[net.of_hop[x]] -= 1
        mark(net, net.of_hop[x])
