"""The prio rung on a kernel that has it: Debian's Linux 6.1 as a process (user-mode-linux), wherever we run.

That kernel has sch_prio, but neither sch_ets nor nft's family inet: ets waits for a host that has it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_S = 150


def preload(folder: Path) -> dict[str, str]:
    """What lets it run on CPUs of more registers than it knows, where there is a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return {}
    made = folder / "xstate.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(HERE / "uml_xstate.c")], check=True)
    return {"LD_PRELOAD": str(made)}


def boot(program: str, folder: Path, *command: str) -> str:
    """Run a command in a kernel of its own that may write to `folder` only; what its console said."""
    kernel = [
        "mem=512M",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        f"uml_dir={folder}",
        "con=null",
        "con0=null,fd:1",
    ]
    first = [f"init={sys.executable}", "--", str(HERE / "uml_guest.py"), str(folder)]
    (folder / "command.json").write_text(json.dumps(command))
    log = folder / "console"
    with log.open("wb") as console:
        process = subprocess.Popen(
            [program, *kernel, *first],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env=os.environ | preload(folder),
            start_new_session=True,
        )
        try:
            process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not done after {LIMIT_S} s:\n{log.read_text(errors='replace')[-3000:]}")
        finally:
            # Its processes are processes of the host's, in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return log.read_text(errors="replace")


@pytest.mark.root
def test_prio_holds_on_a_kernel_that_has_it(tmp_path):
    program = shutil.which("linux.uml")
    if program is None:
        pytest.skip("no user-mode-linux here (apt-get install user-mode-linux)")
    chosen = ["-m", "root", "-k", "prio and not missing_option", str(HERE / "test_strict.py")]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest"]
    quiet = [*plugins, "--basetemp", "/run/t", "--color", "no"]
    report = ["--durations=9", "--rootdir", str(HERE.parent), "--junit-xml", "/run/out/report.xml"]
    said = boot(program, tmp_path, sys.executable, "-B", "-m", "pytest", *quiet, *report, *chosen)
    if "ptrace set fp regs failed" in said and shutil.which("cc") is None:
        pytest.skip(
            "this CPU has more registers than user-mode-linux knows, and no C compiler is here to help"
        )
    output = tmp_path / "output"
    assert output.exists(), said[-3000:]
    suite = (tmp_path / "report.xml").read_text()
    counts = dict(re.findall(r' (tests|failures|errors|skipped)="([0-9]+)"', suite))
    # The question, queues of 4 sizes, the export, the sorting, and an agent: owning, killed, overtaken.
    wanted = {"tests": "10", "failures": "0", "errors": "0", "skipped": "0"}
    assert counts == wanted, output.read_text()[-6000:]
