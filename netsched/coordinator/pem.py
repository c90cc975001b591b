"""Certificates and keys from their files, for both ends of the coordinator's connections."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from netsched.errors import ScenarioError


def pem_of(path: str | Path, *, secret: bool) -> bytes:
    """The content of a PEM file. ScenarioError if there is none, or if all the world may read a `secret`."""
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise ScenarioError(f"{path}: there is no PEM in it")
    if secret and mode & 0o007:
        raise ScenarioError(f"{path}: mode {mode:04o} lets everybody read this key: chmod o= {path}")
    return content
