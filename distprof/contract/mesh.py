"""The axes of a device mesh."""

from __future__ import annotations

MODEL_PARALLEL = ("pp", "cp", "ep", "tp")
"""Mesh dimensions whose product is mp_size. Everything else is data parallel."""
AXES = ("pp", "dp", "cp", "ep", "tp")
"""Mesh dimensions by their standard names, slowest rank order first."""
