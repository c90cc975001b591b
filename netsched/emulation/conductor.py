"""The engine `mininet`: one policy of a scenario on the real kernel, as an Outcome like the simulator's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from netsched.emulation import enclosure
from netsched.emulation.channel import Message
from netsched.errors import EmulationError
from netsched.model import Outcome, Scenario, Standing


def emulate(
    scenario: Scenario,
    position: int,
    *,
    log: Path,
    progress: Callable[[Standing], None],
) -> Outcome:
    """Run the scenario's policy at `position` in real time inside private namespaces.

    What the processes inside print goes to `log`. CapabilityError where this machine lacks something,
    EmulationError where the emulated network does not do what it should.
    """
    started = time.perf_counter()

    def heard(message: Message) -> None:
        if message.kind == "progress":
            body = message.body
            progress(Standing(**body))

    request = Message(
        "perform",
        {"source": dict(scenario.source), "position": position, "plugins": list(scenario.plugins)},
    )
    answer = enclosure.run_enclosed("netsched.emulation.stage:perform", request, log=log, on_message=heard)
    if answer.kind != "outcome":
        raise EmulationError(f"the emulation answered {answer.kind!r} instead of an outcome; see {log}")
    columns, body = answer.arrays, answer.body
    return Outcome(
        flow_release=columns["flow_release"],
        flow_finish=columns["flow_finish"],
        flow_class=columns["flow_class"],
        task_start=columns["task_start"],
        task_finish=columns["task_finish"],
        link_bytes=columns["link_bytes"],
        simulated_s=body["simulated_s"],
        wall_s=time.perf_counter() - started,
        peak_rss_bytes=body["peak_rss_bytes"],
        decisions=body["decisions"],
        fidelity=body["fidelity"],
        mechanisms=body["mechanisms"],
    )
