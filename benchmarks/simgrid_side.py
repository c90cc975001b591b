"""SimGrid's half of the comparison: reads a problem as JSON, writes when each flow finished.

It is run by the system's own Python, for which Debian packages SimGrid, and so imports nothing of ours.

usage: simgrid_side.py PROBLEM.json RESULT.json

PROBLEM: capacity (bytes/s per link), paths (lists of links), and per flow, in the order of release: path,
size (whole bytes), release (s). RESULT: version, seconds (of the run alone), finish (s per flow).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, simgrid_version, this_actor

SETTINGS = {
    # A flow's share of a link is its max-min share: no TCP model on top, whose rates depend on round trips.
    "network/model": "CM02",
    # Acknowledgements take nothing of the way back (5 % by default; here no such way is even defined).
    "network/crosstraffic": "0",
    # No limit of window / round trip on a flow's rate (there is none without latency either way).
    "network/TCP-gamma": "0",
    # A flow's weight is 1 whatever links it crosses; a positive S makes it depend on their bandwidth.
    "network/weight-S": "0",
    # All of a link's bandwidth is payload (TCP models take 97 %), and no latency is multiplied up.
    "network/bandwidth-factor": "1",
    "network/latency-factor": "0",
    # Shares are computed to 1e-5 and clocks to 1e-9 s by default; the numbers then differ from ours by 1e-7.
    "maxmin/precision": "1e-12",
    "surf/precision": "1e-12",
}


def build(capacity: list[float], paths: list[list[int]]) -> tuple[list[Any], Any]:
    """One sending host per path, and the one host to which all of them send.

    SimGrid knows one route per pair of hosts, ours has several: so a path gets a sender of its own whose
    "up links" are the whole path. The links are the same objects, and only links are shared.
    """
    zone = NetZone.create_star_zone("fabric")
    links = []
    for number, rate in enumerate(capacity):
        link = zone.create_link(f"link{number}", rate)
        link.set_latency(0.0)
        link.seal()
        links.append(LinkInRoute(link))
    senders = []
    for number, path in enumerate(paths):
        host = zone.create_host(f"path{number}", 1.0)
        host.seal()
        zone.add_route(host.netpoint, None, None, None, [links[i] for i in path], False)
        senders.append(host)
    sink = zone.create_host("sink", 1.0)
    sink.seal()
    zone.add_route(None, sink.netpoint, None, None, [], False)
    zone.seal()
    return senders, sink


def run(problem: dict[str, Any]) -> dict[str, Any]:
    options = [f"--cfg={key}:{value}" for key, value in SETTINGS.items()]
    engine = Engine(["simgrid_side", "--log=root.thresh:warning", *options])
    senders, sink = build(problem["capacity"], problem["paths"])
    flows: list[Any] = []

    def dispatch() -> None:
        for path, size, release in zip(problem["path"], problem["size"], problem["release"], strict=True):
            this_actor.sleep_until(release)
            flows.append(Comm.sendto_async(senders[path], sink, size))
        for flow in flows:
            flow.wait()

    Actor.create("dispatch", sink, dispatch)
    started = time.perf_counter()
    engine.run()
    seconds = time.perf_counter() - started
    finish = [flow.finish_time for flow in flows]
    return {"version": str(simgrid_version), "seconds": seconds, "finish": finish}


if __name__ == "__main__":
    given, wanted = map(Path, sys.argv[1:])
    wanted.write_text(json.dumps(run(json.loads(given.read_text()))))
