"""The first process of a User Mode Linux: `python uml_guest.py FOLDER`.

The host's files are its root, read-only. It loads the modules that queues and namespaces need, runs the argv
in FOLDER/command.json (a kernel's command line has no blanks to give) with its output in FOLDER/output, and
turns the machine off. It imports the standard library only, and of programs it needs mount and ip.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

MODULES = ("ipv6", "veth", "sch_htb", "sch_prio", "sch_tbf", "sch_ingress", "cls_u32", "nf_tables")
POWER_OFF = 0x4321FEDC
FINIT_MODULE = 313
libc = ctypes.CDLL(None, use_errno=True)


def load(names: tuple[str, ...]) -> None:
    # There is no kmod to ask: modules.dep has a line `file: files that it needs, the first needed last`.
    place = Path("/usr/lib/uml/modules") / os.uname().release
    lines = (place / "modules.dep").read_text().splitlines()
    needs = {file: rest.split() for file, _, rest in (line.partition(":") for line in lines)}
    by_name = {Path(file).stem: file for file in needs}
    loaded: set[str] = set()
    for name in names:
        for file in [*reversed(needs[by_name[name]]), by_name[name]]:
            if file not in loaded:
                loaded.add(file)
                with (place / file).open("rb") as module:
                    if libc.syscall(FINIT_MODULE, module.fileno(), b"", 0):
                        sys.exit(f"{file}: {os.strerror(ctypes.get_errno())}")


def main(folder: str) -> None:
    for kind, at, options in (
        ("proc", "/proc", ""),
        ("sysfs", "/sys", ""),
        ("tmpfs", "/run", ""),
        ("hostfs", "/run/out", folder),
    ):
        Path(at).mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", kind, "-o", options, kind, at], check=True)
    load(MODULES)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    command = json.loads(Path("/run/out/command.json").read_text())
    with Path("/run/out/output").open("wb") as output:
        subprocess.run(command, stdout=output, stderr=output, check=False)


try:
    os.environ |= {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/run", "TMPDIR": "/run"}
    main(sys.argv[1])
finally:
    os.sync()
    sys.stderr.flush()
    libc.reboot(POWER_OFF)
