"""The coordinator's configuration: a strict YAML file, checked as a whole before anything listens.

    version: 1
    listen: 10.0.0.9:9471
    tls: {ca: ca.pem, cert: coordinator.pem, key: coordinator.key}   # not needed on loopback
    fabric: {kind: single_switch, hosts: 16, rate: 10Gbit/s}         # as in a scenario
    hosts:                                                           # default: the fabric's own names
      h1: {name: node-17, addresses: [10.0.0.17, "fd00::17"]}
    policy: sebf                                                     # or {sebf: {parameter: value}}
    queues: 8
    control: {period: 10ms, delay: 0}
    stale: 10s

Fabric and policy are written, read and checked as in a scenario: it is the same network and the same policy.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from netsched import fabrics, policies, units
from netsched.control import NO_PROFILES, profiled
from netsched.coordinator.planner import Network
from netsched.coordinator.wire import MAX_TEXT
from netsched.document import read, shown
from netsched.fabric import Fabric
from netsched.hints import nearest
from netsched.marking import CLASSES
from netsched.model import Control, Policy, Spec
from netsched.plugins import known
from netsched.problems import Problems

_PORT: Final = re.compile(r"[0-9]{1,5}")
_LEAST_STALE_S: Final = 0.1


def endpoint(text: object) -> tuple[str, int]:
    """(address, port) of "10.0.0.9:9471" or "[fd00::9]:9471". ValueError if it is not one; names are not."""
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    inside = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        six = ipaddress.ip_address(inside).version == 6
    except ValueError:
        six = not host.startswith("[")
    if six != host.startswith("[") or not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise ValueError(
            f"{shown(text)} is not an address and a port, such as 10.0.0.9:9471 or [fd00::9]:9471"
        )
    return inside, int(port)


def _address(text: object) -> str:
    try:
        return str(ipaddress.ip_address(text if isinstance(text, str) else ""))
    except ValueError:
        raise ValueError(
            f"{shown(text)} is not an address: write one such as 10.0.0.17 or fd00::17"
        ) from None


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Tls(_Section):
    ca: str
    cert: str
    key: str


class _Host(_Section):
    name: Annotated[str, Field(pattern=rf"^[!-~]{{1,{MAX_TEXT}}}$")] | None = None
    addresses: tuple[Annotated[str, BeforeValidator(_address)], ...] = ()


class _Control(_Section):
    delay: units.Duration = 0.0
    period: units.Duration = 0.0


class _File(_Section):
    version: Literal[1]
    listen: Annotated[tuple[str, int], BeforeValidator(endpoint)]
    fabric: Any
    policy: Any
    tls: _Tls | None = None
    hosts: dict[str, _Host] = {}
    queues: Annotated[int, Field(ge=1, le=CLASSES)] = CLASSES
    control: _Control = _Control()
    stale: units.Duration = 10.0


@dataclass(frozen=True)
class Tls:
    """Files in PEM: who may sign agents' certificates, and the coordinator's own certificate and key."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True)
class Config:
    """A checked configuration with all that it names built. Times in seconds."""

    listen: tuple[str, int]
    tls: Tls | None
    network: Network
    policy: Policy
    control: Control
    stale: float


def load(path: str | Path, plugins: Sequence[str] = ()) -> Config:
    """Read and check a file. ScenarioError with a line for each mistake.

    `plugins`: Python files whose policies it may name as well; their code is run.
    """
    kinds = known(plugins)
    document = read(path)
    problems = Problems(document)
    top = problems.validate(_File, document.data, ())
    fabric = _fabric(problems, document.data.get("fabric"))
    policy = _policy(problems, document.data.get("policy"), kinds)
    names: dict[str, int] = {}
    if top is not None:
        _check_places(problems, top)
        if fabric is not None:
            names = _names(problems, top, fabric)
    problems.raise_any()
    assert top is not None and fabric is not None and policy is not None  # noqa: S101 # raise_any has raised otherwise
    own = {name for name, ordinal in names.items() if name == _name_of(top, fabric.hosts[ordinal])}
    tls = (
        None
        if top.tls is None
        else Tls(*(Path(path).parent / p for p in (top.tls.ca, top.tls.cert, top.tls.key)))
    )
    return Config(
        listen=top.listen,
        tls=tls,
        network=Network(fabric, top.queues, frozenset(own), names),
        policy=policy,
        control=Control(top.control.delay, top.control.period),
        stale=top.stale,
    )


def _check_places(problems: Problems, top: _File) -> None:
    address, _ = top.listen
    if top.tls is None and not ipaddress.ip_address(address).is_loopback:
        problems.add(
            ("listen",), f"{address} is not on loopback: without tls only 127.0.0.1 or [::1] is allowed"
        )
    if top.stale < _LEAST_STALE_S:
        problems.add(
            ("stale",), f"{units.show_time(top.stale)} is too short: write {_LEAST_STALE_S:g}s or more"
        )


def _fabric(problems: Problems, value: object) -> Fabric | None:
    if not isinstance(value, dict) or value.get("kind") not in fabrics.FABRICS:
        kind = value.get("kind", "") if isinstance(value, dict) else ""
        problems.add(("fabric", "kind"), f"{shown(kind)} is no fabric: {nearest(str(kind), fabrics.FABRICS)}")
        return None
    spec = Spec(value["kind"], {key: each for key, each in value.items() if key != "kind"})
    if problems.validate(fabrics.FABRICS[spec.name].params, spec.params, ("fabric",)) is None:
        return None
    return fabrics.build(spec)[1]


def _policy(problems: Problems, value: object, kinds: Mapping[str, type[Policy]]) -> Policy | None:
    name, params = value, dict[str, Any]()
    if isinstance(value, dict) and len(value) == 1:
        ((name, params),) = value.items()
    if not isinstance(name, str) or name not in kinds or not isinstance(params, dict):
        found = shown(name if isinstance(name, str) else value)
        problems.add(
            ("policy",), f"{found} is no policy: {nearest(str(name), kinds)}, or --plugin FILE for your own"
        )
        return None
    spec = Spec(name, params)
    if problems.validate(kinds[name], params, ("policy", name)) is None:
        return None
    if profiled(kinds[name]):
        problems.add(("policy",), f"{name} is for sim and mininet only: {NO_PROFILES}")
        return None
    return policies.make(spec, kinds)


def _name_of(top: _File, host: str) -> str:
    said = top.hosts.get(host)
    return host if said is None or said.name is None else said.name


def _names(problems: Problems, top: _File, fabric: Fabric) -> dict[str, int]:
    """Every name and address by which a host can be called, with the host's ordinal."""
    found: dict[str, int] = {}
    for host in top.hosts:
        if host not in fabric.hosts:
            problems.add(
                ("hosts", host), f"no such host: the fabric has {fabric.hosts[0]} to {fabric.hosts[-1]}"
            )
    for ordinal, host in enumerate(fabric.hosts):
        said = top.hosts.get(host)
        for name in (_name_of(top, host), *(said.addresses if said is not None else ())):
            if found.setdefault(name, ordinal) != ordinal:
                other = fabric.hosts[found[name]]
                problems.add(("hosts", host), f"{shown(name)} is {other} already: every host needs its own")
    return found
