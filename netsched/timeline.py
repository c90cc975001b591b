"""The timeline of one iteration: per host what it computed, sent and received, as in a Gantt chart.

It answers the question that a mean cannot: while a host waited, whose tensors had the network?
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from netsched.metrics import Table
from netsched.model import Floats, Ints
from netsched.results import Key, Result, read
from netsched.style import Colour, colours, scaled, tint

_MAX_HOSTS: Final = 16
_MAX_FLOWS: Final = 20_000
_MAX_JOBS: Final = 6
_COMPUTE, _SEND, _RECEIVE = "compute", "send", "receive"
_FILLED: Final = 0.9
"""Of a host's row, and of a lane: the rest keeps neighbours apart."""

_OTHER: Final[Colour] = (0.75, 0.75, 0.75)
_LEGEND_WIDTH: Final = 115
"""Characters of the legend's font beside each other, handles counted as 8."""

_FORWARD: Final = 0.55
"""How much lighter forward compute is than backward."""

_NEEDED_LAST: Final = 0.8
"""How much lighter the tensor that is needed last is than the one that is needed first."""


@dataclass(frozen=True)
class Window:
    """The iteration that is drawn: of which job, and from when to when (seconds of the run)."""

    job: str
    iteration: int
    start: float
    finish: float

    def on_axis(self, times: Floats) -> Floats:
        """Seconds of the run as time since the window's start, in the axis's unit."""
        return (times - self.start) / scaled(self.finish - self.start)[0]


@dataclass(frozen=True)
class Bars:
    """What one kind of lane shows: the row of the host, seconds of the run, and a colour of each bar."""

    host: Ints
    start: Floats
    finish: Floats
    colour: npt.NDArray[Any]


def draw(result: Result, key: Key) -> Figure | None:
    """The second iteration of the first job (its last finished one if there are fewer); None without one.

    The second, because the first has no traffic of an earlier one to wait for. What other jobs do
    on the same hosts in that time is drawn too.
    """
    window = choose(read(result, "iterations", key, ["job", "iteration", "start", "finish"]))
    if window is None:
        return None
    tasks = _inside(
        read(result, "tasks", key, ["job", "iteration", "host", "kind", "start", "finish"]), "start", window
    )
    wanted = ["job", "iteration", "src", "dst", "size", "need", "need_span", "release", "finish"]
    flows = _inside(read(result, "flows", key, wanted), "release", window)
    hosts, n_hosts = _hosts(tasks, flows, window)
    if not hosts:
        return None
    row = {host: i for i, host in enumerate(hosts)}
    flows, left_out = _largest(flows, row)
    colour, others = _job_colours(window.job, {*tasks["job"], *flows["job"]})
    lanes = {_SEND: _flow_bars(flows, "src", row, colour), _RECEIVE: _flow_bars(flows, "dst", row, colour)}
    if (tasks["host"] != "").any():
        lanes = {_COMPUTE: _task_bars(tasks, row, colour), **lanes}
    figure = Figure(figsize=(7.2, 1.2 + 0.15 * len(lanes) * len(hosts)), layout="constrained")
    axes = figure.subplots()
    for lane, bars in enumerate(lanes.values()):
        for i in range(len(hosts)):
            _draw_lane(axes, bars, i, _place(i, lane, len(lanes)), window)
    _dress(axes, hosts, list(lanes), window)
    axes.set_title(
        f"{key.policy} on {key.engine}: {window.job}, iteration {window.iteration + 1}", loc="left"
    )
    _explain(figure, colour, others, _COMPUTE in lanes, bool((flows["need_span"] > 1).any()))
    cut = [f"{len(hosts)} of {n_hosts} hosts"] if len(hosts) < n_hosts else []
    cut += [f"without the {left_out:,} smallest flows"] if left_out else []
    if cut:
        axes.annotate(", ".join(cut), (1, 1), (0, 3), "axes fraction", "offset points", ha="right", size=7)
    return figure


# ------------------------------------------------------------------ what to draw


def choose(iterations: Table) -> Window | None:
    """The second finished iteration of the first job with a finished one, or its only one."""
    took_time = iterations["finish"] > iterations["start"]  # False for NaN, which did not finish
    rows = np.flatnonzero(took_time)
    if not len(rows):
        return None
    of_job = rows[iterations["job"][rows] == iterations["job"][rows[0]]]
    at = of_job[min(1, len(of_job) - 1)]
    return Window(
        job=str(iterations["job"][at]),
        iteration=int(iterations["iteration"][at]),
        start=float(iterations["start"][at]),
        finish=float(iterations["finish"][at]),
    )


def _inside(table: Table, begins: str, window: Window) -> Table:
    """The rows that last some time within the window; one that never ends lasts until the window does."""
    finish = np.where(np.isnan(table["finish"]), np.inf, table["finish"])
    keep = (np.minimum(finish, window.finish) > np.maximum(table[begins], window.start)) & (
        finish > table[begins]
    )
    kept = {name: column[keep] for name, column in table.items()}
    kept["finish"] = np.minimum(finish[keep], window.finish)
    kept["start"] = np.maximum(table[begins][keep], window.start)
    return kept


def _largest(flows: Table, row: Mapping[str, int]) -> tuple[Table, int]:
    """The flows of the drawn hosts, as many as can be told apart, and how many that leaves out."""
    shown = np.flatnonzero((_rows(flows["src"], row) >= 0) | (_rows(flows["dst"], row) >= 0))
    by_size = shown[np.argsort(flows["size"][shown], kind="stable")]
    keep = np.sort(by_size[max(0, len(shown) - _MAX_FLOWS) :])
    return {name: column[keep] for name, column in flows.items()}, len(shown) - len(keep)


def _job_colours(first: str, names: set[str]) -> tuple[dict[str, Colour], int]:
    """A colour for each job; if they are too many, one for the job in question and one for the rest."""
    others = sorted(names - {first})
    if len(others) < _MAX_JOBS:
        return dict(zip([first, *others], colours(1 + len(others)), strict=True)), 0
    return dict.fromkeys(others, _OTHER) | {first: colours(1)[0]}, len(others)


def _hosts(tasks: Table, flows: Table, window: Window) -> tuple[list[str], int]:
    """The hosts of the job in that iteration, those with most bytes if there are many; and their number."""
    volume: dict[str, float] = {}
    mine = (flows["job"] == window.job) & (flows["iteration"] == window.iteration)
    for end in ("src", "dst"):
        for host, size in zip(flows[end][mine], flows["size"][mine], strict=True):
            volume[host] = volume.get(host, 0.0) + size
    mine = (tasks["job"] == window.job) & (tasks["iteration"] == window.iteration) & (tasks["host"] != "")
    for host in tasks["host"][mine]:
        volume.setdefault(host, 0.0)
    chosen = sorted(volume, key=lambda host: (-volume[host], _natural(host)))[:_MAX_HOSTS]
    return sorted(chosen, key=_natural), len(volume)


def _natural(name: str) -> tuple[int, str]:
    """h2 before h10."""
    return len(name), name


def _task_bars(tasks: Table, row: Mapping[str, int], colour: Mapping[str, Colour]) -> Bars:
    shade = {
        (job, forward): tint(value, _FORWARD if forward else 0.0)
        for job, value in colour.items()
        for forward in (True, False)
    }
    pairs = zip(tasks["job"], tasks["kind"] == "forward", strict=True)
    shades = np.array([shade[job, bool(forward)] for job, forward in pairs]).reshape(-1, 3)
    return Bars(_rows(tasks["host"], row), tasks["start"], tasks["finish"], shades)


def _flow_bars(flows: Table, end: str, row: Mapping[str, int], colour: Mapping[str, Colour]) -> Bars:
    base = np.array([colour[job] for job in flows["job"]]).reshape(-1, 3)
    late = flows["need"] / np.maximum(flows["need_span"] - 1, 1) * _NEEDED_LAST
    shades = base + (1 - base) * np.clip(late, 0, _NEEDED_LAST)[:, None]
    return Bars(_rows(flows[end], row), flows["start"], flows["finish"], shades)


def _rows(hosts: npt.NDArray[Any], row: Mapping[str, int]) -> Ints:
    return np.fromiter((row.get(host, -1) for host in hosts), np.int64, len(hosts))


# ------------------------------------------------------------------ how to draw it


def stack(start: Floats, finish: Floats) -> tuple[Ints, int]:
    """A level for each interval so that none overlaps another of its level, and the number of levels.

    Intervals in order of start take the lowest free level: as few levels as ever are busy at once.
    """
    level = np.zeros(len(start), np.int64)
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    n = 0
    for i in np.lexsort((finish, start)):
        while busy and busy[0][0] <= start[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            level[i] = heapq.heappop(free)
        else:
            level[i], n = n, n + 1
        heapq.heappush(busy, (float(finish[i]), int(level[i])))
    return level, n


def _place(host: int, lane: int, lanes: int) -> tuple[float, float]:
    """Top and height of a lane; the row of host i is centred on i and points downwards."""
    pitch = _FILLED / lanes
    return host - _FILLED / 2 + (lane + (1 - _FILLED) / 2) * pitch, _FILLED * pitch


def _draw_lane(axes: Axes, bars: Bars, host: int, place: tuple[float, float], window: Window) -> None:
    mine = np.flatnonzero(bars.host == host)
    if not len(mine):
        return
    level, levels = stack(bars.start[mine], bars.finish[mine])
    left, right = (window.on_axis(times[mine]) for times in (bars.start, bars.finish))
    top, height = place
    low, high = top + level * height / levels, top + (level + 1) * height / levels
    corners = np.stack((left, low, left, high, right, high, right, low), 1).reshape(-1, 4, 2)
    axes.add_collection(
        PolyCollection(
            list(corners),
            facecolors=bars.colour[mine],
            # A hair line in the bar's own colour keeps a bar of less than a pixel visible.
            edgecolors=bars.colour[mine],
            linewidths=0.2,
            rasterized=len(mine) > 2000,
        ),
        autolim=False,
    )


def _dress(axes: Axes, hosts: Sequence[str], lanes: Sequence[str], window: Window) -> None:
    axes.set_xlim(0, float(window.on_axis(np.array([window.finish]))[0]))
    axes.set_ylim(len(hosts) - 0.5, -0.5)
    ticks = []
    for i, host in enumerate(hosts):
        for lane in range(len(lanes)):
            top, height = _place(i, lane, len(lanes))
            ticks.append(top + height / 2)
        axes.annotate(
            host, (0, i), (-38, 0), ("axes fraction", "data"), "offset points", ha="right", va="center"
        )
        if i:
            axes.axhline(i - 0.5, color="0.8", linewidth=0.6)
    axes.set_yticks(ticks, list(lanes) * len(hosts), fontsize=6)
    axes.tick_params(axis="y", length=0, pad=2)
    axes.set_xlabel(f"time since the iteration began [{scaled(window.finish - window.start)[1]}]")
    axes.grid(True, axis="x")


def _explain(figure: Figure, colour: Mapping[str, Colour], others: int, compute: bool, need: bool) -> None:
    handles = [Patch(facecolor=value, label=job) for job, value in colour.items() if value != _OTHER]
    if others:
        handles.append(Patch(facecolor=_OTHER, label=f"{others} other jobs"))
    grey: Colour = (0.3, 0.3, 0.3)
    if compute:
        handles.append(Patch(facecolor=tint(grey, _FORWARD), label="forward"))
        handles.append(Patch(facecolor=grey, label="backward"))
    if need:
        handles.append(Patch(facecolor=grey, label="flow needed first"))
        handles.append(Patch(facecolor=tint(grey, _NEEDED_LAST), label="needed last"))
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), _LEGEND_WIDTH // (longest + 8)))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
