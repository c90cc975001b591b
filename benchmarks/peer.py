"""Ours against SimGrid: the same flows over the same paths, as a problem for `simgrid_side`.

SimGrid is an independent implementation of max-min sharing (C++), so what both say is probably right. Its
Python module is Debian's, for the system's Python, hence a program of its own and files between.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from netsched.fabric import Fabric
from netsched.model import Floats, Transport, Workload
from netsched.routes import route

PYTHON = Path("/usr/bin/python3")
"""The interpreter that distribution packages install modules for."""

PACKAGE = "python3-simgrid"
_SIDE = Path(__file__).with_name("simgrid_side.py")


@dataclass(frozen=True)
class Answer:
    """When each flow finished (s), how long SimGrid took for it (s, without start-up), its version."""

    finish: Floats
    seconds: float
    version: str


def missing() -> str:
    """Why SimGrid cannot be asked here, "" if it can."""
    if not PYTHON.exists():
        return f"SimGrid needs {PYTHON}, which is not here"
    found = subprocess.run([PYTHON, "-c", "import simgrid"], capture_output=True, check=False)
    return f"{PYTHON} has no module simgrid: apt-get install {PACKAGE}" if found.returncode else ""


def ask(workload: Workload, fabric: Fabric, timeout: float) -> Answer:
    """The finish times that SimGrid finds, with every flow on the path that our simulator gives it.

    For workloads of flows that wait for nothing, of whole bytes, over links without delay: ValueError else.
    subprocess.TimeoutExpired after `timeout` seconds, RuntimeError if SimGrid fails.
    """
    size, release = workload.flows.size, workload.jobs.arrival[workload.coflows.job[workload.flows.coflow]]
    if workload.dag.n_deps.any() or (size != np.round(size)).any() or fabric.delay.any():
        raise ValueError("SimGrid is asked about independent flows of whole bytes over links without delay")
    routes = route(workload, fabric, Transport())
    order = np.argsort(release, kind="stable")
    problem = {
        "capacity": fabric.capacity.tolist(),
        "paths": [part.tolist() for part in np.split(routes.links, routes.indptr[1:-1])],
        "path": routes.path[order].tolist(),
        "size": size[order].astype(np.int64).tolist(),
        "release": release[order].tolist(),
    }
    with tempfile.TemporaryDirectory() as folder:
        given, wanted = Path(folder, "problem.json"), Path(folder, "result.json")
        given.write_text(json.dumps(problem))
        run = subprocess.run(
            [PYTHON, _SIDE, given, wanted], capture_output=True, text=True, check=False, timeout=timeout
        )
        if run.returncode:
            said = run.stderr.strip().splitlines() or ["nothing said"]
            raise RuntimeError(f"SimGrid ended with status {run.returncode}: {said[-1]}")
        result = json.loads(wanted.read_text())
    finish = np.empty(len(order))
    finish[order] = result["finish"]
    return Answer(finish, result["seconds"], result["version"])


def whole_bytes(workload: Workload) -> Workload:
    """The workload with every size rounded up to whole bytes: SimGrid's sizes are integers."""
    return replace(workload, flows=replace(workload.flows, size=np.ceil(workload.flows.size)))
