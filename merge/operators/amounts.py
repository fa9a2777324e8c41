"""Names of columns that may be unknown."""

COSTS = ("flops", "bytes")
MEMORY = ("self_allocated_bytes", "allocated_bytes", "self_freed_bytes", "freed_bytes")
"""Bytes of memory, where the timeline has them."""
