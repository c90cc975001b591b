"""The agent's configuration: a strict YAML file, checked as a whole before anything is touched.

    version: 1
    mode: mark+queue                  # observe (default) | mark | mark+queue
    queues: 8                         # priority classes of the network, 1 to 8
    classes: {gradients: 0, bulk: 6}  # names for class numbers, besides the numbers themselves
    interfaces:
      - {name: eth0, rate: 10Gbit/s, floor: 1%, limit: 256KiB, burst: 1ms}
    on_stop: restore                  # restore | keep
    resync: 30s
    api: {socket: /run/netsched/agent.sock, allow: [{uid: 1001, classes: [gradients, 3]}], lease: 60s}
    metrics: {listen: 127.0.0.1:9469}  # without the key there is no HTTP server
    ladder: [descriptor, self]        # also cgroup-bpf, nft-cgroup, nft-tuple, pidfd
    cgroups: [{path: train/job1, class: gradients}]
    coordinator, rules, policy and shifts: see `hostagent.coordination`

A wrong file is reported with all its mistakes at once, since each of them may cost somebody a restart.
"""

from __future__ import annotations

import ipaddress
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BeforeValidator, Field, StrictInt, StrictStr, ValidationError
from pydantic import model_validator as check

from hostagent import mistakes
from hostagent.coordination import Coordinator, LocalSpec, Rule, Shift
from hostagent.interface import Interface
from hostagent.ladder import CGROUP_BPF, DEFAULT_LADDER, LEVELS, NFT_CGROUP, NFT_TUPLE
from hostagent.ledger import LIMIT
from hostagent.protocol import DEFAULT_SOCKET, MAX_TEXT, shown
from hostagent.quota import Quota
from hostagent.section import Section
from netsched import marking
from netsched.errors import ScenarioError
from netsched.qdisc import QueueError
from netsched.units import Duration

_MAX_BYTES: Final = 1 << 20
_PORT: Final = re.compile(r"[0-9]{1,5}")
DEFAULT_LISTEN: Final = "127.0.0.1:9469"
"""Of the HTTP pages, where `metrics` is there without `listen`."""


class ConfigError(ScenarioError):
    """The configuration is wrong; one line for each mistake."""


class Allow(Section):
    """A user who may use the socket, and for which classes (default: all)."""

    uid: Annotated[StrictInt, Field(ge=0, lt=2**32 - 1)]
    classes: tuple[StrictInt | StrictStr, ...] | None = None


def _per_second(text: object) -> float:
    number, slash, unit = text.partition("/") if isinstance(text, str) else ("", "", "")
    if slash and unit.strip() == "s" and number.strip().isascii() and number.strip().isdigit():
        return float(number)
    raise ValueError(f"{text!r} is not a number a second: write 200/s")


class Limits(Section):
    """What one user may have, whatever the number of jobs; root and the agent's user have what they like."""

    connections: Annotated[StrictInt, Field(ge=1, le=4096)] = Quota.connections
    sockets: Annotated[StrictInt, Field(ge=1, le=LIMIT)] = Quota.sockets
    groups: Annotated[StrictInt, Field(ge=1, le=4096)] = Quota.groups
    messages: Annotated[float, BeforeValidator(_per_second), Field(ge=1, le=1e6)] = Quota.messages

    def quota(self) -> Quota:
        return Quota(self.connections, self.sockets, self.groups, self.messages)


class Api(Section):
    """Where the agent listens, who may come besides root and the agent's own user, and for how much.

    lease  seconds of silence after which a job counts as gone although its connection is there
    """

    socket: Annotated[StrictStr, Field(min_length=1, max_length=107)] = DEFAULT_SOCKET
    allow: tuple[Allow, ...] = ()
    limits: Limits = Limits()
    lease: Annotated[Duration, Field(ge=1.0)] = 60.0


def _loopback(text: object) -> tuple[str, int]:
    """(address, port) of "127.0.0.1:9469" or "[::1]:9469"."""
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    inside = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(inside)
    except ValueError:
        raise ValueError(f"{text!r} is not an address and a port, such as {DEFAULT_LISTEN}") from None
    if not address.is_loopback:
        raise ValueError(f"{text!r} is not on loopback: pages are for this host only, 127.0.0.1 or [::1]")
    if (":" in inside) != host.startswith("[") or not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not an address and a port, such as {DEFAULT_LISTEN} or [::1]:9469")
    return inside, int(port)


class Metrics(Section):
    """Where the pages /metrics, /healthz and /readyz are: (address on loopback, port)."""

    listen: Annotated[tuple[str, int], BeforeValidator(_loopback)] = Field(
        default=DEFAULT_LISTEN, validate_default=True
    )


class Group(Section):
    """A control group (its path below the mount of version 2) whose connections are of a class."""

    path: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_.@:+-]+(/[A-Za-z0-9_.@:+-]+)*$", max_length=512)]
    cls: Annotated[StrictInt | StrictStr, Field(alias="class")]


class Config(Section):
    """The whole file."""

    version: Literal[1]
    mode: Literal["observe", "mark", "mark+queue"] = "observe"
    queues: Annotated[StrictInt, Field(ge=1, le=marking.CLASSES)] = marking.CLASSES
    classes: dict[Annotated[StrictStr, Field(pattern=rf"^[!-~]{{1,{MAX_TEXT}}}$")], StrictInt] = Field(
        default_factory=dict
    )
    interfaces: tuple[Interface, ...] = ()
    on_stop: Literal["restore", "keep"] = "restore"
    resync: Duration = 30.0
    api: Api = Api()
    metrics: Metrics | None = None
    ladder: tuple[Literal[LEVELS], ...] = DEFAULT_LADDER  # type: ignore[valid-type]
    cgroups: tuple[Group, ...] = ()
    coordinator: Coordinator | None = None
    rules: tuple[Rule, ...] = ()
    policy: LocalSpec | None = None
    shifts: tuple[Shift, ...] = ()

    @check(mode="after")
    def _fits(self) -> Config:
        wrong = []
        for name, cls in self.classes.items():
            if not 0 <= cls < self.queues:
                wrong.append(
                    f"classes.{name} = {cls}: with {self.queues} queues it is 0 to {self.queues - 1}"
                )
        names = [interface.name for interface in self.interfaces]
        wrong += [f"interfaces: {n} is named twice" for n in sorted({n for n in names if names.count(n) > 1})]
        if self.mode == "mark+queue" and not self.interfaces:
            wrong.append("interfaces: mode mark+queue needs one at least")
        if self.resync < 1:
            wrong.append(f"resync = {self.resync:g} s: 1 s or more")
        for at, interface in enumerate(self.interfaces):
            if interface.scheduler in ("pfifo_fast", "auto"):
                continue
            try:
                interface.wanted(self.queues, mtu=1500)
            except QueueError as error:
                wrong.append(f"interfaces[{at}].{error}")
        wrong += self._wrong_with_the_ladder()
        for at, allow in enumerate(self.api.allow):
            for one in allow.classes or ():
                try:
                    self.number_of(one)
                except ValueError as error:
                    wrong.append(f"api.allow[{at}].classes: {error}")
        for at, rule in enumerate(self.rules):
            try:
                self.number_of(rule.cls)
            except ValueError as error:
                wrong.append(f"rules[{at}].{error}")
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    @property
    def marks_by_host(self) -> bool:
        """Whether the agent puts marks on by cgroup or by address, besides those on jobs' own sockets."""
        return self.mode != "observe" and bool(self.cgroups or NFT_TUPLE in self.ladder)

    def _wrong_with_the_ladder(self) -> list[str]:
        wrong = [f"ladder: {one} is named twice" for one in LEVELS if self.ladder.count(one) > 1]
        if not self.ladder:
            wrong.append(f"ladder: empty: name one of {', '.join(LEVELS)}")
        if self.cgroups and not {CGROUP_BPF, NFT_CGROUP} & set(self.ladder):
            wrong.append(f"cgroups: the ladder needs {CGROUP_BPF} or {NFT_CGROUP}, which mark them")
        for at, group in enumerate(self.cgroups):
            try:
                self.number_of(group.cls)
            except ValueError as error:
                wrong.append(f"cgroups[{at}]: {error}")
        paths = [group.path for group in self.cgroups]
        wrong += [
            f"cgroups: {one} is named twice" for one in sorted({p for p in paths if paths.count(p) > 1})
        ]
        return wrong

    def number_of(self, cls: object) -> int:
        """The class with this number or name. ValueError if there is none."""
        if isinstance(cls, int) and not isinstance(cls, bool):
            if 0 <= cls < self.queues:
                return cls
            raise ValueError(f"class = {cls}: with {self.queues} queues it is 0 to {self.queues - 1}")
        if isinstance(cls, str) and cls in self.classes:
            return self.classes[cls]
        names = f" or one of {', '.join(self.classes)}" if self.classes else ""
        raise ValueError(f"class = {shown(cls)}: write 0 to {self.queues - 1}{names}")

    def shift_of(self, job: str) -> float:
        """By how many seconds the job begins later: the first of `shifts` that fits, else 0."""
        return next((one.by for one in self.shifts if fnmatchcase(job, one.job)), 0.0)

    def may_use(self, uid: int) -> frozenset[int] | None:
        """The classes that user `uid` may use; None if the user may not even connect."""
        everything = frozenset(range(self.queues))
        if uid in (0, os.geteuid()):
            return everything
        for allow in self.api.allow:
            if allow.uid == uid:
                return everything if allow.classes is None else frozenset(map(self.number_of, allow.classes))
        return None


class _Loader(yaml.SafeLoader):
    """YAML without what a configuration has no use for and an attacker has: repeated keys and aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "aliases are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                text = f"key {str(key.value)!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, text, key.start_mark)
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: str | Path) -> Config:
    """Read and check a configuration file. ConfigError with one line for each mistake."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path}: longer than 1 MiB")
    return parse(data, str(path))


def parse(data: bytes | str, path: str) -> Config:
    """Check the text of a configuration; `path` is its name in messages."""
    try:
        # Our loader is the safe one, with less in it.
        content = yaml.load(data, Loader=_Loader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a mapping is expected, starting with version: 1")
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        lines = [f"{path}: {line}" for line in mistakes.lines(content, error, Config.model_validate, _KEYS)]
        raise ConfigError("\n".join(lines)) from None


_KEYS: Final = sorted(
    {
        key
        for model in (Config, Api, Allow, Coordinator, Group, Interface, Limits, Metrics, Rule)
        for key in model.model_fields
    }
)
