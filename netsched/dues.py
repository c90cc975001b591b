"""When the next flow ends: the earliest `due` of all bundles.

Some events change one rate, others nearly all. So the least value is kept per block of slots, and per region
of blocks: what changed is looked at again block by block, in which slots that change together lie together.
"""

from __future__ import annotations

import numpy as np

from netsched.bundles import BLOCK, N_STALE_BLOCKS, Bundles, catch_up, due_of
from netsched.jit import inner
from netsched.model import Floats
from netsched.uses import SAME


@inner
def put_due(bun: Bundles, b: int, at: float) -> None:
    """Say when the first flow of bundle b ends, inf for not at its present rate."""
    bun.due[b] = at
    block = b >> BLOCK
    if not bun.is_stale[block]:
        bun.is_stale[block] = 1
        bun.stale[bun.count[N_STALE_BLOCKS]] = block
        bun.count[N_STALE_BLOCKS] += 1


@inner
def put_rate(bun: Bundles, b: int, level: float, weight: float) -> None:
    """Give bundle b its reserves and bytes/s per unit of weight from now on."""
    rate = bun.booked[b] + level * bun.unit_weight[b]
    bun.level[b] = level
    bun.total[b] = level * weight
    if abs(rate - bun.unit_rate[b]) > SAME * rate:
        catch_up(bun, b, bun.clock[0])
        bun.v_at[b] = bun.clock[0]
        bun.unit_rate[b] = rate
        put_due(bun, b, due_of(bun, b))


@inner
def _least(values: Floats) -> float:
    """The least value: in four lanes, because one would wait for itself."""
    a, b, c, d = np.inf, np.inf, np.inf, np.inf
    n = len(values) & ~3
    for i in range(0, n, 4):
        a = min(values[i], a)
        b = min(values[i + 1], b)
        c = min(values[i + 2], c)
        d = min(values[i + 3], d)
    for i in range(n, len(values)):
        a = min(values[i], a)
    return min(a, b, c, d)


@inner
def next_due(bun: Bundles) -> float:
    """The earliest `due`."""
    for i in range(bun.count[N_STALE_BLOCKS]):
        block = bun.stale[i]
        bun.is_stale[block] = 0
        before = bun.block_due[block]
        least = _least(bun.due[block << BLOCK : (block + 1) << BLOCK])
        bun.block_due[block] = least
        region = block >> BLOCK
        if least <= bun.region_due[region]:
            bun.region_due[region] = least
        elif before == bun.region_due[region]:
            bun.region_due[region] = _least(bun.block_due[region << BLOCK : (region + 1) << BLOCK])
    bun.count[N_STALE_BLOCKS] = 0
    return _least(bun.region_due)
