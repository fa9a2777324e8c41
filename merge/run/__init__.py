"""Turns paths into a run: which files are there, which rank each file belongs to, and the tables of the ranks."""
