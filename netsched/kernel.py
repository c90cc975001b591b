"""What this machine can do, found out by trying: kernel mechanisms, programs, rights.

Configuration files and version numbers say what might work; only a request to the kernel says what does. Each
one is made in a network namespace of its own, in a child process, so that nothing is left behind even by a
kill. Loading a module on demand is the one trace: the kernel does that by itself.
"""

from __future__ import annotations

import errno
import json
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from netsched.errors import CapabilityError, NetschedError
from netsched.netlink import NLM_F_CREATE, NLM_F_EXCL, Netlink, NetlinkError, attribute, open_netns

_NEW: Final = NLM_F_CREATE | NLM_F_EXCL
_NEWLINK, _NEWQDISC, _NEWTFILTER, _NEWACTION = 16, 36, 44, 48
_ROOT: Final = 0xFFFFFFFF
_CLSACT: Final = 0xFFFFFFF1
_NETLINK_NETFILTER: Final = 12
_NFT_GETGEN: Final = 10 << 8 | 16
_PROBE_TIMEOUT_S: Final = 30.0
_RIGHTS: Final[Mapping[str, int]] = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


@dataclass(frozen=True)
class Capability:
    """One thing that a machine has or lacks.

    name             short, what `require` takes
    present          it was tried and works
    config_option    kernel option or Debian package that provides it, "" for a right
    needed_for       what uses it
    cost_if_missing  what is lost, or what is used in its place
    how_to_get       what to do
    """

    name: str
    present: bool
    config_option: str
    needed_for: str
    cost_if_missing: str
    how_to_get: str


def _kernel(option: str) -> str:
    return f"a kernel with {option} (built in or as a module)"


def _package(name: str) -> str:
    return f"apt-get install {name}"


_EMULATION: Final = "the emulation is refused"
_LADDER: Final = "the agent's scheduler auto goes one rung down, at last to pfifo_fast with three bands"
_NICE: Final = "nothing today: a more direct mechanism for what is done otherwise"

# name: (option or package, needed for, cost if missing)
_KERNEL: Final[Mapping[str, tuple[str, str, str]]] = {
    "htb": (
        "CONFIG_NET_SCH_HTB",
        "rate and priority queues of a port",
        "no port can be shaped: " + _EMULATION,
    ),
    "bfifo": ("CONFIG_NET_SCHED", "the length of each queue", _EMULATION),
    "u32": ("CONFIG_NET_CLS_U32", "sorting packets into queues by DSCP", "no priority queues: " + _EMULATION),
    "tbf": ("CONFIG_NET_SCH_TBF", "a plain rate limit", _NICE),
    "prio": ("CONFIG_NET_SCH_PRIO", "strict priority without a rate", _LADDER),
    "ets": ("CONFIG_NET_SCH_ETS", "strict priority without a rate", _LADDER),
    "mqprio": ("CONFIG_NET_SCH_MQPRIO", "priority among a NIC's own queues", _NICE),
    "netem": ("CONFIG_NET_SCH_NETEM", "link delay", "a scenario with delays needs `delay: best-effort`"),
    "flower": ("CONFIG_NET_CLS_FLOWER", "sorting packets by DSCP", "u32 is used"),
    "matchall": ("CONFIG_NET_CLS_MATCHALL", "redirecting all frames of a port", "u32 is used"),
    "mirred": (
        "CONFIG_NET_ACT_MIRRED",
        "optical switches",
        "scenarios with optical switches are refused",
    ),
    "clsact": (
        "CONFIG_NET_SCH_INGRESS",
        "optical switches",
        "scenarios with optical switches are refused",
    ),
    "veth": ("CONFIG_VETH", "links between emulated nodes", _EMULATION),
    "bridge": ("CONFIG_BRIDGE", "emulated switches", _EMULATION),
    "nft": (
        "CONFIG_NF_TABLES",
        "marking by address or cgroup",
        "the agent marks sockets that jobs pass to it",
    ),
    "cubic": (
        "CONFIG_TCP_CONG_CUBIC",
        "TCP that fills a queue",
        "the system's default is used: bbr paces itself",
    ),
}
_PROGRAMS: Final[Mapping[str, tuple[str, str, str]]] = {
    "ip": ("iproute2", "Mininet", _EMULATION),
    "tc": ("iproute2", "showing queues by hand, tests", "queues are set over netlink all the same"),
    "unshare": ("util-linux", "namespaces that vanish with the run", _EMULATION),
    "mnexec": ("mininet", "processes inside emulated hosts", _EMULATION),
}


def probe() -> tuple[Capability, ...]:
    """Try everything, in about 0.3 s. Without root the kernel's mechanisms count as missing: untried."""
    root = _is_root()
    namespaces = root and _namespaces_work()
    tried = _try_in_child() if namespaces else {}
    advice = "" if root else "run as root (untried without); else "
    found = [
        Capability("root", root, "", "namespaces, queues", "only the simulator runs", _become_root()),
        Capability(
            "namespaces",
            namespaces,
            "CONFIG_NET_NS, CONFIG_PID_NS",
            "hosts, and a run that leaves nothing behind",
            _EMULATION,
            f"{advice}{_kernel('CONFIG_NET_NS and CONFIG_PID_NS')}, and no sandbox that forbids unshare",
        ),
    ]
    for name, (option, needed, cost) in _KERNEL.items():
        found.append(Capability(name, tried.get(name, False), option, needed, cost, advice + _kernel(option)))
    for name, (package, needed, cost) in _PROGRAMS.items():
        there = shutil.which(name) is not None
        found.append(Capability(name, there, package, needed, cost, _package(package)))
    return tuple(found)


def _become_root() -> str:
    lacking = " and ".join(missing_rights())
    return "run as root (sudo)" + (f" that holds {lacking}" if lacking else "")


def require(names: Iterable[str], found: Iterable[Capability] | None = None) -> None:
    """CapabilityError naming everything of `names` that is missing, with its kernel option or package."""
    by_name = {one.name: one for one in (probe() if found is None else found)}
    wanted = list(names)
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        raise KeyError(f"no such capability: {', '.join(unknown)}")
    missing = [by_name[name] for name in wanted if not by_name[name].present]
    if missing:
        what = "; ".join(f"{one.name} ({one.config_option or 'right'}): {one.how_to_get}" for one in missing)
        raise CapabilityError(f"this machine lacks {what}")


def missing_rights() -> tuple[str, ...]:
    """Which of the rights that an emulation takes this process lacks: a container's root may lack some."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return tuple(name for name, bit in _RIGHTS.items() if not held >> bit & 1)


def _is_root() -> bool:
    return not missing_rights()


def _namespaces_work() -> bool:
    argv = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "true"]
    try:
        return (
            subprocess.run(argv, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def _try_in_child() -> dict[str, bool]:
    argv = ["unshare", "--net", "--mount", "--fork", "--kill-child", sys.executable, "-m", "netsched.kernel"]
    # The child must find this very package, wherever the caller runs.
    package_root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False, cwd=package_root
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NetschedError(f"probing the kernel in a scratch namespace failed: {last[:200]}")
    answers: dict[str, bool] = json.loads(done.stdout)
    return answers


# ------------------------------------------------------------------ inside the scratch namespace


def _try_all() -> dict[str, bool]:
    """Each mechanism's answer. Only ever called in a namespace that dies with this process."""
    found: dict[str, bool] = {}
    with open_netns() as link:
        for kind in ("bridge", "veth"):
            found[kind] = _accepted(link, _NEWLINK, _new_link(kind, f"try-{kind}"), missing=errno.EOPNOTSUPP)
        index = next((index for name, index in link.links().items() if name.startswith("try-")), 1)
        for kind in ("htb", "tbf", "prio", "ets", "mqprio", "netem", "bfifo"):
            found[kind] = _accepted(link, _NEWQDISC, _tc(index, 0x10000, _ROOT, 0, kind))
        found["clsact"] = _accepted(link, _NEWQDISC, _tc(index, 0xFFFF0000, _CLSACT, 0, "clsact"))
        for at, kind in enumerate(("u32", "flower", "matchall"), start=1):
            # Filters hang below clsact's egress hook, or where that is missing below the root.
            parent = 0xFFFFFFF3 if found["clsact"] else _ROOT
            found[kind] = _accepted(link, _NEWTFILTER, _tc(index, 0, parent, at << 16 | 0x0008, kind))
        action = attribute(1, attribute(1, attribute(1, b"mirred\0")))
        found["mirred"] = _accepted(link, _NEWACTION, struct.pack("=BxH", 0, 0) + action)
    checks: dict[str, Callable[[], bool]] = {"nft": _nft, "cubic": _cubic}
    return found | {name: check() for name, check in checks.items()}


def _accepted(link: Netlink, message: int, body: bytes, missing: int = errno.ENOENT) -> bool:
    """Does the kernel know the kind? It says `missing` if not; that it wants options (EINVAL) is a yes."""
    try:
        link.request(message, body, _NEW)
    except NetlinkError as error:
        return error.errno != missing
    return True


def _new_link(kind: str, name: str) -> bytes:
    info = attribute(18, attribute(1, kind.encode()))
    return struct.pack("=BxHiII", 0, 0, 0, 0, 0) + attribute(3, name.encode() + b"\0") + info


def _tc(index: int, handle: int, parent: int, info: int, kind: str) -> bytes:
    return struct.pack("=BxHiIII", 0, 0, index, handle, parent, info) + attribute(1, kind.encode() + b"\0")


def _nft() -> bool:
    try:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    except OSError as error:
        # A kernel without nfnetlink does not know the protocol; it may be a module that nobody can load.
        if error.errno != errno.EPROTONOSUPPORT:
            raise
        return False
    with sock:
        sock.settimeout(5.0)
        sock.send(struct.pack("=IHHIIBBH", 20, _NFT_GETGEN, 0x5, 1, 0, 0, 0, 0))
        # An answer with the generation, or an error (type 2) with its code.
        answer = sock.recv(4096)
        kind = struct.unpack_from("=H", answer, 4)[0]
        code: int = struct.unpack_from("=i", answer, 16)[0]
        return bool(kind != 2 or code == 0)


def _cubic() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        except OSError:
            return False
    return True


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_try_all()))
