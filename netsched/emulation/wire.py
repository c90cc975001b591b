"""The bytes between conductor and endpoints, and between endpoints: fixed records, a batch is one copy.

Control travels over a SOCK_SEQPACKET pair per host: one packet is one kind byte and any number of records.
Data travels over TCP as chunks: a header, then payload that nobody looks at.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final

import numpy as np

OPEN, OPENED, START, CHANGE, DONE, PROGRESS, STATS, QUIT, FAILED = b"OoSCDPTQE"
"""Kinds. OPEN connections, they are OPENED; START flows, CHANGE them; receivers say DONE and PROGRESS."""

START_RECORD: Final = np.dtype(
    [
        ("flow", "<u4"),
        ("order", "<u4"),
        ("lane", "<u4"),
        ("dst", "<u4"),
        ("cls", "<u4"),
        ("bytes", "<u8"),
        ("cap", "<f8"),
    ]
)
"""A flow to send: `order` is its place in the order of release, `dst` the IPv4 address that names host and
path, `bytes` what goes over the wire (headers of chunks included), `cap` bytes/s (inf: none)."""

CHANGE_RECORD: Final = np.dtype([("flow", "<u4"), ("cls", "<u4"), ("cap", "<f8")])
DONE_RECORD: Final = np.dtype([("flow", "<u4"), ("at", "<f8")])
PROGRESS_RECORD: Final = np.dtype([("flow", "<u4"), ("bytes", "<u8")])

CHUNK: Final = struct.Struct("<IIQ")
"""Header of a chunk: flow, payload bytes that follow, bytes of the whole flow on the wire."""

HELLO: Final = 0xFFFFFFFF
"""The flow of the first chunk on every connection; it belongs to nobody. See `Receiver`."""
HELLO_BYTES: Final = 1448
"""A full segment."""

_BATCH: Final = 1000
LARGEST: Final = 1 << 17


def send_records(end: socket.socket, kind: int, records: np.ndarray[Any, Any]) -> None:
    """Send records in as many packets as they need. Blocks while the other end is slow."""
    for first in range(0, len(records), _BATCH):
        end.sendall(bytes([kind]) + records[first : first + _BATCH].tobytes())


def send_json(end: socket.socket, kind: int, body: Any = None) -> None:
    end.sendall(bytes([kind]) + json.dumps(body).encode())


def wire_size(size: float, scale: float) -> int:
    """Bytes that stand for a flow of `size` bytes: scaled, never less than the header that announces it."""
    return max(CHUNK.size, round(size * scale))
