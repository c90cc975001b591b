"""Sockets in the hosts of an emulated network, for tests that send something through it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from netsched import marking
from netsched.emulation import netns
from netsched.emulation.network import EmulatedNetwork

PORT = 5001


def udp(network: EmulatedNetwork, host: int) -> socket.socket:
    with netns.entered(network.pid(network.fabric.hosts[host])):
        end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind(("0.0.0.0", PORT))  # noqa: S104
    end.settimeout(2)
    return end


class Bulk:
    """One TCP connection from host `src` to host `dst` that always has something to send."""

    def __init__(self, network: EmulatedNetwork, src: int, dst: int, port: int, cls: int) -> None:
        hosts = network.fabric.hosts
        with netns.entered(network.pid(hosts[dst])):
            listener = socket.create_server((network.address(dst, 0), port))
        with netns.entered(network.pid(hosts[src])):
            self.sender = socket.socket()
        self.sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, marking.tos_of(marking.dscp_of(cls)))
        self.sender.bind((network.address(src, 0), 0))
        self.sender.connect((network.address(dst, 0), port))
        self.receiver, _ = listener.accept()
        listener.close()
        self.received = 0

    def start(self) -> None:
        for run in (self._send, self._receive):
            threading.Thread(target=run, daemon=True).start()

    def _send(self) -> None:
        block = bytes(16384)
        while True:
            try:
                self.sender.sendall(block)
            except OSError:
                return

    def _receive(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            while got := self.receiver.recv(65536):
                self.received += len(got)

    def rate_over(self, seconds: float) -> float:
        first, began = self.received, time.monotonic()
        time.sleep(seconds)
        return (self.received - first) / (time.monotonic() - began)

    def congestion_control(self) -> list[str]:
        ends = (self.sender, self.receiver)
        raw = [end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) for end in ends]
        return [name.rstrip(b"\0").decode() for name in raw]

    def retransmission_timeout(self) -> float:
        """Seconds; `tcpi_rto` is the first 32-bit field of struct tcp_info after its 8 bytes of flags."""
        info = self.receiver.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 12)
        return int.from_bytes(info[8:12], "little") / 1e6

    def stop(self) -> None:
        # shutdown would let its queue drain for seconds; a reset ends it now.
        self.sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sender.close()
