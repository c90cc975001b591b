"""How long an agent takes a job for living, and how a job finds an agent again."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import pytest
from running_agent import BASE, ROOT, agent, connection, wait_for
from users import NOBODY, allowing, connect, place, tos

from hostagent import client
from hostagent.client import AgentError

__all__ = ["place"]


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
