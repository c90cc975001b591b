"""The live line of a run: what it says on a terminal, and that it says nothing of it anywhere else."""

from __future__ import annotations

import io
import sys

from rich.console import Console

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
    watch = Watch()
    with watch:
        watch.begin("sim", "fair", 0, 1)
        watch.progress(HALFWAY)
    assert capsys.readouterr().err == ""
