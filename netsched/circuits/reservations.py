"""Sunflow's table of port reservations, compiled: it is asked very often."""

from __future__ import annotations

import heapq

import numpy as np

from netsched.circuits.planes import AT_ONCE
from netsched.jit import compiled
from netsched.model import Floats, Ints

SLACK = 1e-9
"""Of a reservation: so that rounding leaves no byte behind that would have to wait for a circuit again."""

_FIRST_ROOM = 16
"""Reservations that each port has room for at first."""


@compiled
def _free_from(begin: Floats, end: Floats, t: float) -> float:
    """The first time from t on at which nothing of a port (its reservations, ascending) is reserved."""
    i = np.searchsorted(begin, t, side="right") - 1
    return float(end[i]) if i >= 0 and end[i] > t else t


@compiled
def _next_after(begin: Floats, t: float) -> float:
    i = np.searchsorted(begin, t, side="right")
    return float(begin[i]) if i < len(begin) else np.inf


@compiled
def _gap(begin: Floats, end: Floats, n: Ints, a: int, b: int, t: float, setup: float) -> tuple[float, float]:
    """The first time from t on at which a and b are both free for longer than `setup`; until when."""
    while True:
        start = _free_from(begin[a, : n[a]], end[a, : n[a]], t)
        start = _free_from(begin[b, : n[b]], end[b, : n[b]], start)
        if start > t:
            t = start
            continue
        limit = min(_next_after(begin[a, : n[a]], t), _next_after(begin[b, : n[b]], t))
        if limit - t > setup * (1 + SLACK) + AT_ONCE:
            return t, limit
        t = limit


@compiled
def _add(begin: Floats, end: Floats, n: Ints, port: int, start: float, until: float) -> None:
    i = np.searchsorted(begin[port, : n[port]], start, side="right")
    for k in range(n[port], i, -1):
        begin[port, k] = begin[port, k - 1]
        end[port, k] = end[port, k - 1]
    begin[port, i] = start
    end[port, i] = until
    n[port] += 1


@compiled
def book(
    cuts: Ints, rows: Ints, src: Ints, dst: Ints, seconds: Floats, delay: float, ahead: float, up_in: Floats
) -> tuple[Floats, Floats, Ints, Ints]:
    """Reserve for coflow after coflow, the rows cuts[c]:cuts[c + 1] of `rows` each; begins, ends and rows.

    `up_in` (E, E): seconds until the circuit of a pair is up, inf where there is none. A pair is reserved for
    the first coflow that has it: (E, E) the row of that, -1 for none, comes last. What begins `ahead` seconds
    from now or later is left out.
    """
    ports = len(up_in)
    begin, end = np.empty((2 * ports, _FIRST_ROOM)), np.empty((2 * ports, _FIRST_ROOM))
    n = np.zeros(2 * ports, np.int64)
    holder = np.full((ports, ports), -1, np.int64)
    begins, ends, made = [0.0 for _ in range(0)], [0.0 for _ in range(0)], [0 for _ in range(0)]
    for c in range(len(cuts) - 1):
        # What is up already goes first, so that it is not given up for others of its own coflow.
        heap = [(0.0, False, 0, 0.0) for _ in range(0)]
        for r in rows[cuts[c] : cuts[c + 1]]:
            if holder[src[r], dst[r]] < 0:
                holder[src[r], dst[r]] = r
                heapq.heappush(heap, (0.0, up_in[src[r], dst[r]] == np.inf, r, seconds[r]))
        while heap:
            t, fresh, r, need = heapq.heappop(heap)
            a, b = src[r], ports + dst[r]
            setup = up_in[src[r], dst[r]] if t == 0.0 and not fresh else delay
            start, limit = _gap(begin, end, n, a, b, t, setup)
            if start >= ahead:
                continue
            if start > t:
                heapq.heappush(heap, (start, True, r, need))
                continue
            until = min(start + setup + need * (1 + SLACK), limit)
            if max(n[a], n[b]) == begin.shape[1]:
                begin = np.concatenate((begin, np.empty_like(begin)), axis=1)
                end = np.concatenate((end, np.empty_like(end)), axis=1)
            _add(begin, end, n, a, start, until)
            _add(begin, end, n, b, start, until)
            begins.append(start)
            ends.append(until)
            made.append(r)
            left = need - (until - start - setup)
            # What rounding leaves would be reserved for ever, where the clock cannot tell its ends apart.
            if left > max(SLACK * need, AT_ONCE):
                heapq.heappush(heap, (until, True, r, left))
    return np.array(begins), np.array(ends), np.array(made), holder
