"""Two jobs that compute and send in turns over one link, one of them always first: what each gets of it.

Crux (SIGCOMM 2024) compares jobs by what an order of the two costs either. The first job does not feel the
second one, so its use of the link is periodic, and the second one's sending ends where the gaps that the
first leaves have added up. That is followed iteration by iteration until it repeats itself.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

_MOST_ITERATIONS: Final = 2000
"""Of the second job; where nothing has repeated itself by then, the mean over them is taken."""

_PHASES: Final = 10**9
"""Moments of the first job's iteration that are told apart."""

_ROUNDING: Final = 1e-12


class Cycle(NamedTuple):
    """A job's iteration in seconds: it computes `compute`, begins to send after `lead`, sends for `link`."""

    compute: float
    lead: float
    link: float

    @property
    def alone(self) -> float:
        """Seconds of an iteration without anybody else."""
        return max(self.compute, self.lead + self.link)


def first_share(job: Cycle) -> float:
    """Share of the time for which the job sends if nobody is before it."""
    return job.link / job.alone if job.link > 0 else 0.0


@lru_cache(maxsize=65536)
def second_share(first: Cycle, second: Cycle) -> float:
    """Share of the time for which `second` sends behind `first`; both begin an iteration at 0."""
    if second.link <= 0:
        return 0.0
    if first.link <= 0:
        return first_share(second)
    if first.alone <= first.link * (1 + _ROUNDING):
        return 0.0
    seen: dict[int, tuple[int, float]] = {}
    begin = 0.0
    for done in range(_MOST_ITERATIONS):
        phase = round(math.fmod(begin, first.alone) / first.alone * _PHASES) % _PHASES
        if phase in seen:
            before, since = seen[phase]
            return (done - before) * second.link / (begin - since)
        seen[phase] = done, begin
        sent = _end_in_gaps(first, begin + second.lead, second.link)
        begin = max(begin + second.compute, sent)
    return _MOST_ITERATIONS * second.link / begin


def _end_in_gaps(first: Cycle, begin: float, seconds: float) -> float:
    """When the gaps that `first` leaves from `begin` on add up to so many seconds."""
    gap = first.alone - first.link
    turn, within = divmod(begin - first.lead, first.alone)
    gaps = (turn * gap + max(0.0, within - first.link) + seconds) / gap
    whole = math.floor(gaps + _ROUNDING * max(1.0, abs(gaps)))
    rest = max(0.0, gaps - whole)
    # What fills a gap to its end is over before the first job sends again, not after it has.
    into = first.link + rest * gap if rest > _ROUNDING * max(1.0, abs(gaps)) else 0.0
    return first.lead + whole * first.alone + into


def gain_per_loss(job: Cycle, reference: Cycle, most: float) -> float:
    """Link time that `job` gains by going first over what `reference` loses by it: Crux's k of the job.

    1 where neither can have more; between 1/`most` and `most`.
    """
    gain = first_share(job) - second_share(reference, job)
    loss = first_share(reference) - second_share(job, reference)
    if max(gain, loss) <= _ROUNDING:
        return 1.0
    return min(most, max(1.0 / most, gain / loss if loss > 0 else math.inf))
