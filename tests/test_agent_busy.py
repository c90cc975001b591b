"""Sockets in mid-stream, groups that are marked as a whole, and marks that are taken back."""

from __future__ import annotations

import contextlib
import socket

import pytest
from running_agent import BASE, agent, connection
from users import drain, fill, place, tos

from hostagent import client, protocol, tagging

__all__ = ["place"]


def test_a_socket_in_mid_stream_is_left_alone_until_it_rests(tmp_path):
    with (
        agent(tmp_path, BASE) as (path, _),
        connection() as (near, far),
        client.connect(path, strict=False, timeout=5) as us,
    ):
        assert us.tag([near], 3)[0].ok
        fill(near)
        (result,) = us.tag([near], 0)
        assert (
            not result.ok and result.error.startswith("busy: ") and "between two iterations" in result.error
        )
        assert result.dscp == tos(near) >> 2 == 20
        assert us.tag([near], 3)[0].ok, "it carries the mark already"
        assert us.tag([near], 1, even_busy=True)[0].dscp == 36
        drain(near, far)
        assert us.tag([near], 0)[0].dscp == 40


def test_a_group_is_marked_as_a_whole_or_not_at_all(tmp_path):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with (
        agent(tmp_path, BASE) as (path, _),
        connection() as (near, far),
        client.connect(path, timeout=5) as us,
        udp,
    ):
        assert us.tag([near], 3)[0].ok
        good, bad, also_good = us.tag([near, udp, far], 0, group="grad")
        assert "TCP" in bad.error and not good.ok and not also_good.ok
        assert good.error == "not marked, because socket 1 of the group could not be"
        assert (tos(near), tos(far)) == (20 << 2, 0), "as they were"
        assert all(result.ok for result in us.tag([near, far], 0, group="grad"))
        # Over several packets: the second one's failure undoes what the first one did.
        copies = [near.dup() for _ in range(260)]
        results = us.tag([*copies, udp], 5, group="grad")
        assert len(results) == 261 and not any(result.ok for result in results)
        assert tos(near) == 40 << 2
        for copy in copies:
            copy.close()


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")]
)
def test_a_job_gets_its_sockets_options_back_as_they_were(tmp_path, family, address):
    with agent(tmp_path, BASE) as (path, _), connection(family, address) as (near, far):
        assert tagging.tag(near, 8, priority=4).ok
        before = [tagging.marks(sock) for sock in (near, far)]
        with client.connect(path, strict=True) as us:
            us.tag([near, far], 0)
            us.tag([near], 2, group="g")
            assert tos(near) >> 2 == 32 and tos(far) >> 2 == 40
        assert us.untag([near, far]), "needs no connection to the agent"
        assert [tagging.marks(sock) for sock in (near, far)] == before
        assert tagging.tag(far, 16).ok
        assert us.untag([near, far]) and tos(far) >> 2 == 16, "what it never marked is not its own to change"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_what_the_kernel_refuses_in_the_midst_of_a_group_is_undone(monkeypatch, family):
    mark = tagging.tag

    def refuse_the_third(sock, dscp, **more):
        if sock is socks[2]:
            return protocol.Tagged(False, 0, 0, "ipv4", "the kernel kept CS0")
        return mark(sock, dscp, **more)

    socks = [socket.socket(family, socket.SOCK_STREAM) for _ in range(4)]
    with contextlib.ExitStack() as stack:
        for sock in socks:
            stack.enter_context(sock)
        assert tagging.tag(socks[0], 36, priority=5).ok
        before = [tagging.marks(sock) for sock in socks]
        monkeypatch.setattr(tagging, "tag", refuse_the_third)
        results = tagging.tag_group(socks, 40)
        assert [tagging.marks(sock) for sock in socks] == before
        assert before[0].priority == 5, "the priority comes back as well, last"
    assert not any(result.ok for result in results)
    assert results[2].error == "the kernel kept CS0" and "socket 2 of the group" in results[0].error
