"""The base of all parameters that a workload has in a scenario.

Apart from `kind`, which knows the builder, so that what the builder itself needs can have parameters.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Params(BaseModel):
    """Parameters as a scenario gives them: an unknown key is an error, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)
