"""Log lines on standard error: text for people, JSON lines for programs, with the same fields in both.

A record's text is constant and its values are fields (`extra=fields(interface="eth0")` in the call), so that
a line can be found and counted without taking a sentence apart.

Nobody waits for whoever reads the lines: what finds no room is dropped, and how much that was is said later.
"""

from __future__ import annotations

import json
import logging
import select
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

Format = Literal["text", "json"]
Value = str | int | float | bool
_KEY: Final = "fields"
_MOST_OF_EXCEPTION: Final = 3000
"""Characters, of its end: a line is to fit into the 4 KiB that a pipe with any room at all has."""


def fields(
    values: Mapping[str, Value],
) -> dict[str, Mapping[str, Value]]:
    """The `extra` argument of a logging call with these fields."""
    return {_KEY: values}


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z WARNING hostagent.queues repaired interface=eth0 changes=1`."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name} {record.getMessage()}"
        for key, value in _fields(record).items():
            text = str(value)
            plain = text.isprintable() and not set(text) & set(' "=') and text
            line += f" {key}={text if plain else json.dumps(text)}"
        if record.exc_info:
            line += f" exception={json.dumps(self.formatException(record.exc_info)[-_MOST_OF_EXCEPTION:])}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `event` and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        shown |= {key: value for key, value in _fields(record).items() if key not in shown}
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)[-_MOST_OF_EXCEPTION:]
        return json.dumps(shown)


class _Unhurried(logging.StreamHandler[TextIO]):
    """Writes a line where there is room for it, and goes on where there is none."""

    _lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not _has_room(self.stream):
            self._lost += 1
            return
        if self._lost:
            about = logging.LogRecord(__name__, logging.WARNING, "", 0, "lines lost, nobody read", None, None)
            setattr(about, _KEY, {"lines": self._lost})
            self._lost = 0
            super().emit(about)
        super().emit(record)


def _has_room(stream: TextIO) -> bool:
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
    except (OSError, ValueError):
        return True  # no file behind it
    return bool(poll.poll(0))


def setup(style: Format, level: int, stream: TextIO | None = None) -> None:
    """Send every log record of this process to `stream` (default: standard error) in one of two styles."""
    handler = _Unhurried(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z"


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    found = getattr(record, _KEY, {})
    return found if isinstance(found, Mapping) else {}
