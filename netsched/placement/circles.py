"""Periodic demand on a circle, and the rotations at which the demand of several jobs fits a link best.

CASSINI (Rajasekaran, Ghobadi, Akella, NSDI 2024): time is rolled around a circle whose perimeter is a job's
iteration; jobs of one link are put on one circle, of the least common multiple, where to turn a job is to
begin it later.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from netsched.model import Floats

_MOST_ROTATIONS: Final = 20_000
"""Up to so many combinations are all tried; above, jobs are turned one at a time."""

_SAME: Final = 1e-9
"""Scores that differ by less are equal."""


@dataclass(frozen=True)
class Circle:
    """What a job sends over a link: flows of `rate` bytes/s from `begin` to `end`, every `period` seconds."""

    period: float
    begin: Floats
    end: Floats
    rate: Floats

    def demand(self, parts: int) -> Floats:
        """Mean bytes/s in each of so many equal parts of the period, the first of which begins at 0."""
        width = self.period / parts
        length = self.end - self.begin
        whole = np.floor(length / self.period)
        first = np.mod(self.begin, self.period)
        last = first + (length - whole * self.period)
        edges = np.arange(parts) * width

        def sent_before(moment: Floats) -> Floats:
            """Per part, the seconds of it before each flow's moment; what passes the period is its begin."""
            rounds = np.floor(moment / self.period)[:, None] * width
            sent: Floats = rounds + np.clip((moment % self.period)[:, None] - edges, 0.0, width)
            return sent

        busy = sent_before(last) - sent_before(first) + whole[:, None] * width
        demand: Floats = (self.rate[:, None] * busy).sum(axis=0) / width
        return demand


@dataclass(frozen=True)
class Turned:
    """The best rotations of the jobs of a link: the score, 1 if they fit, and each job's shift in seconds."""

    score: float
    shift: Floats


def perimeter(periods: Sequence[float], quantum: float, turns: int) -> float:
    """Seconds of the circle that all periods fit a whole number of times.

    The least common multiple of the periods in quanta (s). Where that is more than `turns` times the longest
    one it is the multiple of the longest, up to so many, that all others divide with the least error.
    """
    quanta = [max(1, round(period / quantum)) for period in periods]
    longest = max(periods)
    multiple = math.lcm(*quanta)
    if multiple <= turns * max(quanta):
        return multiple * longest / max(quanta)

    def error(k: int) -> float:
        around = [k * longest / period for period in periods]
        return max(abs(times - round(times)) / times for times in around)

    return min(range(1, turns + 1), key=lambda k: (round(error(k), 9), k)) * longest


def turned(circles: Sequence[Circle], capacity: float, angles: int, quantum: float, turns: int) -> Turned:
    """The rotations with the highest score: 1 - mean of (demand above `capacity`) / `capacity`.

    The circle has `angles` parts for each round of the fastest job. A job is turned by less than its own
    period. The first job stays; of two jobs the second goes to the middle of the widest range of equally good
    rotations, which is what drifting apart does least harm to.
    """
    around = perimeter([circle.period for circle in circles], quantum, turns)
    rounds = [max(1, round(around / circle.period)) for circle in circles]
    n = angles * max(rounds)
    # Row k of a job's table: its demand all around when it is turned by k parts.
    tables = []
    for circle, times in zip(circles, rounds, strict=True):
        parts = math.ceil(n / times)
        place = np.arange(n)[None, :] - np.arange(parts)[:, None]
        own = circle.demand(parts)
        tables.append(own[(place * times % n * parts // n) % parts])
    tables[0] = tables[0][:1]
    if math.prod(len(table) for table in tables) <= _MOST_ROTATIONS:
        chosen = _best_of_all(tables, capacity)
    else:
        chosen = _one_at_a_time(tables, capacity)
    total = sum(table[k] for table, k in zip(tables, chosen, strict=True))
    periods = np.array([circle.period for circle in circles])
    shift = np.array(chosen) * (around / n) * (periods * np.array(rounds) / around)
    return Turned(_score(total, capacity), np.mod(shift, periods))


def _score(total: Floats, capacity: float) -> float:
    return float(1.0 - np.maximum(total - capacity, 0.0).mean(axis=-1) / capacity)


def _scores(totals: Floats, capacity: float) -> Floats:
    scores: Floats = 1.0 - np.maximum(totals - capacity, 0.0).mean(axis=-1) / capacity
    return scores


def _best_of_all(tables: list[Floats], capacity: float) -> list[int]:
    best: tuple[float, list[int]] = (-math.inf, [])
    for others in itertools.product(*(range(len(table)) for table in tables[:-1])):
        base = sum(table[k] for table, k in zip(tables, others, strict=False))
        scores = _scores(base + tables[-1], capacity)
        if scores.max() > best[0] + _SAME:
            last = _middle(scores) if len(tables) == 2 else int(scores.argmax())
            best = float(scores.max()), [*others, last]
    return best[1]


def _middle(scores: Floats) -> int:
    """The middle of the longest run, around the circle, of rotations that are as good as the best."""
    good = scores >= scores.max() - _SAME
    if good.all():
        return 0
    n, start = len(good), int(np.argmin(good))
    longest, best, run = 0, 0, 0
    for i in range(1, n + 1):
        run = run + 1 if good[(start + i) % n] else 0
        if run > longest:
            longest, best = run, (start + i - (run - 1) // 2) % n
    return best


def _one_at_a_time(tables: list[Floats], capacity: float) -> list[int]:
    """Jobs come onto the circle one after the other, then each is turned again until nothing gets better."""
    chosen = [0] * len(tables)
    total = tables[0][0].copy()
    for i, table in enumerate(tables[1:], 1):
        chosen[i] = int(_scores(total + table, capacity).argmax())
        total = total + table[chosen[i]]
    better = True
    while better:
        better = False
        for i, table in enumerate(tables[1:], 1):
            without = total - table[chosen[i]]
            scores = _scores(without + table, capacity)
            k = int(scores.argmax())
            if scores[k] > scores[chosen[i]] + _SAME:
                chosen[i], total, better = k, without + table[k], True
    return chosen
