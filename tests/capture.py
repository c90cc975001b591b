"""Records every packet of one interface to a pcap file until SIGTERM: `python capture.py INTERFACE FILE`.

A program of its own, so that recording does not delay what is recorded. Prints `ready` when it listens.
"""

from __future__ import annotations

import signal
import socket
import struct
import sys
from pathlib import Path

ALL_PROTOCOLS = 0x0003
ETHERNET = 1
SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
PACKET_STATISTICS = 6
SOL_PACKET = 263
NANOSECOND_PCAP = 0xA1B23C4D


def record(interface: str, path: Path) -> int:
    """How many packets were lost, which must be none."""
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 27)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sock.settimeout(0.05)
    sock.bind((interface, 0))
    signal.signal(signal.SIGTERM, stop)
    print("ready", flush=True)  # noqa: T201
    with path.open("wb") as file:
        file.write(struct.pack("=IHHiIII", NANOSECOND_PCAP, 2, 4, 0, 0, 1 << 16, ETHERNET))
        while True:
            try:
                data, extra, _, _ = sock.recvmsg(1 << 16, 64)
            except TimeoutError:
                if stopped:
                    break
                continue
            seconds, nanoseconds = struct.unpack("=qq", extra[0][2])
            file.write(struct.pack("=IIII", seconds, nanoseconds, len(data), len(data)) + data)
    _, lost = struct.unpack("=II", sock.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    return lost


if __name__ == "__main__":
    sys.exit(1 if record(sys.argv[1], Path(sys.argv[2])) else 0)
