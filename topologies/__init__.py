"""The fabrics, as Mininet `Topo` classes: Mininet builds these very objects, the simulator reads them.

Each file also works by itself with plain Mininet, `mn --custom topologies/X.py --topo X,key=value`, which
is why none imports anything but Mininet and why rates are Mbit/s here (Mininet's `bw`).
"""

from __future__ import annotations

from typing import Final

from mininet.topo import Topo

from topologies.fat_tree import FatTree
from topologies.hybrid import Hybrid
from topologies.leaf_spine import LeafSpine
from topologies.ocs_direct import OcsDirect
from topologies.rail_ocs import RailOcs
from topologies.rail_optimized import RailOptimized
from topologies.rotor import Rotor
from topologies.single_switch import SingleSwitch

TOPOLOGIES: Final[dict[str, type[Topo]]] = {
    "single_switch": SingleSwitch,
    "leaf_spine": LeafSpine,
    "fat_tree": FatTree,
    "rail_optimized": RailOptimized,
    "hybrid": Hybrid,
    "ocs_direct": OcsDirect,
    "rotor": Rotor,
    "rail_ocs": RailOcs,
}
