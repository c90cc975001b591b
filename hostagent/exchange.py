"""One question and its answer over the agent's socket, as the client asks it."""

from __future__ import annotations

import array
import contextlib
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

from hostagent import protocol
from hostagent.protocol import MAX_PACKET, Message

_BACKLOG_S: Final = 0.005


def exchange(sock: socket.socket, number: int, request: dict[str, Any], fds: Sequence[int]) -> Message:
    """The answer to request `number`. BadRequest if the agent refuses, ConnectionError if it has ended."""
    packet = protocol.encode({"v": protocol.VERSION, "id": number, **request})
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    # An agent that refuses us has said why and closed: its answer is still there to be read.
    with contextlib.suppress(BrokenPipeError):
        sock.sendmsg([packet], rights)
    while True:
        try:
            data = sock.recv(MAX_PACKET)
        except ConnectionResetError:
            data = sock.recv(MAX_PACKET)
        if not data:
            raise ConnectionError("it closed the connection")
        answer = protocol.decode(data)
        if answer.get("id") not in (number, None):
            continue  # the late answer to a request that timed out
        if answer.get("ok") is not True:
            raise protocol.BadRequest(str(answer.get("code")), str(answer.get("message")))
        return answer


def connect(sock: socket.socket, path: str, deadline: float) -> None:
    """Connect, waiting for a place where others have filled the backlog. TimeoutError at `deadline`."""
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError from None
            time.sleep(_BACKLOG_S)
        else:
            return
