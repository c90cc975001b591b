"""The live line of a run: what it says on a terminal, and that it says nothing of it anywhere else."""

from __future__ import annotations

import io
import sys

from rich.console import Console

from netsched import progress
from netsched.jit import nb
from netsched.model import Standing
from netsched.progress import Watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


HALFWAY = Standing(now=1.5, active=30, coflows=7, finished=400, flows=1000)


def test_a_terminal_sees_time_activity_and_time_left(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    watch = Watch()
    watch.console.width = 200
    watch.begin("sim", "fair", 0, 3)
    watch.progress(HALFWAY)
    watch.bar.refresh()
    sheet = Console(width=200, file=io.StringIO())
    sheet.print(watch.bar.get_renderable())
    (line,) = sheet.file.getvalue().splitlines()
    assert "[1/3] sim fair" in line
    assert "1.5 s of the run, 30 active flows of 7 coflows" in line
    # Elapsed, then the time left: unknown after a single report.
    assert line.rstrip().endswith("0:00:00 -:--:-- left")


def test_a_log_sees_finished_runs_only(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_must_compile", lambda: False)
    watch = Watch()
    with watch:
        watch.begin("sim", "fair", 0, 1)
        watch.progress(HALFWAY)
    assert capsys.readouterr().err == ""


def test_minutes_of_compiling_are_announced_once(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(nb.config, "CACHE_DIR", str(tmp_path))
    watch = Watch()
    watch.begin("mininet", "fair", 0, 3)
    assert capsys.readouterr().err == ""
    watch.begin("sim", "fair", 1, 3)
    watch.begin("sim", "fifo", 2, 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("compiling the simulator, once")


def test_what_a_run_has_compiled_is_found(capsys, tmp_path, monkeypatch):
    # What numba calls the index of the event loop's code: folder of the source, module, function, line.
    kept = tmp_path / "netsched_0" / "advance.advance-131.py311.nbi"
    kept.parent.mkdir()
    kept.touch()
    monkeypatch.setattr(nb.config, "CACHE_DIR", str(tmp_path))
    Watch().begin("sim", "fair", 0, 1)
    assert capsys.readouterr().err == ""
