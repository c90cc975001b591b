"""The policies by name. Adding one is one file and one line here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from netsched.errors import ScenarioError
from netsched.model import Policy, Spec
from netsched.policies.aalo import Aalo
from netsched.policies.beamer import Beamer
from netsched.policies.crux import Crux
from netsched.policies.echelonflow import EchelonFlow
from netsched.policies.fair import Fair
from netsched.policies.fifo import Fifo
from netsched.policies.fifo_lm import FifoLm
from netsched.policies.geryon import Geryon
from netsched.policies.jpas import Jpas
from netsched.policies.mercury import Mercury
from netsched.policies.p3 import P3
from netsched.policies.parrot import Parrot
from netsched.policies.philae import Philae
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
    from difflib import get_close_matches  # noqa: PLC0415

    if spec.name not in kinds:
        near = get_close_matches(spec.name, kinds, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"policies: no policy {spec.name!r}{hint} There are: {', '.join(kinds)}")
    kind = kinds[spec.name]
    known: list[str] = (
        [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    )
    unknown = sorted(set(spec.params) - set(known))
    if unknown:
        has = ", ".join(known) or "none"
        raise ScenarioError(f"policies.{spec.name}: unknown parameter {unknown[0]!r}; it has: {has}")
    try:
        policy: Policy = TypeAdapter(kind).validate_python(dict(spec.params))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ScenarioError(
            f"policies.{spec.name}.{where}: {problem['input']!r} is wrong: {problem['msg']}"
        ) from error
    return policy
