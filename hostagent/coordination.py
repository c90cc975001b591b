"""The parts of the configuration that say who decides about flows: coordinator, rules, local policy, shifts.

coordinator:
  address: 10.0.0.9:9471
  ca: /etc/netsched/ca.pem      # with cert and key: mutual TLS; without them loopback only
  cert: /etc/netsched/node-17.pem
  key: /etc/netsched/node-17.key
  keep: 30s                     # how long its last plan holds when it is away
  host: node-17                 # this host's name in its certificate; default: the host name
rules:                          # without a coordinator, or when its plan no longer holds
  - {job: "resnet*", coflow: "grad*", class: gradients}
policy: tensorexpress           # for flows that no rule fits: a local policy, or {name: {parameter: value}}
shifts:                         # whoever decides the classes
  - {job: "vgg*", by: 152ms}
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    BeforeValidator,
    Field,
    StrictInt,
    StrictStr,
    model_validator,
)

from hostagent.protocol import MAX_TEXT, shown
from hostagent.section import Section
from netsched.errors import CapabilityError, ScenarioError
from netsched.units import Duration

_LARGEST_PORT: Final = 65535
_Pattern = Annotated[StrictStr, Field(min_length=1, max_length=MAX_TEXT)]


class Rule(Section):
    """The class of flows whose job and coflow fit these patterns (`*`, `?`, `[ab]`); first rule first."""

    job: _Pattern = "*"
    coflow: _Pattern = "*"
    cls: Annotated[StrictInt | StrictStr, Field(alias="class")]


class Shift(Section):
    """Jobs that fit the pattern begin to send `by` seconds later than they would (CASSINI, NSDI 2024)."""

    job: _Pattern
    by: Annotated[Duration, Field(gt=0.0, le=3600.0)]


class Coordinator(Section):
    """Where the coordinator is and how both prove who they are. Files in PEM; `keep` in seconds."""

    address: Annotated[StrictStr, Field(min_length=3, max_length=255)]
    ca: StrictStr = ""
    cert: StrictStr = ""
    key: StrictStr = ""
    keep: Duration = 30.0
    host: Annotated[StrictStr, Field(pattern=rf"^[!-~]{{1,{MAX_TEXT}}}$")] | None = None

    @model_validator(mode="after")
    def _safe(self) -> Coordinator:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= _LARGEST_PORT:
            raise ValueError(
                f"address = {self.address!r}: a host and a port are expected, such as 10.0.0.9:9471"
            )
        files = {"ca": self.ca, "cert": self.cert, "key": self.key}
        if not any(files.values()):
            if not _is_loopback(host):
                raise ValueError(
                    f"address = {self.address!r} is not on loopback: without ca, cert and key only 127.0.0.1 "
                    "and [::1] are allowed"
                )
            return self
        missing = [name for name, path in files.items() if not path]
        if missing:
            raise ValueError(f"{', '.join(missing)} missing: mutual TLS needs ca, cert and key")
        relative = [name for name, path in files.items() if not Path(path).is_absolute()]
        if relative:
            raise ValueError(f"{relative[0]} = {files[relative[0]]!r}: an absolute path is expected")
        return self

    @property
    def secure(self) -> bool:
        return bool(self.key)


def _local_policy(value: object) -> Any:
    """The name of a policy, or {name: {parameter: value}}. ValueError unless a host alone can follow it."""
    # numpy comes with it, which an agent without a policy has no use for.
    try:
        from hostagent.localpolicy import policy_of  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CapabilityError(f"policy: no module {error.name}: pip install numpy") from None
    from netsched.model import Spec  # noqa: PLC0415

    name, params = value, dict[str, Any]()
    if isinstance(value, dict) and len(value) == 1:
        ((name, params),) = value.items()
    if not isinstance(name, str) or not isinstance(params, dict):
        raise ValueError(f"{shown(value)} is no policy: write a name, or {{name: {{parameter: value}}}}")
    spec = Spec(name, params)
    try:
        policy_of(spec)
    except ScenarioError as error:
        raise ValueError(str(error).removeprefix("policies").removeprefix(": ").removeprefix(".")) from None
    return spec


LocalSpec = Annotated[Any, BeforeValidator(_local_policy)]
"""A `netsched.model.Spec` of a local policy."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
