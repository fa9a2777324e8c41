"""What arrays hold, for annotations: most are columns of tables, or times in ns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
"""Of several types, or of one that needs less memory."""
