"""The reader of the Coflow-Benchmark format, on the public trace and on small ones made here."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from workload_fabric import big_switch, unrolled

from netsched.errors import ScenarioError
from netsched.model import Spec
from netsched.workloads import build

NAME = "FB2010-1Hr-150-0.txt"
SMALL = "4 3\n1 0 2 0 1 1 2:10.0\n2 500 1 3 2 3:6 0:0.5\n9 1250 3 0 1 2 2 1:9 3:0.0\n"


def public_trace() -> Path:
    data = os.environ.get("NETSCHED_DATA")
    folder = Path(data) if data else Path(__file__).resolve().parents[2] / "shared" / "data"
    path = folder / NAME
    if not path.is_file():
        pytest.skip(f"the public trace {NAME} is not in {folder}: set NETSCHED_DATA to its folder")
    return path


def test_the_public_trace_has_its_published_totals():
    """Counts as documented with the trace; 1 MB is 10^6 bytes."""
    path = public_trace()
    fabric = big_switch(150)
    started = time.perf_counter()
    w = build((Spec("coflow-benchmark", {"path": str(path)}),), fabric, 1)
    assert time.perf_counter() - started < 3.0
    assert len(w.coflows.label) == len(w.jobs.name) == len(w.stages.label) == 526
    assert w.n_flows == 706_397
    assert w.flows.size.sum() == pytest.approx(35_533_534e6, rel=1e-12)
    assert (w.flows.src == w.flows.dst).sum() == 4_911
    assert w.jobs.arrival.max() == 3_629.235
    assert w.hairpin
    assert w.n_tasks == 0
    assert len(w.dag.successors) == 0


@pytest.fixture
def trace(tmp_path):
    def write(text: str | bytes) -> str:
        path = tmp_path / "trace.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return write


def test_a_small_trace_row_by_row(trace):
    w = unrolled("coflow-benchmark", hosts=5, path=trace(SMALL))
    assert w.jobs.name == ("coflow 1", "coflow 2", "coflow 9")
    assert w.jobs.arrival.tolist() == [0, 0.5, 1.25]
    # By coflow, then reducer, then mapper; a reducer's megabytes are shared by its mappers.
    assert w.flows.coflow.tolist() == [0, 0, 1, 1, 2, 2, 2, 2, 2, 2]
    assert w.flows.src.tolist() == [0, 1, 3, 3, 0, 1, 2, 0, 1, 2]
    assert w.flows.dst.tolist() == [2, 2, 3, 0, 1, 1, 1, 3, 3, 3]
    assert w.flows.size.tolist() == [5e6, 5e6, 6e6, 5e5, 3e6, 3e6, 3e6, 0, 0, 0]


def test_limit_takes_the_first_coflows(trace):
    path = trace(SMALL)
    assert unrolled("coflow-benchmark", path=path, limit=2).jobs.name == ("coflow 1", "coflow 2")
    with pytest.raises(ScenarioError, match="limit: 4 is more than the 3 coflows of"):
        unrolled("coflow-benchmark", path=path, limit=4)


def test_line_ends_and_blank_lines_at_the_end_do_not_matter(trace):
    plain = unrolled("coflow-benchmark", path=trace(SMALL))
    dos = unrolled("coflow-benchmark", path=trace(SMALL.replace("\n", "\r\n") + "\r\n \n\n"))
    assert np.array_equal(plain.flows.size, dos.flows.size)


BROKEN = [
    ("", "trace.txt: the file is empty"),
    ("\n\n", "trace.txt: the file is empty"),
    ("4\n", "trace.txt:1: the line ends where the number of coflows should be"),
    ("4 1 7\n1 0 1 0 1 1:1\n", "trace.txt:1: '7' follows the last value"),
    ("x 1\n", "trace.txt:1: the number of ports is 'x': it must be a whole number from 1 to"),
    ("0 1\n", "trace.txt:1: the number of ports is '0'"),
    ("-4 1\n", "trace.txt:1: the number of ports is '-4'"),
    ("4 2\n1 0 1 0 1 1:1\n", "trace.txt:1: announces 2 coflows, 1 follow"),
    ("4 1\n1 0 1 0 1 1:1\n2 0 1 0 1 1:1\n", "trace.txt:3: one coflow more than the 1"),
    ("4 1\none 0 1 0 1 1:1\n", "trace.txt:2: the coflow's id is 'one'"),
    ("4 1\n1 soon 1 0 1 1:1\n", "trace.txt:2: the arrival in ms is 'soon': it must be a number"),
    ("4 1\n1 -5 1 0 1 1:1\n", "trace.txt:2: the arrival in ms is '-5'"),
    ("4 1\n1 nan 1 0 1 1:1\n", "trace.txt:2: the arrival in ms is 'nan'"),
    ("4 1\n1 0 0 1 1:1\n", "trace.txt:2: the number of mappers is '0'"),
    ("4 1\n1 0 5 0 1 2 3 0 1 1:1\n", "trace.txt:2: the number of mappers is '5': .* from 1 to 4"),
    ("4 1\n1 0 2 0 1 1:1\n", "trace.txt:2: the number of reducers is '1:1'"),
    ("4 1\n1 0 1 4 1 1:1\n", "trace.txt:2: the port of mapper 1 is '4': .* from 0 to 3"),
    ("4 1\n1 0 1 0 1 4:1\n", "trace.txt:2: the port of reducer 1 is '4': .* from 0 to 3"),
    ("4 1\n1 0 1 0 2 1:1\n", "trace.txt:2: the line ends where reducer 2 should be"),
    ("4 1\n1 0 1 0 1 1:1 2:1\n", "trace.txt:2: '2:1' follows the last value"),
    ("4 1\n1 0 1 0 1 1:1 # note\n", "trace.txt:2: '#' follows the last value"),
    ("4 1\n1 0 1 0 1 1\n", "trace.txt:2: reducer 1 is '1': it must be port:megabytes"),
    ("4 1\n1 0 1 0 1 1:\n", "trace.txt:2: the megabytes of reducer 1 is ''"),
    ("4 1\n1 0 1 0 1 1:-1\n", "trace.txt:2: the megabytes of reducer 1 is '-1'"),
    ("4 1\n1 0 1 0 1 1:NaN\n", "trace.txt:2: the megabytes of reducer 1 is 'NaN'"),
    ("4 1\n1 0 1 0 1 1:inf\n", "trace.txt:2: the megabytes of reducer 1 is 'inf'"),
    ("4 1\n1 0 1 0 1 1:1e99\n", "trace.txt:2: the megabytes of reducer 1 is '1e99'"),
    ("4 1\n1 0 1 0 1 1:1_0\n", "trace.txt:2: the megabytes of reducer 1 is '1_0'"),
    ("4 2\n1 0 1 0 1 1:1\n\n2 0 1 0 1 1:1\n", "trace.txt:3: the line is empty"),
    ("4 2\n1 0 1 0 1 1:1\n1 0 1 0 1 1:1\n", "trace.txt:3: id 1 is used in .*trace.txt:2 already"),
    (b"\x7fELF\x02\x01\x00\xff\xfe", "trace.txt:1: byte 0xff is not text"),
    (b"4 1\n1 0 1 0 1 1:1\x00\n", "trace.txt:2: byte 0x00 is not text"),
    ("9 1\n1 0 1 0 1 1:1\n", "the trace has 9 ports, the fabric 8 hosts: use a fabric of 9 hosts or more"),
    (f"4 1\n{'9' * 5000} 0 1 0 1 1:1\n", r"trace.txt:2: the coflow's id is '9{40}\.\.\.'"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_broken_line_is_one_clear_message(trace, text, message):
    with pytest.raises(ScenarioError, match=message) as caught:
        unrolled("coflow-benchmark", hosts=8, path=trace(text))
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_file_is_named(tmp_path):
    for path, message in ((tmp_path / "none.txt", "does not exist"), (tmp_path, "is not a regular file")):
        with pytest.raises(ScenarioError, match=message) as caught:
            unrolled("coflow-benchmark", path=str(path))
        assert str(path) in str(caught.value)


def test_same_host_flows_are_traffic_in_a_trace_only(trace):
    specs = (
        Spec("coflow-benchmark", {"path": trace(SMALL)}),
        Spec("incast", {"senders": "all", "receiver": "h1", "size": "1MB"}),
    )
    with pytest.raises(ScenarioError, match="coflow-benchmark counts a flow from a host to itself"):
        build(specs, big_switch(4), 1)
