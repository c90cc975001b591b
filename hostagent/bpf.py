"""A BPF program on a control group that marks its TCP connections before their first packet.

A dozen instructions, written by hand: no compiler, library or file is needed for them. The link to the group
is not pinned, so that the kernel takes the program away when the agent's process ends, however it ends; the
sockets that it has marked keep their mark.
Source: linux/bpf.h; the program runs at connect, before the SYN, and when a connection was accepted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import Final

from hostagent import cgroups
from hostagent.cgroups import Cgroup
from netsched.errors import CapabilityError, NetschedError
from netsched.marking import tos_of

_SYSCALL: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "s390x": 351, "ppc64le": 361}
_PROG_LOAD, _LINK_CREATE = 5, 28
_TYPE_SOCK_OPS: Final = 13
_ATTACH_SOCK_OPS: Final = 3
_TCP_CONNECT, _PASSIVE_ESTABLISHED = 3, 5
_SETSOCKOPT: Final = 49
_OPTIONS: Final = ((0, 1), (41, 67))
"""(level, name) of IP_TOS and IPV6_TCLASS; the kernel keeps a TCP socket's ECN bits in both."""
_PRIORITY: Final = (1, 12)
_OPTION_NAMES: Final = "CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF"


def program(dscp: int) -> bytes:
    """The instructions that mark a connection with `dscp`, TOS first and priority last."""
    r0, r1, r2, r3, r4, r5, r6, r7, r10 = 0, 1, 2, 3, 4, 5, 6, 7, 10

    def one(code: int, dst: int = 0, src: int = 0, offset: int = 0, value: int = 0) -> bytes:
        return struct.pack("=BBhi", code, src << 4 | dst, offset, value)

    def set_option(level: int, name: int) -> bytes:
        parts = [one(0xBF, r1, r6), one(0xB7, r2, value=level), one(0xB7, r3, value=name)]
        parts += [one(0xBF, r4, r10), one(0x07, r4, value=-4), one(0xB7, r5, value=4)]
        return b"".join([*parts, one(0x85, value=_SETSOCKOPT)])

    end = one(0xB7, r0, value=1) + one(0x95)
    head = [one(0xBF, r6, r1), one(0x61, r7, r6), one(0x15, r7, offset=3, value=_TCP_CONNECT)]
    head += [one(0x15, r7, offset=2, value=_PASSIVE_ESTABLISHED), end]
    mark = [one(0x62, r10, offset=-4, value=tos_of(dscp)), *(set_option(*option) for option in _OPTIONS)]
    neutral = [one(0x62, r10, offset=-4, value=0), set_option(*_PRIORITY)]
    return b"".join([*head, *mark, *neutral, end])


def check() -> None:
    """Have the kernel verify the program; nothing is changed. CapabilityError naming what is lacking."""
    os.close(_load(program(0)))


def attach(group: Cgroup, dscp: int) -> int:
    """Mark the connections of a group from now on, for as long as the returned descriptor is open.

    CapabilityError naming what the kernel or this user lacks.
    """
    code = program(dscp)
    loaded = _load(code)
    folder = -1
    try:
        folder = cgroups.open_folder(group)
        return _call(_LINK_CREATE, struct.pack("=IIII", loaded, folder, _ATTACH_SOCK_OPS, 0))
    except OSError as error:
        raise _refused(error) from None
    finally:
        os.close(loaded)
        if folder >= 0:
            os.close(folder)


def _load(code: bytes) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    addresses = (ctypes.addressof(instructions), ctypes.addressof(licence))
    head = struct.pack("=IIQQ", _TYPE_SOCK_OPS, len(code) // 8, *addresses)
    tail = struct.pack("=IIQII16sII", 0, 0, 0, 0, 0, b"netsched_mark", 0, _ATTACH_SOCK_OPS)
    try:
        return _call(_PROG_LOAD, head + tail)
    except OSError as error:
        raise _refused(error) from None


def _call(command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise CapabilityError(f"cgroup-bpf: the number of bpf(2) on {platform.machine()} is not known here")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    done = int(ctypes.CDLL(None, use_errno=True).syscall(number, command, buffer, len(attributes)))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.set_inheritable(done, False)
    return done


def _refused(error: OSError) -> NetschedError:
    if error.errno in (errno.EPERM, errno.EACCES):
        return CapabilityError("cgroup-bpf: CAP_BPF and CAP_NET_ADMIN are needed")
    return CapabilityError(f"cgroup-bpf: {error.strerror}: a kernel with {_OPTION_NAMES} is needed")
