"""The same collective found on all ranks, whoever recorded it."""
