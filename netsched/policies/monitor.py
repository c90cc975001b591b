"""A sender's bandwidth, from the bytes that it has sent: read from views alone, kept in `Plan.memory`.

A flow that is in no view any more has sent all that it had. So two views say what was sent between them, and
the plan of the first says whose flows could have sent: bytes over the time in which one was let go. Where the
policy is asked whenever a flow ends that it let go, that time is exact; where it is asked later
(`control.period`), or learns from reports, bytes are counted when it learns of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import numpy as np

from netsched.model import Bools, Floats, Ints, View

Column = TypeVar("Column", Floats, Ints)

_ROUNDING: Final = 1e-9
_FORGOTTEN: Final = 1000
"""Periods without anything to send after which a sender is a new one: its job is over, or nearly always."""


class Memory(NamedTuple):
    """Arrays, as `Plan.memory` is: a value per watched flow, then a value per sender (a job on a host).

    at      (1,) time of the last look
    flow    numbers of the watched flows; `left` what they had to send, `owner` the row of their sender
    goes    was it let go? `handed` when it became part of a block (s), inf: of none yet
    job     and `host`: who the sender is
    stage   and `burst`: of the newest burst that has come, -1 before the first
    budget  bytes that its block may still take, inf from the last burst of a stage on
    begun   when its period began; `moved` bytes and `busy` seconds since then
    rate    bytes/s in the last period in which it sent, NaN before
    last    when it last had something to send
    """

    at: Floats
    flow: Ints
    left: Floats
    owner: Ints
    goes: Bools
    handed: Floats
    job: Ints
    host: Ints
    stage: Ints
    burst: Ints
    budget: Floats
    begun: Floats
    moved: Floats
    busy: Floats
    rate: Floats
    last: Floats


def watched(view: View, rows: Ints, period: float) -> Memory:
    """What is known now of the senders of these flows of the view, and of all that were seen before.

    Flow columns are those of `rows`, in their order; new ones are in no block.
    """
    flows = view.flows
    before = _of_late(Memory(*view.memory), period) if view.memory else _nothing(view.now)
    job, host = view.jobs.id[view.coflows.job[flows.coflow[rows]]], flows.src[rows]
    senders, owner, moved_to = _senders(before, job, host, view.now)
    number, left = flows.id[rows], flows.remaining[rows]
    old, where = _found(number, before.flow)
    now_left = np.zeros(len(before.flow))
    now_left[where[old]] = left[old]
    fresh = ~old & (flows.sent[rows] > 0)
    moved, busy = senders.moved.copy(), senders.busy.copy()
    np.add.at(moved, moved_to[before.owner], np.maximum(before.left - now_left, 0.0))
    np.add.at(moved, owner[fresh], flows.sent[rows][fresh])
    sending = np.zeros(len(busy), bool)
    sending[moved_to[before.owner[before.goes]]] = True
    busy += np.where(sending, view.now - before.at[0], 0.0)
    over = view.now - senders.begun >= period * (1 - _ROUNDING)
    measured = over & (busy > 0)
    rate = np.where(measured, moved / np.where(measured, busy, 1.0), senders.rate)
    last = senders.last.copy()
    last[owner] = view.now
    return senders._replace(
        at=np.array([view.now]),
        flow=number,
        left=left,
        owner=owner,
        goes=np.zeros(len(rows), bool),
        handed=np.where(old, np.append(before.handed, np.inf)[where], np.inf),
        begun=np.where(over, view.now, senders.begun),
        moved=np.where(over, 0.0, moved),
        busy=np.where(over, 0.0, busy),
        rate=rate,
        last=last,
    )


def review_in(seen: Memory, now: float, period: float) -> float:
    """Seconds until the next period of a sender ends that has something to send, inf for none.

    One that could send and did not in a whole period is not waited for: whatever lets it send again (the end
    of a fault, another flow's end) is an event.
    """
    some = np.zeros(len(seen.rate), bool)
    some[seen.owner[seen.goes]] = True
    ends = (seen.begun + period)[some & ~(seen.rate == 0)] - now
    return float(max(ends.min(initial=np.inf), period * _ROUNDING))


def slowest(view: View, rows: Ints, owner: Ints, senders: int) -> Floats:
    """Bytes/s of the slowest link that flows of each sender cross now, inf where it has none."""
    flows = view.flows
    sender = np.full(len(flows), -1)
    sender[rows] = owner
    of_link = np.repeat(sender, np.diff(flows.indptr))
    found = np.full(senders, np.inf)
    np.minimum.at(found, of_link[of_link >= 0], view.capacity[flows.links[of_link >= 0]])
    return found


def _nothing(now: float) -> Memory:
    floats, ints, bools = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, bool)
    kinds = (ints, floats, ints, bools, floats, ints, ints, ints, ints, *(floats,) * 6)
    return Memory(np.array([now]), *kinds)


def _of_late(seen: Memory, period: float) -> Memory:
    """Without senders that had nothing to send for long, none of which has a watched flow."""
    late = seen.at[0] - seen.last <= _FORGOTTEN * period
    if late.all():
        return seen
    per_sender = {name: getattr(seen, name)[late] for name in Memory._fields[6:]}
    return seen._replace(owner=(np.cumsum(late) - 1)[seen.owner], **per_sender)


def _senders(before: Memory, job: Ints, host: Ints, now: float) -> tuple[Memory, Ints, Ints]:
    """The senders known before and those of these jobs and hosts, sorted; the row of each, old and new."""
    known = np.stack([np.append(before.job, job), np.append(before.host, host)], axis=1)
    keys, row = np.unique(known, axis=0, return_inverse=True)
    row = row.reshape(-1)
    n_before, m = len(before.job), len(keys)
    moved_to, owner = row[:n_before], row[n_before:]

    def kept(column: Column, otherwise: float) -> Column:
        out = np.full(m, otherwise, column.dtype)
        out[moved_to] = column
        return out

    return (
        before._replace(
            job=keys[:, 0],
            host=keys[:, 1],
            stage=kept(before.stage, -1),
            burst=kept(before.burst, -1),
            budget=kept(before.budget, 0.0),
            begun=kept(before.begun, now),
            moved=kept(before.moved, 0.0),
            busy=kept(before.busy, 0.0),
            rate=kept(before.rate, np.nan),
            last=kept(before.last, now),
        ),
        owner,
        moved_to,
    )


def _found(number: Ints, known: Ints) -> tuple[Bools, Ints]:
    """Which flows were known, and where."""
    order = np.argsort(known, kind="stable")
    place = np.searchsorted(known[order], number)
    inside = np.minimum(place, max(len(known) - 1, 0))
    old = np.zeros(len(number), bool) if not len(known) else known[order][inside] == number
    where = np.zeros(len(number), np.int64) if not len(known) else order[inside]
    return old, where
