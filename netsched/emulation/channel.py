"""Messages between the program and its enclosure: a kind, a JSON body and numpy columns.

The two ends are separate processes that share one socket pair and nothing on disk, so whatever one of
them leaves behind when it is killed is a closed socket. No pickle: a message can only be data.
"""

from __future__ import annotations

import io
import json
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from netsched.errors import EmulationError

_HEADER: Final = struct.Struct("!IIQ")
_MAGIC: Final = 0x6E736D31
_LARGEST: Final = 1 << 34


@dataclass(frozen=True)
class Message:
    """`kind` says what it is, `body` is anything JSON can hold, `arrays` are columns of plain numbers."""

    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)


class Channel:
    """One end of the socket pair. `send` may be called from any thread, `receive` from one at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Sends one message. EmulationError when the other end is gone."""
        text = json.dumps({"kind": message.kind, "body": message.body}).encode()
        columns = _pack(message.arrays)
        try:
            with self._sending:
                self._socket.sendall(_HEADER.pack(_MAGIC, len(text), len(columns)) + text)
                if columns:
                    # Nothing may follow the last byte that the other end waits for: it may close then.
                    self._socket.sendall(columns)
        except OSError as error:
            raise EmulationError(f"the other end of the emulation's channel is gone: {error}") from error

    def receive(self) -> Message | None:
        """The next message, or None once the other end has closed. Blocks."""
        header = self._read(_HEADER.size)
        if header is None:
            return None
        magic, n_text, n_columns = _HEADER.unpack(header)
        if magic != _MAGIC or n_columns > _LARGEST:
            raise EmulationError("the emulation's channel carried bytes that are not a message")
        text, columns = self._read(n_text), self._read(n_columns)
        if text is None or columns is None:
            return None
        head = json.loads(text.decode())
        return Message(head["kind"], head["body"], _unpack(columns))

    def wait_for_close(self) -> None:
        """Returns when the other end has closed; whatever it still says is dropped."""
        try:
            while self._socket.recv(4096):
                pass
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()

    def _read(self, n: int) -> bytes | None:
        buffer = bytearray(n)
        view, got = memoryview(buffer), 0
        while got < n:
            try:
                step = self._socket.recv_into(view[got:])
            except ConnectionError:
                return None
            if step == 0:
                return None
            got += step
        return bytes(buffer)


def _pack(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    if not arrays:
        return b""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _unpack(columns: bytes) -> dict[str, npt.NDArray[Any]]:
    if not columns:
        return {}
    with np.load(io.BytesIO(columns), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
