"""Progress of a run, on stderr: a live line on a terminal, one line per finished run anywhere else.

Standard output belongs to the table or the JSON, so that it can be piped while the run is watched.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from netsched import units
from netsched.errors import NetschedError
from netsched.model import Outcome, Standing


class Watch:
    """A `runner.Reporter` that writes to stderr. A context manager: leaving it restores the terminal."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            # By the flows that end per second of late: a guess where the last flows are the largest.
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self.console,
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self.task = self.bar.add_task("", total=None, detail="", visible=False)
        self.head = ""
        self.told_of_compiling = False

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def note(self, text: str) -> None:
        """Something the user should know while it works."""
        self.console.print(text, markup=False)

    def begin(self, engine: str, policy: str, position: int, total: int) -> None:
        self.head = f"[{position + 1}/{total}] {engine} {policy}"
        if engine == "sim" and not self.told_of_compiling and _must_compile():
            self.note("compiling the simulator, once after it was installed or changed: one to three minutes")
            self.told_of_compiling = True
        self.bar.reset(self.task, total=None, description=escape(self.head), visible=True, detail="")

    def progress(self, standing: Standing) -> None:
        active = f"{standing.active} active flows of {standing.coflows} coflows"
        detail = f"{units.show_time(standing.now)} of the run, {active}"
        self.bar.update(self.task, completed=standing.finished, total=standing.flows, detail=detail)

    def end(self, outcome: Outcome) -> None:
        lasted = f"{units.show_time(outcome.simulated_s)} of the run in {units.show_time(outcome.wall_s)}"
        self.note(f"{self.head}: {lasted}{'' if outcome.fidelity.get('valid', True) else ', INVALID'}")

    def fail(self, error: NetschedError) -> None:
        self.note(f"{self.head}: failed")


def _must_compile() -> bool:
    """Is no compiled event loop kept? Then the first run is silent for minutes, which counts as its time."""
    import numba  # noqa: PLC0415 # slow to import, and an emulation may not need it

    import netsched.jit  # noqa: PLC0415, F401 # chooses the folder

    folder: str = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    return next(Path(folder).glob("*/advance.advance-*.nbi"), None) is None
