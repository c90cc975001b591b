"""Marks that nftables puts on packets: of named connections (by address, with a timeout) and of cgroups.

One table, which is ours by its name. What it should hold is text; what it holds is read back and compared,
and it is replaced in one transaction, so that there is no moment with half of it. Entries for connections
have a timeout, which the agent renews while the connection lives: after its death they go by themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from hostagent import nft
from hostagent.cgroups import Cgroup
from hostagent.nft import NftError
from hostagent.sockdiag import Found
from netsched import marking
from netsched.errors import CapabilityError

TABLE: Final = "netsched_marks"
_SET: Final = re.compile(r"c([0-9])v([46])")
CHAIN: Final = "marks"
_OPTIONS: Final = "CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET, CONFIG_NFT_SOCKET and CONFIG_SOCK_CGROUP_DATA"

Flow = tuple[str, tuple[str, int], tuple[str, int]]
"""("4" or "6", local end, peer's end)."""


class NftMarks:
    """The table of one agent.

    groups  (cgroup, class)
    hold    seconds for which an entry lives unless it is renewed
    """

    def __init__(self, queues: int, groups: Sequence[tuple[Cgroup, int]], hold: float) -> None:
        self._queues = queues
        self._groups = tuple(groups)
        self._hold = max(1, round(hold))
        self._flows: dict[Flow, int] = {}
        self._cookies: dict[int, Flow] = {}
        self._loaded = ""
        self.operations = 0
        """Transactions that changed something."""

    def __len__(self) -> int:
        return len(self._flows)

    def script(self) -> str:
        """The table as it should be, without its entries; written as nft lists it, to be compared."""
        lines = [f"table inet {TABLE} {{"]
        for cls in range(self._queues):
            for version, kind in (("4", "ipv4_addr"), ("6", "ipv6_addr")):
                ends = f"{kind} . inet_service . {kind} . inet_service"
                lines += [f"\tset c{cls}v{version} {{", f"\t\ttype {ends}", "\t\tflags timeout", "\t}", ""]
        lines += [f"\tchain {CHAIN} {{", "\t\ttype filter hook output priority mangle; policy accept;"]
        for group, cls in self._groups:
            for family in ("ip", "ip6"):
                which = f'socket cgroupv2 level {group.level} "{group.nft_path}"'
                # Where the job has marked the socket itself, its word counts.
                rule = f"meta l4proto tcp {which} {family} dscp cs0 {family} dscp set {self._dscp(cls)}"
                lines.append(f"\t\t{rule}")
        # After the groups: what a job says of one connection overrides what is said of its group.
        for cls in range(self._queues):
            for version, family in (("4", "ip"), ("6", "ip6")):
                ends = f"{family} saddr . tcp sport . {family} daddr . tcp dport"
                lines.append(f"\t\t{ends} @c{cls}v{version} {family} dscp set {self._dscp(cls)}")
        return "\n".join([*lines, "\t}", "}", ""])

    def check(self) -> None:
        """Ask the kernel whether it would take the table; nothing is changed.

        CapabilityError naming what is missing.
        """
        try:
            nft.run("-c", "-f", "-", script=self.script())
        except NftError as error:
            raise CapabilityError(f"{error}: a kernel with {_OPTIONS} is needed") from None

    def adopt(self, alive: Iterable[Found]) -> list[tuple[Found, int]]:
        """Take over the entries of an agent that died: (connection, class) of those that live.

        The others end by themselves. To be called before the first `load`.
        """
        there = _entries(self._queues)
        kept = [(one, there[flow]) for one in alive if (flow := _flow(one)) in there]
        self._flows = {_flow(one): cls for one, cls in kept}
        self._cookies = {one.cookie: _flow(one) for one, _ in kept}
        return kept

    def load(self) -> int:
        """Make the table what it should be; the number of transactions (0: it was so already)."""
        there = self.read_back()
        if there and there == (self._loaded or self.script()):
            self._loaded = there
            return 0
        entries = [self._entry("add", cls, flow) for flow, cls in self._flows.items()]
        fresh = f"add table inet {TABLE}\ndelete table inet {TABLE}\n"
        self._do(fresh + self.script() + "\n".join([*entries, ""]))
        self._loaded = self.read_back()
        return 1

    def regroup(self, groups: Sequence[tuple[Cgroup, int]]) -> None:
        """Mark these groups from the next `load` on."""
        self._groups = tuple(groups)
        self._loaded = ""

    def read_back(self) -> str:
        """The table as the kernel has it, without its entries; "" if it is not there."""
        return nft.listed(TABLE)

    def add(self, cls: int, found: Sequence[Found]) -> None:
        """Mark these connections from now on. NftError if the kernel refuses; then none is."""
        lines, flows = [], {}
        for one in found:
            flow = _flow(one)
            old = self._flows.get(flow)
            if old is not None and old != cls:
                # It may have timed out: what is added first can be deleted for certain.
                lines += [self._entry("add", old, flow), self._entry("delete", old, flow)]
            lines += self._renewed(cls, flow)
            flows[flow] = cls
        self._do("\n".join([*lines, ""]))
        self._flows |= flows
        self._cookies |= {one.cookie: _flow(one) for one in found}

    def renew(self, alive: Iterable[int]) -> None:
        """Give the living connections' entries (by cookie) their full time again and drop the others'."""
        living = set(alive)
        lines = []
        for cookie, flow in list(self._cookies.items()):
            if cookie in living:
                lines += self._renewed(self._flows[flow], flow)
            else:
                cls = self._flows.pop(flow)
                del self._cookies[cookie]
                lines += [self._entry("add", cls, flow), self._entry("delete", cls, flow)]
        if lines:
            self._do("\n".join([*lines, ""]))

    def drop(self, cookies: Iterable[int]) -> None:
        """Mark these connections no more, where they were, in one transaction."""
        lines = []
        for cookie in cookies:
            flow = self._cookies.pop(cookie, None)
            if flow is not None:
                cls = self._flows.pop(flow)
                lines += [self._entry("add", cls, flow), self._entry("delete", cls, flow)]
        if lines:
            self._do("\n".join([*lines, ""]))

    def remove(self) -> bool:
        """Take the table away; False if it was not there."""
        self._loaded = ""
        self._flows.clear()
        self._cookies.clear()
        return remove()

    def _renewed(self, cls: int, flow: Flow) -> list[str]:
        return [self._entry(verb, cls, flow) for verb in ("add", "delete", "add")]

    def _entry(self, verb: str, cls: int, flow: Flow) -> str:
        version, (here, port), (there, peer_port) = flow
        timeout = f" timeout {self._hold}s" if verb == "add" else ""
        ends = f"{here} . {port} . {there} . {peer_port}{timeout}"
        return f"{verb} element inet {TABLE} c{cls}v{version} {{ {ends} }}"

    def _do(self, script: str) -> None:
        self.operations += 1
        nft.run("-f", "-", script=script)

    def _dscp(self, cls: int) -> str:
        return nft.dscp_name(marking.dscp_of(cls, self._queues))


def _flow(found: Found) -> Flow:
    # A mapped connection is IPv4 on the wire, and its addresses are shown as such.
    return ("6" if found.family == "ipv6" else "4", found.local, found.peer)


def _entries(queues: int) -> dict[Flow, int]:
    """The connections in the table's sets, each with its class; {} if the table is not there."""
    try:
        listed = json.loads(nft.run("-j", "list", "table", "inet", TABLE))
    except (NftError, ValueError):
        return {}
    found: dict[Flow, int] = {}
    for item in listed.get("nftables", ()):
        match = _SET.fullmatch(item.get("set", {}).get("name", ""))
        if match is None or int(match[1]) >= queues:
            continue
        for entry in item["set"].get("elem", ()):
            here, port, there, peer_port = entry["elem"]["val"]["concat"]
            found[match[2], (here, port), (there, peer_port)] = int(match[1])
    return found


def is_there() -> bool:
    """Whether a table of an agent is in this network namespace."""
    return nft.is_there(TABLE)


def remove() -> bool:
    """Take the table away whoever made it; False if it was not there."""
    return nft.remove(TABLE)
