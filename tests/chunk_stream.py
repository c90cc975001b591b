"""The bytes of one data connection read as chunks, by the format alone, without the receiver's code."""

from __future__ import annotations

from typing import NamedTuple

HEADER = 16
HELLO = 0xFFFFFFFF


class Chunk(NamedTuple):
    """Bytes `start` to `end` of a connection, header included; `total` is the whole flow on the wire."""

    flow: int
    total: int
    start: int
    end: int


def chunks_of(stream: bytes) -> list[Chunk]:
    """All chunks that begin in `stream`; the last one may end beyond it. The hello is one of them."""
    found, at = [], 0
    while at + HEADER <= len(stream):
        flow = int.from_bytes(stream[at : at + 4], "little")
        payload = int.from_bytes(stream[at + 4 : at + 8], "little")
        total = int.from_bytes(stream[at + 8 : at + 16], "little")
        found.append(Chunk(flow, total, at, at + HEADER + payload))
        at += HEADER + payload
    return found


def bytes_per_flow(stream: bytes) -> dict[int, int]:
    """Bytes of each flow in a stream of whole chunks, headers included, hello left out."""
    found: dict[int, int] = {}
    for chunk in chunks_of(stream):
        if chunk.flow != HELLO:
            found[chunk.flow] = found.get(chunk.flow, 0) + chunk.end - chunk.start
    return found
