"""Quantities with units, in and out: the only place with a factor of 8.

Inside the program a size is bytes, a time seconds and a rate bytes per second, all plain floats. At the
edge they are text with a unit ("10Gbit/s", "64MiB", "1.5ms"); a bare number is refused, because half the
world means bits and the other half bytes. SI prefixes are powers of ten, binary ones (Ki, Mi, ...) of two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

_SI: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIX: Final = _SI | _BINARY
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_NUMBER: Final = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_SIZE: Final = re.compile(_NUMBER + r"\s*([kKMGTP]|[KMGT]i)?(B|bit)")
_RATE: Final = re.compile(_NUMBER + r"\s*([kKMGTP]|[KMGT]i)?(B|bit|b)(?:/s|ps)")
_TIME: Final = re.compile(_NUMBER + r"\s*(ns|us|µs|ms|s|min|h)")
_LARGEST: Final = 1e24


def _positive(value: float, text: object, *, zero: bool) -> float:
    if not math.isfinite(value) or value > _LARGEST:
        raise ValueError(f"{text!r} is not a finite quantity of a sensible size")
    if value < 0 or (value == 0 and not zero):
        raise ValueError(f"{text!r} must be {'0 or more' if zero else 'more than 0'}")
    return value


def size(text: object) -> float:
    """Bytes of a size such as "64MiB", "1.5 MB", "800kbit". ValueError if it is not one."""
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, such as 64MiB, 100kB or 8Mbit")
    number, prefix, unit = match.groups()
    return _positive(float(number) * _PREFIX[prefix or ""] / (8 if unit == "bit" else 1), text, zero=True)


def rate(text: object) -> float:
    """Bytes per second of a rate such as "10Gbit/s", "10Gbps", "1.25 GB/s". ValueError if it is not one."""
    match = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a rate: write a number and a unit, such as 10Gbit/s or 1.25GB/s")
    number, prefix, unit = match.groups()
    return _positive(float(number) * _PREFIX[prefix or ""] / (1 if unit == "B" else 8), text, zero=False)


def duration(text: object) -> float:
    """Seconds of a time such as "1.5ms", "20us", "3 s". A plain 0 is allowed. ValueError if it is not one."""
    if isinstance(text, int) and not isinstance(text, bool) and text == 0:
        return 0.0
    match = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a time: write a number and a unit, such as 1.5ms, 20us or 3s")
    number, unit = match.groups()
    return _positive(float(number) * _SECONDS["us" if unit == "µs" else unit], text, zero=True)


@dataclass(frozen=True)
class Parsed:
    """Has pydantic read a field with `read`, without importing it for those who only show a quantity."""

    read: Callable[[object], float]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic import BeforeValidator  # noqa: PLC0415

        return BeforeValidator(self.read).__get_pydantic_core_schema__(source, handler)  # type: ignore[arg-type]


Size = Annotated[float, Parsed(size)]
Rate = Annotated[float, Parsed(rate)]
Duration = Annotated[float, Parsed(duration)]


def mbit(bytes_per_second: float) -> float:
    """Mbit/s, the unit of Mininet's `bw`."""
    return bytes_per_second * 8 / 1e6


def from_mbit(mbit_per_second: float) -> float:
    """Bytes per second of Mininet's `bw`."""
    return mbit_per_second * 1e6 / 8


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for factor, unit in steps:
        if abs(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value / steps[-1][0]:.4g} {steps[-1][1]}"


def show_size(value: float) -> str:
    return _scaled(value, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")))


def show_rate(value: float) -> str:
    return _scaled(
        value * 8, ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))
    )


def show_time(value: float) -> str:
    if not math.isfinite(value):
        return "never" if math.isnan(value) else "unlimited"
    return _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))
