"""Finds the ranks that delay the job, with which activity, what fixing them gains, and how sure that is."""
