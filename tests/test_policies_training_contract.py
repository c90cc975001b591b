"""What policies promise, for the parameters that the registry's own check leaves out, on two fabrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from result_cases import star

from netsched.errors import PolicyError
from netsched.fabrics import build
from netsched.model import Policy, Spec
from netsched.policies.beamer import Beamer
from netsched.policies.geryon import Geryon
from netsched.policies.jpas import Jpas
from netsched.policies.p3 import P3
from netsched.policies.parrot import Parrot
from netsched.policies.tictac import TicTac
from netsched.testing import check_policy

LEAF_SPINE = {
    "leaves": 3,
    "spines": 2,
    "hosts_per_leaf": 2,
    "host_rate": "1Gbit/s",
    "oversubscription": 2,
    "delay": "5ms",
}
FABRICS = {"star": star(6, 1e8), "leaf_spine": build(Spec("leaf_spine", LEAF_SPINE))[1]}
VARIANTS: tuple[Policy, ...] = (
    Geryon(levels=3, split="equal"),
    Geryon(bounds=(0.1, 0.5)),
    TicTac(timing=True),
    Beamer(stages="arrival"),
    Jpas(steepness=8.0, plateau=0.5),
    Parrot(most=3.0, age=0.5, period=0.1),
)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("policy", VARIANTS, ids=repr)
def test_keeps_the_contract_of_policies(policy, fabric):
    check_policy(policy, FABRICS[fabric])


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_blocking_sender_leaves_links_idle_and_breaks_nothing_else(fabric):
    check_policy(P3(blocking=True), FABRICS[fabric])


@dataclass(frozen=True)
class Silent(P3):
    """A P3 that does not say why it leaves links idle."""

    blocking: bool = True
    idles: ClassVar[str] = ""


def test_the_check_sees_that_a_blocking_sender_leaves_links_idle():
    with pytest.raises(PolicyError, match="could have more, because no link of its path is full"):
        check_policy(Silent(), FABRICS["star"])
