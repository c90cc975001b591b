"""What tests of coordinators as processes share: certificates, processes, and streams without an agent."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from agent_pages import free_port
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from namespaces import Space

from hostagent import client
from netsched.coordinator import wire as messages
from netsched.coordinator.wire import Hello

ROOT = Path(__file__).parent.parent
PATH = f"/{messages.SERVICE}/{messages.METHOD}"

# ------------------------------------------------------------------ certificates


class Authority:
    """Signs certificates of hosts; files in PEM under `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        made = self._builder(subject, self._key).add_extension(
            x509.BasicConstraints(True, None), critical=True
        )
        self._subject = subject
        self.ca = self._write(
            "ca", made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, hours: int = 1
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, self._name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=5))
            .not_valid_after(now + datetime.timedelta(hours=hours))
        )

    def _write(self, name: str, content: bytes) -> str:
        path = self._folder / f"{self._name}-{name}.pem"
        path.touch(mode=0o600)
        path.write_bytes(content)
        return str(path)

    def issue(self, name: str, *addresses: str, hours: int = 1) -> dict[str, str]:
        """The `ca`, `cert` and `key` of a host that is called `name` and has these addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name), *(x509.IPAddress(ipaddress.ip_address(one)) for one in addresses)]
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        built = self._builder(subject, key, hours).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        cert = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {"ca": self.ca, "cert": self._write(name, cert), "key": self._write(f"{name}-key", secret)}


# ------------------------------------------------------------------ processes


@contextlib.contextmanager
def coordinator(folder: Path, settings: dict, where: Space | None = None):
    """A running coordinator; yields its process, which the test may kill."""
    file = folder / "coordinator.yaml"
    file.write_text(json.dumps({"version": 1, "policy": "sebf", "stale": "2s"} | settings))
    ready, ready_child = os.pipe()
    argv = [
        sys.executable,
        "-m",
        "netsched",
        "coordinator",
        "--config",
        str(file),
        "--ready-fd",
        str(ready_child),
    ]
    process = subprocess.Popen(
        argv if where is None else where.argv(*argv), pass_fds=[ready_child], cwd=ROOT, stderr=subprocess.PIPE
    )
    os.close(ready_child)
    killed = False
    try:
        with os.fdopen(ready) as pipe:
            said = pipe.read()
        if said != "ready\n":
            _, errors = process.communicate(timeout=10)
            pytest.fail(f"coordinator ended with {process.returncode}: {errors.decode()}")
        yield process
    finally:
        killed = process.poll() is not None
        if not killed:
            process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == (-signal.SIGKILL if killed else 0), errors.decode()
    assert b"Traceback" not in errors, errors.decode()


def wait_until(holds, seconds: float = 10.0):
    """What `holds` returns, as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {seconds:g} s; last: {found!r}"
        time.sleep(0.02)
    return found


def standing(path: str) -> dict:
    with client.connect(path, timeout=2, strict=True) as us:
        return us.status()["coordinator"]


SWITCH = {"kind": "single_switch", "hosts": 3, "rate": "1Gbit/s"}


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A coordinator with certificates on loopback: (its port, the authority, its folder)."""
    folder = tmp_path_factory.mktemp("secure")
    authority, port = Authority(folder, "site"), free_port()
    settings = {
        "listen": f"127.0.0.1:{port}",
        "fabric": SWITCH,
        "tls": authority.issue("coordinator", "127.0.0.1"),
    }
    with coordinator(folder, settings):
        yield port, authority, folder


def stream(port: int, files: dict[str, str] | None, sent: list[bytes], *, hold: float = 0.0) -> list[bytes]:
    """What the coordinator answers to these messages. grpc.RpcError as it says."""
    target = f"127.0.0.1:{port}"
    options = [("grpc.use_local_subchannel_pool", 1)]
    if files is None:
        channel = grpc.insecure_channel(target, options)
    else:
        ca, cert, key = (
            Path(files[name]).read_bytes() if name in files else None for name in ("ca", "cert", "key")
        )
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(ca, key, cert), options)

    def outgoing():
        yield from sent
        time.sleep(hold)

    with channel:
        return list(channel.stream_stream(PATH)(outgoing(), timeout=30))


HELLO = messages.hello_bytes(Hello("h1", 8, {}))
