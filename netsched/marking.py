"""Which DSCP carries which priority class: the one table that switch, host queue and socket share.

It stands alone, without an import of ours, so that a training script, the emulator and the check of the
P4 program can all read the same numbers.

Class 0 is the most urgent, class 7 is unmarked traffic. The code points are chosen so that a network that
nobody configured does no harm with them: 24-31 are left out because NICs map DSCP >> 3 to a priority and
put PFC on 3, 46 (EF) and 48-63 because voice, routing and RoCE's CNP own them, and the class-selector
code points come first because the kernel's own TOS map leaves them in the middle band.
"""

from __future__ import annotations

from typing import Final

CLASSES: Final = 8
"""How many classes the table has; no port has more queues."""

DSCP_OF_CLASS: Final[tuple[int, ...]] = (40, 36, 32, 20, 18, 16, 8, 0)
"""DSCP (0-63) of class 0 (most urgent) to class 7 (unmarked), for a port with all 8 queues."""

CONTROL_DSCP: Final = 44
"""DSCP of control traffic (acknowledgements without data, rendezvous, heartbeats): class 0's queue.

44 (VOICE-ADMIT) rather than 48 (CS6), which NVIDIA's RoCE recipe uses for CNP and routers for routing.
44 >> 3 is 5, as for class 0's 40, so a NIC with the default map keeps the two together.
"""

NAMES: Final[dict[int, str]] = {
    0: "CS0", 1: "LE", 8: "CS1", 10: "AF11", 12: "AF12", 14: "AF13", 16: "CS2", 18: "AF21", 20: "AF22",
    22: "AF23", 24: "CS3", 26: "AF31", 28: "AF32", 30: "AF33", 32: "CS4", 34: "AF41", 36: "AF42",
    38: "AF43", 40: "CS5", 44: "VA", 46: "EF", 48: "CS6", 56: "CS7",
}  # fmt: skip
"""IANA's names of the code points."""


def dscp_of(cls: int, queues: int = CLASSES) -> int:
    """DSCP of class `cls` where ports have `queues` queues.

    The last class is always unmarked (DSCP 0), the others take the table from the top.
    ValueError unless 1 <= queues <= 8 and 0 <= cls < queues.
    """
    if not 1 <= queues <= CLASSES:
        raise ValueError(f"queues = {queues}: a port has 1 to {CLASSES}")
    if not 0 <= cls < queues:
        raise ValueError(f"class = {cls}: with {queues} queues it is 0 to {queues - 1}")
    return 0 if cls == queues - 1 else DSCP_OF_CLASS[cls]


def class_of(dscp: int, queues: int = CLASSES) -> int:
    """Class in which a packet with this DSCP is queued; an unknown code point is unmarked traffic."""
    marked = {dscp_of(cls, queues): cls for cls in range(queues - 1)} | {CONTROL_DSCP: 0}
    return marked.get(check_dscp(dscp), queues - 1)


def check_dscp(dscp: int) -> int:
    """`dscp` itself. ValueError if it is not 0-63 (the usual mistake is a TOS byte, 4 times the DSCP)."""
    if not 0 <= dscp <= 63:
        hint = f"; as a TOS byte it would be DSCP {dscp >> 2}" if 63 < dscp <= 255 else ""
        raise ValueError(f"dscp = {dscp}: a code point is 0 to 63{hint}")
    return dscp


def tos_of(dscp: int, old_tos: int = 0) -> int:
    """The TOS (or traffic class) byte with this DSCP, keeping the two ECN bits of `old_tos`."""
    return check_dscp(dscp) << 2 | (old_tos & 0b11)


def dscp_in(tos: int) -> int:
    """The DSCP in a TOS (or traffic class) byte."""
    return (tos & 0xFF) >> 2


def name_of(dscp: int) -> str:
    """IANA's name where there is one, else the number: "CS5", "DSCP 7"."""
    return NAMES.get(dscp, f"DSCP {dscp}")


def parse_dscp(text: int | str) -> int:
    """A DSCP from its number or its name ("CS5", "af42"). ValueError if it is neither."""
    if isinstance(text, int) and not isinstance(text, bool):
        return check_dscp(text)
    for dscp, name in NAMES.items():
        if isinstance(text, str) and text.upper() == name:
            return dscp
    raise ValueError(f"{text!r} is not a DSCP: write 0 to 63 or one of {', '.join(NAMES.values())}")
