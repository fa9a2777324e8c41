"""Reads what all ranks recorded: a run directory comes in, one Chrome trace, reduced tables and reports go out."""
