"""A mark on one live socket: what it carries afterwards, and what takes none."""

from __future__ import annotations

import os
import socket

import pytest
from running_agent import FAMILIES, connection

from hostagent import protocol, tagging


@pytest.mark.parametrize(("family", "address", "name"), FAMILIES)
@pytest.mark.parametrize("dscp", [40, 36, 20, 8, 0, 63])
def test_a_socket_carries_the_dscp_and_a_neutral_priority_afterwards(family, address, name, dscp):
    with connection(family, address) as (near, _):
        result = tagging.tag(near.fileno(), dscp)
        assert result == protocol.Tagged(True, dscp, 0, name)
        assert near.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2 == dscp
        if family == socket.AF_INET6:
            assert near.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS) >> 2 == dscp
        # AF42 (36) alone would have left priority 6, AF21 (18) priority 2: the kernel's TOS table.
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 0
        assert near.fileno() >= 0, "the caller's descriptor was closed"


def test_priority_is_set_last_because_the_tos_rewrites_it():
    with connection() as (near, _):
        assert tagging.tag(near, 36, priority=3).priority == 3


def test_what_is_not_a_tcp_socket_is_refused_and_not_touched():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        result = tagging.tag(udp, 40)
        assert not result.ok and "TCP" in result.error
        assert udp.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 0
    with open(os.devnull) as file:  # noqa: PTH123
        assert not tagging.tag(file.fileno(), 40).ok
    one, two = socket.socketpair()
    with one, two:
        assert not tagging.tag(one, 40).ok
    assert not tagging.tag(999_999, 40).ok


@pytest.mark.parametrize(("dscp", "priority"), [(64, 0), (-1, 0), (160, 0), (40, 7), (40, -1)])
def test_a_mark_that_does_not_exist_is_an_error_of_the_caller(dscp, priority):
    with connection() as (near, _), pytest.raises(ValueError, match=r"dscp = |priority = "):
        tagging.tag(near, dscp, priority)
