"""What agent and coordinator say to each other: JSON objects over one gRPC stream per agent.

    agent        {"v": 1, "hello": {"host": "h1", "queues": 8, "classes": {"bulk": 6}}}
    coordinator  {"v": 1, "welcome": {"policy": "sebf", "beat": 1.0}}
    agent        {"v": 1, "report": {"flows": [...], "coflows": [...], "sent": [[7, 4096]], "done": [7]}}
    coordinator  {"v": 1, "plan": {"revision": 3, "flows": [[7, 0, null, null, true]], "refused": []}}

A report says what changed, the first one after a welcome everything; an empty one is a sign of life. Both
ends read with the functions here, which take nothing on trust. No heavy import, for the agent's sake.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

VERSION: Final = 1
SERVICE: Final = "netsched.Coordinator"
METHOD: Final = "Follow"
MAX_MESSAGE: Final = 1 << 20
"""Bytes of one message."""
MAX_ROWS: Final = 1000
"""Flows in one message; more are sent in several."""
MAX_TEXT: Final = 128
MAX_BYTES: Final = 1e18
"""Largest size of a flow, in bytes."""
MAX_NEED: Final = 1 << 20
MAX_ID: Final = 2**53
MAX_WEIGHT: Final = 1e9
MAX_SECONDS: Final = 1e9


CoflowKey = tuple[int, str, str]
"""(uid, job, coflow): jobs of one name are two jobs if they are two users'."""


class WireError(Exception):
    """A message that is not one of this protocol; the text says which part and what would be right."""


@dataclass(frozen=True)
class Hello:
    """Who an agent says it is. `classes`: its names for class numbers."""

    host: str
    queues: int
    classes: Mapping[str, int]


@dataclass(frozen=True)
class Welcome:
    """What an agent is told first. `beat`: seconds between two signs of life, of either side."""

    policy: str
    beat: float


@dataclass(frozen=True)
class FlowState:
    """One flow that leaves the agent's host.

    `id` is the agent's number for it, `uid` and `job` whose it is; sizes in bytes. `active`: the job has
    released it, `age` seconds ago.
    """

    id: int
    uid: int
    job: str
    coflow: str
    peer: str
    size: float
    sent: float
    need: int
    need_span: int
    age: float
    active: bool

    @property
    def key(self) -> CoflowKey:
        return self.uid, self.job, self.coflow


@dataclass(frozen=True)
class CoflowState:
    """What a job declared of a coflow as a whole: `size` (bytes) and `flows` of all hosts, 0 if not said.

    `deadline` in seconds after its first flow's release, inf for none.
    """

    uid: int
    job: str
    coflow: str
    weight: float
    deadline: float
    size: float
    flows: int

    @property
    def key(self) -> CoflowKey:
        return self.uid, self.job, self.coflow


@dataclass(frozen=True)
class Report:
    """What changed on a host.

    New or changed flows, new or changed declarations, bytes sent, flows that ended (`done`) or vanished with
    their job (`gone`), declarations that no longer hold (`closed`).
    """

    flows: tuple[FlowState, ...] = ()
    coflows: tuple[CoflowState, ...] = ()
    sent: tuple[tuple[int, float], ...] = ()
    done: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    closed: tuple[CoflowKey, ...] = ()


@dataclass(frozen=True)
class Share:
    """What one flow is to do: its class, seconds from now before which it must not begin, cap in bytes/s.

    `decided`: the policy has spoken of it; until then it rides with its coflow.
    """

    cls: int
    hold: float | None
    cap: float | None
    decided: bool


@dataclass(frozen=True)
class PlanPart:
    """An agent's part of a plan: what is new for its flows, and which of them cannot be planned and why."""

    revision: int
    flows: Mapping[int, Share]
    refused: Mapping[int, str]


# ------------------------------------------------------------------ writing


def hello_bytes(hello: Hello) -> bytes:
    return _encode("hello", {"host": hello.host, "queues": hello.queues, "classes": dict(hello.classes)})


def welcome_bytes(welcome: Welcome) -> bytes:
    return _encode("welcome", asdict(welcome))


def report_bytes(report: Report) -> bytes:
    coflows = [{k: v for k, v in asdict(one).items() if v != math.inf} for one in report.coflows]
    content = {
        "flows": [asdict(one) for one in report.flows],
        "coflows": coflows,
        "sent": report.sent,
        "done": report.done,
        "gone": report.gone,
        "closed": report.closed,
    }
    return _encode("report", {key: value for key, value in content.items() if value})


def plan_bytes(plan: PlanPart) -> bytes:
    flows = [[number, s.cls, s.hold, s.cap, s.decided] for number, s in plan.flows.items()]
    refused = [[number, why] for number, why in plan.refused.items()]
    return _encode("plan", {"revision": plan.revision, "flows": flows, "refused": refused})


def _encode(kind: str, content: Mapping[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, kind: content}, separators=(",", ":"), allow_nan=False).encode()


# ------------------------------------------------------------------ reading


def read_hello(packet: bytes) -> Hello:
    """An agent's first message. WireError if it is something else."""
    content = _decode(packet, "hello")
    classes = content.get("classes", {})
    if not isinstance(classes, dict) or len(classes) > MAX_ROWS:
        raise WireError(f"hello.classes: a mapping of at most {MAX_ROWS} names to numbers is expected")
    named = {
        _text(name, "hello.classes"): _whole(value, "hello.classes", 0, 255)
        for name, value in classes.items()
    }
    return Hello(
        _text(content.get("host"), "hello.host", least=1),
        _whole(content.get("queues"), "hello.queues", 1, 8),
        named,
    )


def read_report(packet: bytes) -> Report:
    """Any later message of an agent. WireError if it is something else."""
    content = _decode(packet, "report")
    return Report(
        flows=tuple(flow_of(one) for one in _rows(content, "flows")),
        coflows=tuple(coflow_of(one) for one in _rows(content, "coflows")),
        sent=tuple(_sent(one) for one in _rows(content, "sent")),
        done=tuple(_whole(one, "report.done", 0, MAX_ID) for one in _rows(content, "done")),
        gone=tuple(_whole(one, "report.gone", 0, MAX_ID) for one in _rows(content, "gone")),
        closed=tuple(_key(one) for one in _rows(content, "closed")),
    )


def read_answer(packet: bytes) -> Welcome | PlanPart:
    """A message of a coordinator. WireError if it is none."""
    message = _object(packet)
    if "welcome" in message:
        content = _decode(packet, "welcome")
        beat = _number(content.get("beat"), "welcome.beat", 1e-3, 3600)
        return Welcome(_text(content.get("policy"), "welcome.policy"), beat)
    content = _decode(packet, "plan")
    flows: dict[int, Share] = {}
    for row in _rows(content, "flows"):
        if not isinstance(row, list) or len(row) != 5:
            raise WireError("plan.flows: rows of id, class, hold, cap, decided are expected")
        number = _whole(row[0], "plan.flows.id", 0, MAX_ID)
        hold = None if row[2] is None else _number(row[2], "plan.flows.hold", 0, MAX_SECONDS)
        cap = None if row[3] is None else _number(row[3], "plan.flows.cap", 0, MAX_BYTES)
        flows[number] = Share(_whole(row[1], "plan.flows.class", 0, 7), hold, cap, row[4] is True)
    refused: dict[int, str] = {}
    for row in _rows(content, "refused"):
        if not isinstance(row, list) or len(row) != 2:
            raise WireError("plan.refused: rows of id, reason are expected")
        refused[_whole(row[0], "plan.refused.id", 0, MAX_ID)] = _text(row[1], "plan.refused.why")
    return PlanPart(_whole(content.get("revision"), "plan.revision", 0, MAX_ID), flows, refused)


def _object(packet: bytes) -> dict[str, Any]:
    if len(packet) > MAX_MESSAGE:
        raise WireError(f"{len(packet)} bytes: a message has at most {MAX_MESSAGE}")
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError):
        raise WireError("not one JSON object in UTF-8") from None
    if not isinstance(message, dict):
        raise WireError(f"a JSON {type(message).__name__}, not an object")
    if message.get("v") != VERSION or isinstance(message.get("v"), bool):
        raise WireError(f"v = {_shown(message.get('v'))}: this side speaks v = {VERSION}")
    return message


def _decode(packet: bytes, kind: str) -> dict[str, Any]:
    content = _object(packet).get(kind)
    if not isinstance(content, dict):
        raise WireError(f"a message with {kind!r}, a mapping, is expected here")
    return content


def _rows(content: dict[str, Any], key: str) -> list[Any]:
    rows = content.get(key, [])
    if not isinstance(rows, list) or len(rows) > MAX_ROWS:
        raise WireError(f"{key}: a list of at most {MAX_ROWS} rows is expected")
    return rows


def flow_of(row: Any) -> FlowState:
    """The flow in a row of a report, or in what a job said of it. WireError if there is none."""
    if not isinstance(row, dict):
        raise WireError("report.flows: mappings are expected")
    size = _number(row.get("size"), "flow.size", 1, MAX_BYTES)
    span = _whole(row.get("need_span"), "flow.need_span", 1, MAX_NEED)
    active = row.get("active")
    if not isinstance(active, bool):
        raise WireError("flow.active: true or false is expected")
    return FlowState(
        id=_whole(row.get("id"), "flow.id", 0, MAX_ID),
        uid=_whole(row.get("uid"), "flow.uid", 0, 2**32 - 1),
        job=_text(row.get("job"), "flow.job"),
        coflow=_text(row.get("coflow"), "flow.coflow"),
        peer=_text(row.get("peer"), "flow.peer"),
        size=size,
        sent=_number(row.get("sent"), "flow.sent", 0, size),
        need=_whole(row.get("need"), "flow.need", 0, span - 1),
        need_span=span,
        age=_number(row.get("age"), "flow.age", 0, MAX_SECONDS),
        active=active,
    )


def coflow_of(row: Any) -> CoflowState:
    """The declaration in a row of a report, or in what a job said. WireError if there is none."""
    if not isinstance(row, dict):
        raise WireError("report.coflows: mappings are expected")
    deadline = row.get("deadline")
    return CoflowState(
        uid=_whole(row.get("uid"), "coflow.uid", 0, 2**32 - 1),
        job=_text(row.get("job"), "coflow.job"),
        coflow=_text(row.get("coflow"), "coflow.coflow"),
        weight=_number(row.get("weight"), "coflow.weight", 1 / MAX_WEIGHT, MAX_WEIGHT),
        deadline=math.inf if deadline is None else _number(deadline, "coflow.deadline", 0, MAX_SECONDS),
        size=_number(row.get("size"), "coflow.size", 0, MAX_BYTES),
        flows=_whole(row.get("flows"), "coflow.flows", 0, 10**9),
    )


def _key(row: Any) -> CoflowKey:
    if not isinstance(row, list) or len(row) != 3:
        raise WireError("report.closed: rows of uid, job, coflow are expected")
    return (
        _whole(row[0], "closed.uid", 0, 2**32 - 1),
        _text(row[1], "closed.job"),
        _text(row[2], "closed.coflow"),
    )


def _sent(row: Any) -> tuple[int, float]:
    if not isinstance(row, list) or len(row) != 2:
        raise WireError("report.sent: rows of id, bytes are expected")
    return _whole(row[0], "sent.id", 0, MAX_ID), _number(row[1], "sent.bytes", 0, MAX_BYTES)


def _text(value: Any, key: str, least: int = 0) -> str:
    if not isinstance(value, str) or not least <= len(value) <= MAX_TEXT or not value.isprintable():
        raise WireError(f"{key}: a printable text of {least} to {MAX_TEXT} characters is expected")
    return value


def _whole(value: Any, key: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise WireError(f"{key} = {_shown(value)}: a whole number from {least} to {most} is expected")
    return value


def _number(value: Any, key: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise WireError(f"{key} = {_shown(value)}: a number from {least:g} to {most:g} is expected")
    return float(value)


def _shown(value: Any) -> str:
    """A scalar as a message repeats it; what is nested is named by its type, however deep it goes."""
    return repr(value)[:24] if value is None or isinstance(value, int | float | str) else type(value).__name__
