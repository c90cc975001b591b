"""What client and agent say to each other: one JSON object a packet over a Unix SOCK_SEQPACKET socket.

    {"v": 1, "id": 7, "verb": "tag", "class": 0}  + descriptors     ->
    {"v": 1, "id": 7, "ok": true, "status": "full", "results": [...]}
    {"v": 1, "id": 8, "ok": false, "code": "bad-class", "message": "class = 9: ..."}

Packets, so that neither side ever waits for the rest of a message; JSON, so that any language can speak it.
Unknown fields are ignored (a newer client works), an unknown verb or version is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

VERSION: Final = 1
MAX_PACKET: Final = 65536
"""Bytes of a packet; a longer one is refused."""
MAX_FDS: Final = 253
"""Descriptors of a packet: the kernel's SCM_MAX_FD."""
MAX_TEXT: Final = 128
"""Characters of a name that a client may give to a job or class."""
_LONGEST_S: Final = 1e9
"""Of a time that has passed; more is for ever."""
DEFAULT_SOCKET: Final = "/run/netsched/agent.sock"
JOB_VARIABLE: Final = "NETSCHED_JOB"
"""Environment variable with the job's name for clients that give none."""

Message = dict[str, Any]


class BadRequest(Exception):  # noqa: N818  (an answer, not a failure of ours)
    """A request that gets an error for an answer. `code` is for programs, the text for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Tagged:
    """What became of one socket: its marks as read back from the kernel, not as asked.

    ok        it carries the mark that was asked for
    dscp      its DSCP, -1 if it could not be read
    priority  its SO_PRIORITY, -1 if it could not be read
    family    "ipv4", "ipv6", "ipv4-mapped" or ""
    error     why not, "" if ok
    """

    ok: bool
    dscp: int
    priority: int
    family: str
    error: str = ""


def encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def decode(packet: bytes) -> Message:
    """The message in a packet. BadRequest if it is none that this version understands."""
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError):
        raise BadRequest("bad-json", "the packet is not one JSON object in UTF-8") from None
    if not isinstance(message, dict):
        raise BadRequest("bad-json", f"the packet is a JSON {type(message).__name__}, not an object")
    if message.get("v") != VERSION or isinstance(message.get("v"), bool):
        raise BadRequest("bad-version", f"v = {shown(message.get('v'))}: this side speaks v = {VERSION}")
    return message


def text_field(message: Message, key: str, default: str | None = None) -> str:
    """A short printable text of a request. BadRequest if it is something else, or missing without default."""
    value = message.get(key, default)
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise BadRequest("bad-field", f"{key}: a printable text of at most {MAX_TEXT} characters is expected")
    return value


def shown(value: object) -> str:
    """A value of a request, short enough for a message; of a nested one only its kind."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__}"
    return repr(value)[:MAX_TEXT]


def numbers(value: Any, name: str) -> list[int]:
    """1 to MAX_FDS positive numbers of a request. BadRequest if it is something else."""
    good = isinstance(value, list) and 0 < len(value) <= MAX_FDS
    if not good or not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n < 2**64 for n in value):
        raise BadRequest("bad-field", f"{name}: 1 to {MAX_FDS} positive numbers are expected")
    return list(value)


def address(text: str, key: str) -> tuple[str, int]:
    """(address, port) of "10.0.0.1:29500" or "[::1]:29500". BadRequest if it is something else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise BadRequest("bad-field", f"{key}: an address and a port are expected, such as 10.0.0.1:29500")
    return host.strip("[]"), int(port)


def seconds(message: Message, key: str) -> float:
    """A time that has passed, in seconds; inf where none is said. BadRequest if it is something else."""
    value = message.get(key, math.inf)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadRequest("bad-field", f"{key}: a number of seconds, 0 or more, is expected")
    return float(value) if value < _LONGEST_S else math.inf


def flag(message: Message, key: str, default: bool) -> bool:
    """A true or false of a request. BadRequest if it is something else."""
    value = message.get(key, default)
    if not isinstance(value, bool):
        raise BadRequest("bad-field", f"{key}: true or false is expected")
    return value


def results_to_json(results: list[Tagged]) -> list[dict[str, Any]]:
    return [asdict(result) for result in results]


def results_from_json(items: object) -> list[Tagged]:
    """The results of a tag request. ValueError or TypeError if they are something else."""
    if not isinstance(items, list):
        raise ValueError("results: a list is expected")
    return [Tagged(**item) for item in items]
