"""Coordinator and agents as processes: certificates, marks on sockets and the wire, and what holds when."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from coordinators import HELLO, ROOT, SWITCH, Authority, coordinator, secure, standing, stream, wait_until
from namespaces import Space, wire
from running_agent import BASE, agent

from hostagent import client
from netsched.coordinator import wire as messages
from netsched.coordinator.wire import FlowState, Hello, Report
from netsched.marking import dscp_of

HERE = Path(__file__).parent

__all__ = ["secure"]

# ------------------------------------------------------------------ who may come


def test_an_agent_with_its_certificate_is_followed_and_told_its_plan(secure, tmp_path):
    port, authority, _ = secure
    files = authority.issue("h1")
    config = BASE | {"coordinator": {"address": f"127.0.0.1:{port}", "host": "h1"} | files}
    with agent(tmp_path, config) as (path, _), client.connect(path, job="a", timeout=2, strict=True) as us:
        wait_until(lambda: standing(path)["standing"] == "following")
        flow = us.flow("f", coflow="c", size=1e6, peer="h2")
        flow.wait(for_plan=5.0)
        assert flow.guidance.source == "plan"
        lost = us.flow("g", coflow="c", size=1e6, peer="h9")
        wait_until(lambda: lost.sent(0).refused)
        assert lost.guidance.refused == "peer 'h9' is no host of the coordinator's fabric"
        shown = standing(path)
        assert shown["policy"] == "sebf" and shown["flows"] == 2 and shown["why"] == ""
        done = subprocess.run(
            [sys.executable, "-m", "hostagent", "status", "--socket", path],
            check=False,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert f"coordinator 127.0.0.1:{port} followed, policy sebf, plan" in done.stdout


@pytest.mark.parametrize("who", ["stranger", "nobody", "expired", "plaintext"])
def test_a_client_without_a_valid_certificate_gets_nothing(secure, tmp_path, who):
    port, authority, _ = secure
    expired, good = authority.issue("h1", hours=-1), authority.issue("h2")
    files = {
        "stranger": Authority(tmp_path, "elsewhere").issue("h1") | {"ca": good["ca"]},
        "nobody": {"ca": good["ca"]},
        "expired": expired,
        "plaintext": None,
    }[who]
    with pytest.raises(grpc.RpcError) as refused:
        stream(port, files, [HELLO])
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    hello = messages.hello_bytes(Hello("h2", 8, {}))
    assert stream(port, good, [hello])[0] == messages.welcome_bytes(messages.Welcome("sebf", 0.5))


def test_a_certificate_is_good_for_its_own_host_only(secure):
    port, authority, _ = secure
    with pytest.raises(grpc.RpcError) as refused:
        stream(port, authority.issue("h2"), [HELLO])
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "host 'h1': the certificate is for h2" in refused.value.details()


def test_an_agent_believes_no_coordinator_of_another_authority(secure, tmp_path):
    port, authority, _ = secure
    stranger = Authority(tmp_path, "elsewhere")
    files = authority.issue("h1") | {"ca": stranger.ca}
    config = BASE | {"coordinator": {"address": f"127.0.0.1:{port}", "host": "h1"} | files}
    with agent(tmp_path, config) as (path, _):
        shown = wait_until(lambda: (found := standing(path))["why"].startswith("unavailable") and found)
        assert shown["standing"] == "local" and shown["heard_s_ago"] is None
        assert "CERTIFICATE_VERIFY_FAILED" in shown["why"] and files["cert"] in shown["why"]


def test_a_key_that_everybody_may_read_is_not_used(secure, tmp_path):
    port, authority, _ = secure
    files = authority.issue("h3")
    Path(files["key"]).chmod(0o644)
    config = BASE | {"coordinator": {"address": f"127.0.0.1:{port}", "host": "h3"} | files}
    with agent(tmp_path, config) as (path, _):
        shown = wait_until(lambda: (found := standing(path))["why"].startswith("coordinator") and found)
        assert "mode 0644 lets everybody read this key: chmod o=" in shown["why"]
        Path(files["key"]).chmod(0o600)
        wait_until(lambda: standing(path)["standing"] == "following")


def test_other_words_than_the_protocol_s_end_the_stream_and_nothing_else(secure):
    port, authority, _ = secure
    files, other = authority.issue("h1"), authority.issue("h2")
    rng = random.Random(3)
    flow = FlowState(1, 0, "j", "c", "h3", 1e6, 0.0, 0, 1, 0.0, True)
    good = messages.report_bytes(Report(flows=(flow,), done=(5,), closed=((0, "j", "c"),)))
    bad = [b"", b"{}", b"[]", b"\xff" * 100, b"[" * 100_000, messages.hello_bytes(Hello("h1", 8, {}))]
    bad += [good[: rng.randrange(len(good))] + rng.randbytes(3) for _ in range(40)]
    bad += [b'{"v": 1, "report": {"flows": [{"id": -1}]}}', b'{"v": 1, "report": {"sent": [[1, 1e400]]}}']
    for packet in bad:
        with pytest.raises(grpc.RpcError) as refused:
            stream(port, files, [HELLO, good, packet], hold=5)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, packet
    for packet in bad:
        with contextlib.suppress(grpc.RpcError):
            stream(port, files, [packet])
    with pytest.raises(grpc.RpcError) as refused:
        stream(port, files, [HELLO, b" " * (messages.MAX_MESSAGE + 1)], hold=5)
    assert refused.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
    with pytest.raises(grpc.RpcError) as refused:
        stream(port, files, [messages.hello_bytes(Hello("h1", 4, {}))])
    assert "queues = 4, but plans are made for 8" in refused.value.details()
    # It still plans: for a flow of another host, and for the one that all this came from.
    for name, certificate in (("h2", other), ("h1", files)):
        answers = stream(port, certificate, [messages.hello_bytes(Hello(name, 8, {})), good], hold=0.5)
        plans = [messages.read_answer(answer) for answer in answers[1:]]
        assert any(share.decided for plan in plans for share in plan.flows.values())


def test_two_coordinators_do_not_share_an_address(secure):
    port, _, folder = secure
    argv = [sys.executable, "-m", "netsched", "coordinator", "--config", str(folder / "coordinator.yaml")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert f"error: listen: 127.0.0.1:{port} cannot be had" in done.stderr and "Traceback" not in done.stderr


# ------------------------------------------------------------------ what it does


class Job:
    """A process of tests/coordinated_job.py in a namespace."""

    def __init__(self, where: Space, *argv: str) -> None:
        script = [sys.executable, str(HERE / "coordinated_job.py"), *argv]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(where.argv(*script), env=env, **pipes)

    def line(self) -> str:
        return self.process.stdout.readline()

    def say(self, words: str) -> dict:
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def until(self, source: str) -> dict:
        """What the agent says as soon as it goes by `source` and the socket is marked for it."""
        return wait_until(
            lambda: (
                (found := self.say("look"))["source"] == source
                and found["tos"] >> 2 == dscp_of(found["class"])
                and found
            )
        )

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


@contextlib.contextmanager
def capture(where: Space, interface: str, file: Path):
    process = subprocess.Popen(
        where.argv(sys.executable, str(HERE / "capture.py"), interface, str(file)),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        lost = process.wait(timeout=10)
        process.stdout.close()
    assert lost == 0, "the capture is not complete"


def segments(file: Path, source: str) -> list[tuple[float, int, int, int]]:
    """(time in s, port that it went to, bytes of data, DSCP) of each TCP segment with data from `source`."""
    data, at, found = file.read_bytes(), 24, []
    while at < len(data):
        seconds, nanoseconds, length, _ = struct.unpack_from("=IIII", data, at)
        frame, at = data[at + 16 : at + 16 + length], at + 16 + length
        if frame[12:14] != b"\x08\x00" or frame[23] != 6 or socket.inet_ntoa(frame[26:30]) != source:
            continue
        header, total = (frame[14] & 15) * 4, struct.unpack_from("!H", frame, 16)[0]
        tcp = 14 + header
        carried = total - header - (frame[tcp + 12] >> 4) * 4
        if carried > 0:
            port = struct.unpack_from("!H", frame, tcp + 2)[0]
            found.append((seconds + nanoseconds * 1e-9, port, carried, frame[15] >> 2))
    return found


@pytest.mark.root
def test_two_jobs_are_marked_in_the_policy_s_order_while_the_coordinator_comes_and_goes(tmp_path):
    authority = Authority(tmp_path, "site")
    rules = [{"job": "small", "class": 6}, {"job": "large", "class": 5}]
    with contextlib.ExitStack() as stack:
        left, right = stack.enter_context(wire())
        address = {"h1": "10.9.0.1", "h2": "10.9.0.2"}
        settings = {
            "listen": "10.9.0.1:9471",
            "tls": authority.issue("coordinator", "10.9.0.1"),
            "fabric": SWITCH | {"hosts": 2},
            "hosts": {name: {"addresses": [one]} for name, one in address.items()},
        }
        agents, lives, begins = {}, {}, {}
        for name, where in (("h1", left), ("h2", right)):
            folder = tmp_path / name
            folder.mkdir()
            follow = {"address": "10.9.0.1:9471", "host": name, "keep": "3s"} | authority.issue(name)
            config = BASE | {"coordinator": follow, "rules": rules}
            lives[name] = stack.enter_context(contextlib.ExitStack())
            begins[name] = (folder, config, where)
            agents[name], _ = lives[name].enter_context(agent(*begins[name]))
        jobs, ports = {}, {}
        size = {"small": 400_000, "large": 9_000_000}
        sinks = {
            (job, peer): Job(where, "sink", address[peer])
            for job in size
            for peer, where in (("h1", left), ("h2", right))
        }
        for end in sinks.values():
            stack.callback(end.close)
        for (job, peer), end in sinks.items():
            here, where = ("h2", right) if peer == "h1" else ("h1", left)
            ports[job, here] = int(end.line())
            to = (address[peer], str(ports[job, here]))
            jobs[job, here] = made = Job(where, "send", agents[here], job, "step 1", str(size[job]), *to)
            stack.callback(made.close)

        # Nobody has planned yet: the rules of each host.
        for (job, _), one in jobs.items():
            assert one.until("rule")["class"] == {"small": 6, "large": 5}[job]
        with coordinator(tmp_path, settings, left) as process:
            planned = {key: one.until("plan")["class"] for key, one in jobs.items()}
            assert planned["small", "h1"] == planned["small", "h2"]
            assert planned["large", "h1"] == planned["large", "h2"]
            # SEBF: 0.4 MB before 9 MB at ports of equal rate.
            assert planned["small", "h1"] < planned["large", "h1"]
            with capture(right, "right", tmp_path / "wire.pcap"):
                for one in jobs.values():
                    one.say("send 100000")
            found = segments(tmp_path / "wire.pcap", address["h1"])
            seen = {(port, dscp) for _, port, _, dscp in found if port in ports.values()}
            assert seen == {(ports[job, "h1"], dscp_of(planned[job, "h1"])) for job in size}
            process.kill()
            process.wait(timeout=10)
        begin = time.monotonic()
        assert {key: one.until("kept")["class"] for key, one in jobs.items()} == planned
        for (job, _), one in jobs.items():
            assert one.until("rule")["class"] == {"small": 6, "large": 5}[job]
        assert time.monotonic() - begin > 2, (
            "kept for 3 s after the last word, of which there are two a second"
        )
        with coordinator(tmp_path, settings, left):
            again = {key: one.until("plan")["class"] for key, one in jobs.items()}
            assert again["small", "h1"] == again["small", "h2"] < again["large", "h1"] == again["large", "h2"]
            # An agent that is restarted hears from its jobs again, and its host is planned for as before.
            lives["h1"].close()
            lives["h1"].enter_context(agent(*begins["h1"]))
            for key in (("small", "h1"), ("large", "h1")):
                assert jobs[key].until("plan")["class"] == again[key]
            # A job that ends makes room in the plan: its flow is no longer anywhere.
            jobs["small", "h1"].close()
            assert wait_until(lambda: standing(agents["h1"])["flows"] == 1)


@pytest.mark.root
def test_a_small_coflow_passes_a_large_one_that_is_under_way(tmp_path):
    port = {"name": "left", "rate": "100Mbit/s"}
    follow = {"address": "127.0.0.1:9471", "host": "h1"}
    config = {"version": 1, "mode": "mark+queue", "interfaces": [port], "coordinator": follow}
    fabric = {"kind": "single_switch", "hosts": 2, "rate": "100Mbit/s"}
    hosts = {"h1": {"addresses": ["10.9.0.1"]}, "h2": {"addresses": ["10.9.0.2"]}}
    size = {"large": 12_000_000, "small": 1_200_000}
    with contextlib.ExitStack() as stack:
        left, right = stack.enter_context(wire())
        settings = {"listen": "127.0.0.1:9471", "fabric": fabric, "hosts": hosts}
        stack.enter_context(coordinator(tmp_path, settings, left))
        path, _ = stack.enter_context(agent(tmp_path, config, left))
        sinks, jobs, ports = {}, {}, {}
        for name, amount in size.items():
            sinks[name] = sink = Job(right, "sink", "10.9.0.2")
            stack.callback(sink.close)
            ports[name] = int(sink.line())
            jobs[name] = Job(left, "send", path, name, "step 1", str(amount), "10.9.0.2", str(ports[name]))
            stack.callback(jobs[name].close)
        assert jobs["small"].until("plan")["class"] < jobs["large"].until("plan")["class"]
        with capture(right, "right", tmp_path / "wire.pcap"):
            jobs["large"].process.stdin.write(f"send {size['large']}\n")
            jobs["large"].process.stdin.flush()
            time.sleep(0.3)
            jobs["small"].say(f"send {size['small']}")
            for name in ("small", "large"):
                jobs[name].close()
                assert sinks[name].line() == "end\n"
        found = segments(tmp_path / "wire.pcap", "10.9.0.1")
        during = [t for t, to, _, _ in found if to == ports["small"]]
        share = {
            n: sum(b for t, to, b, _ in found if to == p and during[0] <= t <= during[-1])
            for n, p in ports.items()
        }
        assert share["small"] >= size["small"], "all of it, and what was sent again"
        # In one class (policy fair) it has 63 to 66 % of the port meanwhile; the floor of the other is 0.1 %.
        assert share["small"] / sum(share.values()) > 0.75, share
        last = max(t for t, to, _, _ in found if to == ports["large"])
        assert last > during[-1], "the large one was under way all the time"
