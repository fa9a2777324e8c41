"""Finds what changed between two runs, or two sets of runs, and how much of it is noise."""
