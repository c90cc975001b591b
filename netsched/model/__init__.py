"""The nouns: what a workload, a view, a plan and an outcome are.

Bytes, seconds and bytes per second everywhere inside; `units` converts at the edge. Its modules import
nothing of ours but each other.
"""

from netsched.model.circuits import CircuitPlan, Circuits, CircuitView, Pairs
from netsched.model.columns import Bools, Floats, Ints, ShortInts
from netsched.model.decision import (
    BEST_EFFORT,
    PLAN_COLUMNS,
    CoflowView,
    Event,
    FlowView,
    JobView,
    Memory,
    Plan,
    Policy,
    Profile,
    View,
    Ways,
)
from netsched.model.description import (
    UNPLACED,
    Connections,
    Control,
    Emulation,
    Fault,
    Scenario,
    Scheme,
    Spec,
    Transport,
)
from netsched.model.outcome import Outcome, Standing
from netsched.model.placing import Bursts, Cluster, JobAlone, Network, Placement, Placing
from netsched.model.workload import Coflows, Dag, Flows, Jobs, Stages, TaskKind, Tasks, Workload

__all__ = [
    "BEST_EFFORT",
    "PLAN_COLUMNS",
    "UNPLACED",
    "Bools",
    "Bursts",
    "CircuitPlan",
    "CircuitView",
    "Circuits",
    "Cluster",
    "CoflowView",
    "Coflows",
    "Connections",
    "Control",
    "Dag",
    "Emulation",
    "Event",
    "Fault",
    "Floats",
    "FlowView",
    "Flows",
    "Ints",
    "JobAlone",
    "JobView",
    "Jobs",
    "Memory",
    "Network",
    "Outcome",
    "Pairs",
    "Placement",
    "Placing",
    "Plan",
    "Policy",
    "Profile",
    "Scenario",
    "Scheme",
    "ShortInts",
    "Spec",
    "Stages",
    "Standing",
    "TaskKind",
    "Tasks",
    "Transport",
    "View",
    "Ways",
    "Workload",
]
