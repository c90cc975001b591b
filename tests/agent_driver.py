"""Runs agents in forked children and kills them at a step: `python agent_driver.py CONFIG`.

Commands on stdin, each answered by a line:

    start N M     run an agent that dies at its Nth change before it is ready or its Mth after (-1: lives)
    stop | kill   SIGTERM or SIGKILL to the agent
    look          whether the agent has died by itself
    cleanup N     `cleanup --orphans`, which dies at its Nth change

The agent's own code has no hook for this: every function that changes something in the kernel is replaced, in
the child, by one that counts first. A fork costs milliseconds, an interpreter with the agent half a second.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostagent import bands, bpf, commands, nft, nftmarks, server
from hostagent.agent import Agent
from hostagent.config import load
from netsched.netlink import Netlink


class Steps:
    """Counts changes; at the one before which it is to die, the process kills itself as a bullet would."""

    def __init__(self, die_at: int) -> None:
        self.die_at = die_at
        self.done = 0

    def take(self) -> None:
        if self.done == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.done += 1

    def before(self, do: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(do)
        def counted(*args: Any, **more: Any) -> Any:
            self.take()
            return do(*args, **more)

        return counted

    def watch_all(self) -> None:
        Netlink.request = self.before(Netlink.request)
        nftmarks.NftMarks._do = self.before(nftmarks.NftMarks._do)
        bands.Bands._do = self.before(bands.Bands._do)
        nft.remove = self.before(nft.remove)
        bpf.attach = self.before(bpf.attach)
        server.listen = self.before(server.listen)
        Path.unlink = self.before(Path.unlink)


def fork(work: Callable[[int], int]) -> tuple[int, int]:
    """(pid, descriptor that the child writes to) of a child that does `work`."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 70
        try:
            code = work(writing)
        except BaseException as error:
            os.write(writing, f"failed {type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)
    os.close(writing)
    return pid, reading


def agent(path: str, before: int, after: int) -> Callable[[int], int]:
    def work(writing: int) -> int:
        # Comparisons twenty times a second instead of once a second at most, which is all that a file allows.
        config = load(path).model_copy(update={"resync": 0.05})
        steps = Steps(before)
        steps.watch_all()

        def ready() -> None:
            os.write(writing, f"ready {steps.done}".encode())
            os.close(writing)
            steps.die_at, steps.done = after, 0

        Agent(config).run(ready)
        return 0

    return work


def cleanup(path: str, die_at: int) -> Callable[[int], int]:
    def work(writing: int) -> int:
        Steps(die_at).watch_all()
        outcome = commands.cleanup(load(path).api.socket, remove=True)
        os.write(writing, "; ".join(outcome.lines).encode())
        return outcome.code

    return work


def ended(pid: int, options: int = 0) -> str:
    died, status = os.waitpid(pid, options)
    if not died:
        return "alive"
    return f"exit {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}"


def main(path: str) -> None:
    pid = 0
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb in ("start", "cleanup"):
            make = agent if verb == "start" else cleanup
            pid, reading = fork(make(path, *map(int, numbers)))
            with os.fdopen(reading) as pipe:
                said = pipe.read()
            if verb == "cleanup" or not said.startswith("ready"):
                said = f"{ended(pid)} {said}"
        elif verb == "look":
            said = ended(pid, os.WNOHANG)
        else:
            os.kill(pid, signal.SIGTERM if verb == "stop" else signal.SIGKILL)
            said = ended(pid)
        print(said, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
