"""The place where jobs find the agent: a socket that nobody else can put there, in a dead agent's stead."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Final

from hostagent import safety
from netsched.errors import NetschedError

_BACKLOG: Final = 128


def listen(path: str, shared: bool) -> socket.socket:
    """A listening socket at `path`, in the place of one that a dead agent left there.

    Mode 0666 if other users are to reach it (their uid is then checked), else 0600. NetschedError if
    another agent listens there or the place cannot be used.
    """
    where = Path(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        where.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        safety.check_folder(where.parent, "api.socket")
        if where.exists() and _is_dead_socket(where):
            where.unlink()
        before = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(before)
        if shared:
            where.chmod(0o666)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise NetschedError(f"api.socket {path}: {error.strerror or error}") from None
    except BaseException:
        sock.close()
        raise
    return sock


def _is_dead_socket(path: Path) -> bool:
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise NetschedError(f"api.socket {path}: there is something else than a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError as error:
            raise NetschedError(f"api.socket {path}: {error.strerror or error}") from None
    raise NetschedError(f"api.socket {path}: another agent listens there already")
