"""Whether marks arrive at the other end."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading
import time

import pytest
from agent_pages import AGENT
from namespaces import wire
from running_agent import command

from hostagent import verify
from netsched import marking
from netsched.errors import ScenarioError


@pytest.fixture(scope="module")
def two_hosts():
    with wire() as (left, right):
        yield left, right


@contextlib.contextmanager
def listening(where, place: str):
    argv = where.argv(*AGENT, "verify", "--listen", place, "--json")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            assert process.stderr.readline() == f"listening at {place}\n"
            told: dict[str, int] = {}
            yield told
            process.send_signal(signal.SIGTERM)
            told |= json.loads(process.stdout.read())
            process.wait(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 0


@pytest.mark.root
@pytest.mark.parametrize("place", ["10.9.0.2:9470", "[fd09::2]:9470"])
def test_every_class_s_mark_is_seen_to_arrive(two_hosts, place):
    left, right = two_hosts
    with listening(right, place) as told:
        done = command(*left.argv(*AGENT, "verify", "--peer", place, "--json"))
        assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)["classes"]
    assert [one["dscp"] for one in found] == list(marking.DSCP_OF_CLASS)
    assert all(one["there"] == one["back"] == [one["dscp"]] and one["intact"] for one in found)
    assert told["answered"] >= sum(one["answered"] for one in found) >= 8 * verify.PROBES


@pytest.mark.root
def test_a_cleared_a_changed_and_a_dropped_mark_are_told_apart_by_direction(two_hosts):
    left, right = two_hosts
    rules = (
        "add table inet mangler; "
        "add chain inet mangler in { type filter hook prerouting priority mangle; }; "
        "add rule inet mangler in ip dscp cs5 ip dscp set cs0; "
        "add rule inet mangler in ip dscp cs1 drop; "
        "add chain inet mangler out { type route hook output priority mangle; }; "
        "add rule inet mangler out ip dscp cs4 ip dscp set af11"
    )
    right.run("nft", rules)
    try:
        with listening(right, "10.9.0.2:9470"):
            done = command(*left.argv(*AGENT, "verify", "--peer", "10.9.0.2:9470"))
    finally:
        right.run("nft", "delete table inet mangler")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    # The peer answers with the mark that was asked for, whatever has arrived of it.
    assert lines[0] == "class 0: CS5 arrives there as CS0"
    assert lines[2] == "class 2: CS4 arrives back as AF11"
    assert lines[6] == "class 6: CS1 gets no answer: this DSCP is dropped on the way"
    assert lines[1] == "class 1: AF42 arrives, both ways (5 of 5 answered)"


@pytest.mark.root
def test_where_nobody_listens_that_is_said_once(two_hosts):
    left, _ = two_hosts
    done = command(*left.argv(*AGENT, "verify", "--peer", "10.9.0.2:9471"))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "verify --listen there" in done.stderr


def test_answers_that_begin_as_the_wait_ends_are_all_counted():
    # As where a neighbour's address is asked for twice: what has waited for it arrives all at once, late.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))

        def late():
            probes = [peer.recvfrom(64) for _ in range(verify.PROBES)]
            time.sleep(verify._WAIT_S - 0.1)
            for probe, asker in probes:
                peer.sendto(probe[:-1] + probe[-2:-1], asker)
                time.sleep(0.05)

        answering = threading.Thread(target=late)
        answering.start()
        [found] = verify.ask(peer.getsockname(), 1)
        answering.join()
    assert (found.sent, found.answered) == (verify.PROBES, verify.PROBES)


@pytest.mark.parametrize(
    "text", ["10.0.0.2", "10.0.0.2:0", ":9470", "fd00::2:9470", "[10.0.0.2]:9470", "x:²"]
)
def test_what_is_no_address_of_a_peer_is_refused(text):
    with pytest.raises(ScenarioError, match="such as"):
        verify.address(text, "--peer")
