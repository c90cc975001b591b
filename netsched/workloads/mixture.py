"""A layer of experts whose tokens come in chunks: one chunk is computed while another one is on its way.

The all-to-alls of a mixture stand on both sides of its experts: in one piece nothing is done meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from netsched.model import Ints, TaskKind
from netsched.shape import Mixture
from netsched.workloads.builder import WorkloadBuilder
from netsched.workloads.collectives import Wire, all_to_all
from netsched.workloads.device import BACKWARD_COST
from netsched.workloads.exchange import Step


@dataclass(frozen=True)
class Experts:
    """`size` bytes per host to the experts, all to all, `seconds` of forward computation, as much back."""

    seconds: float
    size: float
    mixture: Mixture
    label: str


def add_experts(
    builder: WorkloadBuilder,
    step: Step,
    item: Experts,
    hosts: Ints,
    ready: Ints,
    kind: TaskKind,
    name: str,
) -> Ints:
    """One layer of experts, for each column of `hosts` (replicas, slices) among its replicas.

    Shi et al., ScheMoE (EuroSys 2024, released code): pack and send each chunk to the experts; unpack,
    compute and pack each one, and send it back; unpack each one. A host computes one thing at a time in that
    order, and sends one chunk after the other. `ready`: (replicas, slices, k) nodes that the layer waits for.
    Returns (replicas, slices, k): the nodes that end it. INFERRED: backward does the same with gradients.
    """
    columns = [
        _Streams(builder, step, item, group, ready[:, s], kind, name).run() for s, group in enumerate(hosts.T)
    ]
    return np.stack(columns, axis=1)


@dataclass
class _Streams:
    """The two streams of each host of a group, and the nodes that each one's next operation waits for."""

    builder: WorkloadBuilder
    step: Step
    item: Experts
    group: Ints
    computed: Ints
    kind: TaskKind
    name: str

    def run(self) -> Ints:
        chunks = self.item.mixture.chunks
        coding = self.item.size / chunks / self.item.mixture.coder
        seconds = self.item.seconds / chunks
        seconds *= BACKWARD_COST if self.kind == TaskKind.BACKWARD else 1.0
        self.sent = np.empty((len(self.group), 0), np.int64)
        there, back = [], []
        for number in range(chunks):
            self._compute(coding, f"pack {number}")
            there.append(self._send("dispatch", number))
        for number in range(chunks):
            self._compute(coding, f"unpack {number}", there[number])
            self._compute(seconds, f"experts {number}", there[number])
            self._compute(coding, f"pack {number}")
            back.append(self._send("combine", number))
        for number in range(chunks):
            self._compute(coding, f"unpack {number}", back[number])
        return np.concatenate([self.computed, *back], axis=1)

    def _compute(self, seconds: float, what: str, after: Ints | None = None) -> None:
        """The next computation, after the last one and `after`; none where it takes no time."""
        waits = self.computed if after is None else np.concatenate([self.computed, after], axis=1)
        if seconds == 0:
            self.computed = waits
            return
        label = f"{self.name} {self.item.label} {what}"
        nodes = self.builder.add_tasks(
            self.step.job, self.kind, self.group, seconds, self.step.iteration, label=label
        )
        self.builder.depend_each(nodes[:, None], waits)
        self.computed = nodes[:, None]

    def _send(self, what: str, number: int) -> Ints:
        """The next all-to-all, after what has been computed and the last one."""
        label = f"all-to-all {what} {self.item.label} chunk {number} {self.name}"
        coflow = self.builder.add_coflow(self.step.job, self.step.stage, label, self.step.iteration)
        mixture = self.item.mixture
        size = self.item.size / mixture.chunks / mixture.ratio
        ready = np.concatenate([self.computed, self.sent], axis=1)
        self.sent = all_to_all(self.builder, Wire(coflow, 0, self.step.span), self.group, size, ready)
        return self.sent
