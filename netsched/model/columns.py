"""Columns: one value per row of something that can be numerous.

The public trace alone has 706,397 flows, so whatever can be numerous is a numpy array and not objects.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
ShortInts = npt.NDArray[np.int32]
"""Numbers of rows and small counts where loops wait for memory: half of it to read."""
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
