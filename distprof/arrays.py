"""Types of arrays for annotations; most arrays are columns of tables, or times in ns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
"""An array of several possible element types, or of a type that needs less memory."""
