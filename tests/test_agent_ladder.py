"""The tagging ladder at work: each level on the wire, and jobs that do not ask."""

from __future__ import annotations

import contextlib
import json
import socket
import sys

import pytest
from ladder_ends import (
    ADDRESSES,
    PORTS,
    ROOT,
    SIZE,
    TRAIN,
    Capture,
    config_of,
    ends,
    group,
    sinks,
    wait_until,
)
from namespaces import within
from running_agent import agent, command

from hostagent import client, ladder, nftmarks
from netsched import marking

__all__ = ["ends", "group"]


@pytest.mark.root
@pytest.mark.parametrize("level", [ladder.CGROUP_BPF, ladder.NFT_CGROUP])
def test_what_a_job_says_of_its_socket_counts_more_than_its_group(ends, tmp_path, level, group):
    left, right = ends
    config = config_of(level, group) | {"ladder": [level, "descriptor"]}
    where = json.dumps([(ADDRESSES["ipv4"], PORTS["ipv4"])])
    with (
        agent(tmp_path, config, left) as (path, _),
        sinks(right.pid),
        contextlib.closing(Capture(right.pid)) as capture,
    ):
        argv = [str(ROOT), path, "descriptor", "1", str(group), "100000", where]
        train = left.python(TRAIN, *argv)
        out, _ = train.communicate("send\nend\n", timeout=20)
        assert train.returncode == 0
        capture.read()
    (one,) = json.loads(out.splitlines()[1])["sockets"]
    assert (one["level"], one["dscp_now"]) == ("descriptor", 36)
    assert {dscp for _, dscp, _ in capture.data} == {36}
    assert capture.syns[PORTS["ipv4"], 20] == 1, "before the job said so, its group's mark held"


@pytest.mark.root
@pytest.mark.parametrize("level", ladder.LEVELS)
def test_the_receiver_sees_the_mark_on_every_data_segment_and_ecn_untouched(ends, tmp_path, level, request):
    left, right = ends
    by_group = level in (ladder.CGROUP_BPF, ladder.NFT_CGROUP)
    group = request.getfixturevalue("group") if by_group else None
    dscp = marking.dscp_of(3)
    before = left.run("nft", "list", "ruleset")
    where = json.dumps([(ADDRESSES[kind], PORTS[kind]) for kind in PORTS])
    with (
        agent(tmp_path, config_of(level, group), left) as (path, _),
        sinks(right.pid),
        contextlib.closing(Capture(right.pid)) as capture,
    ):
        train = left.python(TRAIN, str(ROOT), path, level, "3", str(group or ""), str(SIZE), where)
        assert train.stdin is not None and train.stdout is not None
        assert train.stdout.readline() == "tagged\n"
        train.stdin.write("send\n")
        train.stdin.flush()
        explained = json.loads(train.stdout.readline())
        train.communicate("end\n", timeout=20)
        assert train.returncode == 0
        capture.read()
    for kind, port in PORTS.items():
        seen = {key[1:]: count for key, count in capture.data.items() if key[0] == port}
        total = sum(seen.values())
        assert total >= SIZE / 2000
        # ECT(0) is binary 10 (RFC 3168), which the handshake negotiated; 11 would be a congested queue.
        right_ones = sum(count for (mark, ecn), count in seen.items() if mark == dscp and ecn in (2, 3, -1))
        assert right_ones >= 0.999 * total, (kind, seen)
        if by_group:
            assert capture.syns[port, dscp] >= 1, "the first packet is marked as well"
    (one,) = explained["sockets"]
    assert (one["level"], one["dscp_now"]) == (level, dscp)
    assert [step["level"] for step in explained["ladder"][level] if step["chosen"]] == [level]
    assert left.run("nft", "list", "ruleset") == before


@pytest.mark.root
def test_doctor_tries_every_level_and_changes_nothing(ends, group):
    left, _ = ends
    before = left.run("nft", "list", "ruleset")
    done = command(*left.argv(sys.executable, "-m", "hostagent", "doctor", "--json"))
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["capabilities"]}
    # What the captures above need: they would have failed without.
    for level in (ladder.CGROUP_BPF, ladder.NFT_CGROUP, ladder.NFT_TUPLE, ladder.PIDFD):
        assert found[f"ladder {level}"]["present"], found[f"ladder {level}"]
    assert left.run("nft", "list", "ruleset") == before
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    done = command(*left.argv(*bare, sys.executable, "-m", "hostagent", "doctor"))
    assert done.returncode == 0, done.stderr
    assert "get it: cgroup-bpf: CAP_BPF and CAP_NET_ADMIN are needed" in done.stdout
    assert "get it: nft: CAP_NET_ADMIN is needed" in done.stdout


@pytest.mark.root
def test_plan_and_status_tell_what_is_marked_for_jobs_that_do_not_ask(ends, tmp_path, group):
    left, _ = ends
    file = tmp_path / "agent.yaml"
    for level in ("cgroup-bpf", "nft-cgroup"):
        config = config_of(level, group) | {"ladder": [level, "nft-tuple"]}
        file.write_text(json.dumps(config))
        before = left.run("nft", "list", "ruleset")
        done = command(*left.argv(sys.executable, "-m", "hostagent", "plan", "--config", str(file), "--json"))
        assert done.returncode == 1, done.stderr
        assert json.loads(done.stdout)["marks"] == [
            f"cgroup {group.name}: class 3 (AF22) by {level}",
            f"nft table inet {nftmarks.TABLE}: to be loaded",
        ]
        assert left.run("nft", "list", "ruleset") == before
        with agent(tmp_path, config, left) as (path, _):
            done = command(sys.executable, "-m", "hostagent", "status", "--socket", path)
            assert done.returncode == 0
            words = f"marked cgroups by {level}: {group.name} (class 3); connections marked by address: 0"
            assert words in done.stdout


@pytest.mark.root
def test_a_program_ends_with_its_agent_and_marks_stay_on_their_sockets(ends, tmp_path, group):
    left, _ = ends
    code = (
        "import os,socket,sys\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "l=socket.create_server(('127.0.0.1',0))\n"
        "for line in sys.stdin:\n"
        "    s=socket.create_connection(l.getsockname()); a,_=l.accept()\n"
        "    print(s.getsockopt(0, socket.IP_TOS), a.getsockopt(0, socket.IP_TOS), flush=True)\n"
    )
    job = left.python(code, str(group))
    assert job.stdin is not None and job.stdout is not None

    def marks() -> str:
        job.stdin.write("\n")
        job.stdin.flush()
        return job.stdout.readline()

    assert marks() == "0 0\n"
    config = config_of("cgroup-bpf", group)
    with agent(tmp_path, config, left), contextlib.suppress(AssertionError):
        assert marks() == "80 80\n", "DSCP 20, at both ends of a connection within the group"
    assert marks() == "0 0\n"
    with pytest.raises(AssertionError), agent(tmp_path, config, left) as (_, process):
        assert marks() == "80 80\n"
        process.kill()
        process.wait()
    assert marks() == "0 0\n", "the kernel has taken the program away"
    job.communicate(timeout=10)


@pytest.mark.root
def test_after_a_kill_marked_connections_are_taken_over_without_a_change(ends, tmp_path):
    left, _ = ends
    config = {"version": 1, "mode": "mark", "ladder": ["nft-tuple"], "resync": "1s", "on_stop": "keep"}
    sockets = []
    try:
        for family, host in ((socket.AF_INET, "10.9.0.1"), (socket.AF_INET6, "fd09::1")):

            def make(family=family, host=host) -> tuple[socket.socket, ...]:
                with socket.create_server((host, 0), family=family) as listener:
                    near = socket.create_connection(listener.getsockname()[:2])
                    return near, listener.accept()[0]

            sockets += within(left.pid, make)
        show = [f"{s.getsockname()[0]}:{s.getsockname()[1]}" for s in (sockets[0], sockets[1])]
        show6 = [f"[{s.getsockname()[0]}]:{s.getsockname()[1]}" for s in (sockets[2], sockets[3])]
        with (
            pytest.raises(AssertionError),
            agent(tmp_path, config, left) as (path, process),
            client.connect(path, strict=True, timeout=5) as us,
        ):
            us.tag_flows([tuple(show)], 0)
            us.tag_flows([tuple(show6)], 2)
            process.kill()
            process.wait()
        handles = left.run("nft", "-a", "-t", "list", "ruleset")
        with agent(tmp_path, config, left) as (path, _), client.connect(path, strict=True, timeout=5) as us:
            assert left.run("nft", "-a", "-t", "list", "ruleset") == handles, "nothing was made anew"
            assert us.status()["marks"]["flows"] == 2
            (one,) = us.explain(local=show6[0])["sockets"]
            assert (one["level"], one["dscp_now"], one["class"]) == ("nft-tuple", 32, 2)
            sockets[0].close()
            sockets[1].close()
            wait_until(lambda: us.status()["marks"]["flows"] == 1)
    finally:
        for sock in sockets:
            sock.close()
    assert nftmarks.TABLE in left.run("nft", "list", "tables"), "on_stop: keep"
    left.run("nft", "delete", "table", "inet", nftmarks.TABLE)


@pytest.mark.root
def test_an_operator_can_have_a_connection_or_a_process_marked(ends, tmp_path):
    left, _ = ends
    code = (
        "import socket,sys\n"
        "l=socket.create_server(('10.9.0.1',0)); s=socket.create_connection(l.getsockname())\n"
        "a,_=l.accept()\n"
        "print('{}:{} {}:{}'.format(*s.getsockname(), *s.getpeername()), flush=True); sys.stdin.read(1)\n"
        "print(*(x.getsockopt(0, socket.IP_TOS) >> 2 for x in (l, s, a)))\n"
    )
    with agent(tmp_path, {"version": 1, "mode": "mark", "ladder": ["nft-tuple", "pidfd"]}, left) as (path, _):
        job = left.python(code)
        assert job.stdin is not None and job.stdout is not None
        ends_of_it = job.stdout.readline().split()
        tag = [sys.executable, "-m", "hostagent", "tag", "--socket", path, "--job", "by hand"]
        done = command(*tag, "--class", "2", "--flow", *ends_of_it)
        assert (done.returncode, done.stdout) == (0, "1 of 1 marked CS4\n"), done.stderr
        (flow,) = (line for line in left.run("nft", "list", "ruleset").splitlines() if "expires" in line)
        assert all(end.replace(":", " . ") in flow for end in ends_of_it)
        done = command(*tag, "--class", "2", "--flow", ends_of_it[0], "10.9.0.2:1")
        assert done.returncode == 6
        assert done.stdout == "socket: user 0 has no such connection here\n0 of 1 marked CS4\n"
        done = command(*tag, "--class", "0", "--pid", str(job.pid), "--json")
        assert done.returncode == 0, done.stderr
        assert (json.loads(done.stdout)["marked"], json.loads(done.stdout)["dscp"]) == (2, 40)
        assert "expires" not in left.run("nft", "list", "ruleset"), "the socket's own mark is not overridden"
        done = command(*tag, "--class", "9", "--pid", str(job.pid))
        assert done.returncode == 1 and "class = 9" in done.stderr and "Traceback" not in done.stderr
        shown = command(sys.executable, "-m", "hostagent", "explain", "--socket", path, "--job", "by hand")
        assert shown.returncode == 0 and shown.stdout.count("; level pidfd") == 2
        out, _ = job.communicate("x", timeout=10)
        assert out == "0 40 40\n", "the listening socket is none of the connections"


@pytest.mark.root
def test_a_group_made_anew_is_followed_and_the_table_is_repaired(ends, tmp_path, group):
    left, _ = ends
    config = config_of("nft-cgroup", group) | {"resync": "1s"}
    list_it = ("nft", "-s", "-t", "list", "table", "inet", nftmarks.TABLE)
    with agent(tmp_path, config, left) as (path, _), client.connect(path, strict=True, timeout=5) as us:
        whole = left.run(*list_it)
        left.run("nft", "flush", "chain", "inet", nftmarks.TABLE, nftmarks.CHAIN)
        wait_until(lambda: left.run(*list_it) == whole)
        shown = us.status()["marks"]
        assert shown["level"] == "nft-cgroup" and shown["conflict"] == ""
        number = group.stat().st_ino
        group.rmdir()
        group.mkdir()
        assert group.stat().st_ino != number
        wait_until(lambda: left.run(*list_it) == whole)
        left.run("nft", "delete", "table", "inet", nftmarks.TABLE)
        wait_until(lambda: nftmarks.TABLE in left.run("nft", "list", "tables"))
        left.run("nft", "delete", "table", "inet", nftmarks.TABLE)
        wait_until(lambda: "3 times in 10 minutes" in us.status()["marks"]["conflict"])
        assert us.status()["not_ready"] == [f"marks: {us.status()['marks']['conflict']}"]
