"""How long the simulator takes, one subject at a time or all.

python -m benchmarks [trace | simgrid | growth | rings | optical | circuit-delay | agent | coordinator]
                     [--repeat N] [its options]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks import (
    against_simgrid,
    agent,
    circuit_delay,
    coordinator,
    growth,
    optical,
    public_trace,
    rings,
)
from benchmarks.measure import Subject, machine
from netsched.errors import NetschedError

SUBJECTS: dict[str, Subject] = {
    "trace": public_trace,
    "simgrid": against_simgrid,
    "growth": growth,
    "rings": rings,
    "optical": optical,
    "circuit-delay": circuit_delay,
    "agent": agent,
    "coordinator": coordinator,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT")
    for name, module in SUBJECTS.items():
        text = module.__doc__ or ""
        one = subjects.add_parser(name, help=text.splitlines()[0], description=text)
        one.add_argument("--repeat", type=int, default=3, help="runs of which the median is printed")
        module.options(one)
    options = parser.parse_args()
    if options.subject is None:
        return _all()
    print(f"== {options.subject}\n{machine()}")
    SUBJECTS[options.subject].run(options)
    return 0


def _all() -> int:
    """Every subject in a process of its own, so that each has its own peak memory; all run, come what may."""
    commands = [[sys.executable, "-m", "benchmarks", name] for name in SUBJECTS]
    return max(subprocess.run(command, check=False).returncode for command in commands)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NetschedError as error:
        sys.exit(f"benchmarks: {error}")
