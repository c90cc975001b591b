"""What another user's process cannot do, and what a job's silence, haste and half-done groups come to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from test_hostagent import BASE, ROOT, agent, command, connection, dial, wait_for

from hostagent import client, protocol, safety, tagging
from hostagent.client import AgentError
from hostagent.ledger import Ledger, Record
from hostagent.quota import BURST_S, Pace, cost_of
from hostagent.safety import UnsafeError

NOBODY, SOMEBODY = 65534, 65533
AGENT = [sys.executable, "-m", "hostagent", "run", "--config"]


@contextlib.contextmanager
def as_user(uid: int):
    """Whoever connects meanwhile is this user, by the kernel's word."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def connect(path: str, uid: int, **more) -> client.Client:
    with as_user(uid):
        return client.connect(path, strict=True, timeout=5, **more)


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def allowing(*users: int, **limits):
    return BASE | {"api": {"allow": [{"uid": uid} for uid in users], "limits": limits}}


def tos(sock: socket.socket) -> int:
    return sock.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)


# ------------------------------------------------------------------ quotas


@pytest.mark.root
def test_one_user_s_connections_leave_room_for_another_s(place):
    with (
        agent(place, allowing(NOBODY, SOMEBODY, connections=3)) as (path, _),
        contextlib.ExitStack() as stack,
    ):
        for _ in range(3):
            stack.enter_context(connect(path, NOBODY))
        with pytest.raises(AgentError, match="user 65534 has 3 connections already"):
            connect(path, NOBODY)
        stack.enter_context(connect(path, SOMEBODY))
        stack.enter_context(client.connect(path, strict=True))


@pytest.mark.root
def test_a_user_who_asks_too_fast_is_told_so_and_slowed_down_and_nobody_else_is(place):
    with agent(place, allowing(NOBODY, SOMEBODY, messages="20/s")) as (path, _):
        with as_user(NOBODY):
            hasty = dial(path)
        with hasty:
            began, answers = time.monotonic(), []
            for number in range(150):
                hasty.send(protocol.encode({"v": 1, "id": number, "verb": "hello"}))
                answers.append(json.loads(hasty.recv(1 << 16)))
                if number == 110:
                    with connect(path, SOMEBODY) as other:
                        assert other.hello()["mode"] == "mark"
            took = time.monotonic() - began
        good = [answer for answer in answers if answer["ok"]]
        fast = [answer for answer in answers if not answer["ok"]]
        # The first burst, and from then on every second one at most, as each refusal is a wait.
        assert BURST_S * 20 <= len(good) <= BURST_S * 20 + took * 20 + 2
        assert {answer["code"] for answer in fast} == {"too-fast"}
        assert "more than 20 times a second" in fast[0]["message"]
        assert took > 0.5 * len(fast) / 20, "a refusal must cost the one who is refused time"


def test_the_pace_refills_with_time_and_holds_a_burst(monkeypatch):
    now = 100.0
    monkeypatch.setattr("hostagent.quota.time.monotonic", lambda: now)
    pace = Pace(10.0)
    assert [pace.wait(1) for _ in range(int(BURST_S * 10))] == [0.0] * int(BURST_S * 10)
    assert pace.wait(1) == pytest.approx(0.1)
    assert pace.wait(2) == 0.0, "another user has a bucket of its own"
    now += 0.35
    assert [pace.wait(1) for _ in range(3)] == [0.0] * 3
    assert pace.wait(1) == pytest.approx(0.05)
    now += 0.15
    # 253 sockets, the most that a packet carries, are as much work as 16 small requests, and are owed.
    assert pace.wait(1, cost_of(100, 253)) == 0.0
    assert pace.wait(1) == pytest.approx((100 / 4096 + 253 / 16) / 10)
    # Half a millisecond of processor time is in the price of 1. What takes 10 ms longer costs as many
    # requests as come in 50 ms, of which the 10 ms are a fifth: half a one.
    assert [pace.wait(3) for _ in range(49)] == [0.0] * 49
    pace.charge(3, 1.0, 0.5e-3)
    pace.charge(3, 1.0, 10.5e-3)
    assert pace.wait(3) == pytest.approx(0.05)


def patient_dial(path: str) -> socket.socket:
    while True:
        with contextlib.suppress(BlockingIOError), as_user(NOBODY):  # more at once than the backlog holds
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.settimeout(10)
            try:
                sock.connect(path)
                return sock
            except BlockingIOError:
                sock.close()
                raise


@pytest.mark.root
def test_a_client_gets_through_while_somebody_fills_the_backlog(place):
    with agent(place, allowing(NOBODY, SOMEBODY)) as (path, process), contextlib.ExitStack() as stack:
        process.send_signal(signal.SIGSTOP)
        many = 0
        with contextlib.suppress(BlockingIOError), as_user(NOBODY):
            while True:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                sock.setblocking(False)
                sock.connect(path)
                many += 1
        assert many > 100
        timer = threading.Timer(0.2, lambda: process.send_signal(signal.SIGCONT))
        timer.start()
        with connect(path, SOMEBODY) as us:
            assert us.hello()["mode"] == "mark"
        timer.join()


@pytest.mark.root
def test_a_crowd_of_one_user_s_full_packets_does_not_hold_up_another(place):
    with (
        agent(place, allowing(NOBODY, SOMEBODY, connections=300)) as (path, process),
        connection() as (near, _),
        connect(path, SOMEBODY) as good,
        contextlib.ExitStack() as stack,
    ):
        packet = protocol.encode({"v": 1, "verb": "tag", "class": 0, "count": protocol.MAX_FDS})
        crowd = [stack.enter_context(patient_dial(path)) for _ in range(300)]
        process.send_signal(signal.SIGSTOP)
        for sock in crowd:
            socket.send_fds(sock, [packet], [near.fileno()] * protocol.MAX_FDS)
        process.send_signal(signal.SIGCONT)
        began, worked = time.monotonic(), processor(process.pid)
        assert good.hello()["mode"] == "mark"
        # The first 60 packets are the user's burst of 1,000; all 300 of them would take seconds. What counts
        # is the agent's own time: other tests may have the processors.
        assert processor(process.pid) - worked < 1.5
        answers = [json.loads(sock.recv(1 << 16)) for sock in crowd]
        most = (BURST_S + time.monotonic() - began) * 200 / cost_of(len(packet), protocol.MAX_FDS)
        assert 50 <= sum(answer["ok"] for answer in answers) <= most + 2


def processor(pid: int) -> float:
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.root
def test_a_user_has_so_many_marked_sockets_and_gets_room_when_some_end(place):
    with agent(place, allowing(NOBODY, sockets=4)) as (path, _), contextlib.ExitStack() as stack:
        us = stack.enter_context(connect(path, NOBODY))
        pairs = [stack.enter_context(connection()) for _ in range(3)]
        first = [end for pair in pairs[:2] for end in pair]
        assert all(result.ok for result in us.tag(first, 1))
        assert all(result.ok for result in us.tag(first, 2)), "the same sockets again take no more room"
        with pytest.raises(AgentError, match="user 65534 may have 4 marked sockets"):
            us.tag([pairs[2][0]], 1)
        assert tos(pairs[2][0]) == 0
        with client.connect(path, strict=True) as root:
            assert root.tag([pairs[2][0]], 1)[0].ok, "root has no quota"
        for end in pairs[0]:
            end.close()
        time.sleep(1.0)  # sockets are listed once a second
        assert us.tag([pairs[2][1]], 1)[0].ok


@pytest.mark.root
def test_a_user_has_so_many_groups_until_its_connection_ends(place):
    with agent(place, allowing(NOBODY, groups=2)) as (path, _), connection() as (near, _):
        with connect(path, NOBODY) as us:
            for name in ("a", "b", "a"):
                us.tag([near], 1, group=name)
            with pytest.raises(AgentError, match="user 65534 has 2 groups already"):
                us.tag([near], 2, group="c")
            assert tos(near) == 36 << 2
        with connect(path, NOBODY) as us:
            assert us.tag([near], 2, group="c")[0].ok


def test_a_user_s_sockets_push_out_only_its_own_records(monkeypatch):
    monkeypatch.setattr("hostagent.ledger.LIMIT", 3)
    book = Ledger()
    for cookie, uid in ((1, 0), (2, 7), (3, 7), (4, 7), (5, 7)):
        book.note(Record(cookie, True, uid, "", 0, 40, "descriptor"))
    assert [record.cookie for record in book.records()] == [1, 4, 5]
    assert not book.has_room(7, 1, 2) and book.has_room(7, 1, 3) and book.has_room(8, 2, 2)
    book.note(Record(4, False, 7, "", 0, 40, "descriptor", owner=9))
    assert book.has_room(7, 1, 2), "one that cannot be seen to end makes room"
    assert book.get(4) is None
    book.note(Record(6, False, 7, "", 0, 40, "descriptor", owner=9))
    book.leave(9)
    assert book.get(6) is None and book.get(5) is not None


# ------------------------------------------------------------------ other users' sockets and jobs


@pytest.mark.root
def test_a_descriptor_is_proof_of_possession_and_names_are_not(place):
    config = allowing(NOBODY) | {"ladder": ["descriptor", "self", "pidfd"]}
    with (
        agent(place, config) as (path, _),
        connection() as (theirs, _),
        client.connect(path, job="secret", strict=True) as root,
        connect(path, NOBODY) as us,
    ):
        assert root.tag([theirs], 2)[0].ok
        # The process is root's: the same words as for one that is not there.
        texts = []
        for pid in (os.getpid(), 2**22 + 1):
            with pytest.raises(AgentError) as caught:
                us.tag_process(pid, 0)
            texts.append(str(caught.value).replace(str(pid), "N"))
        assert texts[0] == texts[1] and "no process of this user" in texts[0]
        # Claiming somebody else's cookie neither marks the socket nor takes the record over.
        cookie = tagging.cookie(theirs.fileno())
        us._ask({"verb": "tag", "class": 0, "cookies": [cookie]}, ())
        assert tos(theirs) == 32 << 2
        (shown,) = root.explain(job="secret")["sockets"]
        assert (shown["class"], shown["level"]) == (2, "descriptor")


@pytest.mark.root
def test_a_process_of_one_s_own_can_be_marked_where_the_ladder_has_it(place):
    code = (
        "import os,socket,sys\n"
        "l=socket.create_server(('127.0.0.1',0)); s=socket.create_connection(l.getsockname())\n"
        "a,_=l.accept()\n"
        "u=socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print('ready', flush=True); sys.stdin.read(1)\n"
        "print([x.getsockopt(0, socket.IP_TOS) for x in (l, s, a, u)])\n"
    )
    job = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with job, agent(place, allowing(NOBODY, SOMEBODY) | {"ladder": ["descriptor", "pidfd"]}) as (path, _):
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        with connect(path, SOMEBODY) as other, pytest.raises(AgentError, match="no process of this user"):
            other.tag_process(job.pid, 0)
        with connect(path, NOBODY, job="mine") as us:
            answer = us.tag_process(job.pid, 0)
            assert (answer["status"], answer["marked"]) == ("full", 2)
            time.sleep(1.0)
            levels = {one["level"] for one in us.explain(job="mine")["sockets"]}
            assert levels == {"pidfd"}
        out, _ = job.communicate("x", timeout=10)
    assert out.strip() == "[0, 160, 160, 0]", "its two connected TCP sockets and nothing else"


def test_a_level_that_the_ladder_lacks_is_refused_by_name(tmp_path):
    with agent(tmp_path, BASE) as (path, _), client.connect(path, strict=True) as us:
        with pytest.raises(AgentError, match="does not mark by level pidfd: its ladder is descriptor, self"):
            us.tag_process(os.getpid(), 0)
        with pytest.raises(AgentError, match="level nft-tuple"):
            us.tag_flows([("127.0.0.1:1", "127.0.0.1:2")], 0)


@pytest.mark.root
def test_two_users_jobs_of_one_name_see_only_their_own(place):
    with (
        agent(place, allowing(NOBODY, SOMEBODY)) as (path, _),
        connection() as (one, two),
        connect(path, NOBODY, job="resnet") as us,
        connect(path, SOMEBODY, job="resnet") as them,
    ):
        us.tag([one], 1)
        them.tag([two], 2)
        assert [c["uid"] for c in us.status()["clients"]] == [NOBODY]
        assert [one["class"] for one in us.explain(job="resnet")["sockets"]] == [1]
        time.sleep(1.0)
        assert [one["class"] for one in them.explain(job="resnet")["sockets"]] == [2]
        with client.connect(path, strict=True) as root:
            assert len(root.explain(job="resnet")["sockets"]) == 2


def test_a_job_marks_its_own_sockets_where_the_ladder_says_so(tmp_path):
    with (
        agent(tmp_path, BASE | {"ladder": ["self", "descriptor"]}) as (path, _),
        connection() as (near, far),
        client.connect(path, job="alone", strict=True) as us,
    ):
        assert [result.dscp for result in us.tag([near, far], 1)] == [36, 36]
        assert tos(near) >> 2 == tos(far) >> 2 == 36
        answer = us.explain(job="alone")
        assert {one["level"] for one in answer["sockets"]} == {"self"}
        assert [one["dscp_now"] for one in answer["sockets"]] == [36, 36]
        assert [step["level"] for step in answer["ladder"]["self"]][:2] == ["self", "descriptor"]


# ------------------------------------------------------------------ leases


@pytest.mark.root
def test_a_silent_job_s_lease_ends_and_a_heartbeat_keeps_it(place):
    config = allowing(NOBODY, groups=1)
    config["api"]["lease"] = "1s"
    with agent(place, config) as (path, _), connection() as (near, _), contextlib.ExitStack() as stack:
        alive, silent = (stack.enter_context(connect(path, NOBODY)) for _ in range(2))
        silent.tag([near], 1, group="a")
        end = time.monotonic() + 1.6
        while time.monotonic() < end:
            assert alive.heartbeat()
            time.sleep(0.1)
        assert tos(near) == 36 << 2, "a mark is the socket's own"
        # The silent one's group is free again, its lease is not known any more, and it comes back by itself.
        assert alive.tag([near], 1, group="b")[0].ok
        with pytest.raises(AgentError, match="it has run out"):
            silent.heartbeat()
        assert silent.heartbeat()


def test_a_killed_client_is_gone_at_once(tmp_path):
    code = (
        "import sys,time; from hostagent import client; c=client.connect(sys.argv[1], strict=True, job='x')\n"
    )
    code += "print('ready', flush=True); time.sleep(60)"
    with agent(tmp_path, BASE) as (path, _), client.connect(path, strict=True) as us:
        argv = [sys.executable, "-c", code, path]
        job = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        with job:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            assert us.status()["connections"] == 2
            job.kill()
        wait_for(lambda: us.status()["connections"] == 1)


def test_a_restarted_agent_is_found_again_without_a_failure(tmp_path):
    with connection() as (near, _):
        with agent(tmp_path, BASE) as (path, _):
            us = client.connect(path, strict=True)
            us.tag([near], 0)
        with agent(tmp_path, BASE), us:
            assert us.tag([near], 1)[0].dscp == 36
            assert us.failures == 0


# ------------------------------------------------------------------ busy sockets, whole groups


def fill(near: socket.socket) -> None:
    """Send until nothing more fits: the peer does not read."""
    near.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            near.send(b"x" * 65536)


def drain(near: socket.socket, far: socket.socket) -> None:
    far.setblocking(False)
    end = time.monotonic() + 5
    while tagging.under_way(near):
        assert time.monotonic() < end
        with contextlib.suppress(BlockingIOError):
            far.recv(1 << 20)


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


# ------------------------------------------------------------------ descriptors that close when they like


def lingering() -> tuple[socket.socket, socket.socket]:
    """A connection whose near end waits for a minute when its last descriptor is closed: nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 60))
    fill(near)
    return near, far


@pytest.mark.root
def test_who_passes_a_socket_that_closes_slowly_holds_up_nobody_but_himself(place):
    with agent(place, allowing(NOBODY, SOMEBODY)) as (path, process), contextlib.ExitStack() as stack:
        good = stack.enter_context(connect(path, SOMEBODY))
        with as_user(NOBODY):
            socks = [stack.enter_context(dial(path)) for _ in range(3)]
        # While the agent stands still, all of them are sent and let go of: it then has the last descriptors.
        process.send_signal(signal.SIGSTOP)
        for number in range(20):
            near, far = lingering()
            stack.enter_context(far)
            packet = protocol.encode({"v": 1, "verb": "tag", "class": 0, "count": 1})
            socket.send_fds(socks[number % 3], [packet], [near.fileno()])
            near.close()
        process.send_signal(signal.SIGCONT)
        threads = 0
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            began = time.monotonic()
            assert good.hello()["mode"] == "mark"
            assert time.monotonic() - began < 0.5
            threads = max(threads, len(list(Path(f"/proc/{process.pid}/task").iterdir())))
            time.sleep(0.02)
        assert threads == 1 + 8, "8 wait beside the loop, the others unread, at the cost of their sender"
        with connection() as (mine, _):
            assert good.tag([mine], 0)[0].ok


# ------------------------------------------------------------------ files and folders


def write(place: Path, **api) -> Path:
    file = place / "agent.yaml"
    file.write_text(json.dumps(BASE | {"api": {"socket": str(place / "run" / "s")} | api}))
    file.chmod(0o600)
    return file


def refused(file: Path) -> str:
    done = command(*AGENT, str(file))
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_a_configuration_that_others_can_write_is_not_believed(place):
    file = write(place)
    file.chmod(0o602)
    assert f"--config: {file} can be written by others (mode 0602): chmod go-w {file}" in refused(file)
    file.chmod(0o600)
    place.chmod(0o757)
    assert f"--config: {place} can be written by others" in refused(file)
    assert not (place / "run").exists(), "nothing was made before it was refused"


@pytest.mark.root
def test_a_file_or_folder_of_another_user_or_group_is_not_believed(place):
    file = write(place)
    os.chown(file, NOBODY, -1)
    with pytest.raises(UnsafeError, match="belongs to user 65534, not to root"):
        safety.check_file(file, "--config")
    with (
        as_user(NOBODY),
        pytest.raises(UnsafeError, match=r"belongs to user 65533, not to root or user 65534"),
    ):
        os.seteuid(0)
        os.chown(file, SOMEBODY, -1)
        file.chmod(0o644)
        os.seteuid(NOBODY)
        safety.check_file(file, "--config")
    os.chown(file, 0, NOBODY)
    file.chmod(0o660)
    with pytest.raises(UnsafeError, match=r"can be written by group 65534 \(mode 0660\)"):
        safety.check_file(file, "--config")
    os.chown(file, 0, 0)
    safety.check_file(file, "--config")
    link = place / "link.yaml"
    link.symlink_to(file)
    file.chmod(0o666)
    with pytest.raises(UnsafeError, match="written by others"):
        safety.check_file(link, "--config")


def test_a_folder_above_counts_unless_it_is_sticky(place):
    inner = place / "a" / "b"
    inner.mkdir(parents=True)
    safety.check_folder(inner, "api.socket")
    (place / "a").chmod(0o777)
    with pytest.raises(UnsafeError, match=f"api.socket: {place / 'a'} can be written by others"):
        safety.check_folder(inner, "api.socket")
    (place / "a").chmod(0o1777)
    safety.check_folder(inner, "api.socket")
    with pytest.raises(UnsafeError, match=r"a can be written by others \(mode 1777\)"):
        safety.check_folder(place / "a", "api.socket")


def test_a_socket_is_not_put_where_others_could_put_one(place):
    file = write(place)
    (place / "run").mkdir()
    (place / "run").chmod(0o777)
    assert f"api.socket: {place / 'run'} can be written by others" in refused(file)
    assert list((place / "run").iterdir()) == []


@pytest.mark.parametrize(("users", "mode"), [((), 0o600), ((NOBODY,), 0o666)])
def test_the_socket_s_mode_lets_in_whom_the_configuration_names(place, users, mode):
    with agent(place, allowing(*users)) as (path, _):
        assert Path(path).stat().st_mode & 0o777 == mode
        assert Path(path).stat().st_uid == os.geteuid()
