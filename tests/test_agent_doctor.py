"""What `doctor` says of NICs: the kernel's DCB answers, the classes' way through a NIC, RDMA settings."""

from __future__ import annotations

import errno
import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from running_agent import ROOT

from hostagent import dcb, nic, rdma
from hostagent.dcb import Dcb
from hostagent.nic import Device, Remark
from netsched import marking
from netsched.netlink import NetlinkError, open_netns

DSCP = [40, 36, 32, 20, 18, 16, 8, 0]


def said(kind: int, payload: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def answer(*, willing=0, tsa=(0,) * 8, prio_tc=tuple(range(8)), pfc=0, apps=(), dcbx=9) -> bytes:
    """What the kernel answers, by linux/dcbnl.h: ieee_ets, ieee_pfc and rows of dcb_app (selector first)."""
    ets = struct.pack("=3B", willing, 8, 0) + bytes(16) + bytes(tsa) + bytes(prio_tc) + bytes(24)
    assert len(ets) == 59  # sizeof(struct ieee_ets)
    flow = struct.pack("=BBBxH2x", 8, pfc, 0, 0) + bytes(128)
    table = b"".join(said(1, struct.pack("=BBH", kind, priority, code)) for kind, priority, code in apps)
    ieee = said(1, ets) + said(2, flow) + said(3, table)
    return struct.pack("=BBH", 0, 21, 0) + said(1, b"eth0\0") + said(13, ieee) + said(14, bytes([dcbx]))


def nic_of(mapped=dict(zip(DSCP, (7, 6, 5, 4, 3, 2, 1, 0), strict=True)), **more) -> Dcb:  # noqa: B006, B008
    return dcb.parse(answer(apps=[(5, priority, code) for code, priority in mapped.items()], **more))


def wrong(remarks: list[Remark]) -> list[str]:
    return [one.text for one in remarks if one.wrong]


# ------------------------------------------------------------------ the kernel's answers


def test_an_answer_is_read_as_the_kernel_s_header_has_it():
    apps = [(5, 3, 26), (1, 4, 0x8915), (5, 6, 48), (5, 1, 8), (5, 2, 8)]
    served = {"tsa": (0, 2, 2, 0, 0, 0, 0, 0), "prio_tc": (0, 0, 1, 1, 2, 2, 3, 3)}
    got = dcb.parse(answer(willing=1, pfc=0b1001, apps=apps, dcbx=0x0A, **served))
    assert got == Dcb(
        pfc=frozenset({0, 3}),
        tc_of=(0, 0, 1, 1, 2, 2, 3, 3),
        strict=frozenset({0, 3, 4, 5, 6, 7}),
        priority_of={8: 2, 26: 3, 48: 6},  # DSCP rows only; of two for one DSCP the higher priority counts
        willing=True,
        firmware=True,
    )
    nothing = dcb.parse(struct.pack("=BBH", 0, 21, 0) + said(1, b"eth0\0"))
    assert nothing == Dcb(frozenset(), (), frozenset(), {}, False, False)


def test_no_answer_makes_the_reader_fail():
    whole = answer(apps=[(5, 3, 26)] * 3)
    for end in range(4, len(whole)):
        dcb.parse(whole[:end])


def test_a_kernel_and_a_driver_without_dcb_are_told_apart():
    with open_netns() as link:
        try:
            with gzip.open("/proc/config.gz", "rt") as file:
                assert dcb.is_in_kernel(link) == ("CONFIG_DCB=y\n" in file)
        except OSError:
            pytest.skip("the kernel does not tell its configuration")
        if dcb.is_in_kernel(link):
            assert dcb.read(link, "lo") is None
            with pytest.raises(NetlinkError) as error:
                dcb.read(link, "no-such-port")
            assert error.value.errno == errno.ENODEV
        assert link.operations == 0, "nothing is changed"


# ------------------------------------------------------------------ TCP through a NIC


def test_a_nic_with_a_priority_for_each_class_is_as_it_should_be():
    assert nic.of_interface("eth0", nic_of(), 8) == []


@pytest.mark.parametrize(
    ("found", "says"),
    [
        # NVIDIA's usual recipe has flow control on priority 3, which DSCP 18 is mapped to here.
        (nic_of(pfc=0b1000), "class 4 (AF21) is of priority 3, which has flow control"),
        (nic_of(mapped={40: 5}), "class 1 (AF42) is not in the DSCP map: it rides in priority 0"),
        (
            nic_of(prio_tc=(0, 1, 2, 3, 4, 5, 7, 6)),
            "class 0 (CS5) is in traffic class 6, and class 1 (AF42) in 7, which goes first",
        ),
    ],
)
def test_what_defeats_the_classes_is_named(found, says):
    assert any(says in text for text in wrong(nic.of_interface("eth0", found, 8)))


def test_what_only_weakens_them_is_a_note():
    # DSCP >> 3, which NICs do unless told otherwise: 40 -> 5; 36, 32 -> 4; 20, 18, 16 -> 2; 8 -> 1; 0 -> 0.
    usual = nic_of(mapped={code: code >> 3 for code in DSCP}, tsa=(2,) * 8, willing=1)
    found = nic.of_interface("eth0", usual, 8)
    assert wrong(found) == [] and [one.text for one in found] == [
        "do not set its traffic classes here: it takes them from the switch (DCBX)",
        "classes 3, 4, 5 share priority 2: it treats them alike",
        "classes 1, 2 share priority 4: it treats them alike",
    ]
    (none,) = nic.of_interface("eth0", nic_of(mapped={}), 8)
    assert not none.wrong and "no DSCP is mapped" in none.text


# ------------------------------------------------------------------ RDMA


def device(layer="roce", override=None) -> Device:
    return Device("mlx5_0", frozenset({layer}), ("eth0",), override)


def test_the_devices_are_read_from_the_driver_s_files(tmp_path):
    for name, layer, tclass in (("mlx5_0", "Ethernet", "Global tclass=96\n"), ("mlx5_1", "InfiniBand", None)):
        port = tmp_path / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        (tmp_path / name / "device" / "net" / f"eth{name[-1]}").mkdir(parents=True)
        if tclass is not None:
            (tmp_path / name / "tc" / "1").mkdir(parents=True)
            (tmp_path / name / "tc" / "1" / "traffic_class").write_text(tclass)
    assert nic.devices(tmp_path) == [
        Device("mlx5_0", frozenset({"roce"}), ("eth0",), 96),
        Device("mlx5_1", frozenset({"infiniband"}), ("eth1",), None),
    ]
    assert nic.devices(tmp_path / "none") == []


def test_a_service_level_that_the_nic_maps_otherwise_is_named_with_the_right_one():
    usual = nic_of(mapped={code: code >> 3 for code in DSCP}, pfc=0xFF)
    assert nic.of_device(device(), {"eth0": usual}, 8) == [], "env and the NIC's usual map agree"
    moved = nic_of(mapped={code: code >> 3 for code in DSCP} | {40: 6}, pfc=0xFF)
    (text,) = wrong(nic.of_device(device(), {"eth0": moved}, 8))
    assert text.endswith("eth0 puts DSCP 40 into priority 6, env prints service level 5: add --sl 6")
    lossy = nic.of_device(device(), {"eth0": nic_of(mapped={code: code >> 3 for code in DSCP}, pfc=0xDF)}, 8)
    assert [one.wrong for one in lossy] == [False] and "class 0 (CS5): RDMA of priority 5" in lossy[0].text
    assert nic.of_device(device(), {"eth0": None}, 8) == []


def test_a_forced_traffic_class_is_named_and_infiniband_has_no_dscp():
    (text,) = wrong(nic.of_device(device(override=96), {}, 8))
    assert "all its queue pairs carry traffic class 96" in text
    assert nic.of_device(device("infiniband"), {"eth0": nic_of(pfc=0)}, 8) == []


@pytest.mark.parametrize("ect", [False, True])
def test_what_env_prints_is_what_doctor_takes(ect):
    for cls in range(8):
        made = {one.name: one.value for one in rdma.settings("j", cls, 8, "roce", ect=ect)}
        assert nic.of_environment(made, [device()], 8) == []
    made = {one.name: one.value for one in rdma.settings("j", 0, 8, "infiniband", service_level=12)}
    assert nic.of_environment(made, [device("infiniband")], 8) == []
    assert nic.of_environment({"PATH": "/bin", "UCX_IB_TRAFFIC_CLASS": "auto"}, [], 8) == []


@pytest.mark.parametrize(
    ("environ", "layer", "says"),
    [
        (
            {"NCCL_IB_TC": "106", "NCCL_IB_SL": "3"},
            "roce",
            "DSCP 26 is of no class: the classes are 160, 144",
        ),
        (
            {"NCCL_IB_TC": "40", "NCCL_IB_SL": "5"},
            "roce",
            "40 is a class's DSCP, and the byte is 4 times that",
        ),
        ({"NCCL_IB_TC": "163", "NCCL_IB_SL": "5"}, "roce", "its ECN bits"),
        ({"NCCL_IB_TC": "160"}, "roce", "NCCL_IB_SL is missing"),
        ({"NCCL_IB_TC": "160", "NCCL_IB_SL": "9"}, "roce", "NCCL_IB_SL=9: a service level is 0 to 7 here"),
        ({"NCCL_IB_TC": "400", "NCCL_IB_SL": "5"}, "roce", "a traffic class is 0 to 255"),
        ({"NCCL_IB_TC": "160"}, "infiniband", "names nothing"),
        ({"NCCL_IB_SL": "5", "UCX_IB_SL": "4"}, "roce", "NCCL_IB_SL is 5: one job's traffic would be of two"),
    ],
)
def test_settings_that_are_of_no_class_are_named(environ, layer, says):
    (text,) = wrong(nic.of_environment(environ, [device(layer)], 8))
    assert says in text


def test_the_command_says_it_to_people_and_programs_and_its_status_tells(tmp_path):
    def doctor(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "UCX_"))}
        argv = (sys.executable, "-m", "hostagent", "doctor", *argv)
        return subprocess.run(
            argv, cwd=ROOT, env=clean | environ, capture_output=True, text=True, timeout=60, check=False
        )

    good = doctor()
    assert good.returncode == 0, good.stderr
    if not Path("/sys/class/infiniband").exists():
        assert "no RDMA device: the settings of env have nothing to be checked against" in good.stdout
    bad = doctor("--json", NCCL_IB_TC="106", NCCL_IB_SL="3")
    assert bad.returncode == 1, bad.stderr
    told = json.loads(bad.stdout)
    assert [one["where"] for one in told["remarks"] if one["wrong"]] == ["environment"]
    file = tmp_path / "agent.yaml"
    file.write_text("{version: 1, queues: 2}")
    # With two classes these are DSCP 40 and 0.
    assert marking.dscp_of(0, 2) == 40
    few = doctor("--config", str(file), NCCL_IB_TC="144", NCCL_IB_SL="4")
    assert few.returncode == 1 and "DSCP 36 is of no class: the classes are 160, 0" in few.stdout
