"""Traces of other programs: found, read as far as it takes, and given to ranks."""
