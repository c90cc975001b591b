"""`netsched-agent doctor`: what this kernel has and lacks, and what its NICs would do with the classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict

from hostagent import dcb, levels, nic
from hostagent.commands import Outcome
from hostagent.dcb import Dcb
from hostagent.nic import Remark
from netsched import kernel, marking
from netsched.netlink import open_netns

_NO_DCB = "the kernel has no DCB (CONFIG_DCB): how NICs treat priorities cannot be asked"


def doctor(config: str | None) -> Outcome:
    """Examine this machine; nothing is changed. Exit 1 if a NIC or a setting defeats the classes.

    `config`: for the number of queues; 8 without one.
    """
    queues = marking.CLASSES
    if config is not None:
        from hostagent.config import load  # noqa: PLC0415

        queues = load(config).queues
    capabilities = (*kernel.probe(), *levels.probe())
    in_kernel, known = _ask_interfaces()
    present = nic.devices()
    remarks = [
        one for name, dcb in known.items() if dcb is not None for one in nic.of_interface(name, dcb, queues)
    ]
    remarks += [one for device in present for one in nic.of_device(device, known, queues)]
    remarks += nic.of_environment(os.environ, present, queues)
    lines = []
    for one in capabilities:
        lines.append(f"{'yes' if one.present else 'NO ':4}{one.name:22}{one.needed_for}")
        if not one.present:
            lines.append(f"      costs: {one.cost_if_missing}")
            lines.append(f"      get it: {one.how_to_get}")
    lines += [""] + ([] if in_kernel else [_NO_DCB])
    for name, found in known.items():
        lines += _about(name, found, queues)
    lines += [f"{one.name}: RDMA, {' and '.join(sorted(one.layers)) or 'no port'}" for one in present]
    if not present:
        lines.append("no RDMA device: the settings of env have nothing to be checked against")
    lines += _told(remarks)
    content = {
        "capabilities": [asdict(one) for one in capabilities],
        "dcb_in_kernel": in_kernel,
        "interfaces": {n: None if one is None else _plain(one) for n, one in known.items()},
        "rdma": [asdict(one) | {"layers": sorted(one.layers)} for one in present],
        "remarks": [asdict(one) for one in remarks],
    }
    return Outcome(1 if any(one.wrong for one in remarks) else 0, content, lines)


def _ask_interfaces() -> tuple[bool, dict[str, Dcb | None]]:
    """Whether the kernel has DCB, and what it says of each interface but loopback."""
    with open_netns() as link:
        if not dcb.is_in_kernel(link):
            return False, {}
        names = [name for name in link.interfaces() if name != "lo"]
        return True, {name: dcb.read(link, name) for name in names}


def _about(name: str, found: Dcb | None, queues: int) -> list[str]:
    if found is None:
        return [f"{name}: its driver has no DCB: no flow control by priority, no map of DSCPs"]
    flow = ", ".join(map(str, sorted(found.pfc))) or "none"
    lines = [f"{name}: flow control (PFC) of priorities {flow}"]
    for cls in range(queues) if found.priority_of else ():
        code = marking.dscp_of(cls, queues)
        priority = found.priority_of.get(code, 0)
        line = f"  class {cls} ({marking.name_of(code)}): priority {priority}"
        if found.tc_of:
            tc = found.tc_of[priority]
            line += f", traffic class {tc}{' (strict)' if tc in found.strict else ''}"
        lines.append(line)
    return lines


def _plain(found: Dcb) -> dict[str, object]:
    sets = {"pfc": sorted(found.pfc), "strict": sorted(found.strict)}
    return asdict(found) | sets | {"priority_of": {str(k): v for k, v in found.priority_of.items()}}


def _told(remarks: Sequence[Remark]) -> list[str]:
    return [f"{'WRONG' if one.wrong else 'note'} {one.where}: {one.text}" for one in remarks]
