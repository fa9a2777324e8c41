"""Writes one merged trace of all ranks, in the formats of `formats.py`."""
