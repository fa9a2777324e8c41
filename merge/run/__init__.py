"""Paths become a run: which files are there, which rank each belongs to, and its tables."""
