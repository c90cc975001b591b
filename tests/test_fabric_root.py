"""The topology files under the system's own `mn`, in namespaces that vanish with it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from netsched.fabric import Fabric
from topologies import TOPOLOGIES

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[1]

# When something goes wrong `mn` cleans up: it kills by name and deletes logs under /tmp. It also raises
# limits under /proc/sys. So it sees only processes and a /tmp of its own, and sysctls that it cannot write.
PRELUDE = (
    'mount --bind "$1" /mnt && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /tmp && cd /mnt && '
    "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && ip link set lo up && "
    'shift && exec /usr/bin/mn "$@"'
)


def mn(*argv):
    """Output of `mn argv` in mount, pid and network namespaces of its own."""
    isolate = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    done = subprocess.run(
        [*isolate, "sh", "-c", PRELUDE, "sh", str(ROOT), *argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0 and "Caught exception" not in output, output
    return output


def interfaces():
    return subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("kind", "options", "loops"),
    [
        ("single_switch", {"hosts": 3}, False),
        ("leaf_spine", {"leaves": 3, "spines": 1, "hosts_per_leaf": 1, "oversubscription": 2}, False),
        ("leaf_spine", {"leaves": 2, "spines": 2, "hosts_per_leaf": 1}, True),
        ("fat_tree", {"k": 2}, False),
        ("rail_optimized", {"servers": 2, "gpus_per_server": 2, "spines": 1}, False),
    ],
)
def test_mn_builds_what_the_simulator_reads(kind, options, loops):
    """`mn --custom FILE --topo NAME,...` wires the interfaces that Fabric names, and packets get through.

    Plain bridges cannot carry traffic over loops at once, so there only the wiring is compared.
    """
    before = interfaces()
    output = mn(
        *("--custom", f"topologies/{kind}.py,tests/mn_bridge.py"),
        *("--topo", ",".join([kind, *(f"{key}={value}" for key, value in options.items())])),
        *("--switch", f"bridge,stp={int(loops)}", "--controller", "none"),
        *("--test", "cables" if loops else "cables+pingall"),
    )
    fabric = Fabric.from_topo(TOPOLOGIES[kind](**options))
    name = [f"{fabric.nodes[n]}-eth{port}" for n, port in zip(fabric.link_src, fabric.link_port, strict=True)]
    wired = {frozenset(pair) for pair in re.findall(r"^CABLE (\S+) (\S+)$", output, re.M)}
    assert wired == {frozenset(pair) for pair in zip(name[::2], name[1::2], strict=True)}
    if not loops:
        pairs = len(fabric.hosts) * (len(fabric.hosts) - 1)
        assert f"0% dropped ({pairs}/{pairs} received)" in output
    assert interfaces() == before
