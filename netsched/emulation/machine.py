"""The machine under an emulation: who runs first on it, and what the run takes of it."""

from __future__ import annotations

import os

import psutil

_NICE = -15


def go_first() -> str:
    """Run this process and its children ahead of the machine's other work; how, for `Outcome.mechanisms`.

    What is measured is timing, and another program's turn on a processor would show as network delay. The
    kernel keeps 5 % for the others (sched_rt_runtime_us), and an emulation sleeps most of the time.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        except PermissionError:
            return "ordinary (no right to SCHED_RR or a negative nice value: CAP_SYS_NICE)"
        return f"nice {_NICE} (no right to SCHED_RR: CAP_SYS_NICE)"
    return "SCHED_RR, priority 1"


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def work_s() -> float:
    """Processor seconds that the processes of this pid namespace and all packet handling have used so far."""
    total = 0.0
    for process in psutil.process_iter():
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    everything = psutil.cpu_times()
    return total + everything.softirq + everything.irq
