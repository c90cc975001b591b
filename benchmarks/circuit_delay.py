"""Stage completion time of a shuffle against the reconfiguration delay, per circuit scheduler.

scenarios/hybrid-shuffle.yaml; draws docs/hybrid.png (`--figure`) and prints the figures in it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from netsched import metrics, style
from netsched.bounds import lower_bounds, mean_bound
from netsched.model import Outcome, Workload
from netsched.optics import host_ports
from netsched.runner import ENGINES
from netsched.scenario import build, load
from netsched.units import duration, show_time

DELAYS = ("10us", "100us", "1ms", "10ms", "100ms", "1s")
SCENARIO = Path(__file__).parents[1] / "scenarios" / "hybrid-shuffle.yaml"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--figure", type=Path, help="write the figure there")


def mean_sct(workload: Workload, outcome: Outcome) -> float:
    return float(metrics.summary(metrics.stages(workload, outcome)["completion_time"])["mean"] or np.nan)


def run(options: argparse.Namespace) -> None:
    seconds: dict[str, list[float]] = {}
    bound = np.nan
    for delay in DELAYS:
        scenario = load(SCENARIO, [f"fabric.reconfiguration={delay}"])
        built = build(scenario)
        for position, ready in enumerate(built.ready):
            outcome = ENGINES["sim"].run(scenario, built, position, lambda _: None, Path())
            name = ready.circuits.name if ready.circuits else "none"
            seconds.setdefault(name, []).append(mean_sct(ready.workload, outcome))
            print(f"{delay:<6} {name:<10} {seconds[name][-1]:8.3f} s", flush=True)
        workload = built.ready[0].workload
        bounds = lower_bounds(workload, *host_ports(workload, built.fabric))
        bound = mean_bound(bounds.stage, np.arange(len(workload.stages.job)))["mean"] or np.nan
    print(f"{'mean SCT [s]':<12} " + " ".join(f"{show_time(duration(delay)):>8}" for delay in DELAYS))
    for name, row in seconds.items():
        print(f"{name:<12} " + " ".join(f"{value:8.3f}" for value in row))
    print(f"{'bound':<12} {bound:8.3f}")
    if options.figure:
        draw(seconds, bound, options.figure)


def draw(seconds: dict[str, list[float]], bound: float, path: Path) -> None:
    delays = [duration(delay) for delay in DELAYS]
    with plt.rc_context(style.STYLE):
        figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
        others = [name for name in seconds if name != "none"]
        for name, colour, marker in zip(others, style.colours(len(others)), "os^vDPX*", strict=True):
            axes.plot(delays, seconds[name], color=colour, marker=marker, markersize=4, label=name)
        axes.plot(delays, seconds["none"], color="0.3", linestyle="--", label="packets only")
        axes.axhline(bound, color="0.3", linestyle=":", label="bound")
        axes.set(xscale="log", yscale="log", ylabel="mean stage completion time [s]")
        axes.set_xlabel("reconfiguration delay")
        axes.set_xticks(delays, [show_time(delay) for delay in delays])
        axes.minorticks_off()
        axes.grid(True)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.savefig(path, dpi=150, metadata={"Software": None})
        plt.close(figure)
