"""What an agent leaves on jobs' sockets when it gives everything back, and what it can take back itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hostagent import ladder, sockdiag
from hostagent.ledger import Ledger
from hostagent.protocol import Message
from hostagent.server import Connection
from hostagent.undo import Before

_SHOWN: Final = 16


def put_back(
    ledger: Ledger,
    before: Before,
    connections: Sequence[Connection],
    close: Callable[[Sequence[int]], None],
) -> None:
    """Give sockets their earlier marks back where no client does it: level pidfd's, and of jobs gone."""
    clients = {(client.job, client.peer.uid) for client in connections}
    wanted = [
        record.cookie
        for record in ledger.records()
        if record.level == ladder.PIDFD or (record.job, record.uid) not in clients
    ]
    for cookie in before.put_back(wanted, close):
        ledger.forget(cookie)


def still_marked(ledger: Ledger, connections: Sequence[Connection]) -> list[Message]:
    """Jobs' own sockets that carry a mark of ours now, by job and user; the kernel's word if it has one.

    `pids` are those of the job's clients that are connected; without one nobody can be asked.
    """
    found = {one.cookie: one for one in sockdiag.sockets()}
    ledger.prune(found)
    count: dict[tuple[str, int], int] = {}
    for record in ledger.records():
        one = found.get(record.cookie)
        carries = one is None or one.dscp == record.dscp
        if record.level != ladder.NFT_TUPLE and record.dscp and carries:
            count[record.job, record.uid] = count.get((record.job, record.uid), 0) + 1
    pids: dict[tuple[str, int], list[int]] = {}
    for client in connections:
        pids.setdefault((client.job, client.peer.uid), []).append(client.pid)
    return [
        {"job": job, "uid": uid, "sockets": sockets, "pids": pids.get((job, uid), [])[:_SHOWN]}
        for (job, uid), sockets in sorted(count.items())
    ]
