"""The commands that look and clean up, apart from how their outcome is printed.

Each returns what a program is told (`content`), what a person is told (`lines`) and the exit status, so that
`--json` can never say something else than the text.
"""

from __future__ import annotations

import shlex
import socket
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hostagent import bands, claim, client, export, nft, nftmarks, owned, rdma, rungs, verify
from hostagent.client import AgentError
from hostagent.protocol import DEFAULT_SOCKET
from hostagent.queues import DRAIN_S
from netsched import marking, ports
from netsched.errors import NetschedError, ScenarioError
from netsched.netlink import Netlink, open_netns

_ADMIN_TIMEOUT_S = 30.0
"""`restore` waits for each port's queue to empty, 2 s at most each."""
_ASK_S = 0.2


@dataclass(frozen=True)
class Outcome:
    """What a command found or did."""

    code: int
    content: dict[str, Any]
    lines: Sequence[str]


def env(
    job: str,
    cls: str,
    config: str | None,
    layer: rdma.LinkLayer | Literal["auto"],
    service_level: int | None,
    ect: bool,
) -> Outcome:
    """The environment with which `job`'s RDMA traffic is marked as class `cls` (a number or a name)."""
    queues, number = _class_of(cls, config)
    found = rdma.link_layer() if layer == "auto" else layer
    made = rdma.settings(job, number, queues, found, service_level=service_level, ect=ect)
    dscp = marking.dscp_of(number, queues)
    content = {
        "job": job,
        "class": number,
        "dscp": dscp,
        "link_layer": found,
        "environment": {one.name: one.value for one in made},
        "why": {one.name: one.why for one in made},
    }
    return Outcome(0, content, [f"{one.name}={one.value}" for one in made])


def _class_of(text: str, config: str | None) -> tuple[int, int]:
    """(queues, number) of a class given as text; without a configuration there are 8 and no names."""
    value: int | str = int(text) if text.isascii() and text.isdigit() else text
    if config is None:
        if isinstance(value, str):
            raise ScenarioError(f"--class {text!r}: a name needs --config, where it is defined")
        return marking.CLASSES, value
    from hostagent.config import load  # noqa: PLC0415

    loaded = load(config)
    try:
        return loaded.queues, loaded.number_of(value)
    except ValueError as error:
        raise ScenarioError(f"--class: {error}") from None


def show_export(what: str, config: str) -> Outcome:
    """The ports of a configuration as tc or nft commands. Missing interfaces get an MTU of 1500."""
    from hostagent.config import load  # noqa: PLC0415

    loaded = load(config)
    with open_netns() as link:
        there = link.interfaces()
        loaded = rungs.choose(loaded, link).config
    trees = {}
    for one in loaded.interfaces:
        if one.scheduler == "auto":
            raise ScenarioError(f"{config}: interface {one.name} is not here, so that scheduler auto is open")
        if one.scheduler != "pfifo_fast":
            mtu = there[one.name].mtu if one.name in there else 1500
            trees[one.name] = one.wanted(loaded.queues, mtu)
    if what == "nft":
        text = export.nft(trees)
        mapped = [one.name for one in loaded.interfaces if one.scheduler == "pfifo_fast"]
        if mapped:
            text += bands.script(mapped, loaded.queues)
        return Outcome(0, {"ruleset": text}, text.splitlines())
    commands = {name: export.tc(name, tree) for name, tree in trees.items()}
    lines = [shlex.join(argv) for argvs in commands.values() for argv in argvs]
    return Outcome(0, {"interfaces": commands}, lines)


def explain(path: str, job: str, local: str) -> Outcome:
    """By which level each socket of a job (or with one local address) is marked, and why not by another."""
    with client.connect(path, timeout=5.0, strict=True) as agent:
        answer = agent.explain(job=job, local=local)
    shown = answer["sockets"]
    lines = []
    for one in shown:
        where = f"{one.get('local', '?')} -> {one.get('peer', '?')}"
        now = "unknown" if one["dscp_now"] is None else marking.name_of(one["dscp_now"])
        asked = "" if one["class"] is None else f", class {one['class']} ({marking.name_of(one['dscp_set'])})"
        lines.append(f"{where}: carries {now}{asked}; level {one['level'] or 'none'}")
        if one["note"]:
            lines.append(f"  {one['note']}")
    for level, steps in answer["ladder"].items():
        lines.append(f"ladder, sockets of level {level or 'none'}:")
        lines += [f"  {'*' if s['chosen'] else ' '} {s['level']:12}{s['why']}" for s in steps]
    if answer["left_out"]:
        lines.append(f"{answer['left_out']} more sockets are not shown")
    if not shown:
        lines.insert(0, f"no socket of {f'job {job}' if job else local} is known")
    content = {key: answer[key] for key in ("sockets", "left_out", "ladder")}
    good = shown and all(one["dscp_set"] == one["dscp_now"] for one in shown)
    return Outcome(0 if good else 1, content, lines)


def tag(path: str, cls: str, pid: int, flow: Sequence[str], job: str) -> Outcome:
    """Have the running agent mark a process's sockets, or the connection `flow` (its own end, its peer's)."""
    chosen: int | str = int(cls) if cls.isascii() and cls.isdigit() else cls
    with client.connect(path, job=job, timeout=_ADMIN_TIMEOUT_S, strict=True) as agent:
        answer = agent.tag_process(pid, chosen) if pid else agent.tag_flows([(flow[0], flow[1])], chosen)
    content = {key: answer[key] for key in ("status", "dscp", "sockets", "marked", "results")}
    lines = [f"{one['family'] or 'socket'}: {one['error']}" for one in answer["results"] if not one["ok"]]
    lines.append(f"{answer['marked']} of {answer['sockets']} marked {marking.name_of(answer['dscp'])}")
    return Outcome(0 if answer["status"] == "full" else 6, content, lines)


def drain(path: str, on: bool) -> Outcome:
    """Have the running agent mark no new sockets, or do it again."""
    with client.connect(path, timeout=5.0, strict=True) as agent:
        answer = agent.drain(on=on)
    content = {key: answer[key] for key in ("state", "sockets")}
    return Outcome(0, content, [f"{answer['state']}; {answer['sockets']} marked sockets live on"])


def restore(path: str, wait: float) -> Outcome:
    """Have the running agent give back what it set, and mark nothing more. Exit 6 if something is left.

    Marks on jobs' sockets are given back by the jobs' own clients, at their next word to the agent, as soon
    as a socket rests: `wait` is for how many seconds that is waited for.
    """
    end = time.monotonic() + wait
    with client.connect(path, timeout=_ADMIN_TIMEOUT_S, strict=True) as agent:
        answer = agent.restore()
        given = list(answer["interfaces"])
        while answer["marked"] and time.monotonic() < end:
            time.sleep(min(_ASK_S, max(0.0, end - time.monotonic())))
            answer = agent.restore()
    content = {key: answer[key] for key in ("state", "failed", "marked")} | {"interfaces": given}
    lines = [f"{name}: given back to the kernel's default" for name in given]
    lines += [f"{name}: NOT given back; see the agent's log" for name in answer["failed"]]
    lines += [_still_marked(one) for one in answer["marked"]]
    if not answer["marked"]:
        lines.append(f"{answer['state']}; no job's socket carries a mark of it")
    return Outcome(6 if answer["failed"] or answer["marked"] else 0, content, lines)


def _still_marked(one: dict[str, Any]) -> str:
    whose = f"{one['sockets']} sockets of {one['job'] or 'a job without a name'} (user {one['uid']})"
    if one["pids"]:
        # 0: it is in another process namespace, or has ended and left the connection to a child.
        pids = ", ".join(str(pid) if pid else "(one without a number here)" for pid in one["pids"])
        return f"{whose} STILL marked: process {pids} gives them back at its next word to the agent"
    return f"{whose} STILL marked: no client of it is connected, so that only their end takes the marks away"


# ------------------------------------------------------------------ without an agent


def verify_peer(peer: str, config: str | None) -> Outcome:
    """Whether every class's DSCP arrives at `peer` ("host:port", where `verify --listen` runs) and back."""
    queues = marking.CLASSES
    if config is not None:
        from hostagent.config import load  # noqa: PLC0415

        queues = load(config).queues
    found = verify.ask(verify.address(peer, "--peer"), queues)
    content = {"peer": peer, "classes": [asdict(one) | {"intact": one.intact} for one in found]}
    return Outcome(0 if all(one.intact for one in found) else 1, content, [str(one) for one in found])


def verify_listen(where: str, stop: Callable[[], bool], ready: Callable[[], None]) -> Outcome:
    """Answer the probes of others until `stop`; `ready` is called once it can."""
    answered = verify.listen(verify.address(where, "--listen"), stop, ready)
    return Outcome(0, {"listen": where, "answered": answered}, [f"answered {answered} probes"])


def cleanup(path: str = DEFAULT_SOCKET, *, remove: bool) -> Outcome:
    """Find what a dead agent left in this network namespace, and with `remove` take it away.

    Ours are roots with handle 7a1: of kind htb, prio or ets, the nft tables of marks and of bands, and the
    socket at `path` on which nobody listens; BPF programs end with their agent. ClaimedError or AgentError
    (exit 3) while an agent lives. Exit 1 if something is there and was not removed, 6 if a part could not be
    removed.
    """
    held = claim.take()
    try:
        dead = _dead_socket(path)
        with open_netns() as link:
            orphans = {
                name: one.index
                for name, one in link.interfaces().items()
                if ports.root_of(link, one.index) in ports.OUR_ROOTS
            }
            wrong = _remove(link, orphans) if remove else {}
        tables = [one for one in (nftmarks.TABLE, bands.TABLE) if nft.is_there(one)]
        for table in tables if remove else ():
            nft.remove(table)
        if dead and remove:
            Path(path).unlink(missing_ok=True)
    finally:
        held.close()
    done = "removed" if remove else "left behind; cleanup --orphans removes it"
    lines = [f"{name}: queues {wrong.get(name) or done}" for name in orphans]
    lines += [f"nft table inet {table}: {done}" for table in tables]
    lines += [f"{path}: socket of a dead agent {done}"] if dead else []
    content = {
        "interfaces": list(orphans),
        "tables": tables,
        "socket": path if dead else "",
        "failed": wrong,
        "removed": remove,
    }
    code = 6 if wrong else 1 if (orphans or tables or dead) and not remove else 0
    return Outcome(code, content, lines or ["nothing of ours is left"])


def _remove(link: Netlink, orphans: dict[str, int]) -> dict[str, str]:
    wrong = {}
    for name, index in orphans.items():
        try:
            owned.remove(link, index, drain_s=DRAIN_S)
        except NetschedError as error:
            wrong[name] = str(error)
    return wrong


class RunningError(AgentError):
    """An agent listens, so that nothing of it is orphaned."""

    exit_code = 3


def _dead_socket(path: str) -> bool:
    """Whether there is a socket at `path` on which nobody listens. RunningError if somebody does."""
    where = Path(path)
    try:
        if not stat.S_ISSOCK(where.lstat().st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError as error:
            raise RunningError(f"--socket {path}: {error.strerror or error}") from None
    raise RunningError(f"--socket {path}: an agent listens there; stop it first, or ask it with restore")
