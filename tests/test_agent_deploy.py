"""What the packages claim about the agent (rights, probes, paths, commands), held against the agent."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from namespaces import with_ports
from running_agent import OURS, QUEUE, ROOT, command

from hostagent.__main__ import _parser
from hostagent.config import DEFAULT_LISTEN, load, parse
from hostagent.protocol import DEFAULT_SOCKET

DEPLOY = ROOT / "hostagent" / "deploy"
UNIT = DEPLOY / "netsched-agent.service"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit["Service"]


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "daemonset.yaml").read_text())}


@pytest.fixture(scope="module")
def container(manifests) -> dict[str, Any]:
    (only,) = manifests["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    return only


# ------------------------------------------------------------------ systemd


def test_the_service_has_one_right_and_a_user_of_its_own(service):
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == "CAP_NET_ADMIN"
    assert service["User"] == service["Group"] == "netsched"
    assert service["NoNewPrivileges"] == "yes"
    (user,) = [line.split() for line in (DEPLOY / "sysusers.conf").read_text().splitlines()]
    assert user[:3] == ["u", service["User"], "-"]


def test_the_service_is_watched_and_its_command_is_one_of_ours(service):
    assert (service["Type"], service["WatchdogSec"], service["Restart"]) == ("notify", "30s", "on-failure")
    program, *argv = shlex.split(service["ExecStart"])
    assert Path(program).is_absolute() and Path(program).name in PROJECT["scripts"]
    options = _parser().parse_args(argv)
    assert (options.command, options.config) == ("run", "/etc/netsched/agent.yaml")
    assert f"/run/{service['RuntimeDirectory']}" == str(Path(DEFAULT_SOCKET).parent)
    # Jobs of other users must get through to the socket, whose own mode and uid check decide.
    assert service["RuntimeDirectoryMode"] == "0755"


def test_the_service_may_use_the_socket_families_that_the_agent_uses(service):
    assert set(service["RestrictAddressFamilies"].split()) == {"AF_UNIX", "AF_NETLINK", "AF_INET", "AF_INET6"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit_and_finds_it_hard(tmp_path):
    # The program is not installed where the tests run, and systemd looks for it.
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/usr/local/bin/netsched-agent", shutil.which("true") or ""))
    done = command("systemd-analyze", "verify", "--man=no", str(copy))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # 10 times the exposure level, of which 0 is none and 96 a service without any of it.
    done = command("systemd-analyze", "security", "--offline=true", "--threshold=25", str(copy))
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd is not installed")
def test_systemd_can_make_the_user(tmp_path):
    done = command("systemd-sysusers", "--dry-run", f"--root={tmp_path}", str(DEPLOY / "sysusers.conf"))
    assert done.returncode == 0 and "netsched" in done.stdout + done.stderr


DENY_WRITABLE_CODE = (
    "import ctypes, os, sys\n"
    "if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0): sys.exit(77)\n"
    "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
)


def test_the_agent_needs_no_memory_that_is_writable_and_executable(service):
    assert service["MemoryDenyWriteExecute"] == "yes"
    code = (
        "import mmap\n"
        "import hostagent.agent, hostagent.commands, hostagent.config\n"
        "from netsched.netlink import open_netns\n"
        "hostagent.agent.Agent(hostagent.config.parse('{version: 1, policy: geryon}', ''))\n"
        "with open_netns() as link: assert link.interfaces()\n"
        "try: mmap.mmap(-1, 4096, prot=7)\n"
        "except PermissionError: print('denied')\n"
    )
    done = command(sys.executable, "-c", DENY_WRITABLE_CODE, code)
    if done.returncode == 77:
        pytest.skip("the kernel is older than 6.3: no PR_SET_MDWE")
    assert (done.returncode, done.stdout) == (0, "denied\n"), done.stderr


# ------------------------------------------------------------------ with these rights and no others


NOBODY = ["--reuid=65534", "--regid=65534", "--clear-groups"]
ONLY_NET_ADMIN = ["--bounding-set=-all,+net_admin", "--no-new-privs"]
AS_SYSTEMD = [*NOBODY, "--inh-caps=-all,+net_admin", "--ambient-caps=-all,+net_admin", *ONLY_NET_ADMIN]
AS_KUBERNETES = ["--inh-caps=-all", *ONLY_NET_ADMIN]
WITHOUT_RIGHTS = ["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
CAP_NET_ADMIN = 1 << 12


@pytest.fixture(scope="module")
def host():
    with with_ports("eth0") as made:
        yield made


@pytest.fixture
def place():
    """A folder that any user can reach, as a service's runtime directory is."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def need_reach(rights: list[str]) -> None:
    """An installed agent can be read by its user; a checkout in a folder of root's own cannot."""
    if command("setpriv", *rights, sys.executable, "-c", "import hostagent.agent, yaml").returncode:
        pytest.skip(f"user 65534 cannot read {ROOT} or {sys.prefix}: check out and install where it can")


@pytest.mark.root
@pytest.mark.parametrize(("rights", "uid"), [(AS_SYSTEMD, 65534), (AS_KUBERNETES, 0)])
def test_the_agent_does_all_its_work_with_the_one_right(rights, uid, place, host):
    need_reach(rights)
    os.chown(place, uid, -1)
    before = host.run("tc", "qdisc", "show")
    file = place / "agent.yaml"
    file.write_text(json.dumps(QUEUE | {"api": {"socket": str(place / "s")}, "metrics": {}}))
    file.chmod(0o644)
    ready, ready_child = os.pipe()
    argv = [sys.executable, "-m", "hostagent", "run", "--config", str(file), "--ready-fd", str(ready_child)]
    process = subprocess.Popen(host.argv("setpriv", *rights, *argv), pass_fds=[ready_child], cwd=ROOT)
    os.close(ready_child)
    with os.fdopen(ready) as pipe:
        assert pipe.read() == "ready\n"
    status = dict(line.split(":\t", 1) for line in status_of(process.pid))
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == CAP_NET_ADMIN
    assert status["Uid"].split()[0] == str(uid) and status["NoNewPrivs"] == "1"
    assert OURS in host.run("tc", "qdisc", "show")
    code = (
        "import socket,sys,urllib.request\n"
        "from hostagent import client\n"
        "l=socket.create_server(('127.0.0.1',0)); s=socket.create_connection(l.getsockname())\n"
        "with client.connect(sys.argv[1], strict=True, timeout=5) as us: print(us.tag([s], 0)[0].dscp)\n"
        "print(urllib.request.urlopen('http://127.0.0.1:9469/readyz').read().decode())\n"
    )
    assert host.run(sys.executable, "-c", code, str(place / "s")).split() == ["40", "ok"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    assert host.run("tc", "qdisc", "show") == before


def status_of(pid: int) -> list[str]:
    return [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line]


@pytest.mark.root
@pytest.mark.parametrize(("user", "uid"), [(NOBODY, 65534), ([], 0)])
def test_without_the_right_the_agent_names_it_and_touches_nothing(user, uid, place, host):
    rights = [*user, *WITHOUT_RIGHTS]
    need_reach(rights)
    os.chown(place, uid, -1)
    before = host.run("tc", "qdisc", "show")
    file = place / "agent.yaml"
    file.write_text(json.dumps(QUEUE | {"api": {"socket": str(place / "s")}}))
    file.chmod(0o644)
    argv = [sys.executable, "-m", "hostagent", "run", "--config", str(file)]
    done = command(*host.argv("setpriv", *rights, *argv))
    assert done.returncode == 4 and "CAP_NET_ADMIN" in done.stderr and "Traceback" not in done.stderr
    assert host.run("tc", "qdisc", "show") == before and not (place / "s").exists()


# ------------------------------------------------------------------ Kubernetes


def test_the_pod_is_not_privileged_and_has_one_right(container, manifests):
    rights = container["securityContext"]
    assert rights["privileged"] is False and rights["allowPrivilegeEscalation"] is False
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert rights["readOnlyRootFilesystem"] is True
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    pod = manifests["DaemonSet"]["spec"]["template"]["spec"]
    assert (pod["hostNetwork"], pod["hostPID"], pod["hostIPC"]) == (True, False, False)
    assert pod["automountServiceAccountToken"] is False
    paths = [one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one]
    assert paths == [str(Path(DEFAULT_SOCKET).parent)], "nothing of the host but the socket's folder"


def test_the_probes_ask_the_pages_where_the_configuration_has_them(container, manifests):
    config = parse(manifests["ConfigMap"]["data"]["agent.yaml"], "agent.yaml")
    assert config.mode == "observe", "a first rollout changes nothing"
    assert config.metrics is not None and config.api.socket == DEFAULT_SOCKET
    assert "{}:{}".format(*config.metrics.listen) == DEFAULT_LISTEN
    for probe, path in (("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")):
        asked = container[f"{probe}Probe"]["httpGet"]
        assert (asked["host"], asked["port"], asked["path"]) == (*config.metrics.listen, path)


def test_the_pod_s_commands_are_ours_and_its_names_fit_together(container, manifests):
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    spec = manifests["DaemonSet"]["spec"]
    volumes = {one["name"]: one for one in spec["template"]["spec"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert volumes["config"]["configMap"]["name"] == manifests["ConfigMap"]["metadata"]["name"]
    (file,) = manifests["ConfigMap"]["data"]
    options = _parser().parse_args(container["args"])
    assert (options.command, options.config) == ("run", f"{mounts['config']}/{file}")
    program, *argv = container["lifecycle"]["preStop"]["exec"]["command"]
    options = _parser().parse_args(argv)
    assert program in PROJECT["scripts"] and options.command == "drain"
    assert options.config == f"{mounts['config']}/{file}"
    assert container["image"].rpartition(":")[2] == PROJECT["version"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    for kind in ("ConfigMap", "DaemonSet"):
        assert manifests[kind]["metadata"]["namespace"] == manifests["Namespace"]["metadata"]["name"]


# ------------------------------------------------------------------ container


def instructions() -> list[tuple[str, str]]:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line and not line.startswith("#")]  # type: ignore[misc]


def test_the_image_has_what_the_agent_needs_and_no_more():
    # What the agent and its commands import, found in a fresh interpreter.
    code = (
        "import sys, json, hostagent.__main__, hostagent.agent, hostagent.commands, hostagent.config\n"
        "import netsched.kernel\n"
        "hostagent.config.parse('{version: 1, policy: tensorexpress}', '')\n"
        "found = {n.split('.')[0] for n, m in sys.modules.items()\n"
        "         if 'site-packages' in (getattr(m, '__file__', None) or '')}\n"
        "print(json.dumps(sorted(found)))\n"
    )
    found = set(json.loads(command(sys.executable, "-c", code).stdout))
    # Of the virtual environment itself, where the project is installed for editing.
    found = {name for name in found if not name.startswith(("__editable__", "_distutils_hack"))}
    brought = {"pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "_yaml"}
    assert found - brought - {"netsched", "hostagent"} == {"numpy", "pydantic", "yaml"}
    installed = re.findall(r'"([A-Za-z]+>=[0-9.]+)"', dict(instructions())["RUN"])
    assert sorted(installed) == ["PyYAML>=6.0", "grpcio>=1.60", "numpy>=1.26", "pydantic>=2.6"]
    known = {*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["coordinator"]}
    assert set(installed) <= known


def test_the_image_is_built_from_files_that_are_there_and_runs_as_no_root():
    for name, rest in instructions():
        if name == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    found = dict(instructions())
    assert found["USER"] == "65532:65532"
    (program,) = json.loads(found["ENTRYPOINT"])
    assert program in PROJECT["scripts"]
    assert _parser().parse_args(json.loads(found["CMD"])).command == "run"


# ------------------------------------------------------------------ configurations


def test_the_files_are_installed_with_the_package():
    assert PYPROJECT["tool"]["setuptools"]["package-data"]["hostagent"] == ["deploy/*"]


def test_the_first_configuration_changes_nothing_and_the_documented_one_is_right():
    config = load(DEPLOY / "agent.yaml")
    assert config.mode == "observe" and config.metrics is not None
    (block,) = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs/agent.md").read_text(), re.DOTALL | re.MULTILINE
    )
    documented = parse(block, "docs/agent.md")
    assert documented.metrics is not None and "{}:{}".format(*documented.metrics.listen) == DEFAULT_LISTEN
