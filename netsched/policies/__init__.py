"""The policies by name. Adding one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from netsched.construct import construct
from netsched.model import Policy, Spec
from netsched.policies.aalo import Aalo
from netsched.policies.beamer import Beamer
from netsched.policies.bytescheduler import ByteScheduler
from netsched.policies.crux import Crux
from netsched.policies.dear import DeAr
from netsched.policies.echelonflow import EchelonFlow
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.fifo_lm import FifoLm
from netsched.policies.geryon import Geryon
from netsched.policies.jpas import Jpas
from netsched.policies.mercury import Mercury
from netsched.policies.mg_wfbp import MgWfbp
from netsched.policies.p3 import P3
from netsched.policies.parrot import Parrot
from netsched.policies.philae import Philae
from netsched.policies.prophet import Prophet
from netsched.policies.schemoe import ScheMoe
from netsched.policies.sebf import Sebf
from netsched.policies.sincronia import Sincronia
from netsched.policies.srpt import Srpt
from netsched.policies.tensorexpress import TensorExpress
from netsched.policies.tictac import TicTac
from netsched.policies.varys_deadline import VarysDeadline

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Fair,
        Fifo,
        FifoLm,
        Srpt,
        Sebf,
        VarysDeadline,
        Sincronia,
        Aalo,
        Philae,
        TensorExpress,
        Geryon,
        Mercury,
        P3,
        TicTac,
        ByteScheduler,
        Prophet,
        MgWfbp,
        DeAr,
        ScheMoe,
        Beamer,
        Jpas,
        Parrot,
        Crux,
        EchelonFlow,
    )
}


def make(spec: Spec, kinds: Mapping[str, type[Policy]] = POLICIES) -> Policy:
    """The policy of that name with those parameters (its dataclass fields). ScenarioError if none has it.

    `kinds`: the policies by name, where there are others than the registry's (`plugins.known`).
    """
    return construct("policies", "policy", kinds, spec)
