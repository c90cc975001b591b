"""What tests of flows in the agent share."""

from __future__ import annotations

import json

from hostagent.config import parse
from hostagent.desk import Desk

RULES = [
    {"job": "resnet*", "coflow": "grad*", "class": "gradients"},
    {"job": "resnet*", "class": 4},
]
FOLLOWING = {"version": 1, "coordinator": {"address": "127.0.0.1:9471", "keep": "30s"}}


def configured(**more):
    return parse(json.dumps({"version": 1, "classes": {"gradients": 1}, "rules": RULES} | more), "agent.yaml")


def desk() -> Desk:
    made = Desk(lambda _: None)
    made.start_over()
    return made


def said(where: Desk, name: str = "f", owner: int = 1, uid: int = 1000, now: float = 0.0, **fields):
    request = {"flow": name, "coflow": "c", "size": 1000, "peer": "h2"} | fields
    return where.flow(owner, uid, "job", request, "", now)


def followed(**more):
    return configured(coordinator=FOLLOWING["coordinator"], **more)
