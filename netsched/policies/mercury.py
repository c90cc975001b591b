"""Mercury: whenever a sender's wire is free, the data with the highest priority in its buffer goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from netsched.model import Event, Plan, View
from netsched.policies.senders import plan_by_turn, senders, turns


@dataclass(frozen=True)
class Mercury:
    """Packet-level priority at the sender (Duan et al., IEEE INFOCOM 2022, TPDS 2023; abstracts were read).

    Tensors are not cut; each sender keeps one buffer and always sends the packet of highest priority in it.
    In a fluid model that is strict priority by consumption order among the flows of one sender, at every
    moment; flows of one tensor to several hosts share. Switches know nothing of it: where flows of several
    senders meet, each sender's first ones share, and later ones take what those leave, by their turn.
    The hardware's classes hold the first turns and the last class the rest.

    The paper's other half is no plan: the server aggregates packet by packet, so a pull follows the slowest
    worker's pushed prefix, and no tensor pays for being cut. That is the workload's to say; with tensors
    aggregated whole, this policy alone is Mercury without "immediate aggregation".

    INFERRED: priority is the layer index; a sender is one job's process on a host, so that jobs which meet
    on a host share its port; rates of turns behind the first one (the paper's transport decides them).
    """

    name: ClassVar[str] = "mercury"
    clairvoyant: ClassVar[bool] = False
    local: ClassVar[bool] = False
    events: ClassVar[Event] = Event.FLOW_RELEASED | Event.WATCHED_FINISHED

    def __call__(self, view: View) -> Plan:
        return plan_by_turn(view, turns(senders(view), view.flows.need))
