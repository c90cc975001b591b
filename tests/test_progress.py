"""The live line of a run: what it says on a terminal, and that it says nothing of it anywhere else."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from netsched.progress import Watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("coflows", "says"),
    [(7, "1.5 s of the run, 30 active flows of 7 coflows"), (None, "1.5 s of the run, 30 active flows ")],
)
def test_a_terminal_sees_time_activity_and_time_left(monkeypatch, coflows, says):
    monkeypatch.setattr(sys, "stderr", Terminal())
    watch = Watch()
    watch.console.width = 200
    watch.begin("sim", "fair", 0, 3)
    watch.progress(1.5, 30, 400, 1000, coflows)
    watch.bar.refresh()
    sheet = Console(width=200, file=io.StringIO())
    sheet.print(watch.bar.get_renderable())
    (line,) = sheet.file.getvalue().splitlines()
    assert "[1/3] sim fair" in line and says in line
    # Elapsed, then the time left: unknown after a single report.
    assert line.rstrip().endswith("0:00:00 -:--:-- left")


def test_a_log_sees_finished_runs_only(monkeypatch, capsys):
    watch = Watch()
    with watch:
        watch.begin("sim", "fair", 0, 1)
        watch.progress(1.5, 30, 400, 1000, 7)
    assert capsys.readouterr().err == ""
