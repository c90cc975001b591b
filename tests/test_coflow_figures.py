"""The figures of docs/coflows.md for the public trace are those that the simulator gives."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from sim_cases import run
from test_simulate_trace import TRACE, case

from netsched.metrics import coflows
from netsched.model import Spec
from netsched.policies import make

PAGE = Path(__file__).resolve().parents[1] / "docs" / "coflows.md"
ALL_COFLOWS = 526


def row(scheduler: str) -> list[float]:
    """Mean, p50, p95, max and makespan (s) that the page states."""
    (cells,) = re.findall(rf"^\| `{scheduler}` \|((?: [\d.]+ \|){{5}})$", PAGE.read_text(), re.MULTILINE)
    return [float(cell) for cell in cells.split("|")[:-1]]


@pytest.mark.skipif(
    not TRACE.is_file(), reason=f"the coflow trace {TRACE} is not there: set NETSCHED_DATA to its folder"
)
@pytest.mark.parametrize("scheduler", ["fair", "sebf"])
def test_the_page_states_what_the_whole_trace_gives(scheduler: str) -> None:
    workload, fabric = case(ALL_COFLOWS)
    outcome = run(workload, fabric, make(Spec(scheduler)))
    cct = coflows(workload, outcome)["cct"]
    found = [cct.mean(), *np.percentile(cct, [50, 95]), cct.max(), outcome.flow_finish.max()]
    # Six digits are stated.
    assert found == pytest.approx(row(scheduler), rel=5e-6)


def test_every_scheduler_of_the_page_has_its_row() -> None:
    for scheduler in ("fair", "fifo", "fifo-lm", "sebf", "sincronia", "aalo", "philae"):
        assert len(row(scheduler)) == 5
