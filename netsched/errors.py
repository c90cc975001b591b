"""Every failure that a user can cause or meet, as a small tree.

    NetschedError             anything below; the command line prints one line and exits
    |-- ScenarioError         exit 2: a file, a key or a value is wrong
    |-- CapabilityError       exit 4: this machine lacks something; names it and how to get it
    |-- PolicyError           exit 1: a policy broke its contract
    `-- EmulationError        exit 1: the emulated network did not do what was asked of it

A message is one line: where it is (file, key), what was found, what would be right.
"""


class NetschedError(Exception):
    """Base of all expected failures. `exit_code` is the process's exit status."""

    exit_code = 1


class ScenarioError(NetschedError):
    """The description is wrong: unknown key, bad value, impossible combination."""

    exit_code = 2


class CapabilityError(NetschedError):
    """The kernel, a program or a right is missing; the message names it and how to get it."""

    exit_code = 4


class PolicyError(NetschedError):
    """A policy returned a plan that breaks the contract of `control.decide`."""


class EmulationError(NetschedError):
    """The emulated network could not be built, or did not behave as configured."""
