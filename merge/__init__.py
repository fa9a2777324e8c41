"""Reads what all ranks recorded and produces one Chrome trace, reduced tables and reports."""
