"""Bundles are taken up by a link that carries them (carried.py) and let go, and what is due follows.

What a bundle has of the other links of its path is kept up with that, link by link, in `Carried.taken`.
"""

from __future__ import annotations

import numpy as np

from netsched.bundles import Bundles, catch_up, due_of
from netsched.carried import N_CARRIED, NOBODY, due_at, load_on, reading, reorder, unload
from netsched.dues import put_due
from netsched.jit import inlined, inner
from netsched.uses import SHIFT, Uses


@inlined
def take(bun: Bundles, net: Uses, b: int, rate: float) -> None:
    """Have carried bundle b take `rate` more of the links of its path that do not carry it."""
    c = bun.carried
    carrier = c.link_of[b]
    before = c.taken[carrier]
    for y in range(b << net.tally[SHIFT], net.end_hop[b]):
        link = net.link[net.of_hop[y]]
        c.taken[link] += rate
        c.waits[link] = 1
    c.taken[carrier] = before


@inlined
def _set_key(bun: Bundles, b: int) -> None:
    c = bun.carried
    c.key[b] = c.since[b] + (bun.tag[bun.root[b]] - bun.v[b]) / c.share[b]


@inlined
def show(bun: Bundles, link: int) -> None:
    """Have the first bundle that the link carries stand for all of them among those that are due."""
    c = bun.carried
    top = c.pool[c.start[link]] if c.size[link] else NOBODY
    old = c.first[link]
    if old >= 0 and old != top and c.link_of[old] == link:
        put_due(bun, old, np.inf)
    if top >= 0:
        put_due(bun, top, due_at(c, top))
    c.first[link] = top
    c.moved[link] = 0


@inner
def see_to(bun: Bundles, b: int) -> None:
    """Say when the first flow of bundle b ends, which may be another one than before."""
    c = bun.carried
    if c.link_of[b] < 0:
        put_due(bun, b, due_of(bun, b))
        return
    _set_key(bun, b)
    reorder(c, b)
    show(bun, c.link_of[b])


@inner
def carry(bun: Bundles, net: Uses, b: int, link: int) -> bool:
    """Have the link carry bundle b, whose `v` is that of now; False if there is no room."""
    c = bun.carried
    c.since[b] = reading(c, link, bun.clock[0])
    _set_key(bun, b)
    if not load_on(c, b, link):
        return False
    c.held[link] += c.heft[b]
    take(bun, net, b, c.pace[link] * c.heft[b])
    return True


@inner
def let_go(bun: Bundles, net: Uses, b: int) -> None:
    """Undo `carry`; the bundle has no rate then."""
    c = bun.carried
    link = c.link_of[b]
    catch_up(bun, b, bun.clock[0])
    take(bun, net, b, -c.pace[link] * c.heft[b])
    c.held[link] -= c.heft[b]
    unload(c, b)
    if c.first[link] == b:
        put_due(bun, b, np.inf)
        c.first[link] = NOBODY
    bun.v_at[b] = bun.clock[0]
    bun.unit_rate[b] = 0.0


@inner
def drop(bun: Bundles, net: Uses, b: int) -> None:
    """Have bundle b, which is about to be closed, carried by nobody."""
    c = bun.carried
    link = c.link_of[b]
    if link >= 0:
        let_go(bun, net, b)
        show(bun, link)
        c.tally[N_CARRIED] -= 1
