"""Which class a flow is to have now: by the coordinator's plan, by the last one, or by this host's own word.

A coordinator that is away must cost nothing at first and little in the end: the last plan stays good for a
while, because flows outlive short failures, and after that a rule that everybody knows beats a stale plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal

from netsched.coordinator.wire import CoflowKey, FlowState, PlanPart, Share

if TYPE_CHECKING:
    from hostagent.config import Config
    from hostagent.localpolicy import LocalPolicy

Source = Literal["plan", "interim", "kept", "rule", "policy", "default"]
Standing = Literal["following", "kept", "local"]


@dataclass(frozen=True)
class Held:
    """What the plan says of a flow. `not_before` in seconds of the monotonic clock, `cap` in bytes/s."""

    cls: int
    not_before: float
    cap: float
    decided: bool


@dataclass(frozen=True)
class Guidance:
    """What a flow is to do. `hold` seconds from now in which it must not begin, `cap` bytes/s (inf: none)."""

    cls: int
    source: Source
    hold: float = 0.0
    cap: float = math.inf
    refused: str = ""


_NEVER: Final = -math.inf


class Guide:
    """The plan in force on one host. Times are of the monotonic clock, in seconds."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._keep = 0.0 if config.coordinator is None else config.coordinator.keep
        self._connected = False
        self._heard = _NEVER
        self._held: dict[int, Held] = {}
        self._refused: dict[int, str] = {}
        self._class_of: dict[CoflowKey, int] = {}
        self._local: dict[int, Held] = {}
        self.policy = _local_policy(config)
        self.revision = 0

    def standing(self, now: float) -> Standing:
        """Whose word counts now: the coordinator's, its last one, or this host's own rules."""
        if self._connected:
            return "following"
        return "kept" if now < self.lapses_at else "local"

    @property
    def lapses_at(self) -> float:
        """When the last plan ceases to hold, unless the coordinator is heard again; in the past: it has."""
        return self._heard + self._keep

    def age(self, now: float) -> float:
        """Seconds since the coordinator was last heard; inf if never."""
        return now - self._heard

    # -------------------------------------------------------------- of the coordinator

    def begin(self, now: float) -> None:
        """The coordinator is there (again). A plan that had lapsed is not taken up again."""
        if self.standing(now) == "local":
            self._held.clear()
            self._class_of.clear()
        self._refused.clear()
        self._connected, self._heard = True, now

    def take(self, plan: PlanPart, coflow_of: dict[int, CoflowKey], now: float) -> None:
        """Put an agent's part of a plan in force. `coflow_of` says which flows this host still has."""
        self._heard, self.revision = now, plan.revision
        for number, share in plan.flows.items():
            key = coflow_of.get(number)
            if key is not None:
                self._held[number] = _held(share, now)
                if share.decided:
                    self._class_of[key] = share.cls
        self._refused |= {number: why for number, why in plan.refused.items() if number in coflow_of}
        if len(self._class_of) > 2 * len(coflow_of) + 64:
            alive = set(coflow_of.values())
            self._class_of = {key: cls for key, cls in self._class_of.items() if key in alive}

    def end(self) -> None:
        """The coordinator is away."""
        self._connected = False

    def forget(self, number: int) -> None:
        """A flow has ended."""
        self._held.pop(number, None)
        self._refused.pop(number, None)
        self._local.pop(number, None)

    # -------------------------------------------------------------- of a flow

    def guidance(self, flow: FlowState, now: float, begun: float = math.inf) -> Guidance:
        """What a flow is to do now, within what its user may.

        `begun`: seconds since its job had its first flow, inf if the job does not say.
        """
        found = self._found(flow, now)
        allowed = self._config.may_use(flow.uid) or frozenset({self._config.queues - 1})
        cls = found.cls
        if cls not in allowed:
            # Never a more urgent class than the one meant, if the user has one.
            cls = min((one for one in allowed if one > cls), default=max(allowed))
        hold = max(found.hold, self._config.shift_of(flow.job) - begun)
        return Guidance(cls, found.source, hold, found.cap, found.refused)

    def _found(self, flow: FlowState, now: float) -> Guidance:
        standing = self.standing(now)
        refused = self._refused.get(flow.id, "")
        if standing == "local" or refused:
            return self._by_host(flow, refused, now)
        held = self._held.get(flow.id)
        if held is not None:
            source: Source = "kept" if standing == "kept" else "plan" if held.decided else "interim"
            return Guidance(held.cls, source, max(0.0, held.not_before - now), held.cap)
        of_coflow = self._class_of.get(flow.key)
        if standing == "kept":
            return self._by_host(flow, "", now) if of_coflow is None else Guidance(of_coflow, "kept")
        # As netsched.control.interim_class, without numpy: with its coflow, or at the top until it is known.
        return Guidance(0 if of_coflow is None else of_coflow, "interim")

    def _by_host(self, flow: FlowState, refused: str, now: float) -> Guidance:
        """This host's own word: the first rule that fits, else the local policy, else the last class."""
        for rule in self._config.rules:
            if fnmatchcase(flow.job, rule.job) and fnmatchcase(flow.coflow, rule.coflow):
                return Guidance(self._config.number_of(rule.cls), "rule", refused=refused)
        if self.policy is None:
            return Guidance(self._config.queues - 1, "default", refused=refused)
        held = self._local.get(flow.id) or self._asked(self.policy, flow, now)
        return Guidance(held.cls, "policy", max(0.0, held.not_before - now), held.cap, refused)

    def _asked(self, policy: LocalPolicy, flow: FlowState, now: float) -> Held:
        """A local policy's word: once for each flow, when it is released, as in the simulator."""
        plan = policy.plan(flow, now)
        held = Held(int(plan.rank[0]), float(plan.not_before[0]), float(plan.rate[0]), True)
        if flow.active:
            self._local[flow.id] = held
        return held


def _local_policy(config: Config) -> LocalPolicy | None:
    if config.policy is None:
        return None
    from hostagent.localpolicy import LocalPolicy  # noqa: PLC0415 # numpy comes with it

    return LocalPolicy(config.policy, config.queues)


def _held(share: Share, now: float) -> Held:
    not_before = _NEVER if share.hold is None else now + share.hold
    return Held(share.cls, not_before, math.inf if share.cap is None else share.cap, share.decided)
