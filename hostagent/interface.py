"""One interface of the configuration: which queues it is to have, and what each kind can be told."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, StrictStr
from pydantic import model_validator as check

from hostagent.section import Section
from netsched import strict
from netsched.qdisc import QueueError, Tree, port
from netsched.strict import Strict
from netsched.units import Duration, Rate, Size

_ETHERNET_HEADER: Final = 14


def _share(text: object) -> float:
    if isinstance(text, str) and text.strip().endswith("%"):
        try:
            value = float(text.strip()[:-1]) / 100
        except ValueError:
            value = -1.0
        if 0 <= value <= 1:
            return value
    raise ValueError(f"{text!r} is not a share: write a percentage, such as 0.1%")


_KNOWS: Final = {
    "htb": {"rate", "floor", "limit", "burst"},
    "prio": {"limit"},
    "ets": {"limit"},
    "pfifo_fast": set[str](),
    "auto": {"limit"},
}


class Interface(Section):
    """One port. `rate` bytes/s, `floor` a fraction, `limit` bytes, `burst` s.

    scheduler  htb: classes under a rate; prio, ets: strict bands at the NIC's own; pfifo_fast: the kernel's
               three bands; auto: the first of the last three that works (`hostagent.rungs`)
    """

    name: Annotated[StrictStr, Field(pattern=r"^[^\s/\"]{1,15}$")]
    scheduler: Literal["htb", "prio", "ets", "pfifo_fast", "auto"] = "htb"
    rate: Rate | None = None
    floor: Annotated[float, BeforeValidator(_share)] = 0.001
    limit: Size | None = None
    burst: Duration = 1e-3

    @check(mode="after")
    def _fits_scheduler(self) -> Interface:
        if self.scheduler == "htb" and self.rate is None:
            raise ValueError("rate: missing: scheduler htb needs the port's rate, such as 10Gbit/s")
        knows = _KNOWS[self.scheduler]
        given = sorted(self.model_fields_set & _KNOWS["htb"] - knows)
        if given:
            raise ValueError(
                f"{given[0]}: scheduler {self.scheduler} has none: it goes at the NIC's own rate"
            )
        return self

    def wanted(self, queues: int, mtu: int) -> Tree | Strict:
        """The port as it should be, with a scheduler whose queues the agent owns.

        QueueError if its values do not fit together, or there are no such queues.
        """
        limit = None if self.limit is None else round(self.limit)
        frame = mtu + _ETHERNET_HEADER
        if self.scheduler in ("prio", "ets"):
            held = strict.LIMIT if limit is None else limit
            return strict.port(self.scheduler, queues, limit=held, frame=frame)
        if self.rate is None:
            raise QueueError(f"scheduler {self.scheduler} has no queues of its own")
        return port(self.rate, queues, floor=self.floor, limit=limit, burst_s=self.burst, frame=frame)
