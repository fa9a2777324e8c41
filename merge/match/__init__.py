"""Matching: finds the rows of one collective on all ranks, whoever recorded them."""
