"""The settings of NCCL and UCX that go with a class."""

from __future__ import annotations

import json
import socket

import pytest
from agent_pages import AGENT
from running_agent import BASE, agent, command, connection

from hostagent import client, rdma, tagging
from netsched import marking
from netsched.errors import CapabilityError, ScenarioError

# The traffic class is the whole byte: 4 times the DSCP. The Ethernet priority is its upper 3 bits.
ROCE = [(0, 160, 5), (1, 144, 4), (2, 128, 4), (3, 80, 2), (4, 72, 2), (5, 64, 2), (6, 32, 1), (7, 0, 0)]


@pytest.mark.parametrize(("cls", "traffic_class", "priority"), ROCE)
def test_on_roce_the_settings_are_the_socket_s_mark(cls, traffic_class, priority):
    made = {one.name: one.value for one in rdma.settings("a.b-1", cls, 8, "roce")}
    assert made == {
        "NETSCHED_JOB": "a.b-1",
        "NCCL_IB_TC": str(traffic_class),
        "NCCL_IB_FIFO_TC": "176",
        "NCCL_IB_SL": str(priority),
        "UCX_IB_TRAFFIC_CLASS": str(traffic_class),
        "UCX_IB_SL": str(priority),
    }
    with connection() as (near, _):
        tagging.tag(near, marking.dscp_of(cls))
        assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == traffic_class
    ect = {one.name: one.value for one in rdma.settings("a", cls, 8, "roce", ect=True)}
    assert int(ect["NCCL_IB_TC"]) == traffic_class | 2 and ect["NCCL_IB_FIFO_TC"] == "178"


def test_on_infiniband_there_is_a_service_level_if_it_is_given_and_never_a_traffic_class():
    made = {one.name: one.value for one in rdma.settings("j", 0, 8, "infiniband", service_level=15)}
    assert made == {"NETSCHED_JOB": "j", "NCCL_IB_SL": "15", "UCX_IB_SL": "15"}
    with pytest.raises(rdma.RdmaError, match="subnet manager"):
        rdma.settings("j", 0, 8, "infiniband")


@pytest.mark.parametrize(
    ("job", "cls", "layer", "level", "says"),
    [
        ("j", 0, "roce", 8, "0 to 7"),
        ("j", 0, "roce", -1, "0 to 7"),
        ("j", 0, "infiniband", 16, "0 to 15"),
        ("j", 8, "roce", None, "0 to 7"),
        ("a b", 0, "roce", None, "--job"),
        ("$(x)", 0, "roce", None, "--job"),
        ("", 0, "roce", None, "--job"),
        ("a\nB=1", 0, "roce", None, "--job"),
    ],
)
def test_what_is_out_of_range_is_refused(job, cls, layer, level, says):
    with pytest.raises(ScenarioError, match=says):
        rdma.settings(job, cls, 8, layer, service_level=level)


def test_the_link_layer_is_asked_of_the_ports_and_never_guessed(tmp_path):
    def port(device: str, layer: str) -> None:
        folder = tmp_path / device / "ports" / "1"
        folder.mkdir(parents=True)
        (folder / "link_layer").write_text(f"{layer}\n")

    with pytest.raises(CapabilityError, match="no RDMA port"):
        rdma.link_layer(tmp_path)
    port("mlx5_0", "Ethernet")
    port("mlx5_1", "Ethernet")
    assert rdma.link_layer(tmp_path) == "roce"
    port("mlx5_2", "InfiniBand")
    with pytest.raises(rdma.RdmaError, match=r"infiniband \(mlx5_2:1\) and roce \(mlx5_0:1, mlx5_1:1\)"):
        rdma.link_layer(tmp_path)


def test_env_prints_lines_for_a_shell_and_names_come_from_the_configuration(tmp_path):
    argv = [*AGENT, "env", "--job", "resnet", "--link-layer", "roce"]
    done = command(*argv, "--class", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["NETSCHED_JOB=resnet", "NCCL_IB_TC=144"]
    file = tmp_path / "agent.yaml"
    file.write_text(json.dumps({"version": 1, "queues": 4, "classes": {"bulk": 2}}))
    shown = json.loads(command(*argv, "--class", "bulk", "--config", str(file), "--json").stdout)
    assert (shown["class"], shown["dscp"], shown["environment"]["NCCL_IB_TC"]) == (2, 32, "128")
    for wrong in (["--class", "bulk"], ["--class", "8"], ["--class", "4", "--config", str(file)]):
        done = command(*argv, *wrong)
        assert done.returncode == 2 and done.stderr.startswith("netsched-agent: --class"), done.stderr


def test_a_client_takes_its_job_s_name_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("NETSCHED_JOB", "from-env")
    with (
        agent(tmp_path, BASE) as (path, _),
        client.connect(path, strict=True) as us,
        client.connect(path, job="named", strict=True),
    ):
        assert sorted(one["job"] for one in us.status()["clients"]) == ["from-env", "named"]
