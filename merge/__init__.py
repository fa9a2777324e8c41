"""Reads what all ranks recorded and makes one Chrome trace, reduced tables and reports of it."""
