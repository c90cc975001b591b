"""A job with one flow: `python coordinated_job.py send AGENT JOB COFLOW SIZE ADDR PORT` or `... sink ADDR`.

The sender obeys lines on its standard input, `send BYTES` or `look`, and answers each with one JSON line
when it has arrived: what the agent said and what its socket carries. The sink swallows whatever comes, says
its port first and `end` whenever a sender has ended.
"""

from __future__ import annotations

import fcntl
import json
import selectors
import socket
import sys
import termios
import time

from hostagent import client


def send(agent: str, job: str, coflow: str, size: str, address: str, port: str) -> None:
    with (
        socket.create_connection((address, int(port))) as sock,
        client.connect(agent, job=job, timeout=2) as us,
    ):
        # Which does not make room for others before it loses something, as the machine's default may.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        flow = us.flow(f"{job} here", coflow=coflow, size=float(size), sockets=[sock])
        for line in sys.stdin:
            words = line.split()
            more = int(words[1]) if words[0] == "send" else 0
            sock.sendall(bytes(more))
            while under_way(sock):
                time.sleep(0.001)
            word = flow.sent(more, sockets=[sock])
            tos = sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)
            found = {
                "class": word.cls,
                "source": word.source,
                "tos": tos,
                "refused": word.refused,
                "hold": word.hold,
            }
            print(json.dumps(found), flush=True)  # noqa: T201
        flow.done()


def under_way(sock: socket.socket) -> int:
    """Bytes that the other end has not acknowledged."""
    return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def sink(address: str) -> None:
    poll = selectors.DefaultSelector()
    listener = socket.create_server((address, 0))
    poll.register(listener, selectors.EVENT_READ)
    poll.register(sys.stdin, selectors.EVENT_READ)
    print(listener.getsockname()[1], flush=True)  # noqa: T201
    while True:
        for key, _ in poll.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                poll.register(listener.accept()[0], selectors.EVENT_READ)
            elif not key.fileobj.recv(1 << 16):  # type: ignore[union-attr]
                poll.unregister(key.fileobj)
                print("end", flush=True)  # noqa: T201


if __name__ == "__main__":
    {"send": send, "sink": sink}[sys.argv[1]](*sys.argv[2:])
