"""For `mn --custom`: a switch made of the kernel's bridge through iproute2, and a test that lists cables.

Mininet's own LinuxBridge needs brctl and its OVSSwitch a kernel module, and a test of the topology files
should need neither.
"""

from mininet.log import output
from mininet.node import Switch


class Bridge(Switch):
    """A bridge in the network namespace of Mininet. Without stp it floods: for loop-free topologies only."""

    def __init__(self, name, stp=0, **params):
        super().__init__(name, **params)
        self.stp = stp

    def start(self, controllers):
        del controllers
        self.cmd("ip link add", self.name, "type bridge stp_state", self.stp)
        for intf in self.intfList():
            if self.name in intf.name:
                self.cmd("ip link set", intf.name, "master", self.name, "up")
        self.cmd("ip link set", self.name, "up")

    def stop(self, deleteIntfs=True):  # noqa: N803  # Mininet's name
        self.cmd("ip link del", self.name)
        super().stop(deleteIntfs)

    def connected(self):
        return self.name in self.cmd("ip -br link show master", self.name)


def cables(net):
    for link in net.links:
        output(f"CABLE {link.intf1.name} {link.intf2.name}\n")


switches = {"bridge": Bridge}
tests = {"cables": cables}
