"""Paths for whole jobs, one after the other, each where those before it have left most room."""

from __future__ import annotations

from typing import Final

import numpy as np

from netsched.model import Floats, Ints, View, Ways

_NOTHING: Final = 1e-6
"""Bytes: whoever has sent less has sent nothing, but for rounding."""


def least_loaded(view: View, ways: Ways, job: Ints, first: Ints, load: Floats) -> Ints:
    """A path index per flow: jobs (rows of `view.jobs`) choose in the order of `first`.

    All flows of a job between two hosts take one path, since they may share a connection. Each such pair puts
    its job's `load` (seconds, one value per job) on the links of its path, and takes the path whose most
    loaded link has least before it comes; of equal ones that with the least load in total, then the first. A
    pair that has sent already keeps the path that it has.
    """
    flows = view.flows
    turn = np.empty(len(first), np.int64)
    turn[first] = np.arange(len(first))
    keys = np.stack([turn[job], flows.src, flows.dst])
    pairs, member = np.unique(keys, axis=1, return_inverse=True)
    member = member.reshape(-1)
    n_pairs, n_paths = pairs.shape[1], ways.n_paths
    indptr, links = ways.paths(
        np.repeat(pairs[1], n_paths), np.repeat(pairs[2], n_paths), np.tile(np.arange(n_paths), n_pairs)
    )
    started = np.full(n_pairs, -1, np.int64)
    under_way = np.flatnonzero(flows.sent > _NOTHING)[::-1]
    started[member[under_way]] = under_way
    on = np.zeros(len(view.capacity))
    chosen = np.zeros(n_pairs, np.int64)
    for i in np.argsort(started < 0, kind="stable").tolist():
        options = [links[indptr[k] : indptr[k + 1]] for k in range(i * n_paths, (i + 1) * n_paths)]
        if started[i] >= 0:
            row = started[i]
            has = flows.links[flows.indptr[row] : flows.indptr[row + 1]]
            chosen[i] = next((p for p, each in enumerate(options) if np.array_equal(each, has)), 0)
        else:
            cost = [(on[each].max(initial=0.0), on[each].sum(), p) for p, each in enumerate(options)]
            chosen[i] = min(cost)[2]
        on[options[chosen[i]]] += load[first[pairs[0, i]]]
    return chosen[member]
